"""Pods, policies and gateways come, change and go; what the kernels hold afterwards is what they held before."""

from collections.abc import Iterator
from contextlib import ExitStack, contextmanager

import pytest

from integration.egress.capture import Capture
from integration.eip.families import in_all_families
from integration.eip.flow import Dialogue, Flow
from integration.eip.node import TABLE
from integration.eip.solicitor import Solicitor
from integration.eip.world import Gateway, World
from integration.patience import wait_until, wait_until_clean

SWITCHES = {"proxy_ndp", "proxy_delay", "nf_conntrack_tcp_be_liberal"}

_OF_POLICIES = ("'class", "'subnet_class", "'floating")
"""Sets that are empty where there is no policy, by how their names begin."""

pytestmark = [pytest.mark.kernel, pytest.mark.apiserver]


@contextmanager
def nothing_stays(world: World) -> Iterator[None]:
    """After the block the kernels of all nodes come back to what they held before it, when there was no policy."""
    wait_until_clean(lambda: _traces(world), after="the test before")
    before = world.states()
    yield

    def strangers() -> list[str]:
        return [
            f"{node}, {what}: {state[what]} instead of {before[node][what]}"
            for node, state in world.states().items()
            for what in state
            if state[what] != before[node][what]
        ]

    wait_until_clean(strangers, after="deleted")


def _traces(world: World) -> list[str]:
    """Of policies that an agent has not heard the end of yet."""
    return [
        f"{node} still holds {state}"
        for node, state in world.states().items()
        if state["eips"]
        or any(name in str(state["inet"]) for name in _OF_POLICIES)
        or "fwmark" in str(state["ip rule"])
    ]


@pytest.mark.slow
def test_pods_come_and_go(world: World, gateway: Gateway) -> None:
    with nothing_stays(world), world.policy(gateway, labels={"app": "churn"}) as policy:
        eip = policy.eip()
        with ExitStack() as stack:
            pods = [stack.enter_context(world.pod(node, app="churn")) for node in ("n1", "n2", "n3") * 2]
            for pod in pods:
                world.await_seen(pod, eip)
        gone = {address for pod in pods for address in pod.addresses.values()}
        wait_until_clean(lambda: _mentions(world, gone), after="the pods are gone")
        with world.pod("n3", app="churn") as pod:
            world.await_seen(pod, eip)


def test_a_pod_that_loses_its_label_is_no_longer_meant(world: World, gateway: Gateway) -> None:
    with world.policy(gateway, labels={"app": "label"}) as policy, world.pod("n3", app="label") as pod:
        world.await_seen(pod, policy.eip())
        world.api.patch(pod.path, {"metadata": {"labels": {"app": "no-more"}}})
        world.await_seen(pod, world.node("n3").addresses[4])
        world.api.patch(pod.path, {"metadata": {"labels": {"app": "label"}}})
        world.await_seen(pod, policy.eip())


def test_a_policys_destinations_change(world: World, gateway: Gateway) -> None:
    labels = {"app": "moving"}
    others = [f"{world.server.others[4]}/32", f"{world.server.others[6]}/128"]
    with ExitStack() as stack:
        stack.enter_context(nothing_stays(world))
        pod = stack.enter_context(world.pod("n3", **labels))
        policy = stack.enter_context(world.policy(gateway, labels=labels))
        own = world.node("n3").addresses
        for family in (4, 6):
            world.await_seen(pod, policy.eip(family), at=world.server.addresses)
        policy.change(destSubnet=others)
        for family in (4, 6):
            world.await_seen(pod, own[family], at=world.server.addresses)
            world.await_seen(pod, policy.eip(family), at=world.server.others)
        policy.change(destSubnet=[])
        for family in (4, 6):
            world.await_seen(pod, policy.eip(family), at=world.server.addresses)


def test_a_policy_takes_everything_of_its_own_along(world: World, gateway: Gateway) -> None:
    with nothing_stays(world), ExitStack() as stack:
        pod = stack.enter_context(world.pod("n3", app="whole"))
        for spec in ({}, {"egressIP": {"useNodeIP": True}}, {"destSubnet": ["0.0.0.0/0", "::/0"], "priority": 3}):
            with world.policy(gateway, labels={"app": "whole"}, **spec) as policy:
                node = world.node(policy.wait_placed())
                expected = node.addresses[4] if "egressIP" in spec else policy.eip()
                world.await_seen(pod, expected)
        world.await_seen(pod, world.node("n3").addresses[4])


def test_a_gateway_takes_everything_of_its_own_along(world: World) -> None:
    # Whether a node is a gateway shows in the lease alone; the kernel of one without addresses is any node's.
    with (
        nothing_stays(world),
        world.gateway("n1", "n2") as gateway,
        world.pod("n3", app="brief") as pod,
        world.policy(gateway, labels={"app": "brief"}) as policy,
    ):
        world.await_seen(pod, policy.eip())


def test_a_gateway_node_renews_its_lease(world: World, gateway: Gateway) -> None:
    """A planned move would come to its end without: when the lease has lapsed."""
    node = world.node("n1")
    world.await_lease(node)
    before = world.renewed_at(node)
    wait_until(lambda: world.renewed_at(node) != before, what=f"{node.name} renews its lease")
    assert world.held(node)


@in_all_families
def test_a_planned_move_has_one_holder_at_a_time(world: World) -> None:
    with ExitStack() as stack:
        gateway = stack.enter_context(world.gateway("n1", number=1))
        pod = stack.enter_context(world.pod("n3", app="planned"))
        policy = stack.enter_context(world.policy(gateway, labels={"app": "planned"}))
        eips = [policy.eip(family) for family in world.families]
        for eip in eips:
            world.await_seen(pod, eip)
        heard = stack.enter_context(world.announcements())
        stack.enter_context(Solicitor(world.server.netns, world.server.addresses, *eips))
        for eip in eips:
            heard.await_last(eip, "n1")
        gateway.select("n2")
        for eip in eips:
            heard.await_last(eip, "n2")
        for eip in eips:
            world.await_seen(pod, eip)
            assert heard.ports(eip) == ["n1", "n2"]
        assert world.node("n1").eips() == set()
        assert policy.wait_placed() == "n2"


@in_all_families
def test_an_address_is_moved_by_hand_under_a_conversation(world: World) -> None:
    """To the node that the gateway prefers for it, there and back; the other address of the pair goes along."""
    with ExitStack() as stack:
        gateway = stack.enter_context(world.gateway("n1", "n2", number=1))
        pod = stack.enter_context(world.pod("n3", app="by-hand"))
        policy = stack.enter_context(world.policy(gateway, labels={"app": "by-hand"}))
        eips = [policy.eip(family) for family in world.families]
        for eip in eips:
            world.await_seen(pod, eip)
        first = policy.wait_placed()
        second = "n2" if first == "n1" else "n1"
        # What nodes said of the addresses before is of no interest.
        heard = stack.enter_context(world.announcements())
        stack.enter_context(Solicitor(world.server.netns, world.server.addresses, *eips))
        capture = stack.enter_context(Capture(world.server.netns))
        servers = [world.server.addresses[family] for family in world.families]
        flows = [stack.enter_context(Flow(pod, world.server, server)) for server in servers]
        dialogues = [stack.enter_context(Dialogue(pod, world.server, server)) for server in servers]
        for eip in eips:
            heard.await_last(eip, first)
        for target in (second, first):
            former = world.node(policy.node)
            gateway.change(nodeSelector={"preferredNodes": [{"eip": eips[0], "node": target}]})
            for eip in eips:
                heard.await_last(eip, target)
            assert policy.wait_placed(elsewhere=former.name) == target
            assert world.node(target).eips() >= {*eips}
            assert not former.eips() & {*eips}
            for flow, dialogue in zip(flows, dialogues, strict=True):
                flow.await_answer()
                dialogue.await_rounds(10, after=dialogue.rounds)
        for eip in eips:
            assert heard.ports(eip) == [first, second, first], "one node at a time speaks for it"
        assert [dialogue.seen for dialogue in dialogues] == eips
        ports = {flow.port for flow in flows}
        assert {str(packet.source) for packet in capture.select(lambda packet: packet.port in ports)} == {*eips}


@in_all_families
def test_the_own_address_follows_the_gateway(world: World) -> None:
    with (
        world.gateway("n1") as gateway,
        world.pod("n3", app="follow") as pod,
        world.policy(gateway, labels={"app": "follow"}, egressIP={"useNodeIP": True}),
    ):
        for node in ("n1", "n2"):
            gateway.select(node)
            for address in world.node(node).addresses.values():
                world.await_seen(pod, address)


def test_what_others_have_removed_comes_back(world: World, gateway: Gateway) -> None:
    with world.policy(gateway, labels={"app": "repair"}) as policy, world.pod("n3", app="repair") as pod:
        world.await_seen(pod, policy.eip())
        carrier = world.node(policy.wait_placed())
        wanted = world.states()
        world.node("n3").kernel.run("nft", "flush", "table", "inet", TABLE)
        carrier.kernel.run("nft", "delete", "table", "inet", TABLE)
        carrier.kernel.run("ip", "address", "del", f"{policy.eip()}/32", "dev", "egress.eip")
        world.node("n3").kernel.run("ip", "link", "del", "egress.vxlan")
        wait_until(lambda: world.states() == wanted, what="all is as before")
        world.await_seen(pod, policy.eip())


def test_a_clean_up_leaves_the_node_as_it_was_found(world: World, gateway: Gateway) -> None:
    with world.policy(gateway, labels={"app": "leave"}) as policy, world.pod("n3", app="leave") as pod:
        world.await_seen(pod, policy.eip())
        node = world.node(policy.wait_placed())
        assert node.footprint() != node.found
        node.stop_agent()
        node.clean_up()
        left = node.footprint()
        stays = {what: sorted(set(left[what]) - set(node.found[what])) for what in left}
        # Switches of the node stay: nobody knows who else counts on them by now.
        assert {line.partition(":")[0].rpartition("/")[2] for line in stays.pop("sysctls")} <= SWITCHES
        assert stays == {what: [] for what in stays}
        # Nobody is the worse for it.
        world.await_seen(pod, policy.eip())
        world.restore()
        world.await_seen(pod, policy.eip())


def _mentions(world: World, addresses: set[str]) -> list[str]:
    """The elements of any node that have one of those addresses."""
    quoted = {f'"{address}"' for address in addresses}
    return [
        f"{node.name}, {name}: {element}"
        for node in world.nodes
        for name, elements in node.elements().items()
        for element in elements
        if any(address in element for address in quoted)
    ]
