"""Ports of the type `bridge` on two nodes against a real API server: nothing but coild plugs them in. The test plays
coil-raven.
"""

import secrets
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from ipaddress import ip_address
from pathlib import Path
from typing import Any

import pytest

from coil.kernel.family import IPAddress
from coil.neutron.handoff import BRIDGE
from coil.neutron.node_bridge import bridge_name, uplink_name
from integration.apiserver.neighbours import Neighbours, Station
from integration.apiserver.port_pods import PortPods
from integration.apiserver.refusal_log import missing_rights
from integration.apiserver.runtime import addresses_of
from integration.apiserver.sandbox import Sandbox
from integration.cluster.control_plane import ControlPlane
from integration.deployment import grant_node_list, revoke_node_list
from integration.netns.netns import exchange_inside
from integration.patience import wait_until
from tests.coild.neutron.port_node import NETWORK

pytestmark = pytest.mark.apiserver

FLAGS = (
    "--address-source=neutron",
    "--enable-egress=false",
    "--acquire-timeout=20s",
    "--neutron-bind-timeout=20s",
    "--neutron-active-timeout=10s",
)
PORT: dict[str, Any] = {"type": BRIDGE, "segmentation": 17, "mtu": 1300}
LINKS = (bridge_name(NETWORK), uplink_name(NETWORK))


@dataclass(frozen=True)
class BridgedPod:
    """A pod whose ADD has succeeded."""

    station: Station
    sandbox: Sandbox
    addresses: tuple[IPAddress, ...]

    @property
    def netns(self) -> Path:
        return Path(self.sandbox.netns)


@dataclass(frozen=True)
class BridgedWorld:
    """Two nodes, and pods of one network on them."""

    neighbours: Neighbours
    pods: PortPods

    @property
    def stations(self) -> list[Station]:
        return self.neighbours.stations

    @contextmanager
    def pod(self, station: Station) -> Iterator[BridgedPod]:
        """A pod on the node, from its ADD to its DEL."""
        name = self.pods.make(station.node)
        self.pods.annotate(name, **PORT)
        sandbox = station.node.make_sandbox(name, container_id=secrets.token_hex(32))
        try:
            addresses = addresses_of(station.runtime.add(sandbox))
            yield BridgedPod(station, sandbox, tuple(ip_address(text) for text in addresses))
        finally:
            station.runtime.delete(sandbox)
            sandbox.destroy()


@pytest.fixture(scope="module")
def world(plane: ControlPlane) -> Iterator[BridgedWorld]:
    with Neighbours.up(plane) as neighbours:
        grant_node_list(plane)
        pods = PortPods.prepare(neighbours.stations[0].node)
        with neighbours.coild(*FLAGS):
            yield BridgedWorld(neighbours, pods)
            for station in neighbours.stations:
                assert missing_rights(station.coild.process.log) == []
        revoke_node_list(plane)


def links_of(station: Station) -> set[str]:
    """The network's links that the node has."""
    return {link["ifname"] for link in station.node.kernel.ip("link", "show")} & {*LINKS}


def test_pods_reach_each_other_across_nodes_and_the_last_takes_the_links_away(world: BridgedWorld) -> None:
    here, there = world.stations
    with world.pod(here) as first, world.pod(here) as second, world.pod(there) as third:
        for client, server in ((first, second), (first, third), (third, second)):
            for number, address in enumerate(server.addresses):
                peer = exchange_inside(client.netns, server.netns, address)
                assert peer == str(client.addresses[number])
        assert [links_of(station) for station in world.stations] == [{*LINKS}, {*LINKS}]
    assert [links_of(station) for station in world.stations] == [set(), set()]


def test_the_node_reaches_its_pods_as_a_kubelet_does_and_no_other_nodes(world: BridgedWorld) -> None:
    here, there = world.stations
    with world.pod(here) as pod:
        for address in pod.addresses:
            exchange_inside(Path(here.netns), pod.netns, address)
            with pytest.raises(OSError, match=r"unreachable|timed out|No route"):
                exchange_inside(Path(there.netns), pod.netns, address)


def test_a_killed_coild_keeps_conversations_and_takes_over_what_is_plugged_in(world: BridgedWorld) -> None:
    here, there = world.stations
    with world.pod(here) as first, world.pod(there) as second:
        before = here.node.kernel.nft("list", "table", "bridge", "coil-neutron")
        here.coild.kill()
        for address in second.addresses:
            exchange_inside(first.netns, second.netns, address)
        here.coild.start()
        here.coild.wait_ready()
        wait_until(lambda: not here.node.unready(), what="coild is ready again")
        assert here.node.kernel.nft("list", "table", "bridge", "coil-neutron") == before
        for address in first.addresses:
            exchange_inside(second.netns, first.netns, address)
        with world.pod(here) as third:
            exchange_inside(third.netns, second.netns, second.addresses[0])
    assert [links_of(station) for station in world.stations] == [set(), set()]
