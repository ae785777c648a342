"""As whom the server sees a pod, and whether what it answers arrives: single questions, conversations, transfers."""

from collections.abc import Iterable
from contextlib import ExitStack
from ipaddress import ip_address, ip_interface

import pytest

from integration.deployment import CLUSTER_NETWORKS_PATH
from integration.egress.conversation import Conversation, Transfer, ask
from integration.eip.families import in_all_families
from integration.eip.flow import Dialogue
from integration.eip.solicitor import Solicitor
from integration.eip.world import GROUP, Gateway, World
from integration.patience import wait_until

pytestmark = [pytest.mark.kernel, pytest.mark.apiserver]

SIZE = 10 << 20
NODES = ("n1", "n2", "n3")


@in_all_families
def test_addresses_are_of_the_clusters_families(world: World, gateway: Gateway) -> None:
    """Of nodes and pods, in its order; of a policy and of the tunnels between nodes."""
    with world.pod("n3", app="families") as pod, world.policy(gateway, labels={"app": "families"}) as policy:
        world.await_seen(pod, policy.eip(world.families[0]))
        status = world.api.get("/api/v1/nodes/n3")["status"]
        assert versions_of(each["address"] for each in status["addresses"]) == world.families
        assert versions_of(each["ip"] for each in world.api.get(pod.path)["status"]["podIPs"]) == world.families
        assert set(versions_of(policy.status()["eip"].values())) == set(world.families)
        parent = world.api.get(f"{GROUP}/egresstunnels/n3")["status"]["tunnel"]["parent"]
        reached = {str(ip_interface(parent[f"ipv{family}"]).ip) for family in (4, 6) if parent[f"ipv{family}"]}
        own = set(world.node("n3").addresses.values())
        # Where there is no IPv6, the link has a link-local address nevertheless, which no other node sends to.
        assert own <= reached
        assert all(ip_address(address).is_link_local for address in reached - own)


def versions_of(addresses: Iterable[str]) -> tuple[int, ...]:
    """Without those that are empty."""
    return tuple(ip_address(address).version for address in addresses if address)


@in_all_families
def test_a_pod_on_any_node_is_seen_as_the_address_of_its_policy(world: World, gateway: Gateway) -> None:
    with ExitStack() as stack:
        pods = [stack.enter_context(world.pod(node, app="any")) for node in NODES]
        policy = stack.enter_context(world.policy(gateway, labels={"app": "any"}))
        for pod in pods:
            for family in world.families:
                world.await_seen(pod, policy.eip(family))
        assert {policy.eip(family) for family in world.families} <= world.node(policy.wait_placed()).eips()


@in_all_families
def test_a_pod_without_a_policy_is_seen_as_its_node(world: World, gateway: Gateway) -> None:
    with ExitStack() as stack:
        chosen = stack.enter_context(world.pod("n3", app="chosen"))
        stack.enter_context(world.pod("n1", app="chosen"))
        other = stack.enter_context(world.pod("n3", app="other"))
        policy = stack.enter_context(world.policy(gateway, labels={"app": "chosen"}))
        for family, address in world.node("n3").addresses.items():
            world.await_seen(chosen, policy.eip(family))
            assert ask(other, world.server, world.server.addresses[family]) == address


@in_all_families
def test_pods_and_nodes_are_reached_without_the_gateway(world: World, gateway: Gateway) -> None:
    with ExitStack() as stack:
        pod = stack.enter_context(world.pod("n3", app="inward"))
        peer = stack.enter_context(world.pod("n1", app="peer"))
        policy = stack.enter_context(world.policy(gateway, labels={"app": "inward"}))
        node = world.node("n1")
        for family in world.families:
            world.await_seen(pod, policy.eip(family))
            assert ask(pod, peer, peer.addresses[family]) == pod.addresses[family]
            assert ask(pod, node, node.addresses[family]) == world.node("n3").addresses[family]


def test_what_an_administrator_adds_to_the_clusters_networks(world: World, gateway: Gateway) -> None:
    """It is nobody's egress traffic from then on, and again when it is taken out; no program starts anew."""
    with ExitStack() as stack:
        pod = stack.enter_context(world.pod("n3", app="added"))
        policy = stack.enter_context(world.policy(gateway, labels={"app": "added"}))
        for family in (4, 6):
            world.await_seen(pod, policy.eip(family))
        extra = ", ".join(world.server.addresses.values())
        stack.callback(world.api.patch, CLUSTER_NETWORKS_PATH, {"data": {"extra": None}})
        world.api.patch(CLUSTER_NETWORKS_PATH, {"data": {"extra": extra}})
        for address in world.node("n3").addresses.values():
            world.await_seen(pod, address)
        world.api.patch(CLUSTER_NETWORKS_PATH, {"data": {"extra": None}})
        for family in (4, 6):
            world.await_seen(pod, policy.eip(family))


def test_nodes_with_strict_arp(world: World, gateway: Gateway) -> None:
    """As kube-proxy sets it for IPVS: the kernel answers for the addresses of the link that is asked only."""
    with ExitStack() as stack:
        for name in NODES:
            node = world.node(name)
            node.kernel.run("sysctl", "-qw", "net.ipv4.conf.all.arp_ignore=1")
            stack.callback(node.kernel.run, "sysctl", "-qw", "net.ipv4.conf.all.arp_ignore=0")
        pod = stack.enter_context(world.pod("n3", app="strict"))
        policy = stack.enter_context(world.policy(gateway, labels={"app": "strict"}))
        eip = policy.eip()
        world.await_seen(pod, eip)
        # Which would be so by the announcements alone, until the host outside forgets.
        heard = stack.enter_context(world.announcements())
        stack.enter_context(Solicitor(world.server.netns, world.server.addresses, eip))
        wait_until(lambda: any(said.reply for said in heard.of(eip)), what="the host outside is answered")
        assert heard.ports(eip) == [policy.wait_placed()]


@in_all_families
def test_a_transfer_arrives_whole_in_both_directions(world: World, gateway: Gateway) -> None:
    with ExitStack() as stack:
        pod = stack.enter_context(world.pod("n3", app="transfer"))
        policy = stack.enter_context(world.policy(gateway, labels={"app": "transfer"}))
        for family, address in world.server.addresses.items():
            world.await_seen(pod, policy.eip(family))
            with Transfer(pod, world.server, address, size=SIZE) as transfer:
                transfer.wait()
            assert transfer.seen == policy.eip(family)


@pytest.mark.parametrize("family", [4, 6])
def test_no_datagram_of_a_conversation_is_lost(world: World, gateway: Gateway, family: int) -> None:
    with ExitStack() as stack:
        pod = stack.enter_context(world.pod("n3", app="talk"))
        policy = stack.enter_context(world.policy(gateway, labels={"app": "talk"}))
        world.await_seen(pod, policy.eip(family))
        with Conversation(pod, world.server, world.server.addresses[family]) as talk:
            wait_until(lambda: talk.count > 300 or talk.failed.is_set(), what="300 questions")
        assert talk.seen == {policy.eip(family)}


def test_a_connection_from_before_the_policy_goes_on(world: World, gateway: Gateway) -> None:
    with world.pod("n3", app="before") as pod, Dialogue(pod, world.server, world.server.addresses[4]) as dialogue:
        dialogue.await_rounds(3)
        # Another's policy, so that every set of the tables is in use.
        with world.policy(gateway, labels={"app": "another"}) as policy, world.pod("n3", app="another") as another:
            world.await_seen(another, policy.eip())
            dialogue.await_rounds(10, after=dialogue.rounds)
        assert dialogue.seen == world.node("n3").addresses[4]
