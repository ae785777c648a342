"""Throwaway network namespaces with random names, looked at through iproute2 and used through plain sockets."""

import ctypes
import fcntl
import json
import os
import secrets
import socket
import struct
import subprocess
import threading
import time
from collections.abc import Callable, Iterable, Sequence
from ipaddress import ip_address
from pathlib import Path
from typing import Any, TypeVar

from coil.kernel.family import IPAddress
from coil.netlink.host import NetnsPath
from integration.heartbeat import Heartbeat

R = TypeVar("R")

_libc = ctypes.CDLL(None, use_errno=True)
_CLONE_NEWNET = 0x40000000
_SIOCSIFFLAGS = 0x8914  # linux/sockios.h
_IFF_UP = 1  # linux/if.h
_TCPI_TOTAL_RETRANS, _TCPI_DSACK_DUPS = 100, 216  # offsets in struct tcp_info, linux/tcp.h
_TIMEOUT = 60.0
_MOMENT = 2.0
_PAUSE = 0.05
_STANDSTILL = 0.15
"""Seconds. What is not acknowledged is repeated after 0.2 s, and the first packet after 1 s (linux/net/tcp.h)."""
_EXCHANGES = 10


class Netns:
    """One namespace below /run/netns, with lo up."""

    def __init__(self, name: str) -> None:
        """One that exists; `create_netns` makes them."""
        self.name = name
        self.path = NetnsPath(Path("/run/netns") / name)

    def delete(self) -> None:
        """Take it away, if a test has not done so."""
        delete_netns([self])

    def ip(self, *arguments: str) -> None:
        """Change something."""
        _run("ip", "-n", self.name, *arguments)

    def ip_batch(self, commands: Sequence[str]) -> None:
        """Change several things, in this order, by one start of the program: emulated, most of its time is its start.

        A line has no options before the object; the family is that of its addresses.
        """
        _run("ip", "-n", self.name, "-batch", "-", text="\n".join([*commands, ""]))

    def read(self, *arguments: str) -> list[dict[str, Any]]:
        """What `ip -details -json` says. A table that does not exist is empty."""
        result = subprocess.run(
            ["ip", "-n", self.name, "-details", "-json", *arguments],
            capture_output=True,
            text=True,
            timeout=_TIMEOUT,
            check=False,
        )
        if result.returncode != 0:
            assert "FIB table does not exist" in result.stderr, result.stderr
            return []
        entries = json.loads(result.stdout or "[]")
        return [entry for entry in entries if entry]

    def link(self, name: str) -> dict[str, Any] | None:
        """One link with its addresses, or None."""
        return next((link for link in self.read("address") if link["ifname"] == name), None)

    def link_names(self) -> set[str]:
        """All links but lo and those that the kernel puts into every namespace."""
        return {link["ifname"] for link in self.read("link") if link.get("link_type") == "ether"}

    def state(self) -> dict[str, Any]:
        """Everything that an attachment could leave behind, to be compared with a state before it.

        Without the links' operational state, which the kernel writes when it gets to it, up to a second after a link
        is up.
        """
        both = ["rule", "route show table all", "neighbour show nud permanent"]
        version6 = {f"-6 {command}": found for command, found in self._read_batch("-6", both).items()}
        found = self._read_batch("", ["address", *both]) | version6
        for link in found["address"]:
            link.pop("operstate", None)
        return found

    def _read_batch(self, version: str, commands: Sequence[str]) -> dict[str, list[Any]]:
        """What `ip -details -json` says to each command, by one start of it: an array after the other."""
        options = ["-details", "-json", *version.split(), "-batch", "-"]
        rest = _run("ip", "-n", self.name, *options, text="\n".join([*commands, ""]))
        found = {}
        for command in commands:
            entries, end = json.JSONDecoder().raw_decode(rest := rest.lstrip())
            found[command] = [entry for entry in entries if entry]
            rest = rest[end:]
        assert not rest.strip(), rest
        return found

    def sysctl(self, path: str) -> str:
        """The text of a file below /proc/sys."""
        return self.call(lambda: (Path("/proc/sys") / path).read_text().strip())

    def set_sysctl(self, path: str, value: str) -> None:
        """Write a file below /proc/sys."""
        self.call(lambda: (Path("/proc/sys") / path).write_text(value))

    def call(self, function: Callable[[], R]) -> R:
        """Call something in a thread of its own that is in this namespace."""
        return call_inside(self.path, function)

    def socket(self, address: IPAddress) -> socket.socket:
        """A TCP socket of this namespace, of the address's family."""
        return _open_socket(self.path, address)


def create_netns(number: int) -> list[Netns]:
    """So many namespaces by one start of `ip`: emulated, most of its time is its start."""
    made = [Netns(f"coil-{secrets.token_hex(4)}") for _ in range(number)]
    _run("ip", "-batch", "-", text="".join(f"netns add {netns.name}\n" for netns in made))
    for netns in made:
        netns.call(_set_lo_up)
    return made


def delete_netns(netnses: Iterable[Netns]) -> None:
    """Take away those that a test has not, by one start of `ip`."""
    if lines := [f"netns delete {netns.name}\n" for netns in netnses if netns.path.exists()]:
        _run("ip", "-batch", "-", text="".join(lines))


def call_inside(netns: Path, function: Callable[[], R]) -> R:
    """Call something in a thread of its own that is in the network namespace at that path."""
    results: list[R] = []
    errors: list[BaseException] = []

    def run() -> None:
        try:
            fd = os.open(netns, os.O_RDONLY)
            try:
                if _libc.setns(fd, _CLONE_NEWNET) != 0:
                    raise OSError(ctypes.get_errno(), "setns")
            finally:
                os.close(fd)
            results.append(function())
        except BaseException as error:
            errors.append(error)

    thread = threading.Thread(target=run)
    thread.start()
    thread.join()
    if errors:
        raise errors[0]
    return results[0]


def exchange(client: Netns, server: Netns, address: IPAddress) -> str:
    """Send a line each way over TCP from `client` to `address` in `server`; return the client's address.

    Fails if a packet was lost: the stack would repeat it a second later, and nobody would notice. If the machine has
    stood still meanwhile, the stack may have repeated what was only late: then another exchange decides.
    """
    return exchange_inside(client.path, server.path, address)


def exchange_inside(client: Path, server: Path, address: IPAddress) -> str:
    """The same between the network namespaces at these paths."""
    for _ in range(_EXCHANGES):
        with Heartbeat() as heartbeat:
            seen, lost = _exchange(client, server, address)
        if not lost:
            return seen
        assert heartbeat.longest >= _STANDSTILL, f"a packet of an exchange was lost: {lost}"
    raise AssertionError(f"in each of {_EXCHANGES} exchanges a packet was repeated, and the machine stood still")


def _exchange(client: Path, server: Path, address: IPAddress) -> tuple[str, str]:
    """The client's address, and how many segments of which end were lost, in words; "" if none was."""
    with _open_socket(server, address) as listener, _open_socket(client, address) as connection:
        listener.bind((str(address), 0))
        listener.listen()
        began = time.monotonic()
        connection.connect((str(address), listener.getsockname()[1]))
        connected = time.monotonic() - began
        accepted, peer = listener.accept()
        with accepted:
            accepted.settimeout(_TIMEOUT)
            connection.sendall(b"question\n")
            assert accepted.recv(64) == b"question\n"
            accepted.sendall(b"answer\n")
            assert connection.recv(64) == b"answer\n"
            deadline = time.monotonic() + _MOMENT
            while (lost := (_count_lost(connection), _count_lost(accepted))) != (0, 0) and time.monotonic() < deadline:
                time.sleep(_PAUSE)
        if lost == (0, 0):
            return str(peer[0]), ""
        return str(peer[0]), f"{lost[0]} of the client, {lost[1]} of the server; connected in {connected:.3f} s"


def ping(netns: Netns, address: str, *, seconds: float = _TIMEOUT) -> None:
    """An echo (ping sockets need no program, but a group). Raises TimeoutError."""
    version = ip_address(address).version
    family, protocol = (
        (socket.AF_INET, socket.IPPROTO_ICMP) if version == 4 else (socket.AF_INET6, socket.IPPROTO_ICMPV6)
    )
    netns.set_sysctl("net/ipv4/ping_group_range", "0 65535")
    with netns.call(lambda: socket.socket(family, socket.SOCK_DGRAM, protocol)) as asking:
        asking.settimeout(seconds)
        asking.sendto(bytes((8 if version == 4 else 128, 0, 0, 0, 0, 0, 0, 1)), (address, 0))
        asking.recv(64)


def _open_socket(netns: Path, address: IPAddress) -> socket.socket:
    family = socket.AF_INET if address.version == 4 else socket.AF_INET6
    made = call_inside(netns, lambda: socket.socket(family, socket.SOCK_STREAM))
    made.settimeout(_TIMEOUT)
    return made


def _set_lo_up() -> None:
    """Of the thread's namespace; netdevice(7)."""
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as asking:
        fcntl.ioctl(asking, _SIOCSIFFLAGS, struct.pack("16sh14x", b"lo", _IFF_UP))


def _count_lost(connection: socket.socket) -> int:
    """How many segments were lost on their way from here. A machine that stands still for a moment sends some again
    that had arrived, of which the receiver tells a moment later (RFC 2883). So it does where only an acknowledgement
    was lost.
    """
    info = connection.getsockopt(socket.IPPROTO_TCP, socket.TCP_INFO, 256)
    again, twice = (int.from_bytes(info[at : at + 4], "little") for at in (_TCPI_TOTAL_RETRANS, _TCPI_DSACK_DUPS))
    return again - twice


def _run(*argv: str, text: str = "") -> str:
    result = subprocess.run(argv, input=text, capture_output=True, text=True, timeout=_TIMEOUT, check=False)
    assert result.returncode == 0, f"{' '.join(argv)}: {result.stderr}"
    return result.stdout
