"""Which frames ask for an address, and what answers them (RFC 826)."""

from ipaddress import IPv4Address

import pytest

from coil.netlink.arp_responder import parse_request, plan_filter, render_reply

CLIENT, NODE = bytes.fromhex("02000000000a"), bytes.fromhex("02000000000b")
REQUEST = bytes.fromhex("ffffffffffff02000000000a0806000108000604000102000000000a0a0100020000000000000a010063")


def test_a_request_and_its_reply() -> None:
    request = parse_request(REQUEST)
    assert request == (CLIENT, IPv4Address("10.1.0.2"), IPv4Address("10.1.0.99"))
    assert request is not None
    reply = render_reply(request, NODE)
    assert reply.hex() == "02000000000a02000000000b0806000108000604000202000000000b0a01006302000000000a0a010002"
    assert parse_request(reply) is None, "an answer asks for nothing"


@pytest.mark.parametrize("position", [15, 17, 18, 19, 21])
def test_what_is_no_request_for_an_ipv4_address(position: int) -> None:
    """Of hardware or protocol, their lengths, or the operation."""
    assert parse_request(REQUEST[:position] + b"\x09" + REQUEST[position + 1 :]) is None
    assert parse_request(REQUEST[:41]) is None
    assert parse_request(REQUEST + bytes(18)) is not None, "padding"


@pytest.mark.parametrize("links", [0, 1, 250, 251])
def test_no_jump_leaves_the_filter(links: int) -> None:
    program = plan_filter(range(links))
    for position, (code, true, false, _) in enumerate(program):
        assert max(true, false) <= 255
        assert position + 1 + max(true, false) <= len(program)
        if position + 1 == len(program):
            assert code == 0x06
