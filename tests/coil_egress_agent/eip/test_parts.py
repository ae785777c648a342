"""The small parts: what they say and when they keep silent."""

import asyncio
from collections.abc import Callable, Sequence
from contextlib import nullcontext
from dataclasses import replace
from datetime import UTC, datetime
from ipaddress import IPv4Address, IPv6Address, ip_address, ip_interface, ip_network

import msgspec
import pytest
import structlog
from prometheus_client import CollectorRegistry

from coil.crd.egress_gateway import EgressGatewaySpec, Ranges
from coil.crd.egress_gateway_policy import EgressIP, PolicyEip
from coil.crd.egress_tunnel import TunnelParent
from coil.crd.meta import ObjectMeta
from coil.eip.claim import Eip
from coil.eip.eip_table import EipTableOptions, forward_shim
from coil.kernel.family import Family
from coil.kernel.nft_element import ElementChanges
from coil.runtime.flag import parse_settings
from coil_egress_agent.eip.announcer import Announcer
from coil_egress_agent.eip.data_plane_builder import parse_networks, wished_eip
from coil_egress_agent.eip.kernel import CALL_SECONDS
from coil_egress_agent.eip.kernel_tables import KernelTables, ensure_shim, remove_shim
from coil_egress_agent.eip.main import clean_node
from coil_egress_agent.eip.mesh import (
    MeshError,
    MeshOptions,
    plan_end,
    plan_marks,
    plan_peers,
    underlay_choices,
)
from coil_egress_agent.eip.metric import NodeMetrics
from coil_egress_agent.eip.node_assignment import EgressPath, LeaseState, plan_assignment, plan_paths
from coil_egress_agent.eip.settings import Settings
from coil_egress_agent.eip.tunnel_report import MeshReport, parent_texts, plan_report
from tests.coil_egress_agent.eip.memory_node import PARENT, Journal, MemoryOverlay, MemoryTables
from tests.coil_egress_agent.eip.node_scene import LABELS, NODE, eip, gateway, listed, policy, ref, tunnel

NOW = datetime(2026, 1, 2, 3, 4, 5, tzinfo=UTC)
ENVIRONMENT = {"COIL_NODE_NAME": "n1"}


def lease(term: int | None = 1, **applied: int) -> LeaseState:
    return LeaseState(node=NODE, term=term, applied=applied)


def read_settings(*arguments: str) -> Settings:
    return parse_settings(Settings, arguments, ENVIRONMENT, program="x", about="x")


def test_settings() -> None:
    settings = read_settings("--cluster-cidr=10.96.0.0/12, fd00:96::1/112", "--eip-lease", "1s")
    assert settings.node_name == "n1"
    assert settings.eip_lease_namespace == "coil-eip-leases"
    assert (settings.eip_lease, settings.tunnel_port, settings.tunnel_vni) == (1.0, 7789, 100)
    assert settings.cluster_cidr == (ip_network("10.96.0.0/12"), ip_network("fd00:96::/112"))
    assert str(settings.metrics_addr) == "127.0.0.1:9398"
    assert (settings.keep_source, settings.forward_shim, settings.cleanup) == (True, False, False)


@pytest.mark.parametrize("arguments", [("--eip-lease=100ms",), ("--cluster-cidr=x",), ("--node-name=A_B",)])
def test_settings_that_are_wrong(arguments: tuple[str, ...], capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        read_settings(*arguments)
    assert arguments[0].partition("=")[0] in capsys.readouterr().err


@pytest.mark.parametrize(
    ("nodes", "labels", "term", "wanted", "known", "addresses"),
    [
        ((), LABELS, None, True, 0, ()),
        ((), {}, None, False, 0, ()),
        ((), None, None, False, 0, ()),
        ((listed("n1", eip(), term=3),), {}, 3, True, 3, ("10.6.1.1",)),
        ((listed("n1", eip(), term=3),), {}, 2, True, 3, ()),
        ((listed("n1", eip(), term=3),), {}, None, True, 3, ()),
        ((listed("n1", eip(leaving=1), term=3),), {}, 3, True, 3, ()),
        ((listed("n1", eip(""), term=3),), {}, 3, True, 3, ()),
        ((listed("n1", eip("nonsense"), term=3),), {}, 3, True, 3, ()),
        ((listed("n1", term=3), listed("n2", eip())), {}, 3, False, 3, ()),
    ],
)
def test_share(
    nodes: Sequence[object],
    labels: dict[str, str] | None,
    term: int | None,
    wanted: bool,
    known: int,
    addresses: tuple[str, ...],
) -> None:
    assignment = plan_assignment([gateway(*nodes)], lease(term), labels=labels)  # type: ignore[arg-type]
    assert (assignment.wanted, assignment.known_term) == (wanted, known)
    assert assignment.addresses == frozenset(map(ip_address, addresses))


def test_an_empty_selector_selects_nothing() -> None:
    bare = msgspec.structs.replace(gateway(), spec=EgressGatewaySpec())
    assert not plan_assignment([bare], lease(), labels=LABELS).wanted


def test_paths() -> None:
    address = IPv4Address("10.6.1.1")

    def path(*nodes: object, **facts: int) -> EgressPath | None:
        return plan_paths([gateway(*nodes)], lease(**facts)).get(ref())  # type: ignore[arg-type]

    assert path() is None
    assert path(listed("n2", eip())) == EgressPath("n2", address)  # type: ignore[arg-type]
    assert path(listed("n2", eip(""))) == EgressPath("n2")  # type: ignore[arg-type]
    assert path(listed("n1", eip())) == EgressPath(NODE, address)
    gone = EgressPath(None, address, moving=True)
    assert path(listed("n1", eip()), term=2) == EgressPath(None, address, moving=True, given=NODE)
    assert path(listed("n1", eip(leaving=3))) == gone
    assert path(listed("n2", eip(leaving=3))) == gone
    # The new deps counts, on whichever side it stands.
    moved = EgressPath("n3", IPv4Address("10.6.1.2"))  # type: ignore[arg-type]
    assert path(listed("n2", eip(leaving=3)), listed("n3", eip("10.6.1.2"))) == moved
    assert path(listed("n3", eip("10.6.1.2")), listed("n4", eip(leaving=3))) == moved


def test_a_stale_status_gives_nothing() -> None:
    stale = msgspec.structs.replace(gateway(listed("n1", eip()), revision=3), metadata=ObjectMeta(name="g", uid="u"))
    assert plan_paths([stale], lease(u=4))[ref()].moving
    assert not plan_paths([stale], lease(u=3))[ref()].moving


def test_peers_are_the_complete_tunnels_of_others() -> None:
    bare = msgspec.structs.replace(tunnel(4), status=msgspec.structs.replace(tunnel(4).status, mark=""))
    twin = msgspec.structs.replace(tunnel(2), metadata=ObjectMeta(name="n5"))
    peers = plan_peers([tunnel(3), tunnel(1), tunnel(2), bare, twin], node=NODE)
    assert [peer.node for peer in peers] == ["n2", "n3"]
    assert peers[0].overlay(Family.IPV6) is None
    end = peers[0].overlay(Family.IPV4)
    assert end is not None
    assert end.underlay == ip_address("10.6.0.2")
    assert peers[0].addresses == (ip_address("10.6.0.2"),)
    assert set(plan_marks(peers, {"n3", "n9"})) == {0x26000300}  # type: ignore[arg-type]
    assert len(plan_marks(peers, None)) == 2


def test_where_a_tunnel_ends_is_one_of_the_nodes_addresses() -> None:
    """Else a node could have others' traffic sent to any host."""
    status = tunnel(2).status
    end = msgspec.structs.replace(
        status.tunnel, parent=TunnelParent(name="eth0", ipv4="10.6.9.9/24", ipv6="fd06::9/64")
    )
    liar = msgspec.structs.replace(tunnel(2), status=msgspec.structs.replace(status, tunnel=end))
    assert plan_peers([liar], node=NODE) == ()
    also = msgspec.structs.replace(liar.status, node_addresses=("10.6.0.2", "fd06::9"))
    [peer] = plan_peers([msgspec.structs.replace(liar, status=also)], node=NODE)
    assert peer.parent == (ip_address("fd06::9"),)
    assert peer.addresses == (ip_address("10.6.0.2"), ip_address("fd06::9"))


def test_the_own_tunnel() -> None:
    status = msgspec.structs.replace(tunnel(1).status, node_addresses=("fd06::1", "host", "10.6.0.1"))
    assert underlay_choices(status) == (ip_address("10.6.0.1"), ip_address("fd06::1"))
    options = MeshOptions(vni=100, port=7789)
    vxlan = plan_end(status, underlay=ip_address("10.6.0.1"), parent=PARENT, options=options).vxlan
    assert (vxlan.mtu, vxlan.mac, str(vxlan.local)) == (1450, "66:00:00:00:00:01", "10.6.0.1")
    assert list(map(str, vxlan.addresses)) == ["172.31.0.1/32", "fd11::1/128"]
    with pytest.raises(MeshError):
        underlay_choices(msgspec.structs.replace(status, node_addresses=()))
    bare = msgspec.structs.replace(status, tunnel=msgspec.structs.replace(status.tunnel, mac="x"))
    with pytest.raises(MeshError):
        plan_end(bare, underlay=ip_address("10.6.0.1"), parent=PARENT, options=options)


@pytest.mark.parametrize(
    ("phase", "working", "said"),
    [
        ("Init", True, "Ready"),
        ("Init", False, "Failed"),
        ("Ready", False, "Failed"),
        ("HeartbeatTimeout", True, None),
        ("NodeNotReady", True, None),
        ("Pending", True, None),
    ],
)
def test_the_phase(phase: str, working: bool, said: str | None) -> None:
    patch = plan_report(tunnel(2, phase=phase), MeshReport(working=working, parent=PARENT), now=NOW)
    assert patch is not None  # the parent is another one
    assert patch["status"].get("phase") == said
    assert patch["status"]["tunnel"] == {"parent": {"name": "eth0", "ipv4": "10.6.0.1/16", "ipv6": "fd06::1/64"}}
    assert patch["status"]["lastHeartbeatTime"] == "2026-01-02T03:04:05Z"


def test_of_a_links_addresses_the_nodes_own_is_told() -> None:
    """Peers believe no other; those that come first on the link may be somebody else's."""
    interfaces = tuple(map(ip_interface, ("10.6.7.7/24", "fd06::7/64", "10.6.0.2/16", "fd06::2/64")))
    node = tunnel(2)
    node = msgspec.structs.replace(
        node, status=msgspec.structs.replace(node.status, node_addresses=("10.6.0.2", "fd06::2", "host"))
    )
    patch = plan_report(node, MeshReport(working=True, parent=replace(PARENT, interfaces=interfaces)), now=NOW)
    assert patch is not None
    assert patch["status"]["tunnel"] == {"parent": {"name": "eth0", "ipv4": "10.6.0.2/16", "ipv6": "fd06::2/64"}}


def test_an_address_of_the_link_alone_is_not_told_unless_it_is_the_nodes() -> None:
    """Nodes of a cluster without IPv6 have one nevertheless."""
    parent = replace(PARENT, interfaces=tuple(map(ip_interface, ("fe80::1/64", "10.6.0.1/16"))))
    assert parent_texts(parent, ("10.6.0.1",)) == {"name": "eth0", "ipv4": "10.6.0.1/16", "ipv6": ""}
    assert parent_texts(parent, ("fe80::1",)) == {"name": "eth0", "ipv4": "10.6.0.1/16", "ipv6": "fe80::1/64"}


def test_nothing_is_said_twice() -> None:
    assert plan_report(tunnel(2, phase="Ready"), MeshReport(working=True), now=NOW) is None


def test_the_families_of_a_policy_that_nobody_carries() -> None:
    v4 = msgspec.structs.replace(gateway(), spec=EgressGatewaySpec(ranges=Ranges(ipv4=("10.6.1.1",))))
    assert wished_eip(policy(), v4) == Eip(IPv4Address(0), None)
    assert wished_eip(policy(), None) is None
    assert wished_eip(policy(egress_ip=EgressIP(use_node_ip=True)), v4) is None
    assert wished_eip(policy(egress_ip=EgressIP(ipv6="fd00::1")), v4) == Eip(None, IPv6Address("fd00::1"))
    known = policy()
    known = msgspec.structs.replace(known, status=msgspec.structs.replace(known.status, eip=PolicyEip(ipv4="10.6.1.7")))
    assert wished_eip(known, v4) == Eip(IPv4Address("10.6.1.7"), None)


def test_networks() -> None:
    assert parse_networks(["10.1.2.3/8", "x", "", "fd00::1"]) == (ip_network("10.0.0.0/8"), ip_network("fd00::1"))


class Iptables:
    """Implements `Run`: the rules of each program's chain."""

    def __init__(self, *, present: bool = True) -> None:
        self.rules: dict[str, list[tuple[str, ...]]] = {"iptables": [], "ip6tables": []}
        self._present = present

    async def __call__(self, command: Sequence[str]) -> int:
        if not self._present:
            raise FileNotFoundError(command[0])
        program, action, rule = command[0], command[3], tuple(command[5:])
        chain = self.rules[program]
        if action == "-I":
            chain.insert(0, rule[1:])
            return 0
        if rule not in chain:
            return 1
        if action == "-D":
            chain.remove(rule)
        return 0


async def test_the_shim_comes_once_and_goes_wholly() -> None:
    iptables, rules = Iptables(), forward_shim(EipTableOptions())
    await ensure_shim(rules, run=iptables)
    await ensure_shim(rules, run=iptables)
    assert sorted(iptables.rules["ip6tables"]) == sorted(rules)
    iptables.rules["iptables"] *= 2
    await remove_shim(rules, run=iptables)
    assert iptables.rules == {"iptables": [], "ip6tables": []}
    await remove_shim(rules, run=Iptables(present=False))


async def test_a_cleanup_takes_the_addresses_first() -> None:
    journal = Journal()
    await clean_node(
        MemoryOverlay(journal), MemoryTables(journal), options=EipTableOptions(), run=Iptables(present=False)
    )
    assert journal.calls() == ["clean overlay", "clean tables"]


async def test_what_was_withheld_is_not_announced_any_more() -> None:
    loop, journal, held = asyncio.get_running_loop(), Journal(), [True]
    announcer = Announcer(
        MemoryOverlay(journal),
        may_hold=lambda: held[0],
        metrics=NodeMetrics(CollectorRegistry()),
        log=structlog.wrap_logger(None, processors=[structlog.testing.LogCapture()]),
        clock=loop.time,
    )
    one, two = ip_address("10.6.1.1"), ip_address("fd06::9")
    task = asyncio.create_task(announcer.run())
    announcer.announce([one, two])
    await asyncio.sleep(0.2)
    announcer.withhold([one])
    await asyncio.sleep(0.2)
    journal.refuse.add("announce")
    await asyncio.sleep(1)
    journal.refuse.clear()
    held[0] = False
    await asyncio.sleep(5)
    assert [what for _, _, what in journal.entries] == [["10.6.1.1", "fd06::9"]] * 2 + [["fd06::9"], []]
    task.cancel()
    await asyncio.wait({task})


class SteadyKernel:
    """In the place of a worker and of a reconciler: each step takes so long."""

    def __init__(self, seconds: float) -> None:
        self._seconds = seconds
        self.steps: list[ElementChanges] = []

    async def run(self, function: Callable[..., object], *arguments: object) -> object:
        if function == self.change:
            await asyncio.sleep(self._seconds)
        return function(*arguments)

    def split(self, changes: ElementChanges) -> list[ElementChanges]:
        return [changes] * 5

    def change(self, changes: ElementChanges) -> None:
        self.steps.append(changes)


@pytest.mark.parametrize(("share", "carried_out"), [(0.9, 5), (1.1, 0)])
async def test_a_change_may_take_as_long_as_its_steps_need(
    monkeypatch: pytest.MonkeyPatch, share: float, carried_out: int
) -> None:
    kernel, tables = SteadyKernel(share * CALL_SECONDS), KernelTables(EipTableOptions())
    for name in ("_worker", "_reconciler"):
        monkeypatch.setattr(tables, name, kernel, raising=False)
    with pytest.raises(TimeoutError) if share > 1 else nullcontext():
        await tables.change(ElementChanges())
    assert len(kernel.steps) == carried_out
