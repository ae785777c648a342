"""Which packets of policies a node is to forward, and how its EgressTunnel tells that a filter drops them."""

from datetime import timedelta
from ipaddress import ip_address

import msgspec
import pytest

from coil.crd.builtin import PodIP, PodSpec, PodStatus
from coil.crd.egress_gateway import EipEntry, GatewayNode
from coil.crd.egress_tunnel import EgressTunnel
from coil.crd.meta import Condition, ObjectMeta
from coil.kernel.link import LinkName
from coil_egress_agent.eip.forwarded_packets import ForwardedSources, Ways, dropped_condition, plan_packets
from coil_egress_agent.eip.node_pods import NodePod, NodePods
from coil_egress_agent.eip.tunnel_report import MeshReport, plan_report
from tests.coil_egress_agent.eip.node_scene import NODE, Cluster, endpoints, gateway, policy, ref, tunnel
from tests.coil_egress_agent.eip.test_parts import NOW

ETH0, VETH = LinkName("eth0"), LinkName("veth1")
TUNNEL = "egress.vxlan"
WORKING = MeshReport(working=True)
POD4, POD6 = ip_address("10.244.1.5"), ip_address("fd44::5")


def pod(name: str, *addresses: str) -> NodePod:
    return NodePod(
        metadata=ObjectMeta(name=name, namespace="t1", uid=f"uid-{name}"),
        spec=PodSpec(),
        status=PodStatus(phase="Running", pod_ips=tuple(PodIP(ip=address) for address in addresses)),
    )


def sources(cluster: Cluster, *pods: NodePod) -> ForwardedSources:
    node_pods = NodePods()
    node_pods.note_policy(None, policy())
    for each in pods:
        node_pods.note_pod(None, each)
    return ForwardedSources(node_pods, cluster.gateways, cluster.slices, node=NODE)


def carrier(node: str) -> GatewayNode:
    return GatewayNode(name=node, term=1, eips=(EipEntry(ipv4="10.6.1.1", policies=(ref(),)),))


def test_a_node_forwards_for_its_own_pods_and_for_those_that_leave_by_it() -> None:
    cluster = Cluster()
    cluster.gateways.put(gateway(carrier(NODE)))
    cluster.slices.put(endpoints(("10.244.1.5", NODE), ("10.244.2.7", "n2"), ("10.244.2.8", "n2")))
    found = sources(cluster, pod("a", "10.244.1.5", "fd44::5"), pod("b", "10.244.1.6"))
    assert found.local()[0] in {POD4, ip_address("10.244.1.6")}
    assert found.local()[1:] == (POD6,)
    assert found.remote() == (ip_address("10.244.2.7"),)


def test_what_leaves_by_another_node_is_not_this_ones_to_forward() -> None:
    cluster = Cluster()
    cluster.gateways.put(gateway(carrier("n2")))
    cluster.slices.put(endpoints(("10.244.3.7", "n3")))
    found = sources(cluster)
    assert (found.local(), found.remote()) == ((), ())


def test_packets_go_both_ways_between_pod_tunnel_and_uplink() -> None:
    remote = ip_address("10.244.2.7")
    planned = plan_packets([POD4, POD6], [remote], Ways(links={POD4: VETH}, uplink=ETH0))
    found = {what: (each.input, each.output, each.source, each.destination) for what, each in planned.items()}
    assert found == {
        "IPv4 from pods into the tunnel": (VETH, TUNNEL, POD4, None),
        "IPv4 from the tunnel to pods": (TUNNEL, VETH, None, POD4),
        "IPv4 from the tunnel to the uplink": (TUNNEL, ETH0, remote, None),
        "IPv4 from the uplink into the tunnel": (ETH0, TUNNEL, None, remote),
    }
    assert plan_packets([], [remote], Ways(links={}, uplink=None)) == {}


def said(*conditions: Condition) -> EgressTunnel:
    found = tunnel(2, phase="Ready")
    return msgspec.structs.replace(found, status=msgspec.structs.replace(found.status, conditions=conditions))


@pytest.mark.parametrize("dropped", [(), ("IPv4 from pods into the tunnel: chain FORWARD: its policy drops it",)])
def test_the_tunnel_tells_what_is_dropped_and_once(dropped: tuple[str, ...]) -> None:
    conditions = [dropped_condition(dropped)]
    patch = plan_report(said(), WORKING, now=NOW, conditions=conditions)
    assert patch is not None
    [condition] = msgspec.convert(patch["status"]["conditions"], tuple[Condition, ...])
    assert (condition.type, condition.status) == ("PolicyTrafficDropped", "True" if dropped else "False")
    assert not dropped or condition.message == dropped[0]
    later = NOW + timedelta(minutes=1)
    assert plan_report(said(condition), WORKING, now=later, conditions=[dropped_condition(dropped)]) is None
    assert plan_report(said(condition), WORKING, now=later) is None


def test_another_filter_is_another_message_and_no_transition() -> None:
    former = Condition(type="PolicyTrafficDropped", status="True", message="one", last_transition_time=NOW)
    later = NOW + timedelta(minutes=1)
    patch = plan_report(said(former), WORKING, now=later, conditions=[dropped_condition(["two"])])
    assert patch is not None
    [condition] = msgspec.convert(patch["status"]["conditions"], tuple[Condition, ...])
    assert (condition.message, condition.last_transition_time) == ("two", NOW)


def test_conditions_of_other_types_stay() -> None:
    other = Condition(type="Other", status="True", last_transition_time=NOW)
    patch = plan_report(said(other), WORKING, now=NOW, conditions=[dropped_condition([])])
    assert patch is not None
    assert [each["type"] for each in patch["status"]["conditions"]] == ["Other", "PolicyTrafficDropped"]
