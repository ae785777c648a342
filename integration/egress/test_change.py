"""Egresses, clients and routers change or go: those concerned follow, and the others lose no packet."""

import pytest

from integration.egress.capture import Capture
from integration.egress.conversation import Conversation, Transfer, ask, sees
from integration.egress.external_host import ADDRESSES, NEIGHBOURS
from integration.egress.outside import SINGLE_NAMESPACE
from integration.egress.pod import RunningPod
from integration.egress.station import PATIENCE, PAUSE
from integration.egress.test_packet_path import PORT, wrapped
from integration.egress.world import EgressUnderTest, World
from integration.patience import wait_until

pytestmark = pytest.mark.kernel


@pytest.mark.slow
def test_destinations_are_narrowed_under_a_running_flow(world: World) -> None:
    with world.egress() as egress, world.client(egress.name) as client:
        [router] = egress.routers()
        assert ask(client, world.external, NEIGHBOURS[4]) == router.addresses[4]
        with Conversation(client, world.external, ADDRESSES[4]) as conversation:
            egress.change(destinations=[f"{ADDRESSES[4]}/32"])
            world.await_seen(client, 4, client.addresses[4], address=NEIGHBOURS[4])
            conversation.goes_on()
        assert conversation.seen == {router.addresses[4]}
        assert ask(client, world.external, ADDRESSES[6]) == client.addresses[6]


@pytest.mark.slow
def test_the_source_port_changes_under_a_running_flow(world: World) -> None:
    """The kernel does not lock such a change against sending (DESIGN.md): each of the two may cost a packet."""
    with world.egress() as egress, world.client(egress.name) as client, Capture(client.netns) as wire:
        own = client.addresses[4]
        with Conversation(client, world.external, ADDRESSES[4], may_lose=2) as conversation:
            wire.wait_for(lambda packet: wrapped(packet, source=own), what="from the client")
            egress.change(fouSourcePortAuto=True)
            wire.wait_for(lambda packet: wrapped(packet, source=own) and packet.source_port != PORT, what="changed")
            wire.wait_for(
                lambda packet: wrapped(packet, destination=own) and packet.source_port != PORT, what="as well"
            )
            conversation.goes_on()
        assert conversation.seen == {egress.routers()[0].addresses[4]}


@pytest.mark.slow
def test_another_client_comes_and_goes_unnoticed(world: World, egress: EgressUnderTest, client: RunningPod) -> None:
    [router] = egress.routers()

    def tunnels() -> set[str]:
        return {link["ifname"] for link in router.kernel.ip("link") if link["ifname"].startswith("fou")}

    before = tunnels()
    with Conversation(client, world.external, ADDRESSES[4]) as conversation:
        with world.client(egress.name, station=1) as other:
            for version in (4, 6):
                world.await_seen(other, version, router.addresses[version])
            assert len(tunnels()) == len(before) + 2
        wait_until(lambda: tunnels() == before, what="the tunnels to it go", timeout=PATIENCE, pause=PAUSE)
        conversation.goes_on()
    assert conversation.seen == {router.addresses[4]}


@pytest.mark.slow
def test_coild_and_the_agent_die_and_nobody_notices(world: World, egress: EgressUnderTest, client: RunningPod) -> None:
    [router] = egress.routers()
    with Conversation(client, world.external, ADDRESSES[4]) as conversation:
        for station in world.stations:
            station.coild.crash()
        for station in world.stations:
            station.coild.wait_ready()
        world.kubelet.kill_agent(router)
        conversation.goes_on()
    assert conversation.seen == {router.addresses[4]}


@pytest.mark.slow
def test_one_of_two_routers_is_killed_in_the_middle(world: World) -> None:
    """Who was not served by it does not notice; who was has the other one as soon as kube-proxy knows."""
    with world.egress(replicas=2) as egress, world.client(egress.name) as client:
        seen = ask(client, world.external, ADDRESSES[4])
        mine, other = sorted(egress.routers(), key=lambda router: router.addresses[4] != seen)
        assert mine.addresses[4] == seen
        with Transfer(client, world.external, ADDRESSES[4], size=20 << 20) as transfer:
            wait_until(lambda: transfer.progress > 1 << 20, what="the transfer runs")
            world.kubelet.kill(other)
            world.kubelet.sync()
            transfer.wait()
        world.api.delete(other.path, grace=0)
        egress.wait_ready()
        world.kubelet.kill(mine)
        world.kubelet.wait_until(
            lambda: any(
                sees(client, world.external, ADDRESSES[4], router.addresses[4])
                for router in egress.routers()
                if router is not mine
            ),
            what="the other router serves the client",
        )


def test_an_address_of_a_finished_pod_is_anothers_now(world: World, egress: EgressUnderTest) -> None:
    """The object of the finished pod goes when another pod has its address: that one keeps its tunnels."""
    [router] = egress.routers()
    with world.client(egress.name, namespace=SINGLE_NAMESPACE) as first:
        assert ask(first, world.external, ADDRESSES[4]) == router.addresses[4]
        world.kubelet.finish(first)
        with world.client(egress.name, namespace=SINGLE_NAMESPACE) as second:
            assert second.addresses == first.addresses
            world.await_seen(second, 4, router.addresses[4])
            with Conversation(second, world.external, ADDRESSES[4]) as conversation:
                world.forget(first)
                with world.client(egress.name, station=1) as later:
                    # The agent has seen the deletion, when it has seen what came after it.
                    world.await_seen(later, 4, router.addresses[4])
                conversation.goes_on()
            assert conversation.seen == {router.addresses[4]}
