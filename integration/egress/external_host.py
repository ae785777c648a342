"""A host outside the cluster, one hop from the nodes: it knows no Service, and pods by the routes that it is given.

What it says about a peer is what its own sockets saw.
"""

import socket
from collections.abc import Iterable
from ipaddress import IPv4Address, IPv6Address, ip_network
from pathlib import Path

from integration.cluster.network import Namespaces, Network
from integration.cluster.workspace import Workspace
from integration.egress.station import Station

INDEX = 90
ADDRESSES = {4: "203.0.113.10", 6: "2001:db8:113::10"}
NEIGHBOURS = {4: "203.0.113.77", 6: "2001:db8:113::77"}
"""More addresses of it, outside what narrowed destinations have."""
NETWORKS = {4: "203.0.113.0/24", 6: "2001:db8:113::/64"}


class ExternalHost:
    """On the same bridge as the nodes; its public addresses are on lo."""

    def __init__(self, workspace: Workspace, network: Network) -> None:
        self._namespaces = Namespaces.hold(workspace, "external")
        network.attach(self._namespaces, port="external", addresses=network.node_addresses(INDEX))
        self.links: tuple[IPv4Address, IPv6Address] = network.node_addresses(INDEX)
        for address in (*ADDRESSES.values(), *NEIGHBOURS.values()):
            self._namespaces.run("ip", "address", "add", address, "dev", "lo")

    @property
    def netns(self) -> Path:
        return self._namespaces.net

    def learn(self, stations: Iterable[Station]) -> None:
        """Route what each node exports to it, as a routing daemon would have it. Idempotent."""
        for station in stations:
            for block in station.exported():
                via = station.wired.ipv4 if ip_network(block).version == 4 else station.wired.ipv6
                self._namespaces.run("ip", "route", "replace", block, "via", str(via))

    def be_known(self, stations: Iterable[Station]) -> None:
        """Let each node route the public addresses here."""
        for station in stations:
            for version, via in zip((4, 6), self.links, strict=True):
                station.route(NETWORKS[version], via=str(via))


def family_of(address: str) -> socket.AddressFamily:
    """The socket family of an address in text."""
    return socket.AF_INET6 if ":" in address else socket.AF_INET
