"""A gateway that may not carry its policies for a moment keeps what costs most to load: the sources of their pods."""

import time
from ipaddress import IPv4Address

import pytest

from coil.crd.egress_gateway import PolicyRef
from coil.crd.names import NodeName
from coil.eip.claim import Eip
from coil.eip.classification import PolicyView
from coil.eip.data_plane import DataPlaneIndex
from coil.eip.eip_set import CLOSED, CLOSED_WORD, HERE, SETS
from coil.eip.tunnel_plan import Peer
from coil.kernel.family import Family, IPAddress
from coil.kernel.link import MacAddress
from coil.kernel.nft_element import ElementKey, ElementValue

OWN, OTHER = NodeName("n1"), NodeName("n2")
REF = PolicyRef(namespace="default", name="policy")
NAMES = SETS[Family.IPV4]
MARK = 0x26000100
PODS: dict[IPAddress, NodeName] = {IPv4Address("10.1.0.0") + number: OTHER for number in range(1000)}


def view(node: NodeName | None, given: NodeName | None) -> PolicyView:
    return PolicyView(ref=REF, eip=Eip(IPv4Address("203.0.113.1"), None), node=node, given=given)


def index_with(policy: PolicyView) -> DataPlaneIndex:
    index = DataPlaneIndex(clock=time.monotonic)
    index.set_own(OWN)
    index.set_policy(policy)
    index.set_peers([Peer(node=OTHER, mark=MARK, mac=MacAddress("02:00:00:00:00:01"))])
    index.set_sources(REF, PODS)
    index.take_changes()
    return index


def ways(index: DataPlaneIndex) -> dict[ElementKey, ElementValue]:
    """Those of policies."""
    return {word: path for word, path in index.elements()[NAMES.ways].items() if word != CLOSED_WORD}


def test_a_lapse_changes_only_the_path() -> None:
    index = index_with(view(OWN, None))
    [(word, path)] = ways(index).items()
    assert path == HERE
    index.set_policy(view(None, OWN))
    assert ways(index) == {word: CLOSED}
    assert len(index.take_changes()) <= 3
    index.set_policy(view(OWN, None))
    assert ways(index) == {word: HERE}
    assert len(index.take_changes()) <= 3


@pytest.mark.parametrize(("given", "known"), [(OWN, True), (OTHER, False), (None, False)])
def test_sources_are_known_before_they_are_carried(given: NodeName | None, known: bool) -> None:
    elements = index_with(view(None, given)).elements()
    assert bool(elements.get(NAMES.remote_classes)) is known
    assert not elements.get(NAMES.classes), "none of them is on this node"
