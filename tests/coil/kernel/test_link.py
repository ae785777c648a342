from ipaddress import ip_address, ip_interface

import pytest
from hypothesis import given
from hypothesis import strategies as st

from coil.kernel.link import LinkName, MacAddress, ParentLink, parse_link_name, select_announcers


@pytest.mark.parametrize("name", ["eth0", "veth0a1b2c3d", "eth0.100", "a", "x" * 15, "-", "cali_1@2"])
def test_names_that_the_kernel_takes(name: str) -> None:
    assert parse_link_name(name) == name


@pytest.mark.parametrize("name", ["", ".", "..", "x" * 16, "a/b", "a:1", "a b", "a\n", "\x7f", "ä", "../../all"])
def test_names_that_it_refuses(name: str) -> None:
    with pytest.raises(ValueError, match="not a valid link name"):
        parse_link_name(name)


@given(st.text())
def test_a_name_is_always_one_step_of_a_path(text: str) -> None:
    try:
        name = parse_link_name(text)
    except ValueError:
        return
    assert "/" not in name
    assert name not in {"", ".", ".."}


def link(name: str, *interfaces: str) -> ParentLink:
    return ParentLink(
        name=LinkName(name),
        index=2,
        mac=MacAddress("02:00:00:00:00:01"),
        mtu=1500,
        interfaces=tuple(map(ip_interface, interfaces)),
    )


LINKS = (
    link("eth0", "10.0.0.1/24", "fd00::1/64", "192.0.2.7/32"),
    link("eth1", "10.0.1.1/24", "fd00:1::1/128"),
    link("eth2", "10.0.0.0/16"),
)


@pytest.mark.parametrize(
    ("address", "names"),
    [
        ("10.0.0.99", ["eth0", "eth2"]),
        ("10.0.1.99", ["eth1", "eth2"]),
        ("fd00::99", ["eth0"]),
        ("fd00:1::1", ["eth1"]),
        ("192.0.2.7", ["eth1"]),
        ("203.0.113.5", ["eth1"]),
    ],
)
def test_an_address_is_announced_where_it_is_looked_for(address: str, names: list[str]) -> None:
    chosen = select_announcers(ip_address(address), LINKS, parent=LinkName("eth1"))
    assert [link.name for link in chosen] == names


def test_without_a_parent_there_may_be_nobody_to_tell() -> None:
    assert select_announcers(ip_address("203.0.113.5"), LINKS, parent=None) == ()
    assert select_announcers(ip_address("203.0.113.5"), LINKS, parent=LinkName("eth9")) == ()


def test_an_address_of_its_own_is_not_one_of_its_networks() -> None:
    assert LINKS[0].has(ip_address("10.0.0.1"))
    assert not LINKS[0].has(ip_address("10.0.0.2"))
    assert LINKS[0].reaches(ip_address("10.0.0.2"))
    assert not LINKS[0].reaches(ip_address("192.0.2.7"))
