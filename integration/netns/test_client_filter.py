"""Who reaches a client of egress NAT with what its tunnels would take, by captures at the client."""

import socket
from collections.abc import AsyncIterator, Iterator
from functools import partial
from random import Random

import pytest
import structlog
from prometheus_client import CollectorRegistry

from coil.egress.client_filter import TABLE, UNSOLICITED, plan_client_table
from coil.ipam.occupancy import AttachmentKey, ContainerId
from coil.kernel.family import Family
from coil.nft.table_sync import read_counters
from coild.egress.client_filter import ClientFilter
from coild.model.watched_table import WatchedTable
from integration.nat_stage import OUTSIDE, Host, NatStage
from integration.netns.forged_packet import udp
from integration.packet_capture import TUNNEL_PORT, Capture
from integration.patience import wait_until

pytestmark = pytest.mark.kernel

KEY = AttachmentKey(ContainerId("c1"), "eth0")
PROTOCOLS = {Family.IPV4: (socket.AF_INET, socket.IPPROTO_IPIP), Family.IPV6: (socket.AF_INET6, socket.IPPROTO_IPV6)}

families = pytest.mark.parametrize("family", list(Family))


@pytest.fixture
def stage() -> Iterator[NatStage]:
    with NatStage() as stage:
        yield stage


@pytest.fixture
async def senders(stage: NatStage) -> AsyncIterator[ClientFilter]:
    """The node's; its client takes encapsulated packets from the stage's router."""
    table = plan_client_table(udp_port=TUNNEL_PORT)
    async with WatchedTable(table, netns=stage.node.path) as watched:
        made = ClientFilter(watched, registry=CollectorRegistry(), random=Random(1).random, log=structlog.get_logger())
        await made.adopt([])
        routers = frozenset(stage.router.addresses.values())
        await made.set_peers(KEY, dict.fromkeys(stage.client.addresses.values(), routers))
        yield made


def send(sender: Host, receiver: Host, family: Family) -> None:
    """A packet of a host outside, in UDP and as it is."""
    version, protocol = PROTOCOLS[family]
    inner = udp(OUTSIDE[family][9], receiver.addresses[family], dport=4711)
    for kind, number, port in ((socket.SOCK_DGRAM, 0, TUNNEL_PORT), (socket.SOCK_RAW, protocol, 0)):
        with sender.netns.call(partial(socket.socket, version, kind, number)) as made:
            made.sendto(inner, (str(receiver.addresses[family]), port))


def count(stage: NatStage) -> int:
    return stage.node.call(lambda: read_counters(TABLE))[UNSOLICITED].packets


def received(capture: Capture, sender: Host, family: Family) -> int:
    return sum(packet.source == sender.addresses[family] for packet in capture.packets())


@families
async def test_a_client_takes_them_from_its_router_only(stage: NatStage, senders: ClientFilter, family: Family) -> None:
    stranger = stage.add_pod(5)
    with Capture(stage.client.netns) as wire:
        send(stranger, stage.client, family)
        wait_until(lambda: count(stage) == 2, what="both are counted")
        send(stage.router, stage.client, family)
        wait_until(lambda: received(wire, stage.router, family) == 2, what="the router's arrive")
        assert received(wire, stranger, family) == 0
    assert count(stage) == 2


@families
async def test_other_pods_take_them_from_anybody(stage: NatStage, senders: ClientFilter, family: Family) -> None:
    """What they do with UDP on that port is their own business."""
    stranger, other = stage.add_pod(5), stage.add_pod(6)
    with Capture(other.netns) as wire:
        send(stranger, other, family)
        wait_until(lambda: received(wire, stranger, family) == 2, what="both arrive")
    assert count(stage) == 0


@families
async def test_a_client_is_reached_by_other_means(stage: NatStage, senders: ClientFilter, family: Family) -> None:
    stranger = stage.add_pod(5)
    version, _ = PROTOCOLS[family]
    with Capture(stage.client.netns) as wire:
        with stranger.netns.call(lambda: socket.socket(version, socket.SOCK_DGRAM)) as made:
            made.sendto(b"?", (str(stage.client.addresses[family]), TUNNEL_PORT + 1))
        wait_until(lambda: received(wire, stranger, family) == 1, what="it arrives")


@families
async def test_a_client_of_before_takes_them_from_anybody(
    stage: NatStage, senders: ClientFilter, family: Family
) -> None:
    stranger = stage.add_pod(5)
    await senders.set_peers(KEY, {})
    with Capture(stage.client.netns) as wire:
        send(stranger, stage.client, family)
        wait_until(lambda: received(wire, stranger, family) == 2, what="both arrive")


async def test_the_next_process_finds_the_table_as_it_is(stage: NatStage, senders: ClientFilter) -> None:
    async with WatchedTable(plan_client_table(udp_port=TUNNEL_PORT), netns=stage.node.path) as watched:
        there = await watched.read()
        assert there is not None
        assert not await watched.sync(there)
