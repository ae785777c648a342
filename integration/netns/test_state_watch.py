"""What systemd-networkd takes away from a node when it starts, or anybody who flushes tables, is back in seconds."""

import asyncio
from collections.abc import AsyncIterator, Callable
from contextlib import AsyncExitStack
from ipaddress import ip_network
from random import Random
from typing import Any

import pytest
import structlog
from prometheus_client import CollectorRegistry

from coil.crd.names import NodeName
from coil.kernel.family import Family, IPNetwork
from coil.kernel.link import LinkName
from coil.kernel.route import Route
from coil.netlink.host import HostNetwork
from coil.netlink.node_watch import ForwardingEvent, NodeEvent, RouteEvent, RuleEvent
from coil.podnet.plan import DEFAULT_POLICY, LINK_LOCAL
from coil.reconcile.backoff import Backoff
from coild.addresses.route_export import RouteExport
from coild.model.node_subject import node_subject
from coild.model.repairs import Repairs
from coild.node.state_watch import OwnState, StateParts, StateWatch
from coild.pods.veth import VethWiring
from integration.netns.netns import Netns
from integration.patience import wait_until
from tests.coild.scene import ListRecorder

pytestmark = pytest.mark.kernel

BLOCKS: tuple[IPNetwork, ...] = (ip_network("10.100.0.0/27"), ip_network("fd10:100::/123"))
POD: tuple[IPNetwork, ...] = (ip_network("10.100.0.1/32"), ip_network("fd10:100::1/128"))
LOG = structlog.wrap_logger(structlog.ReturnLogger(), processors=[])


class WatchedNode:
    """coild's parts that write to the node, and a pod's routes, over a link that stands for its veth."""

    def __init__(self, network: HostNetwork, host: Netns) -> None:
        self.network = network
        self.host = host
        self.registry = CollectorRegistry()
        self.recorder = ListRecorder()
        repairs = Repairs(self.registry)
        self.wiring = VethWiring(
            network, mtu=1500, gateways=LINK_LOCAL, policy=DEFAULT_POLICY, repairs=repairs, log=LOG
        )
        self.export = RouteExport(
            network,
            policy=DEFAULT_POLICY,
            backoff=Backoff(base=0.5, cap=30),
            rng=Random(0),
            repairs=repairs,
            log=LOG,
        )
        self.watch = StateWatch(
            OwnState(policy=DEFAULT_POLICY, is_routed=lambda network: network in POD),
            StateParts(
                wiring=self._repair,
                export=self.export.changed,
                unexported=self.export.unexported,
                sync_nodes=lambda: None,
            ),
            repairs=repairs,
            recorder=self.recorder,
            node=node_subject(NodeName("n1")),
            log=LOG,
        )
        self._repairs = repairs

    async def _repair(self) -> None:
        await self.wiring.prepare()
        await self.network.add_routes(pod_routes())

    async def start(self, stack: AsyncExitStack) -> None:
        self.host.ip("link", "add", "veth0", "type", "bridge")
        self.host.ip("link", "set", "veth0", "up")
        await self._repair()
        await self.network.ensure_forwarding(tuple(Family))
        await self.network.watch_removals(self.watch.observe)
        for task in (self.export.run(lambda: BLOCKS), self.watch.run()):
            running = asyncio.create_task(task)
            stack.callback(running.cancel)
        await self.complete()

    def state(self) -> dict[str, Any]:
        """All of it, as iproute2 sees it."""
        found: dict[str, Any] = {}
        for family in ("-4", "-6"):
            found[f"rules {family}"] = {
                (rule["priority"], rule["table"])
                for rule in self.host.read(family, "rule")
                if rule.get("protocol") == "30"
            }
            for table in (DEFAULT_POLICY.pod_table, DEFAULT_POLICY.export_table):
                routes = self.host.read(family, "route", "show", "table", str(table))
                found[f"{table} {family}"] = {(route["dst"], route["protocol"]) for route in routes}
        return found

    async def complete(self) -> None:
        """Wait until nothing is missing."""
        await seen(lambda: all(self.state().values()) and self.export.routes == len(BLOCKS), "what is coild's")

    def repaired(self, what: str) -> float | None:
        return self.registry.get_sample_value("coil_node_repairs_total", {"of": what})


async def seen(holds: Callable[[], object], what: str) -> None:
    """Wait for it; what is tested runs meanwhile."""
    await asyncio.to_thread(wait_until, holds, what=what)


def pod_routes() -> list[Route]:
    return [
        Route(destination=network, device=LinkName("veth0"), table=DEFAULT_POLICY.pod_table, protocol=30, scope=253)
        if network.version == 4
        else Route(destination=network, device=LinkName("veth0"), table=DEFAULT_POLICY.pod_table, protocol=30)
        for network in POD
    ]


@pytest.fixture
async def node(new_netns: Callable[[], Netns]) -> AsyncIterator[WatchedNode]:
    host = new_netns()
    async with AsyncExitStack() as stack:
        network = await stack.enter_async_context(HostNetwork(host.path))
        node = WatchedNode(network, host)
        await node.start(stack)
        yield node


async def test_rules_and_routes_that_were_flushed_are_back_and_told(node: WatchedNode) -> None:
    before = node.state()
    assert all(len(entries) == 1 for entries in before.values())
    # As systemd-networkd does it when it starts.
    for family in ("-4", "-6"):
        node.host.ip(family, "rule", "delete", "priority", "2000")
        for table in ("116", "119"):
            node.host.ip(family, "route", "flush", "table", table)
    await seen(lambda: (node.repaired("rules"), node.repaired("exported_routes")) == (2, 2), "the repairs")
    await node.complete()
    assert node.state() == before


@pytest.mark.parametrize("path", ["net/ipv4/ip_forward", "net/ipv6/conf/all/forwarding"])
async def test_forwarding_that_was_switched_off_is_on_again(node: WatchedNode, path: str) -> None:
    node.wiring._families.update(Family)
    node.host.set_sysctl(path, "0")
    await seen(lambda: node.host.sysctl(path) == "1" and node.repaired("forwarding"), "forwarding")


async def test_what_others_have_beside_ours_is_nobody_s_loss(node: WatchedNode) -> None:
    node.host.ip("route", "add", "198.51.100.0/24", "dev", "veth0", "table", "119", "proto", "4")
    node.host.ip("rule", "add", "priority", "3000", "lookup", "119")
    for arguments in (("route", "delete", "198.51.100.0/24", "table", "119"), ("rule", "delete", "priority", "3000")):
        node.host.ip(*arguments)
    await asyncio.sleep(1.5)
    assert {node.repaired(what) for what in ("rules", "exported_routes", "pod_routes", "forwarding")} == {0}


async def test_somebody_who_takes_it_away_again_and_again_is_told_of(node: WatchedNode) -> None:
    node.watch._clock = iter(range(0, 10_000, 60)).__next__  # a minute between repairs
    for _ in range(3):
        node.host.ip("rule", "delete", "priority", "2000")
        await node.complete()
        await asyncio.sleep(0.1)
    assert [(kind, name, reason) for kind, name, reason, _ in node.recorder.told] == [
        ("Node", "n1", "NodeStateRemoved")
    ]


async def test_only_what_goes_reaches_the_process(new_netns: Callable[[], Netns]) -> None:
    """A pod that comes makes some twenty events, of which none is passed on: they would cost each ADD half a
    millisecond.
    """
    host = new_netns()
    heard: list[NodeEvent] = []
    async with HostNetwork(host.path) as network:
        await network.watch_removals(heard.append)
        host.ip("link", "add", "pod0", "type", "veth", "peer", "name", "pod1")
        for link in ("pod0", "pod1"):
            host.ip("link", "set", link, "up")
        host.set_sysctl("net/ipv4/conf/pod0/forwarding", "1")
        host.set_sysctl("net/ipv6/conf/pod0/forwarding", "1")
        for destination in ("10.1.0.1/32", "fd10:1::1/128"):
            host.ip("route", "add", destination, "dev", "pod0", "table", "116")
        for family in ("-4", "-6"):
            host.ip(family, "rule", "add", "priority", "2000", "lookup", "116", "protocol", "30")
        for family in ("-4", "-6"):
            host.ip(family, "rule", "delete", "priority", "2000")
        for destination in ("10.1.0.1/32", "fd10:1::1/128"):
            host.ip("route", "delete", destination, "table", "116")
        host.set_sysctl("net/ipv6/conf/all/forwarding", "1")
        await seen(lambda: any(isinstance(event, ForwardingEvent) for event in heard), "forwarding, which was last")
    assert {type(event) for event in heard} == {RuleEvent, RouteEvent, ForwardingEvent}
    assert all(event.gone for event in heard if isinstance(event, RuleEvent | RouteEvent))
    assert sum(isinstance(event, RuleEvent) for event in heard) == 2
    assert sum(isinstance(event, RouteEvent) and event.table == 116 for event in heard) == 2
