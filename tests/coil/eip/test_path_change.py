"""What moves with a policy, and what a connection needs then."""

import time
from dataclasses import replace
from ipaddress import IPv4Address, ip_address, ip_network

import pytest

from coil.crd.egress_gateway import PolicyRef
from coil.crd.names import NodeName
from coil.eip.claim import Eip
from coil.eip.classification import PolicyView
from coil.eip.data_plane import DataPlaneIndex
from coil.eip.eip_set import CLOSED, HERE
from coil.eip.path_change import PathChanges, Remedy
from coil.eip.tunnel_plan import Peer
from coil.kernel.flow import TCP, Endpoint, Flow
from coil.kernel.link import MacAddress

OWN, NEAR, FAR = NodeName("own"), NodeName("near"), NodeName("far")
MARKS = {NEAR: 0x26000100, FAR: 0x26000200}
POD, OTHER_POD, SERVER = ip_address("10.1.0.2"), ip_address("10.1.0.3"), ip_address("203.0.113.9")
EIP = IPv4Address("203.0.113.50")
REF, OTHER_REF = PolicyRef(namespace="t", name="a"), PolicyRef(namespace="t", name="b")
UDP = 17


def view(node: NodeName | None = NEAR, **changes: object) -> PolicyView:
    wanted: dict[str, object] = {
        "ref": REF,
        "priority": 100,
        "destinations": (),
        "pod_subnets": (),
        "eip": Eip(EIP, None),
        "node": node,
        "fail_open": False,
        **changes,
    }
    return PolicyView(**wanted)  # type: ignore[arg-type]


@pytest.fixture
def index() -> DataPlaneIndex:
    """A pod whose policy is carried by a near node, and taken."""
    index = DataPlaneIndex(clock=time.monotonic)
    index.set_own(OWN)
    index.set_peers([Peer(node=node, mark=mark, mac=MacAddress("02:00:00:00:00:01")) for node, mark in MARKS.items()])
    index.set_cluster([ip_network("10.0.0.0/8")])
    index.set_policies([view()])
    index.set_sources(REF, {POD: OWN})
    index.take_moves()
    return index


def flow(*, seen: str = "10.1.0.2", protocol: int = TCP, established: bool = True, mark: int = 0) -> Flow:
    pod, server = Endpoint(POD, 1000), Endpoint(SERVER, 443)
    return Flow(
        protocol=protocol,
        source=pod,
        destination=server,
        target=server,
        seen=Endpoint(ip_address(seen), 1000),
        established=established,
        mark=mark,
    )


def test_at_first_everything_has_moved() -> None:
    index = DataPlaneIndex(clock=time.monotonic)
    index.set_own(OWN)
    index.set_policies([view(OWN)])
    index.set_sources(REF, {POD: OWN})
    assert index.take_moves().path(POD, SERVER) == HERE
    assert not index.take_moves()


def test_a_policy_that_goes_to_another_node(index: DataPlaneIndex) -> None:
    assert not index.take_moves()
    index.set_policies([view(FAR)])
    moved = index.take_moves()
    assert moved
    assert moved.path(POD, SERVER) == MARKS[FAR]
    assert moved.path(POD, ip_address("10.9.9.9")) is None
    assert moved.path(OTHER_POD, SERVER) is None
    assert not index.take_moves()


def test_a_pod_that_comes_has_not_moved(index: DataPlaneIndex) -> None:
    index.set_sources(REF, {POD: OWN, OTHER_POD: OWN})
    assert not index.take_moves()


def test_a_policy_that_comes_has_moved_nobody_who_had_none(index: DataPlaneIndex) -> None:
    index.set_policies([view(), view(FAR, ref=OTHER_REF)])
    index.set_sources(OTHER_REF, {OTHER_POD: OWN})
    assert not index.take_moves()


def test_a_pod_that_changes_its_class(index: DataPlaneIndex) -> None:
    """Only if its packets go another way."""
    index.set_policies([view(), view(NEAR, ref=OTHER_REF, priority=1)])
    index.set_sources(OTHER_REF, {POD: OWN})
    assert not index.take_moves()
    index.set_policies([view(), view(FAR, ref=OTHER_REF, priority=200)])
    assert index.take_moves().path(POD, SERVER) == MARKS[FAR]
    index.set_sources(OTHER_REF, {})
    assert index.take_moves().path(POD, SERVER) == MARKS[NEAR]


def test_narrowed_destinations(index: DataPlaneIndex) -> None:
    narrow = view(NEAR, ref=OTHER_REF, destinations=(ip_network("203.0.113.0/28"),), priority=200)
    index.set_policies([view(), narrow])
    index.set_sources(OTHER_REF, {POD: OWN})
    index.take_moves()
    index.set_policies([view(), replace(narrow, node=OWN)])
    moved = index.take_moves()
    assert moved.path(POD, SERVER) == HERE
    # The others go where they went: probed for nothing, which is harmless.
    assert moved.path(POD, ip_address("203.0.113.16")) == MARKS[NEAR]


def test_ranges_of_sources(index: DataPlaneIndex) -> None:
    ranged = view(ref=OTHER_REF, pod_subnets=(ip_network("10.1.0.0/24"), ip_network("10.3.0.0/24")), priority=1)
    index.set_policies([view(), ranged])
    index.take_moves()
    index.set_policies([view(), replace(ranged, node=FAR)])
    moved = index.take_moves()
    assert moved.path(OTHER_POD, SERVER) == MARKS[FAR]
    assert moved.path(ip_address("10.3.0.255"), SERVER) == MARKS[FAR]
    assert moved.path(ip_address("10.2.0.1"), SERVER) is None
    # A pod that is named is of its own class, whose other policy counts.
    assert moved.path(POD, SERVER) is None


@pytest.mark.parametrize(
    ("node", "connection", "remedy"),
    [
        (FAR, flow(), Remedy.PROBE),
        (FAR, flow(established=False), Remedy.NONE),
        (FAR, flow(protocol=UDP, established=False), Remedy.NONE),
        (FAR, flow(seen=str(EIP)), Remedy.BOTH),
        (FAR, flow(seen=str(EIP), protocol=UDP, established=False), Remedy.FORGET),
        (OWN, flow(), Remedy.BOTH),
        (OWN, flow(protocol=UDP, established=False), Remedy.FORGET),
        (OWN, flow(seen=str(EIP)), Remedy.PROBE),
        (OWN, flow(mark=MARKS[NEAR]), Remedy.NONE),
        (None, flow(), Remedy.NONE),
    ],
)
def test_remedies(index: DataPlaneIndex, node: NodeName | None, connection: Flow, remedy: Remedy) -> None:
    index.set_policies([view(node)])
    moved = index.take_moves()
    assert moved.concerns(POD)
    assert moved.path(POD, SERVER) == {FAR: MARKS[FAR], OWN: HERE, None: CLOSED}[node]
    assert moved.remedy(connection) is remedy


def test_who_has_not_moved_needs_nothing() -> None:
    assert PathChanges().remedy(flow()) is Remedy.NONE
