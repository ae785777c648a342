"""Whether anything of a cluster leaves the machine: a look at what is sent on the links of its default routes."""

import json
import socket
import struct
import subprocess
from collections.abc import Sequence
from ctypes import addressof, c_char
from ipaddress import IPv4Network, IPv6Network, ip_interface, ip_network
from typing import Final

from integration.netns.netns import Netns
from integration.packet_capture import Packet, is_of_the_link, parse_packet
from integration.side_thread import SideThread

OF_CLUSTERS: Final = tuple(
    map(
        ip_network,
        (
            "198.18.0.0/15",  # nodes, and cluster addresses of Services
            *("10.98.0.0/15", "10.100.0.0/15", "10.110.0.0/16", "10.200.0.0/16", "10.244.0.0/16"),  # pods
            "fd00::/8",  # all of these again, and nodes
        ),
    )
)
"""Where the clusters of tests and demo have their addresses; a pool with real pods belongs in here."""

LEAKED: Final = "packets of a cluster were sent by the machine's default route"
"""How a session says so. It is no flake of the test that was the last: to run that one again proves nothing."""

_LIMIT: Final = 20
_ETH_P_ALL: Final = 3
_ETHERNET: Final = 14
_HEADER: Final = {0x0800: 20, 0x86DD: 40}
_SNAPSHOT: Final = 256
_LOOK: Final = 0.2
_TIMEOUT: Final = 60.0
_SO_ATTACH_FILTER: Final = 26
_PACKET_OUTGOING: Final = 4  # linux/if_packet.h
_NOTHING: Final = ((0x06, 0, 0, 0),)
_OUTGOING: Final = ((0x28, 0, 0, 0xFFFFF004), (0x15, 0, 1, _PACKET_OUTGOING), (0x06, 0, 0, _SNAPSHOT), *_NOTHING)
"""A filter of the kernel that lets outgoing packets through (linux/filter.h): load the packet's type (SKF_AD_OFF +
SKF_AD_PKTTYPE), and unless it is PACKET_OUTGOING, return 0."""


class UplinkWatch(SideThread):
    """A context manager: while it is open, what is sent on the links of default routes is looked through.

    It watches the machine, or another namespace. A packet is a cluster's when it comes from or goes to an address of
    `OF_CLUSTERS` that is not on the link itself, or goes to `nowhere`, an address that only a test asks for.
    """

    def __init__(self, netns: Netns | None = None, *, nowhere: str = "") -> None:
        super().__init__("uplink watch")
        self._uplinks = _find_uplinks([] if netns is None else ["-n", netns.name])
        self._socket = _open_socket() if netns is None else netns.call(_open_socket)
        self._networks = (*OF_CLUSTERS, ip_network(nowhere)) if nowhere else OF_CLUSTERS
        self._leaks: list[str] = []

    def __exit__(self, *how: object) -> None:
        with self._socket:
            # The work ends when the queue is empty, which it never were beside a cluster that goes on talking.
            _attach_filter(self._socket, _NOTHING)
            super().__exit__(*how)

    def leaks(self) -> list[str]:
        """The first packets of a cluster that were sent, a line each; one sent a moment ago may be missing."""
        return list(self._leaks)

    def work(self) -> None:
        while True:
            try:
                frame, (link, _, kind, *_) = self._socket.recvfrom(_SNAPSHOT)
            except TimeoutError:
                # Nothing is left in the queue; only then may it end.
                if self.stopped.is_set():
                    return
                continue
            networks = self._uplinks.get(link)
            if networks is None or kind != _PACKET_OUTGOING or len(self._leaks) == _LIMIT:
                continue
            if (packet := _packet(frame)) is not None and self._is_of_cluster(packet, networks):
                self._leaks.append(f"{link}: {packet}")

    def _is_of_cluster(self, packet: Packet, on_link: list[IPv4Network | IPv6Network]) -> bool:
        if is_of_the_link(packet):
            return False
        return any(
            any(address in network for network in self._networks) and not any(address in network for network in on_link)
            for address in (packet.source, packet.destination)
        )


def describe_leaks(leaks: Sequence[str]) -> str:
    """In one line, the first packets with it: of a failure, the verdict tells a line."""
    return f"{LEAKED}: {'; '.join(leaks)}"


def _find_uplinks(options: list[str]) -> dict[str, list[IPv4Network | IPv6Network]]:
    """The links of default routes of all tables, with the networks on them."""
    routes = []
    for family in ("-4", "-6"):
        command = ["ip", *options, "-json", family, "route", "show", "table", "all", "default"]
        routes += json.loads(subprocess.run(command, capture_output=True, timeout=_TIMEOUT, check=True).stdout or "[]")
    names = {hop["dev"] for route in routes for hop in [route, *route.get("nexthops", [])] if "dev" in hop}
    links = json.loads(
        subprocess.run(["ip", *options, "-json", "address"], capture_output=True, timeout=_TIMEOUT, check=True).stdout
    )
    return {
        link["ifname"]: [
            ip_interface(f"{address['local']}/{address['prefixlen']}").network for address in link["addr_info"]
        ]
        for link in links
        if link["ifname"] in names - {"lo"}
    }


def _open_socket() -> socket.socket:
    """Of all links. What was received before the filter was there is in the queue (packet(7))."""
    made = socket.socket(socket.AF_PACKET, socket.SOCK_RAW, socket.htons(_ETH_P_ALL))
    _attach_filter(made, _OUTGOING)
    made.settimeout(_LOOK)
    return made


def _attach_filter(packets: socket.socket, instructions: Sequence[tuple[int, int, int, int]]) -> None:
    """In the place of the one that it has. What is in the queue stays there."""
    program = b"".join(struct.pack("HBBI", *instruction) for instruction in instructions)
    memory = (c_char * len(program)).from_buffer_copy(program)
    packets.setsockopt(socket.SOL_SOCKET, _SO_ATTACH_FILTER, struct.pack("HP", len(instructions), addressof(memory)))


def _packet(frame: bytes) -> Packet | None:
    smallest = _HEADER.get(struct.unpack_from("!H", frame, 12)[0]) if len(frame) > _ETHERNET else None
    return parse_packet(frame[_ETHERNET:]) if smallest and len(frame) >= _ETHERNET + smallest else None
