"""Ports that unwrap, as `ip fou show` tells them."""

import socket
from functools import partial

import pytest

from coil.kernel.family import Family
from coil.kernel.tunnel import FouPort
from coil.netlink.error import NetlinkError
from coil.netlink.fou import ensure_fou_port, list_fou_ports, remove_fou_port
from coil.netlink.kernel_module import ensure_modules, load_module
from integration.fou.end import PORT, End

pytestmark = pytest.mark.kernel

BOTH = {(PORT, 4, "inet"), (PORT, 41, "inet6")}


def test_a_port_of_each_family_is_opened_once_and_closed_once(ends: tuple[End, End]) -> None:
    end, other = ends
    ports = [FouPort(family, PORT) for family in Family]
    assert end.netns.call(lambda: [ensure_fou_port(port) for port in ports]) == [True, True]
    assert end.fou_ports() == BOTH
    assert end.netns.call(lambda: [ensure_fou_port(port) for port in ports]) == [False, False]
    assert end.netns.call(list_fou_ports) == set(ports)
    assert other.netns.call(list_fou_ports) == frozenset()
    assert end.netns.call(lambda: remove_fou_port(ports[0]))
    assert end.fou_ports() == {(PORT, 41, "inet6")}
    assert not end.netns.call(lambda: remove_fou_port(ports[0]))
    assert end.netns.call(lambda: remove_fou_port(ports[1]))
    assert end.fou_ports() == set()


def test_a_port_of_another_program_is_told(ends: tuple[End, End]) -> None:
    end, _ = ends
    with end.netns.call(lambda: socket.socket(socket.AF_INET, socket.SOCK_DGRAM)) as other:
        other.bind(("0.0.0.0", PORT))
        with pytest.raises(NetlinkError, match=r"FOU port 5555 \(IPV4\): UDP port 5555 is in use by something else"):
            end.netns.call(lambda: ensure_fou_port(FouPort(Family.IPV4, PORT)))
    assert end.fou_ports() == set()


def test_a_port_that_unwraps_something_else_is_told_and_left(ends: tuple[End, End]) -> None:
    end, _ = ends
    end.netns.ip("fou", "add", "port", str(PORT), "gue")
    end.netns.ip("-6", "fou", "add", "port", str(PORT), "ipproto", "47")
    for family in Family:
        port = FouPort(family, PORT)
        with pytest.raises(NetlinkError, match="in use by something else"):
            end.netns.call(partial(ensure_fou_port, port))
        assert not end.netns.call(partial(remove_fou_port, port))
    assert end.netns.call(list_fou_ports) == frozenset()


def test_modules_that_are_there_are_no_trouble() -> None:
    ensure_modules(("fou", "fou6"))
    load_module("fou6")
