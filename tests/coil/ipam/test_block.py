"""Blocks as nodes see them."""

from datetime import UTC, datetime
from ipaddress import IPv4Address, IPv4Network, IPv6Address, IPv6Network

import pytest

from coil.crd.address_block import AddressBlock
from coil.crd.meta import ObjectMeta
from coil.crd.names import BlockName, PoolName
from coil.ipam.block import Block, BlockUse, MalformedBlockError, parse_block

LABELS = {"coil.cybozu.com/pool": "pool", "coil.cybozu.com/node": "node1"}


def document(
    ipv4: str | None,
    ipv6: str | None = None,
    *,
    deleted: datetime | None = None,
    reserved: str = "",
    occupied: str = "",
) -> AddressBlock:
    labels = LABELS | ({"coil.cybozu.com/reserved": reserved} if reserved else {})
    annotations = {"coil.cybozu.com/occupied-by": occupied} if occupied else {}
    metadata = ObjectMeta(name="pool-3", labels=labels, annotations=annotations, deletion_timestamp=deleted)
    return AddressBlock(metadata=metadata, index=3, ipv4=ipv4, ipv6=ipv6)


def test_parsing() -> None:
    assert parse_block(document("10.0.0.96/27", "fd01::60/123")) == Block(
        BlockName("pool-3"), PoolName("pool"), 3, IPv4Network("10.0.0.96/27"), IPv6Network("fd01::60/123")
    )


def test_use() -> None:
    now = datetime(2030, 1, 1, tzinfo=UTC)
    assert parse_block(document("10.0.0.0/27")).use is BlockUse.OPEN
    assert parse_block(document("10.0.0.0/27", deleted=now)).use is BlockUse.DRAINING
    assert parse_block(document("10.0.0.0/27", reserved="true")).use is BlockUse.RESERVED
    assert parse_block(document("10.0.0.0/27", occupied="n7")).use is BlockUse.OCCUPIED
    assert parse_block(document("10.0.0.0/27", occupied="n7", deleted=now)).use is BlockUse.OCCUPIED
    assert parse_block(document("10.0.0.0/27", occupied="n7", reserved="true")).use is BlockUse.RESERVED
    assert parse_block(document("10.0.0.0/27", reserved="true", deleted=now)).reserved
    assert parse_block(document("10.0.0.0/27", reserved="no")).use is BlockUse.OPEN


@pytest.mark.parametrize(
    ("ipv4", "ipv6"), [(None, None), ("nonsense", None), ("10.0.0.1/27", None), ("10.0.0.0/27", "fd01::/120")]
)
def test_what_is_no_block(ipv4: str | None, ipv6: str | None) -> None:
    with pytest.raises(MalformedBlockError, match="'pool-3'"):
        parse_block(document(ipv4, ipv6))


def test_slots_and_addresses() -> None:
    block = parse_block(document("10.0.0.96/27", "fd01::60/123"))
    assert block.size == 32
    assert block.addresses(0) == (IPv4Address("10.0.0.96"), IPv6Address("fd01::60"))
    assert block.addresses(31) == (IPv4Address("10.0.0.127"), IPv6Address("fd01::7f"))
    with pytest.raises(IndexError):
        block.addresses(32)
    assert block.slot_of(IPv4Address("10.0.0.97")) == 1
    assert block.slot_of(IPv6Address("fd01::7f")) == 31
    assert block.slot_of(IPv4Address("10.0.0.128")) is None
    assert parse_block(document("10.0.0.96/27")).slot_of(IPv6Address("fd01::60")) is None
