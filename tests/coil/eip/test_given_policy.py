"""A gateway that may not carry its policies for a moment keeps what costs most to load: the sources of their pods."""

from ipaddress import IPv4Address

import pytest

from coil.crd.egress_gateway import PolicyRef
from coil.crd.names import NodeName
from coil.eip.claim import Eip
from coil.eip.classification import PolicyView
from coil.eip.data_plane import DataPlaneIndex
from coil.eip.eip_set import CLOSED, HERE, SETS, WAYS
from coil.kernel.family import Family, IPAddress

OWN, OTHER = NodeName("n1"), NodeName("n2")
REF = PolicyRef(namespace="default", name="policy")
NAMES = SETS[Family.IPV4]
PODS: dict[IPAddress, NodeName] = {IPv4Address("10.1.0.0") + number: OTHER for number in range(1000)}


def view(node: NodeName | None, given: NodeName | None) -> PolicyView:
    return PolicyView(ref=REF, eip=Eip(IPv4Address("203.0.113.1"), None), node=node, given=given)


def book_with(policy: PolicyView) -> DataPlaneIndex:
    book = DataPlaneIndex()
    book.set_own(OWN)
    book.set_policy(policy)
    book.set_sources(REF, PODS)
    book.take_changes()
    return book


def test_a_lapse_changes_only_the_way() -> None:
    book = book_with(view(OWN, None))
    [(word, path)] = book.elements()[WAYS].items()
    assert path == HERE
    book.set_policy(view(None, OWN))
    assert book.elements()[WAYS] == {word: CLOSED}
    assert len(book.take_changes()) <= 3
    book.set_policy(view(OWN, None))
    assert book.elements()[WAYS] == {word: HERE}
    assert len(book.take_changes()) <= 3


@pytest.mark.parametrize(("given", "known"), [(OWN, True), (OTHER, False), (None, False)])
def test_sources_are_known_before_they_are_carried(given: NodeName | None, known: bool) -> None:
    elements = book_with(view(None, given)).elements()
    assert bool(elements.get(NAMES.classes)) is known
