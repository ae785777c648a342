"""No node can carry the address: nothing of the pods leaves, or it leaves from their own node, as the gateway says."""

from contextlib import ExitStack
from time import sleep

import pytest

from coil.eip.eip_set import MOST_POLICIES
from coil.eip.eip_table import DROPPED_CLOSED
from coil_egress_agent.eip.node_pods import PODS_OVER_POLICY_LIMIT
from integration.egress.api import Document
from integration.egress.capture import Capture
from integration.eip.flow import Flow
from integration.eip.node import StageNode
from integration.eip.test_metric import figure
from integration.eip.world import GROUP, SHOP, World
from integration.patience import wait_until

pytestmark = [pytest.mark.kernel, pytest.mark.apiserver]

MANY = 100
EXCESS = "coil_egress_eip_policies_over_limit"


def test_closed_lets_nothing_out(world: World) -> None:
    labels = {"app": "closed"}
    with ExitStack() as stack:
        gateway = stack.enter_context(world.gateway("n1"))
        pods = [stack.enter_context(world.pod(node, **labels)) for node in ("n2", "n3")]
        policy = stack.enter_context(world.policy(gateway, labels=labels))
        eips = {policy.eip(4), policy.eip(6)}
        for pod in pods:
            for eip in eips:
                world.await_seen(pod, eip)
        capture = stack.enter_context(Capture(world.server.netns))
        servers = world.server.addresses.values()
        flows = [stack.enter_context(Flow(pod, world.server, address)) for pod in pods for address in servers]
        wait_until(lambda: all(flow.answers for flow in flows), what="the flows are answered")
        world.node("n1").die()
        wait_until(lambda: not policy.node, what="no node carries the policy")
        asked = [flow.asked for flow in flows]
        counted = {pod.node: world.node(pod.node).count(DROPPED_CLOSED) for pod in pods}
        wait_until(
            lambda: all(flow.asked > before + MANY for flow, before in zip(flows, asked, strict=True)),
            what="many more questions are asked",
        )
        for node, before in counted.items():
            world.node(node).await_count(DROPPED_CLOSED, before + MANY)
        assert policy.eip() in eips
        ports = {flow.port for flow in flows}
        leaked = capture.select(lambda packet: packet.port in ports and packet.source not in eips)
        assert leaked == []
        # A pod of that policy that starts now is no better off.
        late = stack.enter_context(world.pod("n3", **labels))
        world.await_seen(late, None)
        world.restore()
        for pod in (*pods, late):
            for eip in eips:
                world.await_seen(pod, eip)
        assert capture.select(lambda packet: packet.port in ports and packet.source not in eips) == []


@pytest.mark.parametrize(("served", "other"), [(4, 6), (6, 4)], ids=["ipv4", "ipv6"])
def test_a_gateway_of_one_family_holds_back_the_other_unless_it_says_so(world: World, served: int, other: int) -> None:
    node, labels = world.node("n3"), {"app": f"single-{served}"}
    with ExitStack() as stack:
        gateway = stack.enter_context(world.gateway("n1", families=[served]))
        policy = stack.enter_context(world.policy(gateway, labels=labels))
        assert policy.eip(served)
        assert not policy.status()["eip"].get(f"ipv{other}")
        capture = stack.enter_context(Capture(world.server.netns))
        pod = stack.enter_context(world.pod(node.name, **labels))
        world.await_seen(pod, policy.eip(served))
        before = node.count(DROPPED_CLOSED)
        flow = stack.enter_context(Flow(pod, world.server, world.server.addresses[other]))
        wait_until(lambda: flow.asked > MANY, what="many questions are asked")
        node.await_count(DROPPED_CLOSED, before + MANY)
        assert capture.select(lambda packet: packet.port == flow.port) == []
        world.api.patch(gateway.path, {"spec": {"unservedFamily": "Open"}})
        world.await_seen(pod, node.addresses[other])
        world.await_seen(pod, policy.eip(served))


def test_where_a_namespace_exceeds_its_limit_its_newest_policy_is_dropped(world: World) -> None:
    """A node may see more policies than admission lets in: the limit was higher, or the webhook was off."""
    node, label = world.node("n3"), {"app": "limited"}
    with ExitStack() as stack:
        gateway = stack.enter_context(world.gateway("n1", number=3))
        oldest = stack.enter_context(world.policy(gateway, labels=label))
        foreign = stack.enter_context(world.policy(gateway, labels=label, namespace="bank"))
        sleep(1)  # those of one second come in the order of their names
        newest = stack.enter_context(world.policy(gateway, labels={"app": "newest"}))
        pods = [
            (stack.enter_context(world.pod("n3", namespace=policy.namespace, **label)), policy)
            for policy in (oldest, foreign)
        ]
        late = stack.enter_context(world.pod("n3", app="newest"))
        for version in world.families:
            world.await_seen(late, newest.eip(version))
        stack.enter_context(node.restarted_agent("--policies-per-namespace=1"))
        world.await_seen(late, None)
        assert figure(node, EXCESS) == 1
        capture = stack.enter_context(Capture(world.server.netns))
        for address in world.server.addresses.values():
            before = node.count(DROPPED_CLOSED)
            with Flow(late, world.server, address) as flow:
                wait_until(lambda flow=flow: flow.asked > MANY, what="many questions are asked")  # type: ignore[misc]
                node.await_count(DROPPED_CLOSED, before + MANY)
            assert capture.select(lambda packet, flow=flow: packet.port == flow.port) == []  # type: ignore[misc]
        for version in world.families:
            for pod, policy in pods:
                world.await_seen(pod, policy.eip(version))
        oldest.delete()
        for version in world.families:
            world.await_seen(late, newest.eip(version))
        assert figure(node, EXCESS) == 0


def test_a_pod_with_more_policies_than_apply_to_it_is_told_by_its_nodes_tunnel(world: World) -> None:
    """The first policies serve it, and what else it sends is dropped."""
    node, labels = world.node("n3"), {"app": "crowded"}
    with ExitStack() as stack:
        gateway = stack.enter_context(world.gateway("n1"))
        pod = stack.enter_context(world.pod(node.name, **labels))
        first = stack.enter_context(
            world.policy(gateway, labels=labels, destSubnet=[f"{world.server.addresses[4]}/32"], priority=1)
        )
        world.await_seen(pod, first.eip())
        wait_until(lambda: crowded(world, node) == ("False", 0), what="no pod has too many policies")
        for number in range(MOST_POLICIES - 1):
            stack.enter_context(world.policy(gateway, labels=labels, destSubnet=[f"192.0.2.{number}/32"]))
        last = stack.enter_context(
            world.policy(gateway, labels=labels, destSubnet=[f"{world.server.others[4]}/32"], priority=-1)
        )
        wait_until(lambda: crowded(world, node) == ("True", 1), what="the pod is told of")
        assert f"{SHOP}/{pod.sandbox.pod.name}:" in tunnel_condition(world, node)["message"]
        world.await_seen(pod, first.eip())
        assert world.seen(pod, world.server.others[4]) is None
        first.delete()
        world.await_seen(pod, last.eip(), at=world.server.others)
        wait_until(lambda: crowded(world, node) == ("False", 0), what="it is told of no more")


def crowded(world: World, node: StageNode) -> tuple[str, float]:
    """The status of the node's condition, and the metric."""
    return str(tunnel_condition(world, node).get("status", "")), figure(node, "coil_egress_eip_pods_over_policy_limit")


def tunnel_condition(world: World, node: StageNode) -> Document:
    conditions = world.api.get(f"{GROUP}/egresstunnels/{node.name}").get("status", {}).get("conditions", ())
    return next((each for each in conditions if each["type"] == PODS_OVER_POLICY_LIMIT), {})


def test_open_lets_it_out_from_its_own_node(world: World) -> None:
    labels = {"app": "open"}
    with ExitStack() as stack:
        gateway = stack.enter_context(world.gateway("n1", failPolicy="Open"))
        pods = [stack.enter_context(world.pod(node, **labels)) for node in ("n2", "n3")]
        policy = stack.enter_context(world.policy(gateway, labels=labels))
        for pod in pods:
            world.await_seen(pod, policy.eip())
        world.node("n1").die()
        for pod in pods:
            for address in world.node(pod.node).addresses.values():
                world.await_seen(pod, address)
        world.restore()
        for pod in pods:
            world.await_seen(pod, policy.eip())


def test_a_gateway_without_nodes_serves_once_it_has_one(world: World) -> None:
    labels = {"app": "early"}
    with ExitStack() as stack:
        gateway = stack.enter_context(world.gateway("nowhere"))
        pod = stack.enter_context(world.pod("n3", **labels))
        policy = stack.enter_context(world.policy(gateway, labels=labels))
        eip = policy.eip()
        world.await_seen(pod, None)
        gateway.select("n2")
        world.await_seen(pod, eip)
        assert policy.wait_placed() == "n2"
