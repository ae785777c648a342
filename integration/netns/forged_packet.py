"""Packets made byte by byte, as whoever has CAP_NET_RAW makes them."""

import socket
import struct
from ipaddress import IPv6Address
from typing import Final

from coil.kernel.family import IPAddress
from integration.netns.netns import Netns

ALL_NODES = IPv6Address("ff02::1")
ARP, IPV4, IPV6 = 0x0806, 0x0800, 0x86DD


FORGED: Final = b"forged"
"""What is in forged packets, unless it is told otherwise."""


def octets(mac: str) -> bytes:
    return bytes.fromhex(mac.replace(":", ""))


def ones_sum(data: bytes) -> int:
    """The internet checksum (RFC 1071)."""
    total = sum(struct.unpack(f"!{(len(data) + 1) // 2}H", data + b"\0" * (len(data) % 2)))
    while total >> 16:
        total = (total & 0xFFFF) + (total >> 16)
    return int(total) ^ 0xFFFF


def ip_packet(source: IPAddress, destination: IPAddress, protocol: int, body: bytes) -> bytes:
    if source.version == 4:
        header = struct.pack("!BBHHHBBH", 0x45, 0, 20 + len(body), 1, 0, 64, protocol, 0)
        whole = header + source.packed + destination.packed
        return whole[:10] + struct.pack("!H", ones_sum(whole)) + whole[12:] + body
    return struct.pack("!IHBB", 6 << 28, len(body), protocol, 255) + source.packed + destination.packed + body


def udp(source: IPAddress, destination: IPAddress, *, sport: int = 9, dport: int = 9, payload: bytes = FORGED) -> bytes:
    header = struct.pack("!HHHH", sport, dport, 8 + len(payload), 0)
    pseudo = source.packed + destination.packed + struct.pack("!IHH", 8 + len(payload), 0, 17)
    checksum = ones_sum(pseudo + header + payload) or 0xFFFF
    return ip_packet(source, destination, 17, header[:6] + struct.pack("!H", checksum) + payload)


def impossible_tcp(source: IPAddress, destination: IPAddress) -> bytes:
    """A TCP header with the flags SYN, FIN and RST, which no connection begins with and none has."""
    header = struct.pack("!HHIIBBHHH", 1234, 80, 1, 0, 5 << 4, 0x07, 0, 0, 0)
    pseudo = source.packed + destination.packed + struct.pack("!IHH", len(header), 0, 6)
    return header[:16] + struct.pack("!H", ones_sum(pseudo + header)) + header[18:]


def icmpv6(source: IPAddress, destination: IPAddress, kind: int, body: bytes) -> bytes:
    message = struct.pack("!BBH", kind, 0, 0) + body
    pseudo = source.packed + destination.packed + struct.pack("!II", len(message), 58)
    checksum = struct.pack("!H", ones_sum(pseudo + message))
    return ip_packet(source, destination, 58, message[:2] + checksum + message[4:])


def arp(operation: int, mac: str, sender: IPAddress, target: IPAddress) -> bytes:
    return struct.pack("!HHBBH", 1, IPV4, 6, 4, operation) + octets(mac) + sender.packed + bytes(6) + target.packed


def advertisement(source: IPAddress, target: IPAddress, mac: str) -> bytes:
    body = struct.pack("!I", 0x20000000) + target.packed + b"\x02\x01" + octets(mac)
    return icmpv6(source, ALL_NODES, 136, body)


def send(netns: Netns, *frames: bytes) -> None:
    """From the pod's own link, whatever is in them."""
    with netns.call(lambda: socket.socket(socket.AF_PACKET, socket.SOCK_RAW)) as sender:
        sender.bind(("eth0", 0))
        for frame in frames:
            sender.send(frame.ljust(60, b"\0"))
