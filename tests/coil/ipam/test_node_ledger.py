"""The node's ledger."""

import math
from dataclasses import replace
from ipaddress import IPv4Address, IPv4Network, IPv6Address, IPv6Network

import pytest

from coil.crd.names import BlockName, PoolName
from coil.ipam.block import Block, BlockUse
from coil.ipam.node_ledger import COOLDOWN, LedgerConflictError, NodeLedger, Reuse
from coil.ipam.occupancy import AddressState, AddressUse, AttachmentKey, ContainerId, Tally

POOL = PoolName("default")
OTHER = PoolName("other")
NOW = 1000.0


def key(number: int) -> AttachmentKey:
    return AttachmentKey(ContainerId(f"c{number}"), "eth0")


def block(index: int, *, pool: PoolName = POOL, bits: int = 2, use: BlockUse = BlockUse.OPEN) -> Block:
    """Dual stack, at an address that pool, index and size determine."""
    place = (0 if pool == POOL else 1 << 16) + (index << bits)
    return Block(
        BlockName(f"{pool}-{index}"),
        pool,
        index,
        IPv4Network((0x0A000000 + place, 32 - bits)),
        IPv6Network(((0xFD << 120) + place, 128 - bits)),
        use,
    )


def make_ledger(*blocks: Block, cooldown: float = 0.0) -> NodeLedger:
    ledger = NodeLedger(cooldown=cooldown)
    for item in blocks:
        ledger.add_block(item)
    return ledger


def slots(ledger: NodeLedger, *numbers: int, pool: PoolName = POOL) -> list[tuple[str, int] | None]:
    given = [ledger.acquire(pool, key(number), now=NOW) for number in numbers]
    return [None if item is None else (item.block, item.slot) for item in given]


def test_every_address_of_a_block_is_used() -> None:
    ledger = make_ledger(block(0))
    given = [ledger.acquire(POOL, key(number), now=NOW) for number in range(4)]
    assert [str(item.ipv4) for item in given if item] == ["10.0.0.0", "10.0.0.1", "10.0.0.2", "10.0.0.3"]
    assert [str(item.ipv6) for item in given if item] == ["fd00::", "fd00::1", "fd00::2", "fd00::3"]
    assert ledger.acquire(POOL, key(4), now=NOW) is None
    assert ledger.free_count(POOL, now=NOW) == 0


def test_an_address_comes_back_as_late_as_can_be() -> None:
    ledger = make_ledger(block(0))
    assert slots(ledger, 0, 1) == [("default-0", 0), ("default-0", 1)]
    ledger.release(key(0), now=NOW)
    ledger.release(key(1), now=NOW)
    assert slots(ledger, 2, 3, 4, 5) == [("default-0", 2), ("default-0", 3), ("default-0", 0), ("default-0", 1)]


def test_a_known_key_gets_the_same_answer_whatever_the_pool() -> None:
    ledger = make_ledger(block(0), block(0, pool=OTHER))
    first = ledger.acquire(POOL, key(0), now=NOW)
    assert (
        ledger.acquire(POOL, key(0), now=NOW) == ledger.acquire(OTHER, key(0), now=NOW) == ledger.find(key(0)) == first
    )
    assert ledger.free_count(POOL, now=NOW) == 3
    assert ledger.free_count(OTHER, now=NOW) == 4


def test_interfaces_of_one_container_are_apart() -> None:
    ledger = make_ledger(block(0))
    container = ContainerId("c")
    one = ledger.acquire(POOL, AttachmentKey(container, "eth0"), now=NOW)
    two = ledger.acquire(POOL, AttachmentKey(container, "net1"), now=NOW)
    assert one is not None
    assert two is not None
    assert one.ipv4 != two.ipv4


def test_blocks_fill_from_the_lowest_index() -> None:
    ledger = make_ledger(block(7), block(3))
    assert slots(ledger, 0, 1, 2, 3, 4)[3:] == [("default-3", 3), ("default-7", 0)]
    ledger.release(key(0), now=NOW)
    assert slots(ledger, 5) == [("default-3", 0)], "the freed slot of the lower block, not the fresh block"
    assert [item.name for item in ledger.blocks()] == ["default-3", "default-7"]


def test_pools_do_not_help_each_other_out() -> None:
    ledger = make_ledger(block(0, pool=OTHER))
    assert ledger.acquire(POOL, key(0), now=NOW) is None
    assert ledger.blocks(POOL) == []
    assert ledger.free_count(POOL, now=NOW) == 0


@pytest.mark.parametrize("use", [BlockUse.RESERVED, BlockUse.DRAINING])
def test_nothing_is_given_out_of_a_block_that_is_not_open(use: BlockUse) -> None:
    ledger = make_ledger(block(0, use=use))
    assert ledger.acquire(POOL, key(0), now=NOW) is None
    assert ledger.free_count(POOL, now=NOW) == 0


def test_a_block_that_is_to_go_keeps_what_is_out() -> None:
    ledger = make_ledger(block(0))
    ledger.acquire(POOL, key(0), now=NOW)
    ledger.add_block(block(0, use=BlockUse.DRAINING))
    assert ledger.acquire(POOL, key(1), now=NOW) is None
    assert ledger.find(key(0)) is not None
    assert ledger.empty_blocks() == []
    ledger.release(key(0), now=NOW)
    assert [item.use for item in ledger.empty_blocks()] == [BlockUse.DRAINING]


def test_reserved_blocks_are_never_empty() -> None:
    ledger = make_ledger(block(0), block(1, use=BlockUse.RESERVED), block(2))
    ledger.acquire(POOL, key(0), now=NOW)
    assert [item.name for item in ledger.empty_blocks()] == ["default-2"]


def test_release_is_idempotent() -> None:
    ledger = make_ledger(block(0))
    given = ledger.acquire(POOL, key(0), now=NOW)
    assert ledger.release(key(0), now=NOW) == given
    assert ledger.release(key(0), now=NOW) is None
    assert ledger.find(key(0)) is None
    assert ledger.allocations() == []


def test_a_block_in_use_is_not_removed() -> None:
    ledger = make_ledger(block(0))
    ledger.acquire(POOL, key(0), now=NOW)
    with pytest.raises(LedgerConflictError, match="1 addresses of the block 'default-0' are out"):
        ledger.remove_block(BlockName("default-0"))
    ledger.release(key(0), now=NOW)
    ledger.remove_block(BlockName("default-0"))
    ledger.remove_block(BlockName("default-0"))
    assert ledger.blocks() == []


def test_blocks_that_contradict_the_ledger_are_refused() -> None:
    ledger = make_ledger(block(0))
    with pytest.raises(LedgerConflictError, match="other networks"):
        ledger.add_block(block(0, bits=3))
    stranger = Block(BlockName("x-0"), PoolName("x"), 0, IPv4Network("10.0.0.0/30"), None)
    with pytest.raises(LedgerConflictError, match="'x-0' and 'default-0' overlap"):
        ledger.add_block(stranger)
    assert ledger.blocks() == [block(0)]


class TestAdopt:
    def test_the_kernel_is_believed(self) -> None:
        ledger = make_ledger(block(0))
        adopted = ledger.adopt(key(9), pool=POOL, ipv4=IPv4Address("10.0.0.1"), ipv6=IPv6Address("fd00::1"))
        assert (adopted.block, adopted.slot) == ("default-0", 1)
        assert ledger.adopt(key(9), pool=POOL, ipv4=IPv4Address("10.0.0.1")) == adopted, "idempotent"
        assert slots(ledger, 0, 1, 2, 3) == [("default-0", 2), ("default-0", 3), ("default-0", 0), None]

    @pytest.mark.parametrize("use", list(BlockUse))
    def test_from_any_block(self, use: BlockUse) -> None:
        ledger = make_ledger(block(0, use=use))
        assert ledger.adopt(key(0), pool=POOL, ipv6=IPv6Address("fd00::3")).ipv4 == IPv4Address("10.0.0.3")

    @pytest.mark.parametrize(
        ("ipv4", "ipv6", "message"),
        [
            (None, None, "no address was given"),
            ("10.0.0.1", "fd00::2", "not of one slot"),
            ("10.0.0.1", "fd00::4", "not of one slot"),
            ("10.0.0.9", None, "no block of the pool 'default'"),
            ("10.1.0.0", None, "no block of the pool 'default'"),
            ("10.0.0.0", None, "slot 0 of 'default-0' is held by"),
        ],
    )
    def test_contradictions(self, ipv4: str | None, ipv6: str | None, message: str) -> None:
        ledger = make_ledger(block(0), block(0, pool=OTHER))
        ledger.acquire(POOL, key(0), now=NOW)
        before = ledger.allocations()
        with pytest.raises(LedgerConflictError, match=message):
            ledger.adopt(
                key(1),
                pool=POOL,
                ipv4=None if ipv4 is None else IPv4Address(ipv4),
                ipv6=None if ipv6 is None else IPv6Address(ipv6),
            )
        assert ledger.allocations() == before
        assert ledger.free_count(POOL, now=NOW) == 3

    def test_a_key_holds_one_slot(self) -> None:
        ledger = make_ledger(block(0))
        ledger.acquire(POOL, key(0), now=NOW)
        with pytest.raises(LedgerConflictError, match="already holds slot 0"):
            ledger.adopt(key(0), pool=POOL, ipv4=IPv4Address("10.0.0.2"))


class TestCooldown:
    def test_a_freed_address_rests_for_thirty_seconds(self) -> None:
        assert COOLDOWN == 30
        ledger = NodeLedger()
        ledger.add_block(block(0, bits=0))
        assert ledger.acquire(POOL, key(0), now=NOW) is not None
        ledger.release(key(0), now=NOW + 5)
        assert ledger.acquire(POOL, key(1), now=NOW + 34.9) is None
        assert ledger.acquire(POOL, key(1), now=NOW + 35) is not None

    def test_the_search_passes_over_what_rests(self) -> None:
        ledger = make_ledger(block(0), cooldown=30)
        slots(ledger, 0, 1, 2, 3)
        for number, delay in ((0, 0), (1, 10), (3, 0)):
            ledger.release(key(number), now=NOW + delay)
        given = ledger.acquire(POOL, key(4), now=NOW + 31)
        assert given is not None
        assert given.slot == 0, "slot 3 was given out last; 0 and 3 have rested, 1 has not"

    def test_when_all_rest_the_one_that_has_rested_longest_is_given_if_need_be(self) -> None:
        ledger = make_ledger(block(0, bits=1), block(1, bits=1), cooldown=30)
        slots(ledger, 0, 1, 2, 3)
        for delay, number in enumerate((2, 0, 3, 1)):
            ledger.release(key(number), now=NOW + delay)
        later = NOW + 4
        assert ledger.acquire(POOL, key(4), now=later, reuse=Reuse.AFTER_COOLDOWN) is None
        given = [ledger.acquire(POOL, key(number), now=later, reuse=Reuse.ANY) for number in range(4, 9)]
        assert [item and (item.block, item.slot) for item in given] == [
            ("default-1", 0),
            ("default-0", 0),
            ("default-1", 1),
            ("default-0", 1),
            None,
        ]

    def test_a_rested_address_comes_first_though_any_would_do(self) -> None:
        ledger = make_ledger(block(0, bits=1), block(1, bits=1), cooldown=30)
        slots(ledger, 0, 1)
        ledger.release(key(0), now=NOW)
        given = ledger.acquire(POOL, key(2), now=NOW, reuse=Reuse.ANY)
        assert given is not None
        assert given.block == "default-1"

    def test_what_was_never_used_does_not_rest(self) -> None:
        ledger = make_ledger(block(0, bits=0), cooldown=30)
        first = ledger.acquire(POOL, key(0), now=NOW)
        assert ledger.revoke(key(0)) == first
        assert ledger.revoke(key(0)) is None
        assert ledger.acquire(POOL, key(1), now=NOW) is not None

    def test_what_was_given_early_and_never_used_goes_on_resting(self) -> None:
        ledger = make_ledger(block(0, bits=0), cooldown=30)
        slots(ledger, 0)
        ledger.release(key(0), now=NOW)
        given = ledger.acquire(POOL, key(1), now=NOW + 10, reuse=Reuse.ANY)
        assert given is not None
        ledger.revoke(key(1))
        assert ledger.cooldown_end(given) == NOW + 30
        assert ledger.acquire(POOL, key(2), now=NOW + 29) is None
        assert ledger.acquire(POOL, key(2), now=NOW + 30) is not None

    def test_nothing_that_rests_is_given_out_of_a_draining_block(self) -> None:
        ledger = make_ledger(block(0), cooldown=30)
        ledger.acquire(POOL, key(0), now=NOW)
        ledger.release(key(0), now=NOW)
        ledger.add_block(block(0, use=BlockUse.DRAINING))
        assert ledger.acquire(POOL, key(1), now=NOW, reuse=Reuse.ANY) is None
        assert ledger.next_cooldown_end(POOL, now=NOW) is None

    def test_it_is_known_when_the_next_and_the_last_have_rested(self) -> None:
        ledger = make_ledger(block(0), block(1), cooldown=30)
        slots(ledger, 0, 1, 2)
        assert ledger.next_cooldown_end(POOL, now=NOW) is None
        assert ledger.last_cooldown_end(BlockName("default-0")) == -math.inf
        ledger.release(key(1), now=NOW)
        ledger.release(key(0), now=NOW + 7)
        assert ledger.next_cooldown_end(POOL, now=NOW + 8) == NOW + 30
        assert ledger.next_cooldown_end(POOL, now=NOW + 31) == NOW + 37
        assert ledger.last_cooldown_end(BlockName("default-0")) == NOW + 37
        assert ledger.last_cooldown_end(BlockName("default-9")) == -math.inf

    def test_reads_write_nothing(self) -> None:
        ledger = make_ledger(block(0), cooldown=30)
        ledger.acquire(POOL, key(0), now=NOW)
        ledger.release(key(0), now=NOW)
        in_cooldown = Tally(blocks=1, allocated=0, cooling=1, free=3)
        assert ledger.tally(POOL, now=NOW + 31) == ledger.tallies(now=NOW + 31)[POOL] == Tally(blocks=1, free=4)
        assert ledger.free_count(POOL, now=NOW + 31) == 4
        assert ledger.next_cooldown_end(POOL, now=NOW + 31) is None
        assert ledger.occupancy(now=NOW + 31)[0].uses == ()
        # For an earlier moment it is as if nobody had looked.
        assert ledger.tally(POOL, now=NOW + 29) == in_cooldown
        assert ledger.next_cooldown_end(POOL, now=NOW + 29) == NOW + 30
        assert [use.state for use in ledger.occupancy(now=NOW + 29)[0].uses] == [AddressState.COOLING]

    @pytest.mark.parametrize("write", ["acquire", "release"])
    def test_what_has_cooled_down_is_dropped_by_the_next_write(self, write: str) -> None:
        ledger = make_ledger(block(0), cooldown=30)
        for number in range(2):
            ledger.acquire(POOL, key(number), now=NOW)
        ledger.release(key(0), now=NOW)
        if write == "acquire":
            ledger.acquire(POOL, key(2), now=NOW + 30)
        else:
            ledger.release(key(1), now=NOW + 30)
        # No record of the first is left, whatever the moment that is asked for.
        assert NOW + 30 not in {
            ledger.next_cooldown_end(POOL, now=NOW),
            ledger.last_cooldown_end(BlockName("default-0")),
        }

    def test_the_kernel_is_believed_though_the_address_should_rest(self) -> None:
        ledger = make_ledger(block(0, bits=0), cooldown=30)
        ledger.acquire(POOL, key(0), now=NOW)
        ledger.release(key(0), now=NOW)
        assert ledger.adopt(key(1), pool=POOL, ipv4=IPv4Address("10.0.0.0")).slot == 0
        assert ledger.tally(POOL, now=NOW) == Tally(blocks=1, allocated=1)


class TestResume:
    def test_the_search_goes_on_where_it_stopped(self) -> None:
        ledger = make_ledger(block(0), cooldown=30)
        ledger.adopt(key(9), pool=POOL, ipv4=IPv4Address("10.0.0.3"))
        ledger.resume(BlockName("default-0"), last=0, cooldowns={1: NOW + 3})
        assert slots(ledger, 0, 1) == [("default-0", 2), ("default-0", 0)]
        given = ledger.acquire(POOL, key(2), now=NOW + 3)
        assert given is not None
        assert given.slot == 1

    def test_hints_that_make_no_sense_change_nothing(self) -> None:
        ledger = make_ledger(block(0), cooldown=30)
        ledger.adopt(key(9), pool=POOL, ipv4=IPv4Address("10.0.0.1"))
        ledger.resume(BlockName("default-0"), last=4, cooldowns={1: NOW + 9, 4: NOW + 9, -1: NOW + 9})
        ledger.resume(BlockName("default-7"), last=0, cooldowns={0: NOW + 9})
        assert ledger.tally(POOL, now=NOW) == Tally(blocks=1, allocated=1, cooling=0, free=3)
        assert slots(ledger, 0) == [("default-0", 2)]

    def test_what_rests_is_in_order_whatever_the_order_of_the_hints(self) -> None:
        ledger = make_ledger(block(0), cooldown=30)
        ledger.resume(BlockName("default-0"), last=-1, cooldowns={0: NOW + 9, 1: NOW + 5, 2: NOW + 7})
        assert ledger.next_cooldown_end(POOL, now=NOW) == NOW + 5
        assert ledger.last_cooldown_end(BlockName("default-0")) == NOW + 9
        assert ledger.free_count(POOL, now=NOW + 6) == 2


class TestOccupancy:
    def test_who_has_what(self) -> None:
        ledger = make_ledger(block(1), block(0), block(0, pool=OTHER, use=BlockUse.RESERVED), cooldown=30)
        slots(ledger, 0, 1)
        ledger.release(key(0), now=NOW)
        first, second, third = ledger.occupancy(now=NOW + 1)
        ipv4 = [IPv4Address("10.0.0.0"), IPv4Address("10.0.0.1")]
        ipv6 = [IPv6Address("fd00::"), IPv6Address("fd00::1")]
        assert first.uses == (
            AddressUse(0, ipv4[0], ipv6[0], AddressState.COOLING, None),
            AddressUse(1, ipv4[1], ipv6[1], AddressState.ALLOCATED, key(1)),
        )
        assert (first.size, first.allocated, first.cooling, first.free) == (4, 1, 1, 2)
        assert (second.block.name, second.free, second.uses) == ("default-1", 4, ())
        assert (third.block.name, third.free) == ("other-0", 0), "nothing of it is given out"
        assert ledger.tallies(now=NOW + 1) == {POOL: Tally(2, 1, 1, 6), OTHER: Tally(1, 0, 0, 0)}
        assert ledger.tallies(now=NOW + 30)[POOL] == Tally(2, 1, 0, 7)

    def test_counts_of_a_huge_block(self) -> None:
        ledger = make_ledger(Block(BlockName("big-0"), PoolName("big"), 0, None, IPv6Network("fd00::/64")))
        ledger.acquire(PoolName("big"), key(0), now=NOW)
        assert ledger.tallies(now=NOW) == {PoolName("big"): Tally(1, 1, 0, 2**64 - 1)}
        (occupancy,) = ledger.occupancy(now=NOW)
        assert (occupancy.free, len(occupancy.uses)) == (2**64 - 1, 1)


def test_an_index_that_was_corrected_changes_the_order() -> None:
    ledger = make_ledger(block(0), block(1))
    moved = replace(block(0), index=5)
    ledger.add_block(moved)
    assert [item.name for item in ledger.blocks()] == ["default-1", "default-0"]
    assert slots(ledger, 0) == [("default-1", 0)]


def test_a_huge_block_is_no_trouble() -> None:
    ledger = NodeLedger()
    ledger.add_block(Block(BlockName("big-0"), PoolName("big"), 0, None, IPv6Network("fd00::/64")))
    last = IPv6Address("fd00::ffff:ffff:ffff:ffff")
    ledger.adopt(key(0), pool=PoolName("big"), ipv6=last)
    given = ledger.acquire(PoolName("big"), key(1), now=NOW)
    assert given is not None
    assert given.slot == 0, "the search wraps"
    assert ledger.free_count(PoolName("big"), now=NOW) == 2**64 - 2
