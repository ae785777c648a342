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
from integration.netns.netns import Netns
from integration.patience import wait_until

GATEWAYS: Final = {Family.IPV4: "169.254.1.1", Family.IPV6: "fe80::1"}
"""The node's end of every link."""

OUTSIDE: Final[dict[Family, IPNetwork]] = {
    Family.IPV4: IPv4Network("203.0.113.0/24"),
    Family.IPV6: IPv6Network("2001:db8:1::/64"),
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
            self.node = self.new_netns()
            self.node.set_sysctl("net/ipv4/ip_forward", "1")
            self.node.set_sysctl("net/ipv6/conf/all/forwarding", "1")
            for which in ("all", "default"):
                self.node.set_sysctl(f"net/ipv4/conf/{which}/rp_filter", "0")
            self.client = self.add_pod(2)
            self.router = self.add_pod(3)
            self.outside = self._add_outside()
            self._stack = stack.pop_all()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, value: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self._stack.close()

    def new_netns(self) -> Netns:
        """One more namespace that goes with the stage."""
        netns = Netns()
        self._stack.callback(netns.delete)
        # A link's own address would be one thing in its first second and another one later.
        netns.set_sysctl("net/ipv6/conf/default/accept_dad", "0")
        return netns

    def add_pod(self, number: int) -> Host:
        """A pod with a default route, of the addresses 10.64.0.NUMBER and fd64::NUMBER."""
        addresses: dict[Family, IPAddress] = {
            Family.IPV4: IPv4Address("10.64.0.0") + number,
            Family.IPV6: IPv6Address("fd64::") + number,
        }
        return self.add_pod_at(f"pod{number}", {family: addresses[family] for family in self.families})

    def add_pod_at(self, link: str, addresses: dict[Family, IPAddress]) -> Host:
        """A pod with a default route in each of its families, behind that link of the node."""
        return self._add_host(link, addresses, routes=dict.fromkeys(addresses, "default"))

    def _add_outside(self) -> Host:
        routes = {family: str(self.router.addresses[family]) for family in self.families}
        return self._add_host("outside", {family: OUTSIDE[family][9] for family in self.families}, routes=routes)

    def _add_host(self, link: str, addresses: dict[Family, IPAddress], *, routes: dict[Family, str]) -> Host:
        """`routes` are the destinations that are behind the node."""
        netns = self.new_netns()
        self.node.ip_batch(
            [
                f"link add {link} mtu 1500 type veth peer name eth0 netns {netns.name}",
                f"link set {link} up",
                f"address add {GATEWAYS[Family.IPV4]}/32 dev {link}",
                f"address add {GATEWAYS[Family.IPV6]}/64 dev {link} nodad",
                *(f"route add {address} dev {link}" for address in addresses.values()),
            ]
        )
        gateway = [f"route add {GATEWAYS[Family.IPV4]} dev eth0"] if Family.IPV4 in addresses else []
        netns.ip_batch(
            [
                "link set eth0 up",
                *(f"address add {address} dev eth0{_NODAD[family]}" for family, address in addresses.items()),
                *gateway,
                *(f"route add {target} via {GATEWAYS[family]} dev eth0" for family, target in routes.items()),
            ]
        )
        for end, name in ((self.node, link), (netns, "eth0")):
            wait_until(partial(_has_own_address, end, name), what=f"{name} has its link-local address")
        return Host(netns=netns, addresses=addresses, link=link)


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
