"""What an Egress is for never leaves with the own address of a pod that names it: captured at the host outside."""

import errno

import pytest

from integration.apiserver.runtime import TRY_AGAIN_LATER
from integration.egress.capture import Capture
from integration.egress.conversation import DISCARD_PORT, DatagramSender, ask
from integration.egress.external_host import ADDRESSES
from integration.egress.pod import RunningPod
from integration.egress.station import PATIENCE, PAUSE
from integration.egress.world import World
from integration.patience import wait_until

pytestmark = pytest.mark.kernel

MORE = 20
"""Datagrams that are waited for where it is to be seen that something goes on."""


def wait_blocked(sender: DatagramSender) -> None:
    """Until the pod's kernel refuses all that the sender sends, for a while."""

    def refused() -> dict[str, int]:
        return {address: sender.refusals[address, errno.EHOSTUNREACH] for address in ADDRESSES.values()}

    before, sent = refused(), dict(sender.sent)
    wait_until(
        lambda: all(count >= before[address] + MORE for address, count in refused().items()),
        what="both families are unreachable",
        timeout=PATIENCE,
        pause=PAUSE,
    )
    sent = dict(sender.sent)
    again = refused()
    wait_until(
        lambda: all(count >= again[address] + MORE for address, count in refused().items()),
        what="they stay so",
        timeout=PATIENCE,
        pause=PAUSE,
    )
    assert dict(sender.sent) == sent


def wait_attempts(*senders: DatagramSender) -> None:
    """Until each has tried to send some more datagrams to each address."""
    before = [dict(sender.attempts) for sender in senders]
    wait_until(
        lambda: all(
            sender.attempts[address] >= counts.get(address, 0) + MORE
            for sender, counts in zip(senders, before, strict=True)
            for address in ADDRESSES.values()
        ),
        what="more datagrams of both families are sent",
        timeout=PATIENCE,
        pause=PAUSE,
    )


def seen_outside(outside: Capture, pod: RunningPod) -> set[str]:
    """The addresses of the pod, as far as a datagram with one has arrived at the host."""
    packets = outside.select(lambda packet: packet.port == DISCARD_PORT)
    return {packet.source for packet in packets} & set(pod.addresses.values())


def wait_datagrams(outside: Capture, sources: set[str]) -> None:
    """Until the host has seen datagrams from all of them."""
    wait_until(
        lambda: sources <= {packet.source for packet in outside.select(lambda packet: packet.port == DISCARD_PORT)},
        what=f"the host sees {', '.join(sorted(sources))}",
        timeout=PATIENCE,
        pause=PAUSE,
    )


@pytest.mark.slow
def test_what_a_deleted_egress_was_for_is_held_back_until_it_returns_or_the_annotation_goes(world: World) -> None:
    """Also by a coild that starts while the Egress is away, and has never seen it."""
    with (
        world.egress() as egress,
        world.client(egress.name) as client,
        Capture(world.external.netns) as outside,
        DatagramSender(client, *ADDRESSES.values()) as sender,
    ):
        wait_datagrams(outside, set(egress.routers()[0].addresses.values()))
        egress.delete()
        wait_blocked(sender)
        assert not [link for link in client.kernel.ip("link") if link["ifname"].startswith(("fou4_", "fou6_"))]

        client.station.coild.crash()
        client.station.coild.wait_ready()
        wait_blocked(sender)

        egress.create()
        [router] = egress.routers()
        for version, address in router.addresses.items():
            world.await_seen(client, version, address)
        assert seen_outside(outside, client) == set()

        egress.delete()
        wait_blocked(sender)
        assert seen_outside(outside, client) == set()
        world.annotate(client)
        wait_datagrams(outside, set(client.addresses.values()))
        # The routes go before the rules, so that a datagram may be here before those are gone.
        wait_until(
            lambda: {rule["priority"] for rule in client.kernel.ip("rule")} == {0, 32766, 32767},
            what="nothing is left of ours",
            timeout=PATIENCE,
            pause=PAUSE,
        )


def test_a_pod_waits_for_an_egress_that_does_not_exist_and_then_uses_it(world: World) -> None:
    name = "nat-that-comes-late"
    with Capture(world.external.netns) as outside, world.pod_object(name) as uid:
        kubelet = world.kubelet
        kubelet.wait_until(lambda: len(kubelet.refusals.get(uid, ())) >= 2, what="the ADD fails and is tried again")
        assert {error.code for error in kubelet.refusals[uid]} == {TRY_AGAIN_LATER}
        assert f"there is no Egress internet/{name}" in kubelet.refusals[uid][0].message
        assert world.pod(uid) is None
        with world.egress(name=name) as egress:
            client = world.wait_running(uid)
            [router] = egress.routers()
            for version, address in ADDRESSES.items():
                assert ask(client, world.external, address) == router.addresses[version]
        own = set(client.addresses.values())
        assert not outside.select(lambda packet: packet.source in own and packet.destination in ADDRESSES.values())


def test_a_running_pod_that_names_an_egress_that_does_not_exist_is_held_back(world: World) -> None:
    with (
        world.client() as client,
        world.client() as other,
        Capture(world.external.netns) as outside,
        DatagramSender(client, *ADDRESSES.values()) as sender,
    ):
        wait_datagrams(outside, set(client.addresses.values()))
        world.annotate(client, "nowhere")
        wait_blocked(sender)
        # Nodes, pods and Services are still reached, and another pod does not notice.
        assert ask(client, other, other.addresses[4]) == client.addresses[4]
        for version, address in ADDRESSES.items():
            assert ask(other, world.external, address) == other.addresses[version]
        world.annotate(client)
        before = len(outside.packets())
        wait_until(
            lambda: set(client.addresses.values()) <= {packet.source for packet in outside.packets()[before:]},
            what="its own addresses are seen again",
            timeout=PATIENCE,
            pause=PAUSE,
        )


@pytest.mark.slow
def test_without_a_ready_router_pod_nothing_leaves_by_another_way(world: World) -> None:
    """Neither from a pod that ran before, nor from one that starts meanwhile; both are served when one is ready."""
    with (
        world.egress() as egress,
        world.client(egress.name) as client,
        Capture(world.external.netns) as outside,
        DatagramSender(client, *ADDRESSES.values()) as sender,
    ):
        [lost] = egress.routers()
        wait_datagrams(outside, set(lost.addresses.values()))
        world.kubelet.kill(lost)
        world.kubelet.wait_until(lambda: not lost.ready, what="the router pod is not ready")
        for station in world.stations:
            for address in egress.addresses.values():
                station.wait_withdrawn(address)
        with world.client(egress.name) as late, DatagramSender(late, *ADDRESSES.values()) as other:
            wait_attempts(sender, other)
            arrived = len(outside.packets())
            wait_attempts(sender, other)
            assert [packet for packet in outside.packets()[arrived:] if packet.destination in ADDRESSES.values()] == []
            # Nodes and pods are reached.
            assert ask(client, late, late.addresses[4]) == client.addresses[4]
            world.api.delete(lost.path, grace=0)
            egress.wait_ready()
            [router] = egress.routers()
            for pod in (client, late):
                for version, address in router.addresses.items():
                    world.await_seen(pod, version, address)
                assert seen_outside(outside, pod) == set()
