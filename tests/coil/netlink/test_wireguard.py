"""WireGuard's messages as written here, read by pyroute2; and what the kernel says, as it would say it."""

import socket
import struct
from base64 import b64decode, b64encode
from ipaddress import IPv4Address, ip_address
from typing import Any

import pytest
from pyroute2.netlink.generic.wireguard import wgmsg

from coil.kernel.link import LinkName
from coil.kernel.wireguard import PublicKey, WireGuardPeer
from coil.netlink.generic import generic_body
from coil.netlink.wire import Request, attribute, attribute_u8, attribute_u16
from coil.netlink.wireguard import dump_device, parse_device, set_device, set_peers
from tests.coil.netlink.oracle import read

NUMBER = 29
NAME = LinkName("egress.wg")
KEYS = [PublicKey(f"{letter * 42}A=") for letter in "abc"]
PEERS = [
    WireGuardPeer(key=KEYS[0], endpoint=ip_address("192.0.2.1"), port=7790, address=IPv4Address("172.31.0.1")),
    WireGuardPeer(key=KEYS[1], endpoint=ip_address("2001:db8::2"), port=7791, address=IPv4Address("172.31.0.2")),
]


def written(request: Request) -> Any:
    message = read(wgmsg, request)
    assert (message["header"]["type"], message["version"]) == (NUMBER, 1)
    assert message.get("WGDEVICE_A_IFNAME") == NAME
    return message


def test_key_and_port() -> None:
    message = written(set_device(NAME, NUMBER, private_key=bytes(range(32)), port=7790))
    assert message["cmd"] == 1
    assert message.get("WGDEVICE_A_LISTEN_PORT") == 7790
    assert message.get("WGDEVICE_A_PRIVATE_KEY") == b64encode(bytes(range(32)))
    assert message.get("WGDEVICE_A_PEERS") is None


def test_peers() -> None:
    message = written(set_peers(NAME, NUMBER, deletes=KEYS[2:], puts=PEERS))
    deleted, first, second = message.get("WGDEVICE_A_PEERS")
    assert deleted.get("WGPEER_A_PUBLIC_KEY") == KEYS[2].encode()
    assert deleted.get("WGPEER_A_FLAGS") == 1  # WGPEER_F_REMOVE_ME
    for peer, wanted in ((first, PEERS[0]), (second, PEERS[1])):
        assert peer.get("WGPEER_A_PUBLIC_KEY") == wanted.key.encode()
        assert peer.get("WGPEER_A_PRESHARED_KEY") == b64encode(bytes(32))
        assert peer.get("WGPEER_A_FLAGS") == 2  # WGPEER_F_REPLACE_ALLOWEDIPS
        assert peer.get("WGPEER_A_PERSISTENT_KEEPALIVE_INTERVAL") == 0
        endpoint = peer.get("WGPEER_A_ENDPOINT")
        assert (endpoint["addr"], endpoint["port"]) == (str(wanted.endpoint), wanted.port)
        [allowed] = peer.get("WGPEER_A_ALLOWEDIPS")
        assert allowed["addr"] == f"{wanted.address}/32"


def test_the_question() -> None:
    request = dump_device(NAME, NUMBER)
    assert request.flags == 0x300
    assert written(request)["cmd"] == 0


def answer(*requests: Request, key: bytes = bytes(range(32)), port: int = 7790) -> list[bytes]:
    """What was written, as the kernel would read it back: one message for each request, the first with key and port."""
    first, *others = (request.body for request in requests)
    return [first + attribute(4, key) + attribute_u16(6, port), *others]


def test_what_is_written_is_read() -> None:
    state = parse_device(answer(set_peers(NAME, NUMBER, puts=PEERS)))
    assert (state.port, state.peers) == (7790, {peer.key: peer for peer in PEERS})
    assert state.key == "AAECAwQFBgcICQoLDA0ODxAREhMUFRYXGBkaGxwdHh8="


def test_a_peer_that_goes_on_in_the_next_message_is_none_of_ours() -> None:
    state = parse_device(answer(*(set_peers(NAME, NUMBER, puts=PEERS[:1]) for _ in range(2))))
    assert state.peers == {KEYS[0]: None}


def test_a_link_without_a_key() -> None:
    state = parse_device([generic_body(0, 1)])
    assert (state.key, state.port, state.peers) == (None, 0, {})


@pytest.mark.parametrize(
    ("ours", "theirs"),
    [
        (attribute(2, bytes(32)), attribute(2, bytes(31) + b"\1")),  # a preshared key
        (attribute_u16(5, 0), attribute_u16(5, 25)),  # persistent keepalive
        (attribute_u8(3, 32), attribute_u8(3, 31)),  # a network for an address
    ],
    ids=["preshared key", "keepalive", "network"],
)
def test_a_peer_that_somebody_has_changed_differs(ours: bytes, theirs: bytes) -> None:
    request = set_peers(NAME, NUMBER, puts=PEERS[:1])
    assert request.body.count(ours) >= 1
    changed = Request(request.type, request.flags, request.body.replace(ours, theirs, 1), request.doing)
    assert parse_device(answer(changed)).peers == {KEYS[0]: None}


@pytest.mark.parametrize("addresses", [0, 1, 2])
def test_a_peer_has_one_address(addresses: int) -> None:
    [peer, *_] = PEERS
    allowed = attribute_u16(1, socket.AF_INET) + attribute(2, peer.address.packed) + attribute_u8(3, 32)
    others = b"".join(attribute(number | 0x8000, allowed) for number in range(addresses))
    endpoint = struct.pack("=H2s4s8x", socket.AF_INET, peer.port.to_bytes(2, "big"), peer.endpoint.packed)
    body = attribute(1, b64decode(peer.key)) + attribute(4, endpoint) + attribute(9 | 0x8000, others)
    state = parse_device([generic_body(0, 1, attribute(8 | 0x8000, attribute(0x8000, body)))])
    assert state.peers == {peer.key: peer if addresses == 1 else None}
