"""What is taken away from the node is asked back, once for several things, and told where it happens repeatedly."""

import asyncio
from collections.abc import AsyncIterator
from dataclasses import dataclass, field
from ipaddress import ip_network

import pytest
from prometheus_client import CollectorRegistry

from coil.crd.names import NodeName
from coil.kernel.family import Family, IPNetwork
from coil.kernel.rule import Rule
from coil.netlink.error import NetlinkError
from coil.netlink.node_watch import EventsLost, ForwardingEvent, NodeEvent, RouteEvent, RuleEvent
from coil.podnet.plan import DEFAULT_POLICY
from coild.model.node_subject import node_subject
from coild.model.repairs import Repair, Repairs
from coild.node.state_watch import (
    MESSAGE,
    OFTEN_SECONDS,
    PAUSE_SECONDS,
    SETTLE_SECONDS,
    OwnState,
    StateParts,
    StateWatch,
)
from tests.coild.scene import LOG, ListRecorder, end, now

POD, BLOCK, OTHER = ip_network("10.1.0.7/32"), ip_network("10.1.0.0/27"), ip_network("10.1.0.8/32")
RULE = Rule(family=Family.IPV4, priority=2000, table=116, protocol=30)


def route(table: int, destination: IPNetwork, *, protocol: int = 30, gone: bool = True) -> RouteEvent:
    return RouteEvent(table=table, protocol=protocol, destination=destination, gone=gone)


@dataclass
class Scene:
    """A watch and what it asks for."""

    node_routes: int | None = 31
    wirings: list[float] = field(default_factory=list)
    failures: int = 0
    exports: int = 0
    unexported: list[IPNetwork] = field(default_factory=list)
    syncs: int = 0

    def __post_init__(self) -> None:
        self.recorder = ListRecorder()
        self.registry = CollectorRegistry()
        self.repairs = Repairs(self.registry)
        self.watch = StateWatch(
            OwnState(policy=DEFAULT_POLICY, is_routed=lambda network: network == POD, node_routes=self.node_routes),
            StateParts(
                wiring=self._wire, export=self._export, unexported=self.unexported.append, sync_nodes=self._sync
            ),
            repairs=self.repairs,
            recorder=self.recorder,
            node=node_subject(NodeName("n1")),
            log=LOG,
            clock=now,
        )
        self.task = asyncio.create_task(self.watch.run())

    async def _wire(self) -> None:
        self.wirings.append(now())
        if self.failures:
            self.failures -= 1
            raise NetlinkError("no")

    def _export(self) -> None:
        self.exports += 1

    def _sync(self) -> None:
        self.syncs += 1


@pytest.fixture
async def scene() -> AsyncIterator[Scene]:
    scene = Scene()
    yield scene
    await end([scene.task])


@pytest.mark.parametrize(
    ("event", "asked"),
    [
        (RuleEvent(RULE, gone=True), (1, 0, 0)),
        (RuleEvent(RULE, gone=False), (0, 0, 0)),
        (RuleEvent(Rule(family=Family.IPV4, priority=2000, table=116, protocol=3), gone=True), (0, 0, 0)),
        (ForwardingEvent(Family.IPV6, on=False), (1, 0, 0)),
        (ForwardingEvent(Family.IPV6, on=True), (0, 0, 0)),
        (route(116, POD), (1, 0, 0)),
        (route(116, POD, gone=False), (0, 0, 0)),
        (route(116, POD, protocol=4), (0, 0, 0)),
        # A pod that has gone took it away.
        (route(116, OTHER), (0, 0, 0)),
        (route(119, BLOCK), (0, 1, 0)),
        (route(119, BLOCK, protocol=4), (0, 0, 0)),
        (route(254, BLOCK, protocol=31), (0, 0, 1)),
        (route(254, BLOCK, protocol=30), (0, 0, 0)),
        (EventsLost(), (1, 1, 1)),
    ],
)
async def test_what_is_asked_for(scene: Scene, event: NodeEvent, asked: tuple[int, int, int]) -> None:
    scene.watch.observe(event)
    await asyncio.sleep(5)
    assert (len(scene.wirings), scene.exports, scene.syncs) == asked
    assert scene.unexported == ([BLOCK] if asked == (0, 1, 0) else [])


async def test_routes_of_a_protocol_that_is_not_ours_are_nobody_s_where_there_are_no_node_routes() -> None:
    scene = Scene(node_routes=None)
    scene.watch.observe(route(254, BLOCK, protocol=31))
    assert scene.syncs == 0
    await end([scene.task])


async def test_several_things_at_once_are_one_look_and_the_next_one_waits(scene: Scene) -> None:
    for _ in range(5):
        scene.watch.observe(RuleEvent(RULE, gone=True))
        await asyncio.sleep(SETTLE_SECONDS / 10)
    await asyncio.sleep(SETTLE_SECONDS)
    assert scene.wirings == [SETTLE_SECONDS]
    for _ in range(100):
        scene.watch.observe(RuleEvent(RULE, gone=True))
        await asyncio.sleep(0.1)
    assert 2 <= len(scene.wirings) <= 2 + 10 / (SETTLE_SECONDS + PAUSE_SECONDS)


async def test_a_look_that_fails_is_repeated(scene: Scene) -> None:
    scene.failures = 2
    scene.watch.observe(RuleEvent(RULE, gone=True))
    await asyncio.sleep(60)
    assert len(scene.wirings) == 3


async def test_again_and_again_is_told_once_for_each_three_times(scene: Scene) -> None:
    for _ in range(2):
        scene.repairs.count(Repair.RULES, 2)
        scene.repairs.count(Repair.EXPORTED_ROUTES, 40)
        await asyncio.sleep(60)
    assert scene.recorder.told == []
    scene.repairs.count(Repair.POD_ROUTES, 0)
    assert scene.recorder.told == [], "nothing was missing"
    said = [scene.watch.removed]
    scene.repairs.count(Repair.POD_ROUTES, 1)
    assert [told[2:] for told in scene.recorder.told] == [("NodeStateRemoved", MESSAGE)]
    said.append(scene.watch.removed)
    for _ in range(5):
        await asyncio.sleep(OFTEN_SECONDS)
        said.append(scene.watch.removed)
        scene.repairs.count(Repair.RULES, 1)
    assert len(scene.recorder.told) == 1, "now and then is not often"
    value = scene.registry.get_sample_value("coil_node_repairs_total", {"of": "rules"})
    assert value == 9
    assert said == [None, MESSAGE, MESSAGE, None, None, None, None]
