"""Conntrack's messages as pyroute2 reads and writes them."""

import struct
from ipaddress import ip_address

import pytest
from pyroute2.netlink.nfnetlink.nfctsocket import nfct_msg

from coil.kernel.family import Family
from coil.kernel.flow import Endpoint, Flow
from coil.netlink.conntrack import delete_flow, dump_flows, parse_flow, parse_source
from coil.netlink.wire import attribute

_HEADER = 16
ENDS = {
    Family.IPV4: ("10.1.0.2", "203.0.113.9", "203.0.113.50"),
    Family.IPV6: ("fd01::2", "2001:db8::9", "2001:db8::50"),
}
both_families = pytest.mark.parametrize("family", list(Family))


def ends(family: Family, source: tuple[str, int], destination: tuple[str, int], protocol: int = 6) -> dict[str, object]:
    version = f"CTA_IP_V{4 if family is Family.IPV4 else 6}"
    addresses = [(f"{version}_SRC", source[0]), (f"{version}_DST", destination[0])]
    ports = [("CTA_PROTO_SRC_PORT", source[1]), ("CTA_PROTO_DST_PORT", destination[1])] if protocol != 1 else []
    return {
        "attrs": [
            ("CTA_TUPLE_IP", {"attrs": addresses}),
            ("CTA_TUPLE_PROTO", {"attrs": [("CTA_PROTO_NUM", protocol), *ports]}),
        ]
    }


def message(family: Family, *, protocol: int = 6, state: int | None = 3, mark: int = 0) -> bytes:
    pod, server, eip = ENDS[family]
    written = nfct_msg()
    written["nfgen_family"] = family
    attributes: list[tuple[str, object]] = [
        ("CTA_TUPLE_ORIG", ends(family, (pod, 1000), (server, 443), protocol)),
        ("CTA_TUPLE_REPLY", ends(family, (server, 443), (eip, 1001), protocol)),
        ("CTA_MARK", mark),
        ("CTA_ID", 77),
    ]
    if state is not None:
        tcp = {"attrs": [("CTA_PROTOINFO_TCP_STATE", state)]}
        attributes.append(("CTA_PROTOINFO", {"attrs": [("CTA_PROTOINFO_TCP", tcp)]}))
    written["attrs"] = attributes
    written.encode()
    return bytes(written.data[_HEADER:])


@both_families
def test_a_connection(family: Family) -> None:
    pod, server, eip = map(ip_address, ENDS[family])
    body = message(family, mark=0x26000100)
    assert parse_source(body, family) == pod
    found = parse_flow(body, family)
    assert found == Flow(
        protocol=6,
        source=Endpoint(pod, 1000),
        destination=Endpoint(server, 443),
        target=Endpoint(server, 443),
        seen=Endpoint(eip, 1001),
        established=True,
        mark=0x26000100,
        handle=found.handle,
    )


@both_families
@pytest.mark.parametrize(("protocol", "state"), [(6, 5), (6, None), (17, None), (1, None)])
def test_what_is_not_established(family: Family, protocol: int, state: int | None) -> None:
    found = parse_flow(message(family, protocol=protocol, state=state), family)
    assert (found.protocol, found.established) == (protocol, False)
    assert found.source.port == (0 if protocol == 1 else 1000)


@both_families
def test_to_forget_one_names_it(family: Family) -> None:
    request = delete_flow(parse_flow(message(family), family))
    read = nfct_msg(struct.pack("=IHHII", _HEADER + len(request.body), request.type, 0, 0, 0) + request.body)
    read.decode()
    assert read["nfgen_family"] == family
    assert read.get_attr("CTA_ID") == 77
    addresses = read.get_attr("CTA_TUPLE_ORIG").get_attr("CTA_TUPLE_IP")
    assert [value for _, value in addresses["attrs"]] == list(ENDS[family][:2])
    assert request.type == 0x102
    assert dump_flows(family).type == 0x101


@both_families
@pytest.mark.parametrize("body", [b"", b"\0" * 4, b"\0" * 40, b"\0" * 4 + attribute(2, b"\0" * 40)])
def test_a_source_that_is_not_where_it_should_be(family: Family, body: bytes) -> None:
    assert parse_source(body, family) is None
