"""What the API server is filled with decodes as what the programs read."""

from ipaddress import IPv4Address

import msgspec
import pytest

from coil.crd.egress_gateway import EgressGateway
from coil.crd.egress_gateway_policy import EgressGatewayPolicy
from coil.crd.egress_tunnel import EgressTunnel
from coil.eip.tunnel_plan import parse_mark
from coil_egress_agent.eip.change_tracker import EndpointSlice, source_nodes
from coil_egress_agent.eip.mesh import plan_peers
from integration.bench import eip_text
from integration.bench.bare_client import Call
from integration.bench.eip_crowd import PODS, pod_address, policy_ref
from integration.bench.ipam_text import node_name

ADDRESS = IPv4Address("192.0.2.7")


def merged(*calls: Call) -> bytes:
    """The object after the calls: what is created, and what is told then."""
    documents = [msgspec.json.decode(call.body or b"{}") for call in calls]
    whole = documents[0]
    for document in documents[1:]:
        whole |= document
    return msgspec.json.encode(whole)


def test_a_tunnel_is_a_peer() -> None:
    tunnels = [
        msgspec.json.decode(merged(*eip_text.create_tunnel(number, ADDRESS + number)), type=EgressTunnel)
        for number in range(100)
    ]
    peers = plan_peers(tunnels, node=node_name(0))
    assert len(peers) == 99
    assert parse_mark(tunnels[99].status.mark) == 0x26006400
    assert tunnels[99].metadata.name == node_name(99)


def test_the_gateway_gives_all_policies_to_one_node() -> None:
    calls = (eip_text.create_gateway(node=3, hosts=()), eip_text.place_policies(5, node=3, term=2))
    gateway = msgspec.json.decode(merged(*calls), type=EgressGateway)
    assert gateway.spec.node_selector.selector.selects({"kubernetes.io/hostname": node_name(3)})
    [listed] = gateway.status.node_list
    assert (listed.name, listed.term) == (node_name(3), 2)
    assert [ref for eip in listed.eips for ref in eip.policies] == [policy_ref(number) for number in range(5)]


def test_a_policy_is_placed_where_the_gateway_says() -> None:
    policy = msgspec.json.decode(merged(*eip_text.create_policy(4, node=3)), type=EgressGatewayPolicy)
    assert policy.status.node == node_name(3)
    assert policy.metadata.name == policy_ref(4).name
    changed = msgspec.json.decode(eip_text.change_policy(4, ["198.51.100.1/32"]).body or b"")
    assert changed["spec"]["destSubnet"] == [*policy.spec.dest_subnet, "198.51.100.1/32"]


def test_the_slices_spread_pods_over_all_nodes() -> None:
    slice_ = msgspec.json.decode(eip_text.create_slice(7, nodes=100).body or b"", type=EndpointSlice)
    sources = source_nodes([slice_])
    assert len(sources) == len(set(sources.values())) == PODS
    assert sources[pod_address(7, 0)] == node_name(7)


@pytest.mark.parametrize("places", [range(0), range(1), range(100), [42]])
def test_replaced_pods_stay_on_their_nodes(places: range | list[int]) -> None:
    before = msgspec.json.decode(eip_text.create_slice(7, nodes=100).body or b"", type=EndpointSlice)
    patch = eip_text.replace_pods(7, places, nodes=100, lives=1)
    after = msgspec.json.decode(merged(eip_text.create_slice(7, nodes=100), patch), type=EndpointSlice)
    assert [endpoint.node_name for endpoint in after.endpoints] == [e.node_name for e in before.endpoints]
    gone = source_nodes([before]).keys() - source_nodes([after]).keys()
    new = source_nodes([after]).keys() - source_nodes([before]).keys()
    assert gone == {pod_address(7, place) for place in places}
    assert new == {eip_text.newcomer(7, place, lives=1) for place in places}


def test_a_pod_runs_and_has_its_policys_label() -> None:
    create, status = eip_text.create_pod("pod", number=2, address=ADDRESS, node="n")
    assert msgspec.json.decode(create.body or b"")["metadata"]["labels"] == {"app": policy_ref(2).name}
    assert msgspec.json.decode(status.body or b"")["status"]["podIPs"] == [{"ip": str(ADDRESS)}]
    assert status.path.startswith(create.path)
    assert eip_text.delete_pod("pod", number=2).path == f"{create.path}/pod"
    assert all(policy_ref(number).namespace in eip_text.TENANTS for number in range(1000))
