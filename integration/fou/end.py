"""One end of the tunnels under test: a namespace with an address on the wire and one that only tunnels lead to."""

import json
import socket
import subprocess
from collections.abc import Callable, Collection
from ipaddress import IPv4Address, IPv6Address, ip_network
from typing import Any, TypeVar

from coil.kernel.family import Family, IPAddress, IPNetwork
from coil.kernel.link import LinkName
from coil.kernel.route import Route, link_scope
from coil.kernel.tunnel import FouPort, Tunnel, catch_all, tunnel_name
from coil.netlink.connection import Connection
from coil.netlink.fou import ensure_fou_port
from coil.netlink.tunnel import create_tunnel, ensure_catch_alls, open_tunnel
from integration.netns.netns import Netns

R = TypeVar("R")

PORT = 5555
MTU = {Family.IPV4: 1500 - 20 - 8, Family.IPV6: 1500 - 40 - 8}
ETH0 = LinkName("eth0")


class End:
    """Number 1 or 2 of a pair. What changes it is the code under test; what looks at it is `ip`."""

    def __init__(self, netns: Netns, *, number: int) -> None:
        self.netns = netns
        self.outer: dict[Family, IPAddress] = {
            Family.IPV4: IPv4Address("10.64.0.0") + number,
            Family.IPV6: IPv6Address("fd64::") + number,
        }
        self.inner: dict[Family, IPAddress] = {
            Family.IPV4: IPv4Address("198.51.100.0") + number,
            Family.IPV6: IPv6Address("2001:db8::") + number,
        }
        # A link's own address would be one thing in its first second and another one later.
        netns.set_sysctl("net/ipv6/conf/default/accept_dad", "0")
        netns.ip_batch([f"address add {self.inner[family]} dev lo" for family in Family])
        for which in ("all", "default"):
            netns.set_sysctl(f"net/ipv4/conf/{which}/rp_filter", "0")

    def call(self, function: Callable[[Connection], R]) -> R:
        """Call the code under test in this namespace."""

        def connected() -> R:
            with Connection() as connection:
                return function(connection)

        return self.netns.call(connected)

    def tunnel(self, peer: "End", family: Family, *, source_port: int = PORT, mtu: int = 0) -> Tunnel:
        """The tunnel that leads from here to the peer."""
        return Tunnel(
            name=tunnel_name(peer.outer[family]),
            local=self.outer[family],
            remote=peer.outer[family],
            port=PORT,
            source_port=source_port,
            mtu=mtu or MTU[family],
        )

    def route(self, peer: "End", family: Family) -> Route:
        """The route through the tunnel to what only it leads to."""
        network: IPNetwork = ip_network(peer.inner[family])
        return Route(
            destination=network,
            device=tunnel_name(peer.outer[family]),
            scope=link_scope(network),
            protocol=30,
        )

    def receive(self, families: Collection[Family] = tuple(Family)) -> None:
        """Ports and flow-based links."""

        def ready(connection: Connection) -> None:
            for family in families:
                ensure_fou_port(FouPort(family, PORT))
            ensure_catch_alls([catch_all(family) for family in families], connection)

        self.call(ready)

    def dig(self, peer: "End", family: Family) -> int:
        """Make the tunnel to the peer and lead into it what is for the peer's inner address; the link's index."""

        def make(connection: Connection) -> int:
            index = create_tunnel(self.tunnel(peer, family), connection)
            open_tunnel(index, [self.route(peer, family)], connection)
            return index

        return self.call(make)

    def link(self, name: str) -> dict[str, Any]:
        """What `ip -d -j link` says of a link; fails if there is none."""
        [link] = [link for link in self.netns.read("link") if link["ifname"] == name]
        return link

    def fou_ports(self) -> set[tuple[int, int, str]]:
        """Port, protocol and family of all that `ip fou show` tells."""
        command = ["ip", "-n", self.netns.name, "-json", "fou", "show"]
        said = subprocess.run(command, capture_output=True, text=True, timeout=60, check=True).stdout
        return {(entry["port"], entry["ipproto"], entry["family"]) for entry in json.loads(said or "[]")}

    def udp_socket(self, family: Family, port: int = 0) -> socket.socket:
        """Bound to the address that only tunnels lead to."""
        kind = socket.AF_INET if family is Family.IPV4 else socket.AF_INET6
        made = self.netns.call(lambda: socket.socket(kind, socket.SOCK_DGRAM))
        made.bind((str(self.inner[family]), port))
        return made


def connect(one: End, other: End) -> None:
    """A wire between two ends; IPv6 addresses are good at once."""
    one.netns.ip("link", "add", ETH0, "mtu", "1500", "type", "veth", "peer", "name", ETH0, "netns", other.netns.name)
    for end in (one, other):
        end.netns.ip_batch(
            [
                f"link set {ETH0} up",
                f"address add {end.outer[Family.IPV4]}/24 dev {ETH0}",
                f"address add {end.outer[Family.IPV6]}/64 dev {ETH0} nodad",
            ]
        )
