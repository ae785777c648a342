"""What is reported stays; what changes while it is looked at is not reported."""

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import pytest

from coil.crd.address_block import ADDRESS_BLOCKS
from coil.crd.address_pool import ADDRESS_POOLS
from coil.crd.builtin import NODES, PODS
from coil.page.node_document import NodeDocument
from coil.page.node_dump import NodeDump, RouteDump
from kubectl_coil.ipam.check import PAUSE, check_addresses
from kubectl_coil.ipam.document import CheckDocument
from tests.coil.kube.memory_api import MemoryApi
from tests.kubectl_coil.ipam.test_finding import Town, route
from tests.kubectl_coil.memory_nodes import MemoryNodes, node_dump
from tests.kubectl_coil.memory_reader import MemoryReader

SETTLE = 4 * PAUSE


@dataclass(slots=True)
class Watched:
    """A town that is looked at; `meanwhile` is called with the seconds that have passed, at each pause."""

    town: Town = field(default_factory=Town)
    meanwhile: Callable[[float], None] = lambda _seconds: None
    truncated: tuple[str, ...] = ()
    nodes: MemoryNodes = field(default_factory=MemoryNodes)
    _api: MemoryApi = field(default_factory=MemoryApi)
    _clock: float = 0.0

    def publish(self) -> None:
        """What the API server and the nodes tell from now on."""
        for resource, documents in (
            (ADDRESS_POOLS, self.town.pools),
            (ADDRESS_BLOCKS, self.town.blocks),
            (PODS, self.town.pods),
            (NODES, [{"metadata": {"name": name}} for name in self.town.nodes]),
        ):
            self._replace(resource, documents)
        self.nodes.dumps = {
            node: self.dump(self.town.ledger(node, number), self.town.routes[node])
            for number, node in enumerate(("n0", "n1"))
            if node not in self.town.silent
        }

    def dump(self, ledger: NodeDocument, routes: list[RouteDump]) -> NodeDump:
        return node_dump(ledger, routes=tuple(routes), truncated=self.truncated)

    async def check(self) -> CheckDocument:
        self.publish()
        reader = MemoryReader(self._api)
        return await check_addresses(reader, self.nodes, settle=SETTLE, sleep=self._sleep, clock=lambda: self._clock)

    async def _sleep(self, seconds: float) -> None:
        self._clock += seconds
        self.meanwhile(self._clock)
        self.publish()

    def _replace(self, resource: Any, documents: list[dict[str, Any]]) -> None:
        names = {(each["metadata"].get("namespace", ""), each["metadata"]["name"]) for each in documents}
        for (plural, *name), _ in list(self._api.objects.items()):
            if plural == resource.plural and tuple(name) not in names:
                self._api.remove(resource, name[1], namespace=name[0])
        for document in documents:
            self._api.put(resource, document)


@pytest.fixture
def watched() -> Watched:
    return Watched()


async def test_where_all_agree_one_look_is_enough(watched: Watched) -> None:
    document = await watched.check()
    assert (document.findings, document.troubles, document.nodes, document.looks) == ((), (), 2, 1)


async def test_what_stays_is_reported_and_the_other_nodes_are_not_asked_again(watched: Watched) -> None:
    watched.town.routes["n0"].append(route("10.0.0.77/32", 116))
    document = await watched.check()
    [finding] = document.findings
    assert (finding.kind, finding.subject) == ("RouteWithoutAddress", "address 10.0.0.77")
    assert finding.remedy
    assert document.looks > SETTLE / PAUSE
    assert [node for node, _ in watched.nodes.asked].count("n1") == 1


async def test_a_pod_that_starts_is_not_reported(watched: Watched) -> None:
    """Its node has its address before its status has."""
    town = watched.town
    started = town.pods.pop(0)

    def start(seconds: float) -> None:
        if seconds >= SETTLE - PAUSE and started not in town.pods:
            town.pods.append(started)

    watched.meanwhile = start
    assert (await watched.check()).findings == ()


async def test_pods_that_are_replaced_all_the_time_are_not_reported(watched: Watched) -> None:
    """Each look finds another one."""
    town = watched.town

    def replace(seconds: float) -> None:
        slot = 20 + int(seconds)
        town.uses["n0"][1:] = [town.use(0, slot, f"pod-{slot}")]

    replace(0)
    watched.meanwhile = replace
    document = await watched.check()
    assert (document.findings, document.looks) == ((), 2)


async def test_a_node_that_falls_silent_has_not_shown_that_all_is_well(watched: Watched) -> None:
    town = watched.town
    town.routes["n0"].append(route("10.0.0.77/32", 116))
    watched.meanwhile = lambda _seconds: town.silent.add("n0")
    document = await watched.check()
    assert [finding.kind for finding in document.findings] == ["RouteWithoutAddress"]
    assert document.troubles == ("the node n0 could not be asked: it is silent",)


async def test_a_node_that_cannot_be_asked_is_told(watched: Watched) -> None:
    watched.town.silent = {"n1"}
    document = await watched.check()
    assert (document.findings, document.nodes) == ((), 1)
    assert document.troubles == ("the node n1 could not be asked: it is silent",)


async def test_routes_that_were_not_read_whole_are_not_judged(watched: Watched) -> None:
    watched.town.routes["n0"] = []
    watched.truncated = ("routes of the node",)
    document = await watched.check()
    assert document.findings == ()
    assert document.troubles[0] == "the routes of n0 are not judged: routes of the node"


async def test_an_older_coild_does_not_tell_which_routes_are_its_own(watched: Watched) -> None:
    watched.town.tables = None
    watched.town.routes["n0"] = []
    document = await watched.check()
    assert document.findings == ()
    assert [trouble.partition(":")[0] for trouble in document.troubles] == [
        "the routes of n0 are not judged",
        "the routes of n1 are not judged",
    ]
