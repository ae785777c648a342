"""Connections that bear what was decided for them: their packets are not looked up again, and go no other way than if
they were.
"""

import re
import socket
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from ipaddress import ip_network

import pytest

from coil.eip.classification import PolicyView
from coil.eip.eip_set import DECIDED, HERE, HERE_DECIDED
from integration.kernel_state import KernelState
from integration.netns.eip_world import (
    EIPS,
    GATEWAY_NODE,
    LOCAL_POD,
    MARKS,
    OTHER_EIPS,
    SERVER,
    SOURCE_NODE,
    EipWorld,
    eip,
    nft,
    packets,
    view,
    wait_for,
)
from integration.netns.netns import Netns

pytestmark = pytest.mark.kernel

both_families = pytest.mark.parametrize("version", [4, 6])
PORT = 7


@pytest.fixture
def world(new_netns: Callable[[], Netns]) -> EipWorld:
    world = EipWorld(new_netns)
    world.hold(*EIPS.values(), *OTHER_EIPS.values())
    world.tell([view()])
    world.load()
    return world


@dataclass(frozen=True, slots=True)
class Conversation:
    """Of a pod with the server, by datagrams of one connection."""

    world: EipWorld
    version: int
    asking: socket.socket
    answering: socket.socket

    def ask(self) -> str:
        """Whom the server sees; the pod hears its answer."""
        self.send()
        _, peer = self.answering.recvfrom(64)
        self.answering.sendto(b"answer", peer)
        assert self.asking.recv(64) == b"answer"
        return str(peer[0])

    def send(self) -> None:
        self.asking.sendto(b"question", (SERVER[self.version], PORT))

    def lose(self, counter: str) -> None:
        """The next packet is dropped by the gateway, as the counter says."""
        before = packets(self.world.gateway, "coil-eip")[counter]
        self.send()
        wait_for(lambda: packets(self.world.gateway, "coil-eip")[counter] == before + 1)
        self.answering.setblocking(False)
        with pytest.raises(BlockingIOError):
            self.answering.recv(64)
        self.answering.settimeout(60)

    @property
    def mark(self) -> int:
        """What the gateway's kernel has noted with the connection."""
        listed = KernelState(str(self.world.gateway.path)).run(
            *("conntrack", "-L", "-f", f"ipv{self.version}", "-p", "udp", "--orig-port-dst", str(PORT))
        )
        [found] = re.findall(r"mark=(\d+)", listed)
        return int(found)

    @property
    def is_decided(self) -> bool:
        return self.mark & 0xFF000000 == DECIDED.value


@contextmanager
def conversation(world: EipWorld, version: int, pod: Netns | None = None) -> Iterator[Conversation]:
    family = socket.AF_INET if version == 4 else socket.AF_INET6
    client = pod or world.local_pod
    with (
        client.call(lambda: socket.socket(family, socket.SOCK_DGRAM)) as asking,
        world.server.call(lambda: socket.socket(family, socket.SOCK_DGRAM)) as answering,
    ):
        for each in (asking, answering):
            each.settimeout(60)
        answering.bind((SERVER[version], PORT))
        yield Conversation(world, version, asking, answering)


@both_families
def test_a_decided_connection_is_not_looked_up(world: EipWorld, version: int) -> None:
    with conversation(world, version) as talk:
        assert talk.ask() == EIPS[version]
        assert talk.is_decided, "from its first packet on"
        nft(world.gateway, f"flush map inet coil-eip class{version}")
        assert [talk.ask() for _ in range(3)] == [EIPS[version]] * 3
    with conversation(world, version) as other:
        assert other.ask() == LOCAL_POD[version], "this one would have to be"


@both_families
def test_its_packets_pass_the_later_chains_by_a_mark_of_their_own(world: EipWorld, version: int) -> None:
    """The first one and its like are compared with the node's addresses there."""
    nft(
        world.gateway,
        "add table inet other; add counter inet other here; add counter inet other here_decided; "
        "add chain inet other last { type filter hook postrouting priority 300; }; "
        f"add rule inet other last meta mark {HERE:#x} counter name here; "
        f"add rule inet other last meta mark {HERE_DECIDED:#x} counter name here_decided",
    )
    with conversation(world, version) as talk:
        for _ in range(3):
            assert talk.ask() == EIPS[version]
    assert packets(world.gateway, "other") == {"here": 1, "here_decided": 2}


@both_families
def test_what_came_through_the_tunnel_is_looked_up(world: EipWorld, version: int) -> None:
    """Its mark leads the answers back."""
    with conversation(world, version, world.pod) as talk:
        assert talk.ask() == EIPS[version]
        assert talk.mark == MARKS[SOURCE_NODE]
        nft(world.gateway, f"flush map inet coil-eip remote_class{version}")
        talk.lose("dropped_stray")


SERVERS = tuple(ip_network(address) for address in SERVER.values())


@both_families
@pytest.mark.parametrize(
    ("policies", "counter"),
    [
        ([view(node=None)], "dropped_closed"),
        ([view(eip=eip(OTHER_EIPS))], ""),
        ([view(), view("first", priority=9, destinations=SERVERS, node=None)], "dropped_closed"),
        ([view(), view("first", priority=9, node=None)], "dropped_closed"),
        ([view(), view("last", priority=-9, node=None)], ""),
    ],
    ids=["nobody", "another address", "another policy", "another policy for all", "none that decides"],
)
def test_what_is_decided_otherwise_goes_otherwise_at_once(
    world: EipWorld, version: int, policies: list[PolicyView], counter: str
) -> None:
    with conversation(world, version) as talk:
        talk.ask()
        before = talk.mark
        world.tell(policies)
        world.change()
        if counter:
            talk.lose(counter)
            return
        # The kernel has settled how it is translated, and this node has both addresses.
        assert talk.ask() == EIPS[version]
        assert talk.is_decided
        assert talk.mark != before


@both_families
def test_an_address_that_goes_ends_what_was_decided(world: EipWorld, version: int) -> None:
    with conversation(world, version) as talk:
        talk.ask()
        world.hold(*OTHER_EIPS.values())
        world.tell([view(eip=eip(OTHER_EIPS))])
        world.change()
        talk.lose("dropped_untranslated")
        assert not talk.is_decided


@both_families
def test_without_a_lease_nothing_that_was_decided_leaves(world: EipWorld, version: int) -> None:
    with conversation(world, version) as talk:
        talk.ask()
        world.refresh(GATEWAY_NODE, 0)
        talk.lose("dropped_fenced")
        world.refresh(GATEWAY_NODE, 600_000)
        assert talk.ask() == EIPS[version]


@both_families
def test_a_mark_of_somebody_else_stays(world: EipWorld, version: int) -> None:
    """Such as one of a CNI plugin that leads answers back by it. Such connections are looked up."""
    nft(
        world.gateway,
        "add table inet other; add chain inet other first { type filter hook prerouting priority mangle; }; "
        'add rule inet other first iifname "pod0" ct state new ct mark set 0x80',
    )
    with conversation(world, version) as talk:
        assert [talk.ask() for _ in range(2)] == [EIPS[version]] * 2
        assert talk.mark == 0x80


@both_families
def test_what_has_no_policy_bears_nothing(world: EipWorld, version: int) -> None:
    world.tell([view(destinations=(ip_network("198.51.100.0/24"), ip_network("2001:db8:9::/48")))])
    world.change()
    with conversation(world, version) as talk:
        assert talk.ask() == LOCAL_POD[version]
        assert talk.mark == 0
