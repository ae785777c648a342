"""Random worlds for indexes: few addresses, so that much of it overlaps."""

from ipaddress import IPv4Address, IPv6Address, ip_network

from hypothesis import strategies as st

from coil.crd.egress_gateway import PolicyRef
from coil.crd.names import NodeName
from coil.eip.claim import Eip
from coil.eip.classification import PolicyView
from coil.eip.data_plane import DataPlaneIndex
from coil.eip.tunnel_plan import Peer
from coil.kernel.family import IPAddress, IPNetwork
from coil.kernel.link import MacAddress
from tests.coil.eip.packet_oracle import World

OWN = NodeName("here")
OTHERS = (NodeName("b"), NodeName("c"), NodeName("d"))
REFS = tuple(PolicyRef(namespace=namespace, name=name) for namespace in ("x", "y") for name in ("1", "2", "3"))

SOURCES: tuple[IPAddress, ...] = (
    *(IPv4Address(f"10.0.0.{last}") for last in range(8)),
    *(IPv6Address(f"fd00::{last:x}") for last in range(8)),
)
DESTINATIONS: tuple[IPAddress, ...] = (
    *(IPv4Address(f"8.8.8.{last}") for last in range(8)),
    *(IPv4Address(f"10.0.0.{last}") for last in range(4)),
    *(IPv6Address(f"2001:db8::{last:x}") for last in range(8)),
    IPv6Address("fd00::1"),
    IPv4Address("169.254.20.10"),
    IPv6Address("ff02::1"),
)
_networks = st.builds(
    lambda address, cut: ip_network((address, address.max_prefixlen - cut), strict=False),
    st.sampled_from((*SOURCES, *DESTINATIONS[:8], *DESTINATIONS[12:20])),
    st.sampled_from((0, 0, 1, 2, 3, 24)),
)
_source_networks = st.builds(
    lambda address, cut: ip_network((address, address.max_prefixlen - cut), strict=False),
    st.sampled_from(SOURCES),
    st.integers(0, 3),
)
_eips = st.sampled_from(
    (
        None,
        Eip(ipv4=IPv4Address("192.0.2.1")),
        Eip(ipv6=IPv6Address("2001:db8:1::1")),
        Eip(ipv4=IPv4Address("192.0.2.2"), ipv6=IPv6Address("2001:db8:1::2")),
    )
)


def policies(ref: PolicyRef) -> st.SearchStrategy[PolicyView]:
    return st.builds(
        PolicyView,
        ref=st.just(ref),
        priority=st.integers(0, 2),
        destinations=st.lists(_networks, max_size=3).map(tuple),
        pod_subnets=st.lists(_source_networks, max_size=2).map(tuple),
        eip=_eips,
        node=st.sampled_from((OWN, OWN, *OTHERS, None)),
        fail_open=st.booleans(),
        closed=st.booleans(),
        strict=st.booleans(),
    )


pods = st.dictionaries(st.sampled_from(SOURCES), st.sampled_from((OWN, OTHERS[0])), max_size=4)
clusters: st.SearchStrategy[tuple[IPNetwork, ...]] = st.lists(_networks, max_size=3).map(tuple)
peers = st.sets(st.sampled_from(OTHERS)).map(lambda nodes: {node: mark_of(node) for node in sorted(nodes)})


def mark_of(node: NodeName) -> int:
    return 0x26000100 * 1 + (OTHERS.index(node) << 8)


@st.composite
def worlds(draw: st.DrawFn) -> World:
    refs = draw(st.sets(st.sampled_from(REFS)))
    return World(
        own=OWN,
        policies=tuple(draw(policies(ref)) for ref in sorted(refs)),
        sources=draw(st.dictionaries(st.sampled_from(REFS), pods)),
        cluster=draw(clusters),
        marks=draw(peers),
    )


def tell(index: DataPlaneIndex, world: World) -> None:
    """Everything, whatever the index has been told before."""
    index.set_own(world.own)
    index.set_policies(world.policies)
    for ref in REFS:
        index.set_sources(ref, world.sources.get(ref, {}))
    index.set_cluster(world.cluster)
    tell_peers(index, world)


def tell_peers(index: DataPlaneIndex, world: World) -> None:
    index.set_peers([Peer(node=node, mark=mark, mac=mac_of(node)) for node, mark in world.marks.items()])


def mac_of(node: NodeName) -> MacAddress:
    return MacAddress(f"02:00:00:00:00:{OTHERS.index(node):02x}")
