"""The node as a document: the addresses of the ledger, the names of the journal."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from ipaddress import IPv4Address, IPv4Network, IPv6Network

from coil.crd.names import BlockName, NodeName, PoolName
from coil.ipam.block import Block, BlockUse
from coil.ipam.node_ledger import NodeLedger
from coil.ipam.occupancy import AttachmentKey, ContainerId
from coil.page.node_document import AddressCounts, AddressState, NodeDocument, RouteTablesDocument
from coil.podnet.plan import RoutePolicy
from coil.runtime.flag import Endpoint, parse_settings
from coild.addresses.journal import FormerHolder
from coild.addresses.report import describe_pools
from coild.main import describe_node
from coild.model.attachment import UNKNOWN_HOLDER, Holder, PodName
from coild.settings import Settings

NOON = datetime(2030, 1, 1, 12, tzinfo=UTC)
WEB = Holder(PodName("apps", "web"), NOON)


def key(container: str) -> AttachmentKey:
    return AttachmentKey(ContainerId(container), "eth0")


def block(pool: str, index: int, *, ipv4: str = "", ipv6: str = "", use: BlockUse = BlockUse.OPEN) -> Block:
    networks = (IPv4Network(ipv4) if ipv4 else None, IPv6Network(ipv6) if ipv6 else None)
    return Block(BlockName(f"{pool}-{index}"), PoolName(pool), index, *networks, use)


@dataclass(frozen=True)
class Known:
    """Implements `Holders`: who has an address by container, who had it by block and slot."""

    holders: Mapping[str, Holder] = field(default_factory=dict)
    had: Mapping[BlockName, dict[int, FormerHolder]] = field(default_factory=dict)

    def holder(self, key: AttachmentKey) -> Holder:
        return self.holders.get(key.container_id, UNKNOWN_HOLDER)

    def former(self, block: BlockName) -> dict[int, FormerHolder]:
        return self.had.get(block, {})


def describe(ledger: NodeLedger, *, now: float = 0.0, **holders: Holder) -> NodeDocument:
    """`holders` by container."""
    document = describe_pools(ledger.occupancy(now=now), Known(holders))
    return describe_node(NodeName("node1"), document, routes=RoutePolicy(pod_table=1016), now=NOON)


def test_a_node_without_blocks() -> None:
    document = describe(NodeLedger(cooldown=30.0))
    assert (document.node, document.at, document.pools) == ("node1", NOON, ())
    assert document.tables == RouteTablesDocument(pods=1016, export=119, protocol=30)
    assert document.addresses == AddressCounts()


def test_what_is_out_and_who_has_it() -> None:
    ledger = NodeLedger(cooldown=30.0)
    ledger.add_block(block("default", 0, ipv4="10.1.0.0/30", ipv6="fd00::/126"))
    ledger.acquire(PoolName("default"), key("c1"), now=0.0)
    ledger.acquire(PoolName("default"), key("c2"), now=0.0)
    ledger.release(key("c2"), now=1.0)
    document = describe(ledger, now=2.0, c1=WEB)
    (pool,) = document.pools
    (shown,) = pool.blocks
    assert document.addresses == pool.addresses == shown.addresses
    assert shown.addresses == AddressCounts(total=4, allocated=1, cooling=1, free=2)
    first, second = shown.used
    assert (first.state, first.namespace, first.pod, first.container) == (AddressState.ALLOCATED, "apps", "web", "c1")
    assert (first.interface, first.since, str(first.ipv6)) == ("eth0", NOON, "fd00::")
    assert (second.state, second.slot, second.ipv4) == (AddressState.COOLING, 1, IPv4Address("10.1.0.1"))
    assert (second.pod, second.container, second.since) == (None, None, None)


def test_who_had_an_address_before() -> None:
    ledger = NodeLedger(cooldown=30.0)
    ledger.add_block(block("default", 0, ipv4="10.1.0.0/30", ipv6="fd00::/126"))
    had = FormerHolder(key("c0"), PodName("apps", "old"), NOON, NOON + timedelta(hours=1))
    known = Known(had={BlockName("default-0"): {2: had, 4: had, -1: had}})
    [pool] = describe_pools(ledger.occupancy(now=0.0), known)
    [shown] = pool.blocks[0].former
    assert (shown.slot, str(shown.ipv4), str(shown.ipv6)) == (2, "10.1.0.2", "fd00::2")
    assert (shown.namespace, shown.pod, shown.container, shown.interface) == ("apps", "old", "c0", "eth0")
    assert (shown.since, shown.until) == (NOON, NOON + timedelta(hours=1))


def test_an_attachment_that_nobody_noted() -> None:
    ledger = NodeLedger(cooldown=30.0)
    ledger.add_block(block("default", 0, ipv4="10.1.0.0/30"))
    ledger.acquire(PoolName("default"), key("c1"), now=0.0)
    (used,) = describe(ledger).pools[0].blocks[0].used
    assert (used.container, used.pod, used.since) == ("c1", None, None)


def test_blocks_by_pool_and_what_they_withhold() -> None:
    ledger = NodeLedger(cooldown=30.0)
    ledger.add_block(block("lab", 2, ipv4="10.2.0.0/30", use=BlockUse.RESERVED))
    ledger.add_block(block("default", 7, ipv4="10.1.0.0/30"))
    ledger.acquire(PoolName("default"), key("c1"), now=0.0)
    ledger.add_block(block("default", 7, ipv4="10.1.0.0/30", use=BlockUse.DRAINING))
    ledger.add_block(block("default", 9, ipv6="fd00::/64"))
    document = describe(ledger)
    assert [(pool.name, [shown.name for shown in pool.blocks]) for pool in document.pools] == [
        ("default", ["default-7", "default-9"]),
        ("lab", ["lab-2"]),
    ]
    draining, huge = document.pools[0].blocks
    assert (draining.use.value, draining.addresses) == ("draining", AddressCounts(total=4, allocated=1, withheld=3))
    assert (huge.addresses.free, huge.used) == (2**64, ())
    assert document.pools[1].addresses == AddressCounts(total=4, withheld=4)


def test_where_it_is_by_default() -> None:
    def parse(*arguments: str) -> Settings:
        return parse_settings(Settings, arguments, {"COIL_NODE_NAME": "node1"}, program="coild", about="")

    assert parse().inspect_addr == Endpoint("127.0.0.1", 6666)
    assert parse().inspect_page_addr == Endpoint("127.0.0.1", 9383)
    assert parse("--inspect-addr=off").inspect_addr is None
    assert parse("--inspect-page-addr=[::1]:80").inspect_page_addr == Endpoint("::1", 80)
