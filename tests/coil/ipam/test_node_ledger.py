"""The node's books."""

from ipaddress import IPv4Address, IPv4Network, IPv6Address, IPv6Network

import pytest

from coil.crd.names import BlockName, PoolName
from coil.ipam.block import Block, BlockUse
from coil.ipam.node_ledger import AttachmentKey, ContainerId, LedgerConflictError, NodeLedger

POOL = PoolName("default")
OTHER = PoolName("other")


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


def ledger(*blocks: Block) -> NodeLedger:
    books = NodeLedger()
    for item in blocks:
        books.add_block(item)
    return books


def slots(books: NodeLedger, *numbers: int, pool: PoolName = POOL) -> list[tuple[str, int] | None]:
    given = [books.acquire(pool, key(number)) for number in numbers]
    return [None if item is None else (item.block, item.slot) for item in given]


def test_every_address_of_a_block_is_used() -> None:
    books = ledger(block(0))
    given = [books.acquire(POOL, key(number)) for number in range(4)]
    assert [str(item.ipv4) for item in given if item] == ["10.0.0.0", "10.0.0.1", "10.0.0.2", "10.0.0.3"]
    assert [str(item.ipv6) for item in given if item] == ["fd00::", "fd00::1", "fd00::2", "fd00::3"]
    assert books.acquire(POOL, key(4)) is None
    assert books.free_count(POOL) == 0


def test_an_address_comes_back_as_late_as_can_be() -> None:
    books = ledger(block(0))
    assert slots(books, 0, 1) == [("default-0", 0), ("default-0", 1)]
    books.release(key(0))
    books.release(key(1))
    assert slots(books, 2, 3, 4, 5) == [("default-0", 2), ("default-0", 3), ("default-0", 0), ("default-0", 1)]


def test_a_known_key_gets_the_same_answer_whatever_the_pool() -> None:
    books = ledger(block(0), block(0, pool=OTHER))
    first = books.acquire(POOL, key(0))
    assert books.acquire(POOL, key(0)) == books.acquire(OTHER, key(0)) == books.find(key(0)) == first
    assert books.free_count(POOL) == 3
    assert books.free_count(OTHER) == 4


def test_interfaces_of_one_container_are_apart() -> None:
    books = ledger(block(0))
    container = ContainerId("c")
    one = books.acquire(POOL, AttachmentKey(container, "eth0"))
    two = books.acquire(POOL, AttachmentKey(container, "net1"))
    assert one is not None
    assert two is not None
    assert one.ipv4 != two.ipv4


def test_blocks_fill_from_the_lowest_index() -> None:
    books = ledger(block(7), block(3))
    assert slots(books, 0, 1, 2, 3, 4)[3:] == [("default-3", 3), ("default-7", 0)]
    books.release(key(0))
    assert slots(books, 5) == [("default-3", 0)], "the freed slot of the lower block, not the fresh block"
    assert [item.name for item in books.blocks()] == ["default-3", "default-7"]


def test_pools_do_not_help_each_other_out() -> None:
    books = ledger(block(0, pool=OTHER))
    assert books.acquire(POOL, key(0)) is None
    assert books.blocks(POOL) == []
    assert books.free_count(POOL) == 0


@pytest.mark.parametrize("use", [BlockUse.RESERVED, BlockUse.DRAINING])
def test_nothing_is_given_out_of_a_block_that_is_not_open(use: BlockUse) -> None:
    books = ledger(block(0, use=use))
    assert books.acquire(POOL, key(0)) is None
    assert books.free_count(POOL) == 0


def test_a_block_that_is_to_go_keeps_what_is_out() -> None:
    books = ledger(block(0))
    books.acquire(POOL, key(0))
    books.add_block(block(0, use=BlockUse.DRAINING))
    assert books.acquire(POOL, key(1)) is None
    assert books.find(key(0)) is not None
    assert books.empty_blocks() == []
    books.release(key(0))
    assert [item.use for item in books.empty_blocks()] == [BlockUse.DRAINING]


def test_reserved_blocks_are_never_empty() -> None:
    books = ledger(block(0), block(1, use=BlockUse.RESERVED), block(2))
    books.acquire(POOL, key(0))
    assert [item.name for item in books.empty_blocks()] == ["default-2"]


def test_release_is_idempotent() -> None:
    books = ledger(block(0))
    given = books.acquire(POOL, key(0))
    assert books.release(key(0)) == given
    assert books.release(key(0)) is None
    assert books.find(key(0)) is None
    assert books.allocations() == []


def test_a_block_in_use_is_not_removed() -> None:
    books = ledger(block(0))
    books.acquire(POOL, key(0))
    with pytest.raises(LedgerConflictError, match="1 addresses of the block 'default-0' are out"):
        books.remove_block(BlockName("default-0"))
    books.release(key(0))
    books.remove_block(BlockName("default-0"))
    books.remove_block(BlockName("default-0"))
    assert books.blocks() == []


def test_blocks_that_contradict_the_books_are_refused() -> None:
    books = ledger(block(0))
    with pytest.raises(LedgerConflictError, match="other networks"):
        books.add_block(block(0, bits=3))
    stranger = Block(BlockName("x-0"), PoolName("x"), 0, IPv4Network("10.0.0.0/30"), None)
    with pytest.raises(LedgerConflictError, match="'x-0' and 'default-0' overlap"):
        books.add_block(stranger)
    assert books.blocks() == [block(0)]


class TestAdopt:
    def test_the_kernel_is_believed(self) -> None:
        books = ledger(block(0))
        adopted = books.adopt(key(9), pool=POOL, ipv4=IPv4Address("10.0.0.1"), ipv6=IPv6Address("fd00::1"))
        assert (adopted.block, adopted.slot) == ("default-0", 1)
        assert books.adopt(key(9), pool=POOL, ipv4=IPv4Address("10.0.0.1")) == adopted, "idempotent"
        assert slots(books, 0, 1, 2, 3) == [("default-0", 2), ("default-0", 3), ("default-0", 0), None]

    @pytest.mark.parametrize("use", list(BlockUse))
    def test_from_any_block(self, use: BlockUse) -> None:
        books = ledger(block(0, use=use))
        assert books.adopt(key(0), pool=POOL, ipv6=IPv6Address("fd00::3")).ipv4 == IPv4Address("10.0.0.3")

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
        books = ledger(block(0), block(0, pool=OTHER))
        books.acquire(POOL, key(0))
        before = books.allocations()
        with pytest.raises(LedgerConflictError, match=message):
            books.adopt(
                key(1),
                pool=POOL,
                ipv4=None if ipv4 is None else IPv4Address(ipv4),
                ipv6=None if ipv6 is None else IPv6Address(ipv6),
            )
        assert books.allocations() == before
        assert books.free_count(POOL) == 3

    def test_a_key_holds_one_slot(self) -> None:
        books = ledger(block(0))
        books.acquire(POOL, key(0))
        with pytest.raises(LedgerConflictError, match="already holds slot 0"):
            books.adopt(key(0), pool=POOL, ipv4=IPv4Address("10.0.0.2"))


def test_a_huge_block_is_no_trouble() -> None:
    books = NodeLedger()
    books.add_block(Block(BlockName("big-0"), PoolName("big"), 0, None, IPv6Network("fd00::/64")))
    last = IPv6Address("fd00::ffff:ffff:ffff:ffff")
    books.adopt(key(0), pool=PoolName("big"), ipv6=last)
    given = books.acquire(PoolName("big"), key(1))
    assert given is not None
    assert given.slot == 0, "the search wraps"
    assert books.free_count(PoolName("big")) == 2**64 - 2
