"""FOU ports as written here, read by pyroute2's generic netlink (linux/genetlink.h, linux/fou.h)."""

from pyroute2.netlink import ctrlmsg, genlmsg

from coil.kernel.family import Family
from coil.kernel.tunnel import FouPort
from coil.netlink.fou import add_port, delete_port, dump_ports, parse_port
from coil.netlink.generic import generic_body, get_family
from coil.netlink.wire import attribute_be16, attribute_u8
from tests.coil.netlink.oracle import read

NUMBER = 29


class foumsg(genlmsg):  # type: ignore[misc]  # noqa: N801  # named as pyroute2 names its own
    nla_map = (
        ("FOU_ATTR_UNSPEC", "none"),
        ("FOU_ATTR_PORT", "be16"),
        ("FOU_ATTR_AF", "uint8"),
        ("FOU_ATTR_IPPROTO", "uint8"),
        ("FOU_ATTR_TYPE", "uint8"),
    )


def test_the_question_for_a_family() -> None:
    request = get_family("fou")
    message = read(ctrlmsg, request)
    assert (request.type, message["cmd"], message.get("CTRL_ATTR_FAMILY_NAME")) == (16, 3, "fou")


def test_a_port_is_opened_and_closed() -> None:
    for family, protocol in ((Family.IPV4, 4), (Family.IPV6, 41)):
        port = FouPort(family, 5555)
        opened = read(foumsg, add_port(port, NUMBER))
        assert (opened["header"]["type"], opened["cmd"], opened["version"]) == (NUMBER, 1, 1)
        assert (opened.get("FOU_ATTR_PORT"), opened.get("FOU_ATTR_AF")) == (5555, family)
        assert (opened.get("FOU_ATTR_IPPROTO"), opened.get("FOU_ATTR_TYPE")) == (protocol, 1)
        closed = read(foumsg, delete_port(port, NUMBER))
        assert (closed["cmd"], closed.get("FOU_ATTR_PORT"), closed.get("FOU_ATTR_AF")) == (2, 5555, family)
        assert parse_port(add_port(port, NUMBER).body) == port


def test_all_ports_are_asked_for() -> None:
    message = read(foumsg, dump_ports(NUMBER))
    assert (message["cmd"], message["attrs"], message["header"]["flags"]) == (3, [], 0x300)


def test_ports_that_unwrap_something_else_are_nobody_to_us() -> None:
    def port(*, family: int, protocol: int, kind: int) -> bytes:
        attributes = (
            attribute_be16(1, 5555) + attribute_u8(2, family) + attribute_u8(3, protocol) + attribute_u8(4, kind)
        )
        return generic_body(1, 1, attributes)

    assert parse_port(port(family=2, protocol=4, kind=1)) == FouPort(Family.IPV4, 5555)
    assert parse_port(port(family=2, protocol=47, kind=1)) is None
    assert parse_port(port(family=10, protocol=4, kind=1)) is None
    assert parse_port(port(family=2, protocol=0, kind=2)) is None
    assert parse_port(port(family=7, protocol=4, kind=1)) is None
