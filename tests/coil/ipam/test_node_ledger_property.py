"""The node's books against a naive model, under any sequence of calls."""

from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, rule

from coil.crd.names import BlockName
from coil.ipam.block import Block, BlockUse
from coil.ipam.node_ledger import Allocation, AttachmentKey, LedgerConflictError, NodeLedger
from tests.coil.ipam.test_node_ledger import OTHER, POOL, block, key

KEYS = st.builds(key, st.integers(0, 12))
POOLS = st.sampled_from([POOL, OTHER])
BLOCKS = st.builds(
    lambda index, pool, use: block(index, pool=pool, use=use), st.integers(0, 2), POOLS, st.sampled_from(BlockUse)
)


class Books(RuleBasedStateMachine):
    """The model: the blocks by name, and who holds which address, as plain dictionaries."""

    def __init__(self) -> None:
        super().__init__()
        self.ledger = NodeLedger()
        self.blocks: dict[BlockName, Block] = {}
        self.held: dict[AttachmentKey, tuple[BlockName, int]] = {}

    def free(self, item: Block) -> set[int]:
        taken = {slot for name, slot in self.held.values() if name == item.name}
        return set(range(item.size)) - taken

    @rule(item=BLOCKS)
    def add_block(self, item: Block) -> None:
        self.ledger.add_block(item)
        self.blocks[item.name] = item

    @rule(item=BLOCKS)
    def remove_block(self, item: Block) -> None:
        try:
            self.ledger.remove_block(item.name)
        except LedgerConflictError:
            assert any(name == item.name for name, _ in self.held.values())
        else:
            assert all(name != item.name for name, _ in self.held.values())
            self.blocks.pop(item.name, None)

    @rule(pool=POOLS, who=KEYS)
    def acquire(self, pool: str, who: AttachmentKey) -> None:
        given = self.ledger.acquire(POOL if pool == POOL else OTHER, who)
        open_ = [item for item in self.blocks.values() if item.pool == pool and item.use is BlockUse.OPEN]
        if who in self.held:
            assert given is not None
            assert (given.block, given.slot) == self.held[who]
        elif given is None:
            assert not any(self.free(item) for item in open_)
        else:
            chosen = self.blocks[given.block]
            assert chosen in open_
            assert given.slot in self.free(chosen)
            assert chosen.index == min(item.index for item in open_ if self.free(item))
            self.held[who] = given.block, given.slot

    @rule(item=BLOCKS, slot=st.integers(0, 3), who=KEYS, families=st.sampled_from(["4", "6", "46"]))
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

    @rule(who=KEYS)
    def release(self, who: AttachmentKey) -> None:
        given = self.ledger.release(who)
        held = self.held.pop(who, None)
        assert (None if given is None else (given.block, given.slot)) == held

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
        for pool in (POOL, OTHER):
            open_ = [item for item in self.blocks.values() if item.pool == pool and item.use is BlockUse.OPEN]
            assert self.ledger.free_count(pool) == sum(len(self.free(item)) for item in open_)
        in_use = {name for name, _ in self.held.values()}
        empty = {item.name for item in self.blocks.values() if item.name not in in_use and not item.reserved}
        assert {item.name for item in self.ledger.empty_blocks()} == empty


def assert_one_slot(allocation: Allocation, home: Block) -> None:
    assert allocation.pool == home.pool
    assert (allocation.ipv4, allocation.ipv6) == home.addresses(allocation.slot)


Books.TestCase.settings = settings(max_examples=80, stateful_step_count=40, deadline=None)
TestBooks = Books.TestCase
