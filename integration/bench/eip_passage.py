"""Packets through a gateway: pods ── gateway ── the world, three namespaces in a row, and how many come out.

One thread sends, and the kernel forwards in its context, so a figure is what one core carries, the sending included. A
send hands over a train of datagrams that the kernel takes apart before the link, so that little of it is Python's.
What arrives is counted by the last link, and then dropped: nobody answers.
"""

import socket
import subprocess
import time
from collections.abc import Iterator, Sequence
from enum import StrEnum
from ipaddress import IPv4Address
from typing import Final

from integration.bench.eip_crowd import DESTINATION_RANGE, Crowd, eip_address
from integration.netns.netns import Netns, create_netns, delete_netns

_UDP_SEGMENT: Final = 103  # linux/udp.h
_PAYLOAD: Final = 64
_TRAIN: Final = bytes(_PAYLOAD * 64)
_DATAGRAM: Final = bytes(_PAYLOAD)
_PORT: Final = 9
_FIRST_PORT, _PORTS = 1024, 60_000
_WORLD_MAC: Final = "02:00:00:00:01:01"
_EIPS: Final = "100.65."
_TRAVELLERS: Final = 32
_CALM_SECONDS: Final = 0.05
_SECONDS: Final = 60
_ROUNDS: Final = 25
_RUN_SECONDS: Final = 0.2
"""Short, so that neighbours meet the same speed of a shared machine."""


class Traffic(StrEnum):
    """Of connections that are known to the kernel, or each packet one of a new connection."""

    ESTABLISHED = "established"
    NEW = "new"


class Passage:
    """`pods` are those of the crowd that travel; the gateway has all addresses of the crowd. `close` it."""

    def __init__(self, crowd: Crowd) -> None:
        self._netnses: list[Netns] = []
        try:
            self._pods, self.gateway, self._world = (self._new_netns() for _ in range(3))
            self._travellers = list(crowd.travellers(_TRAVELLERS))
            self._wire(crowd)
            self._sockets = [self._open(source, destination) for source, destination in self._travellers]
        except BaseException:
            self._delete()
            raise

    def close(self) -> None:
        for each in self._sockets:
            each.close()
        self._delete()

    def measure(self, traffic: Traffic, seconds: float) -> float:
        """Packets per second that came out, of as many as could be sent in so many seconds."""
        self._forget_connections()
        if traffic is Traffic.ESTABLISHED:
            self._send_trains(0.0)
            self._await_calm()
        before, began = self._arrived(), time.perf_counter()
        if traffic is Traffic.ESTABLISHED:
            self._send_trains(seconds)
        else:
            self._send_strangers(seconds)
        ended = time.perf_counter()
        self._await_calm()
        return (self._arrived() - before) / (ended - began)

    def check(self) -> None:
        """Whether all connections of the last measurement were translated. Raises RuntimeError."""
        listed = self._run(self.gateway, "conntrack", "-L", "-p", "udp").splitlines()
        plain = [line for line in listed if line.count("src=") == 2 and f" dst={_EIPS}" not in line]
        if plain or not listed:
            raise RuntimeError(f"not translated: {plain[:1] or 'there is nothing'}")

    def _send_trains(self, seconds: float) -> None:
        """At least once from each pod."""
        until = time.perf_counter() + seconds
        while True:
            for each in self._sockets:
                each.send(_TRAIN)
            if time.perf_counter() >= until:
                return

    def _send_strangers(self, seconds: float) -> None:
        until = time.perf_counter() + seconds
        targets = [str(destination) for _, destination in self._travellers]
        free = [self._open_plain(source) for source, _ in self._travellers]
        try:
            for port in range(_FIRST_PORT, _FIRST_PORT + _PORTS):
                for each, target in zip(free, targets, strict=True):
                    each.sendto(_DATAGRAM, (target, port))
                if time.perf_counter() >= until:
                    return
        finally:
            for each in free:
                each.close()

    def _open(self, source: IPv4Address, destination: IPv4Address) -> socket.socket:
        made = self._open_plain(source)
        made.setsockopt(socket.IPPROTO_UDP, _UDP_SEGMENT, _PAYLOAD)
        made.connect((str(destination), _PORT))
        return made

    def _open_plain(self, source: IPv4Address) -> socket.socket:
        made = self._pods.call(lambda: socket.socket(socket.AF_INET, socket.SOCK_DGRAM))
        made.bind((str(source), 0))
        return made

    def _arrived(self) -> int:
        [link] = self._world.read("-stats", "link", "show", "eth0")
        return int(link["stats64"]["rx"]["packets"])

    def _await_calm(self) -> None:
        """Until nothing is under way any more."""
        last, until = -1, time.monotonic() + _SECONDS
        while (arrived := self._arrived()) != last:
            if time.monotonic() > until:
                raise RuntimeError("packets arrive without an end")
            last = arrived
            time.sleep(_CALM_SECONDS)

    def _forget_connections(self) -> None:
        self._run(self.gateway, "conntrack", "-F")

    def _wire(self, crowd: Crowd) -> None:
        pods, gateway, world = self._pods, self.gateway, self._world
        gateway.ip("link", "add", "pods", "type", "veth", "peer", "name", "eth0", "netns", pods.name)
        gateway.ip("link", "add", "world", "type", "veth", "peer", "name", "eth0", "netns", world.name)
        gateway.ip("address", "add", "10.0.0.1/24", "dev", "pods")
        gateway.ip("address", "add", "192.0.2.1/24", "dev", "world")
        pods.ip("address", "add", "10.0.0.2/24", "dev", "eth0")
        # Trains are taken apart here, before the gateway.
        pods.ip("link", "set", "eth0", "gso_max_segs", "1")
        world.ip("link", "set", "eth0", "address", _WORLD_MAC)
        for netns, link in ((pods, "eth0"), (gateway, "pods"), (gateway, "world"), (world, "eth0")):
            netns.ip("link", "set", link, "up")
        pods.ip("route", "add", "default", "via", "10.0.0.1")
        gateway.ip("neighbour", "add", "192.0.2.2", "lladdr", _WORLD_MAC, "dev", "world", "nud", "permanent")
        gateway.ip("route", "add", str(DESTINATION_RANGE), "via", "192.0.2.2")
        gateway.set_sysctl("net/ipv4/ip_forward", "1")
        world.set_sysctl("net/ipv4/ip_forward", "0")
        for scope in ("all", "default", "pods", "world"):
            gateway.set_sysctl(f"net/ipv4/conf/{scope}/rp_filter", "0")
        gateway.ip("link", "add", "egress.eip", "type", "bridge")
        gateway.ip("link", "set", "egress.eip", "up")
        _add_all(gateway, [f"{eip_address(number)}/32 dev egress.eip" for number in crowd.here()])
        _add_all(pods, [f"{source}/32 dev eth0" for source in {source for source, _ in self._travellers}])
        for source in {source for source, _ in self._travellers}:
            gateway.ip("route", "add", f"{source}/32", "via", "10.0.0.2")

    def _new_netns(self) -> Netns:
        [netns] = create_netns(1)
        self._netnses.append(netns)
        return netns

    def _delete(self) -> None:
        delete_netns(self._netnses)
        self._netnses.clear()

    @staticmethod
    def _run(netns: Netns, *command: str) -> str:
        full = ["nsenter", f"--net={netns.path}", "--", *command]
        done = subprocess.run(full, capture_output=True, text=True, timeout=_SECONDS, check=False)
        if done.returncode:
            raise RuntimeError(f"{' '.join(command)}: {done.stderr.strip()[:300]}")
        return done.stdout


def take_turns(passages: Sequence[Passage], traffic: Traffic) -> Iterator[list[float]]:
    """Measure one after the other, `_ROUNDS` times; yields the packets per second of each round."""
    for _ in range(_ROUNDS):
        yield [passage.measure(traffic, _RUN_SECONDS) for passage in passages]


def _add_all(netns: Netns, addresses: Sequence[str]) -> None:
    text = "".join(f"address add {address}\n" for address in addresses)
    command = ["ip", "-n", netns.name, "-batch", "-"]
    subprocess.run(command, input=text, text=True, check=True, capture_output=True, timeout=_SECONDS)
