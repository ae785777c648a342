"""Peers of the link that encrypts: keys, what has to be changed, and which plans are none."""

from dataclasses import replace
from ipaddress import IPv4Address, ip_address

import pytest

from coil.kernel.family import Family
from coil.kernel.wireguard import (
    PublicKey,
    WireGuardChanges,
    WireGuardPeer,
    diff_wireguard,
    parse_public_key,
    wireguard_mtu,
)

KEY, OTHER = (PublicKey(f"{letter * 42}A=") for letter in "ab")
PEER = WireGuardPeer(key=KEY, endpoint=ip_address("192.0.2.1"), port=7790, address=IPv4Address("172.31.0.1"))


@pytest.mark.parametrize("text", ["", "a", "a" * 44, f"{'a' * 42}=", f"{'a' * 41}-A=", f"{'a' * 43}A=", "ä" * 43 + "="])
def test_what_is_no_key(text: str) -> None:
    assert parse_public_key(text) is None
    assert parse_public_key(KEY) == KEY


def test_only_what_differs_is_changed() -> None:
    other = replace(PEER, key=OTHER, address=IPv4Address("172.31.0.2"))
    both = {KEY: PEER, OTHER: other}
    assert diff_wireguard(both, [other, PEER]) == WireGuardChanges()
    assert diff_wireguard({KEY: PEER}, [other]) == WireGuardChanges(deletes=(KEY,), puts=(other,))
    moved = replace(PEER, endpoint=ip_address("2001:db8::1"))
    assert diff_wireguard(both, [moved, other]) == WireGuardChanges(puts=(moved,))
    assert diff_wireguard({KEY: None}, [PEER]) == WireGuardChanges(puts=(PEER,))


def test_a_key_and_an_address_are_of_one_peer() -> None:
    with pytest.raises(ValueError, match="two peers have the key"):
        diff_wireguard({}, [PEER, replace(PEER, port=1)])
    with pytest.raises(ValueError, match=r"two peers have the tunnel address 172\.31\.0\.1"):
        diff_wireguard({}, [PEER, replace(PEER, key=OTHER)])


def test_what_fits_inside() -> None:
    assert [wireguard_mtu(1500, family) for family in Family] == [1440, 1420]
