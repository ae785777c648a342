"""The bytes of announcements, against the drawings in the RFCs."""

from ipaddress import IPv4Address, IPv6Address

from coil.kernel.link import MacAddress
from coil.netlink.announcement import arp_announcement, neighbour_advertisement

MAC = MacAddress("02:00:00:00:00:01")
OCTETS = bytes.fromhex("020000000001")


def test_an_arp_announcement_is_a_request_for_the_sender_s_own_address() -> None:
    frame = arp_announcement(IPv4Address("10.0.0.99"), MAC)
    assert frame[:14] == b"\xff" * 6 + OCTETS + bytes.fromhex("0806")
    assert frame[14:22] == bytes.fromhex("0001 0800 06 04 0001")  # Ethernet, IPv4, request
    assert frame[22:] == OCTETS + bytes((10, 0, 0, 99)) + bytes(6) + bytes((10, 0, 0, 99))


def test_an_unsolicited_advertisement_overrides_and_is_no_router_s() -> None:
    message = neighbour_advertisement(IPv6Address("fd00::99"), MAC)
    assert message[:2] == bytes((136, 0))
    assert message[4:8] == bytes.fromhex("20000000")  # neither router nor solicited
    assert message[8:24] == IPv6Address("fd00::99").packed
    assert message[24:] == bytes((2, 1)) + OCTETS
