"""A host outside the cluster, one hop from the nodes: it knows no Service, and pods by the routes that it is given.

What it says about a peer is what its own sockets saw.
"""

import socket
from collections.abc import Iterable
from ipaddress import IPv4Address, IPv6Address, ip_network
from pathlib import Path
from typing import Protocol

from integration.cluster.family import Address
from integration.cluster.network import Namespaces, Network
from integration.cluster.workspace import Workspace
from integration.egress.capture import Packet

INDEX = 90
ADDRESSES = {4: "203.0.113.10", 6: "2001:db8:113::10"}
NEIGHBOURS = {4: "203.0.113.77", 6: "2001:db8:113::77"}
"""More addresses of it, outside what narrowed destinations have."""
NETWORKS = {4: "203.0.113.0/24", 6: "2001:db8:113::/64"}


def tunnelled(packet: Packet) -> bool:
    """Whether it is in a tunnel and for the usual address of the host outside."""
    return packet.inner is not None and packet.inner.destination in ADDRESSES.values()


class Machine(Protocol):
    """On the nodes' bridge."""

    def route(self, destination: str, *, via: str) -> None:
        """A route of the administrator's."""
        ...


class Neighbour(Machine, Protocol):
    """A node."""

    @property
    def ipv4(self) -> IPv4Address: ...
    @property
    def ipv6(self) -> IPv6Address: ...

    def exported(self) -> list[str]:
        """The blocks that a routing daemon would announce."""
        ...


def learn_routes(learner: Machine, nodes: Iterable[Neighbour]) -> None:
    """Route what each node exports to it, as a routing daemon would have it. Idempotent."""
    for node in nodes:
        for block in node.exported():
            learner.route(block, via=str(node.ipv4 if ip_network(block).version == 4 else node.ipv6))


class ExternalHost:
    """On the same bridge as the nodes, with addresses of the cluster's families there; its public ones are on lo."""

    def __init__(self, workspace: Workspace, network: Network) -> None:
        self._namespaces = Namespaces.hold(workspace, "external")
        network.attach(self._namespaces, port="external", addresses=network.node_addresses(INDEX))
        self.links: list[Address] = network.families.pick(*network.node_addresses(INDEX))
        for address in (*ADDRESSES.values(), *NEIGHBOURS.values()):
            self._namespaces.run("ip", "address", "add", address, "dev", "lo")

    @property
    def netns(self) -> Path:
        return self._namespaces.net

    def learn(self, nodes: Iterable[Neighbour]) -> None:
        """As `learn_routes`."""
        learn_routes(self, nodes)

    def route(self, destination: str, *, via: str) -> None:
        """A route of the administrator's."""
        self._namespaces.run("ip", "route", "replace", destination, "via", via)

    def be_known(self, nodes: Iterable[Neighbour]) -> None:
        """Let each node route the public addresses here."""
        for node in nodes:
            for via in self.links:
                node.route(NETWORKS[via.version], via=str(via))


def family_of(address: str) -> socket.AddressFamily:
    """The socket family of an address in text."""
    return socket.AF_INET6 if ":" in address else socket.AF_INET
