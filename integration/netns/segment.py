"""Hosts on one Ethernet: each a namespace with eth0, all on the ports of a switch in a namespace of its own."""

import socket
from collections.abc import Callable
from contextlib import ExitStack
from dataclasses import dataclass
from ipaddress import IPv4Address, IPv6Address
from typing import Any

from coil.kernel.family import IPAddress
from integration.netns.netns import Netns
from integration.patience import wait_until

_ETH_P_ALL = 3
_SO_MARK = 36  # asm-generic/socket.h
_TIMEOUT = 60.0


@dataclass(frozen=True, slots=True)
class Host:
    """Number n has 10.1.0.n/16 and fd00:1::n/64 on eth0, forwards packets, and changes nothing by itself later on."""

    netns: Netns
    number: int

    @property
    def ipv4(self) -> IPv4Address:
        return IPv4Address("10.1.0.0") + self.number

    @property
    def ipv6(self) -> IPv6Address:
        return IPv6Address("fd00:1::") + self.number

    @property
    def mac(self) -> str:
        return f"02:00:00:00:00:{self.number:02x}"

    def neighbours(self) -> dict[str, str]:
        """What the host knows of the others: hardware addresses by addresses."""
        entries = [*self.netns.read("neighbour"), *self.netns.read("-6", "neighbour")]
        return {entry["dst"]: entry["lladdr"] for entry in entries if "lladdr" in entry}


class Segment:
    """Makes hosts."""

    def __init__(self, new_netns: Callable[[], Netns]) -> None:
        self._new_netns = new_netns
        self._switch = new_netns()
        self._switch.ip("link", "add", "switch", "type", "bridge", "mcast_snooping", "0")
        self._switch.set_sysctl("net/ipv6/conf/switch/disable_ipv6", "1")
        self._switch.ip("link", "set", "switch", "up")

    def host(self, number: int) -> Host:
        """A host, number 1 to 255. When this returns, it can send."""
        host = Host(self._new_netns(), number)
        netns, port = host.netns, f"port{number}"
        for switch in ("net/ipv4/ip_forward", "net/ipv6/conf/all/forwarding"):
            netns.set_sysctl(switch, "1")
        for defaults in ("all", "default"):
            netns.set_sysctl(f"net/ipv6/conf/{defaults}/accept_dad", "0")
        self._switch.ip("link", "add", port, "type", "veth", "peer", "name", "eth0", "netns", netns.name)
        self._switch.set_sysctl(f"net/ipv6/conf/{port}/disable_ipv6", "1")
        self._switch.ip("link", "set", port, "master", "switch", "up")
        netns.ip("link", "set", "eth0", "address", host.mac, "up")
        netns.ip("address", "add", f"{host.ipv4}/16", "dev", "eth0")
        netns.ip("address", "add", f"{host.ipv6}/64", "dev", "eth0", "nodad")
        # The kernel gives an IPv6 address its local route a moment after it has answered.
        wait_until(lambda: len(_local_routes(netns)) >= 2, what=f"addresses of host {number}", pause=0.01)
        return host


def _local_routes(netns: Netns) -> list[str]:
    routes = netns.read("-6", "route", "show", "table", "local", "type", "local", "dev", "eth0")
    return [route["dst"] for route in routes]


class Ear:
    """A context manager: the frames that a link of a host receives or sends while it is open."""

    def __init__(self, netns: Netns, link: str = "eth0") -> None:
        self._socket = netns.call(lambda: socket.socket(socket.AF_PACKET, socket.SOCK_RAW, socket.htons(_ETH_P_ALL)))
        self._socket.bind((link, _ETH_P_ALL))
        self._socket.setblocking(False)

    def __enter__(self) -> "Ear":
        self.frames()
        return self

    def __exit__(self, *how: object) -> None:
        self._socket.close()

    def frames(self) -> list[bytes]:
        """What has come since the last call."""
        frames: list[bytes] = []
        while True:
            try:
                frames.append(self._socket.recv(1 << 17))
            except BlockingIOError:
                return frames

    def wait_for(self, *addresses: IPAddress) -> list[bytes]:
        """What comes until there is a frame with each of the addresses in it. Frames keep their order, so what was sent
        before the last of these is among them.
        """
        heard: list[bytes] = []

        def complete() -> bool:
            heard.extend(self.frames())
            return all(any(address.packed in frame for frame in heard) for address in addresses)

        wait_until(complete, what=f"frames with {', '.join(map(str, addresses))}", timeout=_TIMEOUT, pause=0.005)
        return heard


def exchange_marked(client: Netns, server: Netns, address: IPAddress, *, mark: int) -> str:
    """Send a line each way over TCP; the client's packets carry the mark. Returns the client's address."""
    with ExitStack() as stack:
        listener, connection = (stack.enter_context(netns.socket(address)) for netns in (server, client))
        connection.setsockopt(socket.SOL_SOCKET, _SO_MARK, mark)
        listener.bind((str(address), 0))
        listener.listen()
        connection.connect((str(address), listener.getsockname()[1]))
        accepted, peer = listener.accept()
        stack.enter_context(accepted)
        accepted.settimeout(_TIMEOUT)
        connection.sendall(b"question\n")
        assert accepted.recv(64) == b"question\n"
        accepted.sendall(b"answer\n")
        assert connection.recv(64) == b"answer\n"
        return str(peer[0])


def stable_state(netns: Netns) -> dict[str, Any]:
    """The namespace's state once each of its IPv6 addresses has the local route that the kernel adds a moment later.

    Without what changes by itself: the timers of links.
    """
    wait_until(lambda: not _unrouted(netns), what=f"local routes in {netns.name}", pause=0.01)
    state = netns.state()
    for link in state["address"]:
        data = link.get("linkinfo", {}).get("info_data", {})
        for timer in [key for key in data if key.endswith("_timer")]:
            del data[timer]
    return state


def _unrouted(netns: Netns) -> set[str]:
    """The IPv6 addresses of links that are up, but for those that have a local route."""
    up = (link for link in netns.read("-6", "address") if "UP" in link["flags"])
    addresses = {entry["local"] for link in up for entry in link["addr_info"] if entry["family"] == "inet6"}
    return addresses - {route["dst"] for route in netns.read("-6", "route", "show", "table", "local", "type", "local")}
