"""By which addresses nodes reach each other."""

from ipaddress import ip_address

import pytest
from hypothesis import given
from hypothesis import strategies as st

from coil.crd.builtin import Node, NodeAddress, NodeStatus
from coil.crd.meta import ObjectMeta
from coil.crd.names import NodeName
from coil.neutron.underlay import Underlay, UnderlayError, plan_underlay


def node(name: str, *addresses: str) -> Node:
    listed = tuple(NodeAddress(type="InternalIP", address=address) for address in addresses)
    others = (NodeAddress(type="Hostname", address=name), NodeAddress(type="ExternalIP", address="198.51.100.9"))
    return Node(metadata=ObjectMeta(name=name), status=NodeStatus(addresses=(*others, *listed)))


OWN = NodeName("own")


@pytest.mark.parametrize(
    ("nodes", "local", "peers"),
    [
        ([node("own", "192.0.2.1")], "192.0.2.1", []),
        ([node("own", "fd00::1", "192.0.2.1"), node("b", "192.0.2.2", "fd00::2")], "192.0.2.1", ["192.0.2.2"]),
        ([node("own", "fd00::1"), node("b", "192.0.2.2", "fd00::2"), node("c", "192.0.2.3")], "fd00::1", ["fd00::2"]),
        ([node("own", "192.0.2.1"), node("b", "nonsense", "127.0.0.1", "fe80::1"), node("c")], "192.0.2.1", []),
        ([node("own", "192.0.2.1"), node("b", "192.0.2.2", "192.0.2.3")], "192.0.2.1", ["192.0.2.2"]),
        ([node("own", "192.0.2.1"), node("impostor", "192.0.2.1")], "192.0.2.1", []),
    ],
)
def test_one_address_stands_for_each_node(nodes: list[Node], local: str, peers: list[str]) -> None:
    wanted = Underlay(local=ip_address(local), peers=frozenset(map(ip_address, peers)))
    assert plan_underlay(nodes, own=OWN) == wanted


@pytest.mark.parametrize("nodes", [[], [node("own")], [node("b", "192.0.2.2")], [node("own", "0.0.0.0")]])
def test_without_an_address_of_its_own_a_node_has_no_part(nodes: list[Node]) -> None:
    with pytest.raises(UnderlayError, match="Node own has no InternalIP"):
        plan_underlay(nodes, own=OWN)


@given(st.lists(st.ip_addresses(), max_size=6), st.randoms())
def test_the_order_of_nodes_makes_no_difference(addresses: list[object], random: object) -> None:
    nodes = [node("own", "192.0.2.1"), *(node(f"n{i}", str(each)) for i, each in enumerate(addresses))]
    shuffled = list(nodes)
    random.shuffle(shuffled)  # type: ignore[attr-defined]
    planned = plan_underlay(nodes, own=OWN)
    assert planned == plan_underlay(shuffled, own=OWN)
    assert planned.local not in planned.peers
    assert all(peer.version == 4 for peer in planned.peers)
