"""A bare acknowledgement against RFC 791, 8200, 9293 and 1071, read octet by octet."""

import struct
from ipaddress import IPv4Address, IPv6Address, ip_address

import pytest
from hypothesis import given
from hypothesis import strategies as st

from coil.kernel.flow import Endpoint, bare_acknowledgement

ports = st.integers(0, 0xFFFF)
numbers = st.integers(0, 0xFFFFFFFF)
pairs = st.one_of(
    st.tuples(st.ip_addresses(v=4), st.ip_addresses(v=4)), st.tuples(st.ip_addresses(v=6), st.ip_addresses(v=6))
)


def ones_sum(data: bytes) -> int:
    """All ones where the data contains its checksum."""
    total = 0
    for index in range(0, len(data), 2):
        total += data[index] << 8 | data[index + 1]
        total = (total & 0xFFFF) + (total >> 16)
    return total


@given(pairs, ports, ports, numbers, numbers)
def test_a_receiver_believes_it(
    pair: tuple[IPv4Address | IPv6Address, IPv4Address | IPv6Address], here: int, there: int, said: int, heard: int
) -> None:
    source, destination = pair
    packet = bare_acknowledgement(
        Endpoint(source, here), Endpoint(destination, there), sequence=said, acknowledged=heard
    )
    if source.version == 4:
        header, segment = packet[:20], packet[20:]
        assert header[0] == 0x45
        assert struct.unpack_from("!H", header, 2) == (len(packet),)
        assert header[9] == 6
        assert header[12:] == source.packed + destination.packed
        assert ones_sum(header) == 0xFFFF
    else:
        header, segment = packet[:40], packet[40:]
        assert header[0] >> 4 == 6
        assert struct.unpack_from("!HB", header, 4) == (len(segment), 6)
        assert header[8:] == source.packed + destination.packed
    assert struct.unpack_from("!HHIIBB", segment) == (here, there, said, heard, 0x50, 0x10)
    assert len(segment) == 20
    pseudo = source.packed + destination.packed + struct.pack("!II", len(segment), 6)
    assert ones_sum(pseudo + segment) == 0xFFFF


@pytest.mark.parametrize(
    ("source", "destination", "checksum"), [("10.0.0.1", "10.0.0.2", 0x9BC8), ("fd00::1", "fd00::2", 0xB5C6)]
)
def test_a_checksum_by_hand(source: str, destination: str, checksum: int) -> None:
    packet = bare_acknowledgement(
        Endpoint(ip_address(source), 1), Endpoint(ip_address(destination), 2), sequence=3, acknowledged=4
    )
    assert struct.unpack_from("!H", packet, len(packet) - 4) == (checksum,)
