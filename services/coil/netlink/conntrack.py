"""The connections that conntrack knows in this namespace, and words in the name of a connection's other end.

    read_flows(wanted, limit)       those that certain sources have begun
    read_udp_flows(port)            those of UDP that have begun with a packet to that port
    forget_flows(flows)             conntrack meets them anew with their next packet
    probe(flows, random, mark)      has their sources speak

Runs in a worker's thread, in the namespace. `FlowTable` is the asynchronous door.

On the wire (linux/netfilter/nfnetlink_conntrack.h, nfnetlink.h) numbers in attributes are in network order. A dump has
every connection of a family, so what is not wanted must be told at a glance: the source is the first attribute of the
first attribute of the first one, as the kernel writes them.

A probe: a segment that cannot be right is answered by an ACK with the right numbers (RFC 9293, section 3.10.7.4). Linux
answers one in half a second per connection (net.ipv4.tcp_invalid_ratelimit). The segment has no data, and numbers by
chance; the one in some thousands that lies in the window by chance is an old acknowledgement, and changes nothing.
It takes the kernel's way to the pod as if the node itself had said it: no filter for what is forwarded sees it, and no
reverse path is looked at. `mark` is for a rule that keeps conntrack off it.
"""

import errno
import socket
import struct
import sys
from collections.abc import Callable, Collection, Sequence
from contextlib import AsyncExitStack, ExitStack
from ipaddress import ip_address
from types import TracebackType
from typing import Final

from coil.kernel.family import Family, IPAddress
from coil.kernel.flow import TCP, UDP, Endpoint, Flow, bare_acknowledgement
from coil.netlink.connection import Connection
from coil.netlink.error import NetlinkError
from coil.netlink.wire import NLM_F_DUMP, Request, attribute, parse_attributes
from coil.netlink.worker import Worker, open_worker

_CONNTRACK: Final = 1  # NFNL_SUBSYS_CTNETLINK
_GET: Final = _CONNTRACK << 8 | 1
_DELETE: Final = _CONNTRACK << 8 | 2
_GENERIC: Final = struct.Struct("!BBH")  # family, version, resource
_NESTED: Final = 0x8000

_TUPLE_ORIGINAL: Final = 1
_TUPLE_REPLY: Final = 2
_PROTOCOL_INFO: Final = 4
_MARK: Final = 8
_ID: Final = 12
_ZONE: Final = 18
_FILTER: Final = 25

_TUPLE_IP: Final = 1
_TUPLE_PROTOCOL: Final = 2
_ENDS: Final = {Family.IPV4: (1, 2), Family.IPV6: (3, 4)}  # source, destination
_PROTOCOL_NUMBER: Final = 1
_PORTS: Final = (2, 3)  # source, destination
_FILTER_ORIGINAL: Final = 1  # CTA_FILTER_ORIG_FLAGS
_BY_PROTOCOL_AND_PORT: Final = 1 << 3 | 1 << 5  # CTA_FILTER_F_CTA_PROTO_NUM, _DST_PORT; net/netfilter/nf_internals.h
_INFO_TCP: Final = 1
_INFO_TCP_STATE: Final = 1
_ESTABLISHED: Final = 3  # TCP_CONNTRACK_ESTABLISHED, linux/netfilter/nf_conntrack_tcp.h

_HEADS: Final = struct.Struct("=HHHHHH")  # length and type of three attributes, each the first in the one before
_TYPE_MASK: Final = 0x3FFF
_SIZES: Final = {Family.IPV4: 4, Family.IPV6: 16}


def dump_flows(family: Family) -> Request:
    """All connections of the family."""
    return Request(_GET, NLM_F_DUMP, _GENERIC.pack(family, 0, 0), ("read the connections of", family.name))


def dump_udp_flows(family: Family, port: int) -> Request:
    """Those to a port. Kernels before 5.8 know no filter, and answer with all connections of the family."""
    protocol = attribute(_PROTOCOL_NUMBER, bytes([UDP])) + attribute(_PORTS[1], port.to_bytes(2, "big"))
    wanted = attribute(_TUPLE_ORIGINAL | _NESTED, attribute(_TUPLE_PROTOCOL | _NESTED, protocol))
    flags = attribute(_FILTER_ORIGINAL, _BY_PROTOCOL_AND_PORT.to_bytes(4, sys.byteorder))
    body = _GENERIC.pack(family, 0, 0) + wanted + attribute(_FILTER | _NESTED, flags)
    return Request(_GET, NLM_F_DUMP, body, ("read the UDP connections to port", port))


def delete_flow(flow: Flow) -> Request:
    """Forget one that was read. ENOENT: it, and no later one between the same ends, is gone already."""
    family = Family.of(flow.source.address)
    return Request(_DELETE, 0, _GENERIC.pack(family, 0, 0) + flow.handle, ("forget the connection of", flow.source))


def parse_source(body: bytes, family: Family) -> IPAddress | None:
    """Who has begun the connection; None where the message is not as the kernel writes it."""
    start = _GENERIC.size
    if len(body) < start + _HEADS.size:
        return None
    _, outer, _, middle, length, inner = _HEADS.unpack_from(body, start)
    kinds = (outer & _TYPE_MASK, middle & _TYPE_MASK, inner & _TYPE_MASK)
    size = _SIZES[family]
    if kinds != (_TUPLE_ORIGINAL, _TUPLE_IP, _ENDS[family][0]) or length != size + 4:
        return None
    start += _HEADS.size
    return ip_address(body[start : start + size])


def parse_flow(body: bytes, family: Family) -> Flow:
    """Raises ValueError, or KeyError where something is missing."""
    found = parse_attributes(body, _GENERIC.size)
    protocol, source, destination = _parse_tuple(found[_TUPLE_ORIGINAL], family)
    _, target, seen = _parse_tuple(found[_TUPLE_REPLY], family)
    handle = attribute(_TUPLE_ORIGINAL | _NESTED, found[_TUPLE_ORIGINAL])
    handle += b"".join(attribute(kind, found[kind]) for kind in (_ID, _ZONE) if kind in found)
    return Flow(
        protocol=protocol,
        source=source,
        destination=destination,
        target=target,
        seen=seen,
        established=protocol == TCP and _parse_state(found.get(_PROTOCOL_INFO, b"")) == _ESTABLISHED,
        mark=int.from_bytes(found.get(_MARK, b""), "big"),
        handle=handle,
    )


def _parse_tuple(data: bytes, family: Family) -> tuple[int, Endpoint, Endpoint]:
    parts = parse_attributes(data, 0)
    addresses = parse_attributes(parts[_TUPLE_IP], 0)
    protocol = parse_attributes(parts[_TUPLE_PROTOCOL], 0)
    source, destination = (
        Endpoint(ip_address(addresses[kind]), int.from_bytes(protocol.get(port, b""), "big"))
        for kind, port in zip(_ENDS[family], _PORTS, strict=True)
    )
    return protocol[_PROTOCOL_NUMBER][0], source, destination


def _parse_state(info: bytes) -> int:
    state = parse_attributes(parse_attributes(info, 0).get(_INFO_TCP, b""), 0).get(_INFO_TCP_STATE, b"")
    return int.from_bytes(state, "big")


_NETLINK_NETFILTER: Final = 12  # linux/netlink.h; the socket module has it from Python 3.12 on
_SO_MARK: Final = 36  # asm-generic/socket.h


def read_flows(wanted: Callable[[IPAddress], bool], limit: int) -> tuple[tuple[Flow, ...], bool]:
    """The connections that wanted sources have begun, at most so many; and whether there are more.

    Reads the whole table: a second for some hundred thousand connections. Raises NetlinkError.
    """
    flows: list[Flow] = []
    more = False
    with Connection(_NETLINK_NETFILTER) as connection:
        for family in Family:
            sieve = _Sieve(family, wanted, limit - len(flows))
            flows += (parse_flow(body, family) for body in connection.dump(dump_flows(family), keep=sieve.keep))
            more = more or sieve.more
    return tuple(flows), more


def read_udp_flows(port: int) -> list[Flow]:
    """Of both families. Raises NetlinkError."""
    with Connection(_NETLINK_NETFILTER) as connection:
        flows = [
            parse_flow(body, family) for family in Family for body in connection.dump(dump_udp_flows(family, port))
        ]
    return [flow for flow in flows if flow.protocol == UDP and flow.destination.port == port]


class _Sieve:
    """Takes at most `room` messages about wanted sources."""

    def __init__(self, family: Family, wanted: Callable[[IPAddress], bool], room: int) -> None:
        self._family = family
        self._wanted = wanted
        self._room = room
        self.more = False

    def keep(self, body: bytes) -> bool:
        source = parse_source(body, self._family)
        if source is None or not self._wanted(source):
            return False
        self.more = self._room == 0
        self._room = max(self._room - 1, 0)
        return not self.more


def forget_flows(flows: Sequence[Flow]) -> None:
    """Idempotent. Raises NetlinkError for the first that could not be forgotten, after having tried the others."""
    if flows:
        with Connection(_NETLINK_NETFILTER) as connection:
            connection.apply([delete_flow(flow) for flow in flows], tolerate={errno.ENOENT})


def probe(flows: Collection[Flow], *, random: Callable[[], int], mark: int) -> int:
    """Say one thing to each source in the name of its destination; returns to how many.

    `random` gives numbers of 32 bits. What cannot be sent to one (its pod is gone, a queue is full) is left out. Raises
    NetlinkError where nothing can be sent at all.
    """
    said = 0
    with ExitStack() as stack:
        speakers: dict[Family, socket.socket] = {}
        for flow in flows:
            family = Family.of(flow.source.address)
            if family not in speakers:
                speakers[family] = stack.enter_context(_open_speaker(family, mark))
            packet = bare_acknowledgement(flow.destination, flow.source, sequence=random(), acknowledged=random())
            try:
                speakers[family].sendto(packet, (str(flow.source.address), 0))
            except OSError:
                continue
            said += 1
    return said


def _open_speaker(family: Family, mark: int) -> socket.socket:
    try:
        # The headers are ours, in both families (raw(7); Linux' net/ipv6/af_inet6.c), and nothing is ever heard.
        speaker = socket.socket(family, socket.SOCK_RAW | socket.SOCK_CLOEXEC, socket.IPPROTO_RAW)
    except OSError as error:
        raise NetlinkError(f"cannot speak to pods: {error.strerror}; this process needs CAP_NET_RAW") from error
    try:
        speaker.setblocking(False)
        speaker.setsockopt(socket.SOL_SOCKET, _SO_MARK, mark)
    except OSError as error:
        speaker.close()
        raise NetlinkError(f"cannot mark packets: {error.strerror}; this process needs CAP_NET_ADMIN") from error
    return speaker


class FlowTable:
    """The same without waiting on the event loop, in the namespace of the process: one call at a time, on a thread that
    nothing else waits for. An async context manager; leaving it waits for the running call. All methods raise
    NetlinkError.
    """

    def __init__(self) -> None:
        self._stack = AsyncExitStack()
        self._worker: Worker

    async def __aenter__(self) -> "FlowTable":
        self._worker = await self._stack.enter_async_context(open_worker("flows"))
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, value: BaseException | None, traceback: TracebackType | None
    ) -> None:
        await self._stack.aclose()

    async def read(self, wanted: Callable[[IPAddress], bool], limit: int) -> tuple[tuple[Flow, ...], bool]:
        """See `read_flows`; `wanted` is called in another thread."""
        return await self._worker.run(read_flows, wanted, limit)

    async def forget(self, flows: Sequence[Flow]) -> None:
        """See `forget_flows`."""
        await self._worker.run(forget_flows, flows)

    async def probe(self, flows: Sequence[Flow], *, random: Callable[[], int], mark: int) -> int:
        """See `probe`; `random` is called in another thread."""
        return await self._worker.run(probe, flows, random=random, mark=mark)
