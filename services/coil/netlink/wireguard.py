"""WireGuard: the codec (linux/wireguard.h), the link, and what it knows of its peers.

    ensure_wireguard(wireguard, connection) -> PublicKey      of this node
    sync_wireguard_peers(name, peers, connection) -> WireGuardChanges
    read_wireguard_peers(name, connection) -> tuple[WireGuardPeer, ...]

The private key is made here and given to the kernel; it is written nowhere else, and lasts as long as the link. The
first two begin with what the kernel says, so they repair whatever somebody else has changed. Runs in a worker's thread,
in the namespace of the link.
"""

import errno
import os
import socket
import struct
from base64 import b64decode, b64encode
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from ipaddress import IPv4Address, IPv4Network, ip_address
from typing import Final

from coil.kernel.family import Family, IPAddress
from coil.kernel.link import LinkName, LinkState
from coil.kernel.mark import MARK_PROTOCOL
from coil.kernel.route import Route, RouteScope, RouteTable, diff_routes
from coil.kernel.wireguard import (
    WIREGUARD_KIND,
    PublicKey,
    WireGuard,
    WireGuardChanges,
    WireGuardPeer,
    WireGuardState,
    diff_wireguard,
)
from coil.netlink.connection import Connection
from coil.netlink.error import KernelError, NetlinkError
from coil.netlink.generic import NETLINK_GENERIC, find_family, generic_body, parse_generic
from coil.netlink.link import find_link, get_link, new_virtual_link, parse_link, set_mtu, set_up
from coil.netlink.route import delete_route, dump_link_routes, parse_route, replace_route
from coil.netlink.wire import (
    BE16,
    NLM_F_DUMP,
    U16,
    Request,
    attribute,
    attribute_text,
    attribute_u8,
    attribute_u16,
    attribute_u32,
    parse_attributes,
    parse_u8,
    parse_u16,
)

FAMILY_NAME: Final = "wireguard"
_VERSION: Final = 1
_GET_DEVICE: Final = 0
_SET_DEVICE: Final = 1

_DEVICE_NAME: Final = 2
_DEVICE_PRIVATE_KEY: Final = 3
_DEVICE_PUBLIC_KEY: Final = 4
_DEVICE_PORT: Final = 6
_DEVICE_PEERS: Final = 8

_PEER_KEY: Final = 1
_PEER_PRESHARED_KEY: Final = 2
_PEER_FLAGS: Final = 3
_PEER_ENDPOINT: Final = 4
_PEER_KEEPALIVE: Final = 5
_PEER_ADDRESSES: Final = 9
_REMOVE: Final = 1
_REPLACE_ADDRESSES: Final = 2

_ADDRESS_FAMILY: Final = 1
_ADDRESS: Final = 2
_ADDRESS_LENGTH: Final = 3

_NESTED: Final = 0x8000
_ZEROS: Final = bytes(32)
_PEERS_IN_A_MESSAGE: Final = 100
"""An attribute has less than 64 KiB; a peer is some 200 bytes."""


def set_device(name: LinkName, family: int, *, private_key: bytes | None = None, port: int | None = None) -> Request:
    """Give the link a key or a port. EADDRINUSE where the link is up and something else has the port."""
    body = attribute_text(_DEVICE_NAME, name)
    if private_key is not None:
        body += attribute(_DEVICE_PRIVATE_KEY, private_key)
    if port is not None:
        body += attribute_u16(_DEVICE_PORT, port)
    return Request(family, 0, generic_body(_SET_DEVICE, _VERSION, body), ("set up", name))


def set_peers(
    name: LinkName, family: int, *, deletes: Sequence[PublicKey] = (), puts: Sequence[WireGuardPeer] = ()
) -> Request:
    """Delete peers of the link, and add or change others."""
    peers = [*map(_deleted, deletes), *map(_put, puts)]
    nest = b"".join(attribute(number | _NESTED, peer) for number, peer in enumerate(peers))
    body = attribute_text(_DEVICE_NAME, name) + attribute(_DEVICE_PEERS | _NESTED, nest)
    return Request(family, 0, generic_body(_SET_DEVICE, _VERSION, body), ("set the peers of", name))


def dump_device(name: LinkName, family: int) -> Request:
    """Ask for the link and its peers, which come in several messages where they are many."""
    body = generic_body(_GET_DEVICE, _VERSION, attribute_text(_DEVICE_NAME, name))
    return Request(family, NLM_F_DUMP, body, ("read the peers of", name))


def parse_device(messages: Iterable[bytes]) -> WireGuardState:
    """From the answers to `dump_device`. What of a peer does not fit into one message is in the next one."""
    key, port = None, 0
    peers = dict[PublicKey, WireGuardPeer | None]()
    for message in messages:
        device = parse_generic(message)
        if (public := device.get(_DEVICE_PUBLIC_KEY, _ZEROS)) != _ZEROS:
            key = _text(public)
        if _DEVICE_PORT in device:
            port = parse_u16(device[_DEVICE_PORT])
        for body in parse_attributes(device.get(_DEVICE_PEERS, b""), 0).values():
            attributes = parse_attributes(body, 0)
            peer = _text(attributes[_PEER_KEY])
            # A peer of ours has one address, and fits.
            peers[peer] = None if peer in peers else _parse_peer(peer, attributes)
    return WireGuardState(key=key, port=port, peers=peers)


def ensure_wireguard(wireguard: WireGuard, connection: Connection) -> PublicKey:
    """Have the link there, with a key, at its port, up. Idempotent. Returns the node's public key: another one than
    before if the link had to be made.

    Raises NetlinkError where a link of another kind has the name, where something else has the port, or where the
    kernel lacks the module.
    """
    link = find_link(wireguard.name, connection)
    if link is None:
        _create(wireguard, connection)
        link = parse_link(connection.get(get_link(wireguard.name)))
    if link.kind != WIREGUARD_KIND:
        raise NetlinkError(
            f"there is a link {link.name} already, and it is no WireGuard ({link.kind or 'no virtual link'}); "
            f"if nobody needs it, run `ip link delete {link.name}` on the node"
        )
    with Connection(NETLINK_GENERIC) as generic:
        family = _find_family(generic)
        state = _read(wireguard.name, family, generic)
        if state.key is None:
            generic.apply((set_device(wireguard.name, family, private_key=os.urandom(32)),))
            state = _read(wireguard.name, family, generic)
        if state.key is None:
            raise NetlinkError(f"{wireguard} has not taken its key")
        if state.port != wireguard.port:
            with _claiming_port(wireguard):
                generic.apply((set_device(wireguard.name, family, port=wireguard.port),))
    if link.mtu != wireguard.mtu:
        connection.apply((set_mtu(link.index, wireguard.mtu),))
    if link.state is not LinkState.UP:
        with _claiming_port(wireguard):
            connection.apply((set_up(link.index),))
    return state.key


def sync_wireguard_peers(name: LinkName, peers: Sequence[WireGuardPeer], connection: Connection) -> WireGuardChanges:
    """Make `peers` all that the link knows, and have the routes of their addresses lead into it. Idempotent.

    Raises ValueError where two share a key or an address, NetlinkError where there is no such link, or for the first
    change that the kernel refused.
    """
    link = find_link(name, connection)
    if link is None:
        raise NetlinkError(f"there is no link {name}")
    with Connection(NETLINK_GENERIC) as generic:
        family = _find_family(generic)
        changes = diff_wireguard(_read(name, family, generic).peers, peers)
        for start in range(0, len(changes.deletes), _PEERS_IN_A_MESSAGE):
            generic.apply((set_peers(name, family, deletes=changes.deletes[start : start + _PEERS_IN_A_MESSAGE]),))
        for start in range(0, len(changes.puts), _PEERS_IN_A_MESSAGE):
            generic.apply((set_peers(name, family, puts=changes.puts[start : start + _PEERS_IN_A_MESSAGE]),))
    _sync_routes(name, link.index, peers, connection)
    return changes


def read_wireguard_peers(name: LinkName, connection: Connection) -> tuple[WireGuardPeer, ...]:
    """The peers that the link has and `sync_wireguard_peers` has set; none where there is no such link."""
    link = find_link(name, connection)
    if link is None or link.kind != WIREGUARD_KIND:
        return ()
    with Connection(NETLINK_GENERIC) as generic:
        peers = _read(name, _find_family(generic), generic).peers
    return tuple(peer for peer in peers.values() if peer is not None)


def _sync_routes(name: LinkName, index: int, peers: Iterable[WireGuardPeer], connection: Connection) -> None:
    wanted = [
        Route(destination=IPv4Network(peer.address), device=name, protocol=MARK_PROTOCOL, scope=RouteScope.LINK)
        for peer in peers
    ]
    actual = list(_read_routes(name, index, connection))
    changes = diff_routes(actual, wanted)
    errors = connection.submit([replace_route(route, index) for route in (*changes.replaces, *changes.adds)])
    deletes = [delete_route(route, index) for route in (*changes.clears, *changes.deletes)]
    errors += connection.submit(deletes, tolerate={errno.ESRCH})
    for error in errors:
        raise error


def _read_routes(name: LinkName, index: int, connection: Connection) -> Iterator[Route]:
    for body in connection.dump(dump_link_routes(Family.IPV4, index=index, protocol=MARK_PROTOCOL)):
        route = parse_route(body, {index: name})
        if route is not None and route.table == RouteTable.MAIN:
            yield route


def _create(wireguard: WireGuard, connection: Connection) -> None:
    try:
        connection.apply((new_virtual_link(wireguard.name, WIREGUARD_KIND, b"", mtu=wireguard.mtu),))
    except KernelError as error:
        if error.errno == errno.EOPNOTSUPP:
            raise NetlinkError(f"{error}; is the module there? On the node, run `modprobe {WIREGUARD_KIND}`") from error
        raise


def _find_family(generic: Connection) -> int:
    family = find_family(FAMILY_NAME, generic)
    if family is None:
        raise NetlinkError(f"the kernel's module is not loaded; on the node, run `modprobe {WIREGUARD_KIND}`")
    return family


@contextmanager
def _claiming_port(wireguard: WireGuard) -> Iterator[None]:
    try:
        yield
    except KernelError as error:
        if error.errno == errno.EADDRINUSE:
            raise NetlinkError(f"{error}: UDP port {wireguard.port} is taken; choose another one") from error
        raise


def _read(name: LinkName, family: int, generic: Connection) -> WireGuardState:
    return parse_device(generic.dump(dump_device(name, family)))


def _deleted(key: PublicKey) -> bytes:
    return attribute(_PEER_KEY, b64decode(key)) + attribute_u32(_PEER_FLAGS, _REMOVE)


def _put(peer: WireGuardPeer) -> bytes:
    address = (
        attribute_u16(_ADDRESS_FAMILY, socket.AF_INET)
        + attribute(_ADDRESS, peer.address.packed)
        + attribute_u8(_ADDRESS_LENGTH, peer.address.max_prefixlen)
    )
    return (
        attribute(_PEER_KEY, b64decode(peer.key))
        + attribute(_PEER_PRESHARED_KEY, _ZEROS)
        + attribute_u32(_PEER_FLAGS, _REPLACE_ADDRESSES)
        + attribute(_PEER_ENDPOINT, _endpoint(peer.endpoint, peer.port))
        + attribute_u16(_PEER_KEEPALIVE, 0)
        + attribute(_PEER_ADDRESSES | _NESTED, attribute(_NESTED, address))
    )


_IPV4_ENDPOINT: Final = struct.Struct("=H2s4s8x")  # sockaddr_in
_IPV6_ENDPOINT: Final = struct.Struct("=H2s4x16sI")  # sockaddr_in6


def _endpoint(address: IPAddress, port: int) -> bytes:
    if address.version == 4:
        return _IPV4_ENDPOINT.pack(socket.AF_INET, BE16.pack(port), address.packed)
    return _IPV6_ENDPOINT.pack(socket.AF_INET6, BE16.pack(port), address.packed, 0)


def _parse_endpoint(payload: bytes) -> tuple[IPAddress, int]:
    family = U16.unpack_from(payload)[0]
    port = int(BE16.unpack_from(payload, 2)[0])
    return ip_address(payload[4:8] if family == socket.AF_INET else payload[8:24]), port


def _parse_peer(key: PublicKey, attributes: Mapping[int, bytes]) -> WireGuardPeer | None:
    """None where it is not as `_put` writes one."""
    allowed = [parse_attributes(body, 0) for body in parse_attributes(attributes.get(_PEER_ADDRESSES, b""), 0).values()]
    shared = attributes.get(_PEER_PRESHARED_KEY, _ZEROS) != _ZEROS
    if shared or any(attributes.get(_PEER_KEEPALIVE, b"")) or _PEER_ENDPOINT not in attributes or len(allowed) != 1:
        return None
    address = ip_address(allowed[0][_ADDRESS])
    if not isinstance(address, IPv4Address) or parse_u8(allowed[0][_ADDRESS_LENGTH]) != address.max_prefixlen:
        return None
    endpoint, port = _parse_endpoint(attributes[_PEER_ENDPOINT])
    return WireGuardPeer(key=key, endpoint=endpoint, port=port, address=address)


def _text(key: bytes) -> PublicKey:
    return PublicKey(b64encode(key).decode())
