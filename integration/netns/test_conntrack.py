"""A node that makes its pod speak on an idle connection, and one that forgets connections.

The oracle is the server's socket, counters beside it, and pyroute2's reading of conntrack.
"""

import socket
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, replace
from ipaddress import ip_address
from random import Random
from typing import Any

import pytest
from pyroute2.netlink.nfnetlink.nfctsocket import NFCTSocket

from coil.eip.eip_set import PROBE_MARK
from coil.kernel.family import IPAddress
from coil.kernel.flow import Endpoint, Flow
from coil.netlink.conntrack import forget_flows, probe, read_flows
from coil.nft.table_sync import sync_table
from integration.netns.eip_world import TABLES, nft, packets, wait_for
from integration.netns.netns import Netns

pytestmark = pytest.mark.kernel

POD = {4: "10.1.0.2", 6: "fd01::2"}
SERVER = {4: "203.0.113.9", 6: "2001:db8::9"}
_SECONDS = 60.0
_ESTABLISHED = 3  # linux/netfilter/nf_conntrack_tcp.h
_TCPI_UNACKED = 24  # offset in struct tcp_info, linux/tcp.h
_PROTECTED = """
  table inet filter {
    chain forward {
      type filter hook forward priority 0; policy accept
      ct state invalid,untracked drop
    }
  }
"""
_TRANSLATED = """
  table inet translation {
    chain out {
      type nat hook postrouting priority 100
      oifname eth1 masquerade
    }
  }
"""
_COUNTED = """
  table inet probe {
    counter pure { }
    counter resets { }
    chain in {
      type filter hook prerouting priority -300
      tcp flags & (syn | ack | rst | psh | fin) == ack counter name pure
      tcp flags rst counter name resets
    }
    chain out {
      type filter hook output priority 0
      tcp flags rst counter name resets
    }
  }
"""
both_families = pytest.mark.parametrize("version", [4, 6])


@dataclass(frozen=True, slots=True)
class World:
    """A pod behind a node, and a server beyond it. The node drops what conntrack calls invalid, and its reverse path
    filter is strict.
    """

    pod: Netns
    node: Netns
    server: Netns

    @contextmanager
    def connection(self, version: int) -> Iterator[tuple[socket.socket, socket.socket]]:
        """The pod's end and the server's, after a word each way."""
        address = ip_address(SERVER[version])
        with ExitStack() as stack:
            listener = stack.enter_context(self.server.socket(address))
            asking = stack.enter_context(self.pod.socket(address))
            listener.bind((str(address), 0))
            listener.listen()
            asking.connect(listener.getsockname()[:2])
            answering, _ = listener.accept()
            stack.enter_context(answering)
            answering.settimeout(_SECONDS)
            exchange(asking, answering)
            wait_for(lambda: _unacknowledged(answering) == 0)
            yield asking, answering

    def flows(self, version: int) -> tuple[Flow, ...]:
        flows, more = self.node.call(lambda: read_flows(lambda source: source == ip_address(POD[version]), 10))
        assert not more
        return flows

    def probe(self, flows: tuple[Flow, ...], *, seed: int = 1) -> int:
        random = Random(seed)
        return self.node.call(lambda: probe(flows, random=lambda: random.getrandbits(32), mark=PROBE_MARK))

    def tracked(self) -> list[dict[str, Any]]:
        """TCP in the node's conntrack, as pyroute2 reads it."""

        def read() -> list[dict[str, Any]]:
            found = []
            for family in (socket.AF_INET, socket.AF_INET6):
                with NFCTSocket(nfgen_family=family) as table:
                    found += [_entry(message) for message in table.dump()]
            return found

        return [entry for entry in self.node.call(read) if entry["state"] is not None]

    def heard(self) -> dict[str, int]:
        return packets(self.server, "probe")


def _entry(message: Any) -> dict[str, Any]:
    info = message.get_attr("CTA_PROTOINFO")
    tcp = info.get_attr("CTA_PROTOINFO_TCP") if info is not None else None
    return {
        "id": message.get_attr("CTA_ID"),
        "state": tcp.get_attr("CTA_PROTOINFO_TCP_STATE") if tcp is not None else None,
        "original": _ends(message.get_attr("CTA_TUPLE_ORIG")),
        "reply": _ends(message.get_attr("CTA_TUPLE_REPLY")),
    }


def _ends(found: Any) -> list[Endpoint]:
    addresses, ports = found.get_attr("CTA_TUPLE_IP"), found.get_attr("CTA_TUPLE_PROTO")
    ends = []
    for end in ("SRC", "DST"):
        address = addresses.get_attr(f"CTA_IP_V4_{end}") or addresses.get_attr(f"CTA_IP_V6_{end}")
        ends.append(Endpoint(ip_address(address), ports.get_attr(f"CTA_PROTO_{end}_PORT")))
    return ends


def exchange(asking: socket.socket, answering: socket.socket) -> None:
    asking.sendall(b"question")
    assert answering.recv(64) == b"question"
    answering.sendall(b"answer")
    assert asking.recv(64) == b"answer"


def _unacknowledged(connection: socket.socket) -> int:
    """Segments."""
    info = connection.getsockopt(socket.IPPROTO_TCP, socket.TCP_INFO, 256)
    return int.from_bytes(info[_TCPI_UNACKED : _TCPI_UNACKED + 4], "little")


@pytest.fixture
def world(new_netns: Callable[[], Netns]) -> World:
    pod, node, server = (new_netns() for _ in range(3))
    for netns in (pod, node, server):
        for scope in ("all", "default"):  # a link-local address in doubt asks no neighbours
            netns.set_sysctl(f"net/ipv6/conf/{scope}/accept_dad", "0")
    _join(node, "pod0", ("10.1.0.1/24", "fd01::1/64"), pod, ("10.1.0.2/24", "fd01::2/64"))
    _join(node, "eth1", ("203.0.113.2/24", "2001:db8::2/64"), server, ("203.0.113.9/24", "2001:db8::9/64"))
    node.set_sysctl("net/ipv4/ip_forward", "1")
    node.set_sysctl("net/ipv6/conf/all/forwarding", "1")
    for link in ("all", "pod0", "eth1"):
        node.set_sysctl(f"net/ipv4/conf/{link}/rp_filter", "1")
    node.call(lambda: [sync_table(table) for table in TABLES])
    nft(node, _PROTECTED)
    nft(server, _COUNTED)
    return World(pod, node, server)


def _join(node: Netns, link: str, own: tuple[str, str], other: Netns, addresses: tuple[str, str]) -> None:
    node.ip("link", "add", link, "type", "veth", "peer", "name", "eth0", "netns", other.name)
    for netns, name, pair in ((node, link, own), (other, "eth0", addresses)):
        for address in pair:
            netns.ip("address", "add", address, "dev", name, *(["nodad"] if ":" in address else []))
        netns.ip("link", "set", name, "up")
    for address in own:
        version = "-6" if ":" in address else "-4"
        other.ip(version, "route", "add", "default", "via", address.split("/")[0])


@both_families
@pytest.mark.parametrize("translated", [False, True])
def test_a_pod_that_is_probed_says_where_it_stands(world: World, version: int, translated: bool) -> None:
    if translated:
        nft(world.node, _TRANSLATED)
    with world.connection(version) as ends:
        [flow] = world.flows(version)
        assert flow.established
        assert (flow.seen.address != flow.source.address) is translated
        before, tracked = world.heard(), world.tracked()
        assert world.probe((flow,)) == 1
        wait_for(lambda: world.heard()["pure"] == before["pure"] + 1)
        assert world.tracked() == tracked
        exchange(*ends)
        assert world.heard()["resets"] == 0


@both_families
def test_linux_answers_one_probe_in_half_a_second(world: World, version: int) -> None:
    # The second is at its default; so that the test depends on no clock, it has ten minutes here.
    assert world.pod.sysctl("net/ipv4/tcp_invalid_ratelimit") == "500"
    world.pod.set_sysctl("net/ipv4/tcp_invalid_ratelimit", "600000")
    with world.connection(version) as ends:
        flows, before = world.flows(version), world.heard()
        for seed in range(5):
            world.probe(flows, seed=seed)
        exchange(*ends)
        assert before["pure"] < world.heard()["pure"] <= before["pure"] + 3
        assert world.heard()["resets"] == 0


@both_families
def test_a_connection_that_is_forgotten_is_met_anew_by_what_the_pod_says(world: World, version: int) -> None:
    """On a node that becomes the gateway of a pod of its own. What was said in the server's name is no connection."""
    nft(world.node, _TRANSLATED)
    with world.connection(version) as (asking, answering):
        [flow] = world.flows(version)
        world.node.call(lambda: forget_flows((flow, flow)))
        assert world.flows(version) == ()
        world.probe((flow,))
        wait_for(lambda: bool(world.flows(version)))
        [met] = world.flows(version)
        assert replace(met, handle=b"") == replace(flow, handle=b"")
        assert len(world.tracked()) == 1
        answering.sendall(b"more")
        assert asking.recv(64) == b"more"


def test_reading_has_a_limit(world: World) -> None:
    with world.connection(4), world.connection(4), world.connection(6):

        def read(limit: int, wanted: Callable[[IPAddress], bool] = lambda _: True) -> tuple[int, bool]:
            flows, more = world.node.call(lambda: read_flows(wanted, limit))
            return len(flows), more

        pods = {ip_address(address) for address in POD.values()}
        assert read(3, pods.__contains__) == (3, False)
        assert read(2, pods.__contains__) == (2, True)
        assert read(1, pods.__contains__) == (1, True)
        assert read(5, lambda _: False) == (0, False)


def test_a_flow_is_what_pyroute2_reads(world: World) -> None:
    nft(world.node, _TRANSLATED)
    with world.connection(4), world.connection(6):
        flows = [*world.flows(4), *world.flows(6)]
        assert [
            {"state": _ESTABLISHED, "original": [flow.source, flow.destination], "reply": [flow.target, flow.seen]}
            for flow in flows
        ] == [{key: value for key, value in entry.items() if key != "id"} for entry in world.tracked()]
        assert len({flow.handle for flow in flows}) == len(flows)
