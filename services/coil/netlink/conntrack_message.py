"""Conntrack's table on the wire (linux/netfilter/nfnetlink_conntrack.h, nfnetlink.h).

Numbers in attributes are in network order. A dump has every connection of a family, so what is not wanted must be told
at a glance: the source is the first attribute of the first attribute of the first one, as the kernel writes them.
"""

import struct
from ipaddress import ip_address
from typing import Final

from coil.kernel.family import Family, IPAddress
from coil.kernel.flow import TCP, Endpoint, Flow
from coil.netlink.request import Request
from coil.netlink.wire import NLM_F_DUMP, attribute, parse_attributes

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

_TUPLE_IP: Final = 1
_TUPLE_PROTOCOL: Final = 2
_ENDS: Final = {Family.IPV4: (1, 2), Family.IPV6: (3, 4)}  # source, destination
_PROTOCOL_NUMBER: Final = 1
_PORTS: Final = (2, 3)  # source, destination
_INFO_TCP: Final = 1
_INFO_TCP_STATE: Final = 1
_ESTABLISHED: Final = 3  # TCP_CONNTRACK_ESTABLISHED, linux/netfilter/nf_conntrack_tcp.h

_HEADS: Final = struct.Struct("=HHHHHH")  # length and type of three attributes, each the first in the one before
_TYPE_MASK: Final = 0x3FFF
_SIZES: Final = {Family.IPV4: 4, Family.IPV6: 16}


def dump_flows(family: Family) -> Request:
    """All connections of the family."""
    return Request(_GET, NLM_F_DUMP, _GENERIC.pack(family, 0, 0), ("read the connections of", family.name))


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
