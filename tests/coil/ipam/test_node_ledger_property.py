"""The node's ledger against a naive model, under any sequence of calls."""

from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, rule

from coil.crd.names import BlockName
from coil.ipam.block import Block, BlockUse
from coil.ipam.node_ledger import Allocation, LedgerConflictError, NodeLedger, Reuse
from coil.ipam.occupancy import AddressState, AttachmentKey, Tally
from tests.coil.ipam.test_node_ledger import OTHER, POOL, block, key

KEYS = st.builds(key, st.integers(0, 12))
POOLS = st.sampled_from([POOL, OTHER])
BLOCKS = st.builds(
    lambda index, pool, use: block(index, pool=pool, use=use), st.integers(0, 2), POOLS, st.sampled_from(BlockUse)
)
SLOTS = st.integers(0, 3)
COOLDOWN = 30.0


class LedgerModel(RuleBasedStateMachine):
    """The model: the blocks by name, who holds which address, and until when which one rests, as plain dictionaries."""

    def __init__(self) -> None:
        super().__init__()
        self.ledger = NodeLedger(cooldown=COOLDOWN)
        self.now = 0.0
        self.blocks: dict[BlockName, Block] = {}
        self.held: dict[AttachmentKey, tuple[BlockName, int]] = {}
        self.until: dict[tuple[BlockName, int], float] = {}
        self.interrupted: dict[tuple[BlockName, int], float] = {}

    def taken(self, item: Block) -> set[int]:
        return {slot for name, slot in self.held.values() if name == item.name}

    def in_cooldown(self, item: Block) -> set[int]:
        return {slot for (name, slot), until in self.until.items() if name == item.name and until > self.now}

    def free(self, item: Block) -> set[int]:
        return set(range(item.size)) - self.taken(item) - self.in_cooldown(item)

    def open(self, pool: str) -> list[Block]:
        return [item for item in self.blocks.values() if item.pool == pool and item.use is BlockUse.OPEN]

    @rule(seconds=st.sampled_from([0.5, 7.0, 15.0, 30.0]))
    def time_passes(self, seconds: float) -> None:
        self.now += seconds

    @rule(item=BLOCKS)
    def add_block(self, item: Block) -> None:
        self.ledger.add_block(item)
        self.blocks[item.name] = item

    @rule(item=BLOCKS)
    def remove_block(self, item: Block) -> None:
        try:
            self.ledger.remove_block(item.name)
        except LedgerConflictError:
            assert self.taken(item)
        else:
            assert not self.taken(item)
            self.blocks.pop(item.name, None)
            self.until = {place: until for place, until in self.until.items() if place[0] != item.name}

    @rule(pool=POOLS, who=KEYS, reuse=st.sampled_from(Reuse))
    def acquire(self, pool: str, who: AttachmentKey, reuse: Reuse) -> None:
        given = self.ledger.acquire(POOL if pool == POOL else OTHER, who, now=self.now, reuse=reuse)
        open_ = self.open(pool)
        rested = [item for item in open_ if self.free(item)]
        resting = [(item.name, slot) for item in open_ for slot in self.in_cooldown(item)]
        if who in self.held:
            assert given is not None
            assert (given.block, given.slot) == self.held[who]
            return
        if given is None:
            assert not rested
            assert reuse is Reuse.AFTER_COOLDOWN or not resting
            return
        chosen = self.blocks[given.block]
        assert chosen in open_
        if rested:
            assert given.slot in self.free(chosen)
            assert chosen.index == min(item.index for item in rested)
        else:
            assert reuse is Reuse.ANY
            place = given.block, given.slot
            assert self.until[place] == min(self.until[place] for place in resting)
            self.interrupted[place] = self.until[place]
        self.until.pop((given.block, given.slot), None)
        self.held[who] = given.block, given.slot

    @rule(item=BLOCKS, slot=SLOTS, who=KEYS, families=st.sampled_from(["4", "6", "46"]))
    def adopt(self, item: Block, slot: int, who: AttachmentKey, families: str) -> None:
        ipv4, ipv6 = item.addresses(slot)
        place = item.name, slot
        holders = {held: holder for holder, held in self.held.items()}
        possible = item.name in self.blocks and holders.get(place, who) == who and self.held.get(who, place) == place
        try:
            self.ledger.adopt(
                who, pool=item.pool, ipv4=ipv4 if "4" in families else None, ipv6=ipv6 if "6" in families else None
            )
        except LedgerConflictError:
            assert not possible
        else:
            assert possible
            self.held[who] = place
            self.until.pop(place, None)

    @rule(who=KEYS)
    def release(self, who: AttachmentKey) -> None:
        given = self.ledger.release(who, now=self.now)
        place = self._let_go(given, who)
        if place is not None:
            self.until[place] = self.now + COOLDOWN
            self.interrupted.pop(place, None)

    @rule(who=KEYS)
    def revoke(self, who: AttachmentKey) -> None:
        given = self.ledger.revoke(who)
        place = self._let_go(given, who)
        if given is not None and place is not None:
            if place in self.interrupted:
                self.until[place] = self.interrupted.pop(place)
            left = self.until.get(place, self.now) - self.now
            assert max(self.ledger.cooldown_end(given) - self.now, 0) == max(left, 0)

    def _let_go(self, given: Allocation | None, who: AttachmentKey) -> tuple[BlockName, int] | None:
        held = self.held.pop(who, None)
        assert (None if given is None else (given.block, given.slot)) == held
        return held

    @rule(
        item=BLOCKS,
        last=st.integers(-2, 5),
        rests=st.dictionaries(st.integers(-1, 5), st.floats(0, COOLDOWN), max_size=4),
    )
    def resume(self, item: Block, last: int, rests: dict[int, float]) -> None:
        cooldowns = {slot: self.now + seconds for slot, seconds in rests.items()}
        self.ledger.resume(item.name, last=last, cooldowns=cooldowns)
        if item.name in self.blocks:
            held = self.taken(item)
            self.until |= {
                (item.name, slot): until
                for slot, until in cooldowns.items()
                if slot not in held and slot in range(item.size)
            }

    @invariant()
    def no_address_is_out_twice(self) -> None:
        out = self.ledger.allocations()
        for family in ("ipv4", "ipv6"):
            addresses = [getattr(item, family) for item in out]
            assert len(set(addresses)) == len(addresses)

    @invariant()
    def the_accounts_agree(self) -> None:
        out = {item.key: (item.block, item.slot) for item in self.ledger.allocations()}
        assert out == self.held
        assert {item.name: item for item in self.ledger.blocks()} == self.blocks
        for who, place in self.held.items():
            found = self.ledger.find(who)
            assert found is not None
            assert (found.block, found.slot) == place
            assert_one_slot(found, self.blocks[found.block])
        in_use = {name for name, _ in self.held.values()}
        empty = {item.name for item in self.blocks.values() if item.name not in in_use and not item.reserved}
        assert {item.name for item in self.ledger.empty_blocks()} == empty

    @invariant()
    def the_counts_agree(self) -> None:
        tallies = self.ledger.tallies(now=self.now)
        assert tallies.keys() == {item.pool for item in self.blocks.values()}
        for pool in (POOL, OTHER):
            blocks = [item for item in self.blocks.values() if item.pool == pool]
            free = sum(len(self.free(item)) for item in self.open(pool))
            allocated, cooling = (sum(map(len, map(state, blocks))) for state in (self.taken, self.in_cooldown))
            assert tallies.get(pool, Tally()) == Tally(len(blocks), allocated, cooling, free)
            assert self.ledger.free_count(pool, now=self.now) == free
            ends = [
                until
                for (name, _), until in self.until.items()
                if until > self.now and self.blocks[name] in self.open(pool)
            ]
            assert self.ledger.next_cooldown_end(pool, now=self.now) == min(ends, default=None)
        for occupancy in self.ledger.occupancy(now=self.now):
            states = {use.slot: use.state for use in occupancy.uses}
            assert {slot for slot in states if states[slot] is AddressState.COOLING} == self.in_cooldown(
                occupancy.block
            )
            assert {slot for slot in states if states[slot] is AddressState.ALLOCATED} == self.taken(occupancy.block)


def assert_one_slot(allocation: Allocation, home: Block) -> None:
    assert allocation.pool == home.pool
    assert (allocation.ipv4, allocation.ipv6) == home.addresses(allocation.slot)


LedgerModel.TestCase.settings = settings(max_examples=80, stateful_step_count=40, deadline=None)
TestLedgerModel = LedgerModel.TestCase
