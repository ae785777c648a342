"""A small network for egress NAT: pods and an outside host around a node, each in a namespace.

    client ─┐
            ├─ node ─ outside
    router ─┘

Pods are wired as Coil does it, by single addresses and routes. The outside host has a route to the router and to
nothing else: what it receives from a pod it cannot answer, so an answer proves the router's address.
"""

from collections.abc import Collection
from contextlib import ExitStack
from dataclasses import dataclass
from functools import partial
from ipaddress import IPv4Address, IPv4Network, IPv6Address, IPv6Network
from pathlib import Path
from types import TracebackType
from typing import Final

from coil.kernel.family import Family, IPAddress, IPNetwork
from integration.netns.netns import Netns, create_netns, delete_netns
from integration.patience import wait_until

GATEWAYS: Final = {Family.IPV4: "169.254.1.1", Family.IPV6: "fe80::1"}
"""The node's end of every link."""

OUTSIDE: Final[dict[Family, IPNetwork]] = {
    Family.IPV4: IPv4Network("203.0.113.0/24"),
    Family.IPV6: IPv6Network("2001:db8:1::/64"),
}
_PODS: Final[dict[Family, IPNetwork]] = {
    Family.IPV4: IPv4Network("10.64.0.0/24"),
    Family.IPV6: IPv6Network("fd64::/64"),
}
SERVICE: Final[dict[Family, IPAddress]] = {
    Family.IPV4: IPv4Address("10.96.0.10"),
    Family.IPV6: IPv6Address("fd96::10"),
}


@dataclass(frozen=True, slots=True, kw_only=True)
class Host:
    """One namespace at the node, its addresses, and the node's link to it."""

    netns: Netns
    addresses: dict[Family, IPAddress]
    link: str
    routes: dict[Family, str]
    """To what is behind the node."""
    uplink: str = "eth0"
    """The host's own end of that link."""

    def at_node(self) -> list[str]:
        """What makes the node's end of the link, for `ip -batch`."""
        return [
            f"link add {self.link} mtu 1500 type veth peer name {self.uplink} netns {self.netns.name}",
            f"link set {self.link} up",
            f"address add {GATEWAYS[Family.IPV4]}/32 dev {self.link}",
            f"address add {GATEWAYS[Family.IPV6]}/64 dev {self.link} nodad",
            *(f"route add {address} dev {self.link}" for address in self.addresses.values()),
        ]

    def inside(self) -> list[str]:
        """What makes the other end, for `ip -batch`."""
        own = f"dev {self.uplink}"
        gateway = [f"route add {GATEWAYS[Family.IPV4]} {own}"] if Family.IPV4 in self.addresses else []
        return [
            f"link set {self.uplink} up",
            *(f"address add {address} {own}{_NODAD[family]}" for family, address in self.addresses.items()),
            *gateway,
            *(f"route add {target} via {GATEWAYS[family]} {own}" for family, target in self.routes.items()),
        ]


class NatStage:
    """A context manager: everything is gone at its end. `node` forwards between all hosts."""

    def __init__(self, families: Collection[Family] = tuple(Family)) -> None:
        self.families = tuple(families)
        self._stack = ExitStack()
        """What the stage consists of, to be taken down in the other order."""
        self.node: Netns
        self.client: Host
        self.router: Host
        self.outside: Host

    def __enter__(self) -> "NatStage":
        with self._stack as stack:
            self.node, *hosts = self._create_netns(4)
            self.node.set_sysctl("net/ipv4/ip_forward", "1")
            self.node.set_sysctl("net/ipv6/conf/all/forwarding", "1")
            for which in ("all", "default"):
                self.node.set_sysctl(f"net/ipv4/conf/{which}/rp_filter", "0")
            self.client, self.router = (
                self._pod(netns, f"pod{number}", self._pod_addresses(number))
                for netns, number in zip(hosts, (2, 3), strict=False)
            )
            self.outside = Host(
                netns=hosts[2],
                addresses={family: OUTSIDE[family][9] for family in self.families},
                link="outside",
                routes={family: str(self.router.addresses[family]) for family in self.families},
            )
            self._connect(self.client, self.router, self.outside)
            self._stack = stack.pop_all()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, value: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self._stack.close()

    def new_netns(self) -> Netns:
        """One more namespace that goes with the stage."""
        return self._create_netns(1)[0]

    def add_pod(self, number: int) -> Host:
        """A pod with a default route, of the addresses 10.64.0.NUMBER and fd64::NUMBER."""
        return self.add_pod_at(f"pod{number}", self._pod_addresses(number))

    def add_pod_at(self, link: str, addresses: dict[Family, IPAddress]) -> Host:
        """A pod with a default route in each of its families, behind that link of the node."""
        host = self._pod(self.new_netns(), link, addresses)
        self._connect(host)
        return host

    def add_second_interface(self, netns: Netns, number: int) -> Host:
        """Give the namespace `net1` with the addresses of a pod of that number, and routes to pods by it alone."""
        networks = {family: str(_PODS[family]) for family in self.families}
        host = Host(
            netns=netns, addresses=self._pod_addresses(number), link=f"pod{number}", routes=networks, uplink="net1"
        )
        self._connect(host)
        return host

    def _create_netns(self, number: int) -> list[Netns]:
        made = create_netns(number)
        self._stack.callback(delete_netns, made)
        for netns in made:
            # A link's own address would be one thing in its first second and another one later.
            netns.set_sysctl("net/ipv6/conf/default/accept_dad", "0")
        return made

    def _pod_addresses(self, number: int) -> dict[Family, IPAddress]:
        return {family: _PODS[family][number] for family in self.families}

    def _pod(self, netns: Netns, link: str, addresses: dict[Family, IPAddress]) -> Host:
        return Host(netns=netns, addresses=addresses, link=link, routes=dict.fromkeys(addresses, "default"))

    def _connect(self, *hosts: Host) -> None:
        """Make their links, and wait until the kernel has done to these what it does of its own accord.

        It gives them addresses and, up to a second after both ends are up, tells that they are (linkwatch).
        """
        self.node.ip_batch([line for host in hosts for line in host.at_node()])
        for host in hosts:
            host.netns.ip_batch(host.inside())
        for host in hosts:
            for end, name in ((self.node, host.link), (host.netns, host.uplink)):
                wait_until(partial(_has_own_address, end, name), what=f"{name} has its link-local address")
                wait_until(partial(_is_operational, end, name), what=f"{name} is told of as up")


def _is_operational(netns: Netns, link: str) -> bool:
    return (netns.link(link) or {}).get("operstate") == "UP"


def _has_own_address(netns: Netns, link: str) -> bool:
    """Whether the kernel has given it, which it does a moment after the other end is up; of /proc/net/if_inet6."""
    lines = netns.call(Path("/proc/thread-self/net/if_inet6").read_text).splitlines()
    # Address, index, prefix length, scope (20 for a link's), flags (40 for one that is being tried), link.
    fields = [line.split() for line in lines]
    return any(
        name == link and scope == "20" and address != _GATEWAY6 and not int(flags, 16) & 0x40
        for address, _, _, scope, flags, name in fields
    )


_GATEWAY6: Final = IPv6Address(GATEWAYS[Family.IPV6]).packed.hex()
_NODAD: Final = {Family.IPV4: "", Family.IPV6: " nodad"}
