"""The watch for what leaves the machine, in a namespace that has a default route."""

import socket
import time
from collections.abc import Callable
from contextlib import suppress

import pytest

from integration.cluster.cleanup import flush_addresses
from integration.netns.netns import Netns
from integration.patience import wait_until
from integration.side_thread import SideThread
from integration.uplink_watch import UplinkWatch

pytestmark = pytest.mark.kernel

STRANGER, ON_LINK, ELSEWHERE = "198.19.7.1", "192.0.2.1", "192.0.2.9"


@pytest.fixture
def machine(new_netns: Callable[[], Netns]) -> Netns:
    """With an uplink that has a neighbour, and a link to a cluster."""
    machine, provider = new_netns(), new_netns()
    machine.ip("link", "add", "uplink", "type", "veth", "peer", "name", "eth0", "netns", provider.name)
    machine.ip("link", "add", "cluster", "type", "bridge")
    provider.ip("address", "add", f"{ON_LINK}/24", "dev", "eth0")
    provider.ip("link", "set", "eth0", "up")
    machine.ip_batch(
        [
            "address add 192.0.2.2/24 dev uplink",
            "address add 198.18.3.1/24 dev cluster",
            "link set uplink up",
            "link set cluster up",
            "neighbour add 198.18.3.11 lladdr 02:00:00:00:00:01 nud permanent dev cluster",
            f"route add default via {ON_LINK}",
        ]
    )
    return machine


def send(machine: Netns, address: str, *, source: str = "") -> None:
    """One datagram."""
    with machine.call(lambda: socket.socket(socket.AF_INET, socket.SOCK_DGRAM)) as sender:
        sender.bind((source, 0))
        sender.sendto(b"x", (address, 9))


@pytest.mark.parametrize(("address", "source"), [(STRANGER, ""), ("192.0.3.1", "198.18.3.1")])
def test_what_goes_to_or_comes_from_a_cluster_is_told(machine: Netns, address: str, source: str) -> None:
    with UplinkWatch(machine) as watch:
        send(machine, address, source=source)
        wait_until(watch.leaks, what="the packet is seen")
    [leak] = watch.leaks()
    assert leak.startswith("uplink: ")
    assert f"> {address} port 9 UDP, 29 bytes" in leak


def test_a_clusters_own_links_and_the_machines_own_traffic_are_nobodys_business(machine: Netns) -> None:
    with UplinkWatch(machine) as watch:
        send(machine, "198.18.3.11")
        send(machine, ELSEWHERE)
        send(machine, ON_LINK)
        send(machine, "192.0.3.1")
    assert watch.leaks() == []


def test_a_machine_without_a_default_route_has_nothing_to_leave_by(machine: Netns) -> None:
    machine.ip("route", "delete", "default")
    with UplinkWatch(machine) as watch:
        send(machine, "198.18.3.11")
    assert watch.leaks() == []


class Talker(SideThread):
    """Sends to a host of the cluster, without a pause that anybody could take for the end; for a minute at most."""

    def __init__(self, machine: Netns) -> None:
        super().__init__("talker")
        self.silent = False
        self._sender = machine.call(lambda: socket.socket(socket.AF_INET, socket.SOCK_DGRAM))

    def work(self) -> None:
        with self._sender:
            for _ in range(6000):
                if self.stopped.is_set():
                    break
                self._sender.sendto(b"x", ("198.18.3.11", 9))
                time.sleep(0.01)
        self.silent = True


class _Sender(SideThread):
    """Sends from an address of the cluster's link for as long as the kernel takes it."""

    def __init__(self, machine: Netns) -> None:
        super().__init__("sender")
        self._socket = machine.call(lambda: socket.socket(socket.AF_INET, socket.SOCK_DGRAM))
        self._socket.bind(("198.18.4.1", 0))
        self._socket.setblocking(False)
        self.sent = 0

    def work(self) -> None:
        with self._socket:
            while not self.stopped.is_set():
                with suppress(OSError):
                    self._socket.sendto(b"x", (STRANGER, 9))
                    self.sent += 1


def test_a_network_that_goes_leaves_nothing_to_the_default_route(machine: Netns) -> None:
    """Its routes would go before its addresses."""
    with UplinkWatch(machine) as watch:
        for _ in range(10):
            machine.ip_batch(
                [
                    "link add going type veth peer name peer",
                    "address add 198.18.4.1/24 dev going",
                    "link set going up",
                    "link set peer up",
                    "route append 198.18.0.0/15 dev going metric 100000",
                    f"neighbour add {STRANGER} lladdr 02:00:00:00:00:01 nud permanent dev going",
                ]
            )
            with _Sender(machine) as sender:
                wait_until(lambda sender=sender: sender.sent > 100, what="it sends")  # type: ignore[misc]
                machine.call(lambda: flush_addresses("going"))
                machine.ip("link", "delete", "going")
    assert watch.leaks() == []


def test_it_ends_while_others_go_on_talking(machine: Netns) -> None:
    with Talker(machine) as talker:
        with UplinkWatch(machine) as watch:
            send(machine, STRANGER)
        assert not talker.silent
    assert len(watch.leaks()) == 1
