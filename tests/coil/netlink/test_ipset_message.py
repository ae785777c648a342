"""Requests about IP sets, and their answers. The kernel is asked by integration/netns/test_former_gateway.py."""

import struct

from pyroute2.netlink.nfnetlink.ipset import ipset_msg

from coil.netlink.ipset import IpSet, destroy_set, dump_sets, parse_set
from coil.netlink.wire import Request


def decode(request: Request) -> ipset_msg:
    """What pyroute2 makes of it."""
    header = struct.pack("=IHHII", 16 + len(request.body), request.type, request.flags, 1, 0)
    message = ipset_msg(header + request.body)
    message.decode()
    return message


def test_a_set_is_destroyed_by_its_name() -> None:
    message = decode(destroy_set("egress-cluster-cidr-ipv4"))
    assert message["header"]["type"] == 6 << 8 | 3
    assert message.get_attr("IPSET_ATTR_SETNAME") == "egress-cluster-cidr-ipv4"
    assert message.get_attr("IPSET_ATTR_PROTOCOL") == 6


def test_sets_are_listed_without_what_is_in_them() -> None:
    message = decode(dump_sets())
    assert message["header"]["type"] == 6 << 8 | 7
    assert message.get_attr("IPSET_ATTR_FLAGS") == 1 << 2
    assert message.get_attr("IPSET_ATTR_SETNAME") is None


def test_an_answer_has_name_and_kind() -> None:
    answer = ipset_msg()
    answer["nfgen_family"], answer["version"], answer["res_id"] = 2, 0, 0
    attributes = [("IPSET_ATTR_PROTOCOL", 7), ("IPSET_ATTR_SETNAME", "a"), ("IPSET_ATTR_TYPENAME", "hash:net")]
    answer["attrs"] = attributes
    answer.encode()
    assert parse_set(bytes(answer.data[16:])) == IpSet(name="a", kind="hash:net")
