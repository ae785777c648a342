"""Originating-only behind kube-proxy: who reaches a client by a node's port is answered from there, not by a tunnel."""

import secrets
import socket
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from typing import Any

import pytest

from integration.egress.capture import Capture
from integration.egress.conversation import ask
from integration.egress.external_host import ADDRESSES, family_of, tunnelled
from integration.egress.outside import CLIENT_NAMESPACE
from integration.egress.pod import SECONDS, RunningPod
from integration.egress.world import EgressUnderTest, World
from integration.netns.netns import call_inside
from integration.patience import wait_until

pytestmark = [pytest.mark.kernel, pytest.mark.slow]

ATTEMPT = 5.0
"""Seconds for a datagram that need not arrive: another one is sent."""
SERVICES = f"/api/v1/namespaces/{CLIENT_NAMESPACE}/services"


@dataclass(frozen=True, slots=True)
class Published:
    """A client behind a Service of the type NodePort; its sockets, and the node's ports for them, by IP version."""

    world: World
    pod: RunningPod
    sockets: dict[int, socket.socket]
    ports: dict[int, int]

    def ask(self, version: int, *, patience: float = SECONDS) -> tuple[socket.socket, Any]:
        """A socket of the host outside, whose question the client has heard, and from where that came."""
        station = self.pod.station
        node = str(station.ipv4 if version == 4 else station.ipv6)
        server = self.sockets[version]
        asking = call_inside(
            self.world.external.netns, lambda: socket.socket(family_of(ADDRESSES[version]), socket.SOCK_DGRAM)
        )
        try:
            for end in (asking, server):
                end.settimeout(patience)
            asking.bind((ADDRESSES[version], 0))
            # From now on it hears that peer only.
            asking.connect((node, self.ports[version]))
            question = secrets.token_bytes(8)
            asking.send(question)
            heard, peer = server.recvfrom(64)
            assert heard == question
        except BaseException:
            asking.close()
            raise
        return asking, peer

    def is_reached(self, version: int) -> bool:
        try:
            self.ask(version, patience=ATTEMPT)[0].close()
        except TimeoutError:
            return False
        return True


@contextmanager
def published(world: World, egress: EgressUnderTest, *, station: int) -> Iterator[Published]:
    """A client that the host outside reaches, and whose node lets it see from where."""
    with world.client(egress.name, station=station) as pod, ExitStack() as stack:
        sockets = {
            version: stack.enter_context(pod.socket(socket.SOCK_DGRAM, address))
            for version, address in pod.addresses.items()
        }
        for version, server in sockets.items():
            server.bind((pod.addresses[version], 0))
        label = {"published": pod.uid}
        world.api.patch(pod.path, {"metadata": {"labels": label}})
        ports = [
            {"name": f"v{version}", "protocol": "UDP", "port": version, "targetPort": server.getsockname()[1]}
            for version, server in sockets.items()
        ]
        spec = {
            "type": "NodePort",
            "externalTrafficPolicy": "Local",
            "ipFamilyPolicy": "PreferDualStack",
            "selector": label,
            "ports": ports,
        }
        name = f"published-{secrets.token_hex(3)}"
        service = world.api.create(SERVICES, {"metadata": {"name": name}, "spec": spec})
        stack.callback(world.api.delete, f"{SERVICES}/{name}")
        node_ports = {entry["port"]: entry["nodePort"] for entry in service["spec"]["ports"]}
        made = Published(world, pod, sockets, node_ports)
        for version in sockets:
            wait_until(
                lambda version=version: made.is_reached(version),  # type: ignore[misc]
                what=f"the node's port leads to the client, IPv{version}",
            )
        yield made


def test_who_comes_in_by_a_nodes_port_is_answered_from_there(world: World, egress: EgressUnderTest) -> None:
    [router] = egress.routers()
    station = world.stations.index(router.station)

    with published(world, egress, station=station) as client:
        # Unless it is asked for, the answer takes the tunnel: what is shown below is not so anyway.
        for version, server in client.sockets.items():
            asking, peer = client.ask(version)
            with asking, Capture(client.pod.netns) as wire:
                server.sendto(b"answer", peer)
                wire.wait_for(tunnelled, what="of the tunnel")
    with (
        world.stations[station].coild_with("--enable-originating-only"),
        published(world, egress, station=station) as client,
    ):
        for version, server in client.sockets.items():
            with Capture(client.pod.netns) as wire:
                asking, peer = client.ask(version)
                with asking:
                    assert peer[0] == ADDRESSES[version]
                    server.sendto(b"answer", peer)
                    assert asking.recv(64) == b"answer"
            assert not wire.select(tunnelled)
            # What the client itself begins takes the tunnel as ever.
            assert ask(client.pod, world.external, ADDRESSES[version]) == router.addresses[version]
