"""When which connections are probed, in virtual time."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from ipaddress import ip_address
from itertools import count

import pytest
import structlog
from prometheus_client import CollectorRegistry

from coil.eip.classification import Destinations
from coil.eip.eip_set import HERE
from coil.eip.path_change import PathChanges, PolicyPath
from coil.eip.source_index import source_number
from coil.kernel.flow import TCP, Endpoint, Flow
from coil_egress_agent.eip import connection_prober
from coil_egress_agent.eip.connection_prober import MOMENTS, ConnectionProber
from coil_egress_agent.eip.metric import ProbeMetrics
from tests.coil_egress_agent.eip.memory_node import Journal, MemoryFlows
from tests.coil_egress_agent.eip.node_scene import Scene, eip, endpoints, gateway, listed, policy, until
from tests.coil_egress_agent.eip.node_scene import running as running_agent

WAY = 0x26000100
PODS = ("10.1.0.2", "10.1.0.3")
SERVER = Endpoint(ip_address("8.8.8.8"), 443)


def flow(pod: str, *, port: int = 1000, translated: bool = False) -> Flow:
    source = Endpoint(ip_address(pod), port)
    seen = Endpoint(ip_address("203.0.113.50"), port) if translated else source
    return Flow(protocol=TCP, source=source, destination=SERVER, target=SERVER, seen=seen, established=True)


def moved(*pods: str, path: int = WAY) -> PathChanges:
    return PathChanges(
        sources={source_number(ip_address(pod)): (PolicyPath(Destinations(everywhere=True), path),) for pod in pods}
    )


class Stage:
    def __init__(self) -> None:
        self.journal = Journal()
        self.flows = MemoryFlows(self.journal)
        self.registry = CollectorRegistry()
        self.logged = structlog.testing.LogCapture()
        numbers = count()
        self.prober = ConnectionProber(
            self.flows,
            metrics=ProbeMetrics(self.registry),
            log=structlog.wrap_logger(None, processors=[self.logged]),
            random=lambda: next(numbers),
        )

    def move(self, paths: PathChanges) -> None:
        self.prober.expect(paths)
        self.prober.go()

    def probed(self) -> list[tuple[float, list[Flow]]]:
        """When, to a tenth of a second, and what."""
        return [(round(at, 1), list(what)) for at, call, what in self.journal.entries if call == "probe"]  # type: ignore[call-overload]

    def value(self, name: str) -> float | None:
        return self.registry.get_sample_value(f"coil_egress_eip_{name}_total")


@asynccontextmanager
async def running() -> AsyncIterator[Stage]:
    stage = Stage()
    task = asyncio.create_task(stage.prober.run())
    try:
        yield stage
    finally:
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)


async def test_at_each_moment() -> None:
    async with running() as stage:
        stage.flows.flows = [flow(PODS[0]), flow(PODS[1])]
        begin = asyncio.get_running_loop().time()
        stage.move(moved(PODS[0]))
        await asyncio.sleep(10)
        assert stage.probed() == [(round(begin + moment, 1), [flow(PODS[0])]) for moment in MOMENTS]
        assert stage.journal.calls().count("flows") == 1
        assert stage.value("nudges") == len(MOMENTS)


async def test_not_before_the_kernel_has_the_paths() -> None:
    async with running() as stage:
        stage.flows.flows = [flow(PODS[0]), flow(PODS[1])]
        stage.prober.expect(moved(PODS[0]))
        await asyncio.sleep(1)
        assert not stage.journal.entries
        # The round failed; the next one finds something else.
        stage.prober.expect(moved(PODS[1]))
        stage.prober.go()
        await asyncio.sleep(0.1)
        assert stage.probed()[0][1] == [flow(PODS[0]), flow(PODS[1])]


async def test_nothing_moved_is_nothing_done() -> None:
    async with running() as stage:
        stage.move(PathChanges())
        await asyncio.sleep(10)
        assert not stage.journal.entries


async def test_what_does_not_fit_is_forgotten_first() -> None:
    async with running() as stage:
        fits, unfit = flow(PODS[0]), flow(PODS[0], port=1001, translated=True)
        stage.flows.flows = [fits, unfit]
        stage.move(moved(PODS[0]))
        await asyncio.sleep(0.1)
        assert stage.journal.calls() == ["flows", "forget", "probe"]
        assert stage.journal.entries[1][2] == [unfit]
        assert stage.probed()[0][1] == [fits, unfit]
        assert stage.value("forgotten_connections") == 1


async def test_the_last_of_two_moves_counts() -> None:
    async with running() as stage:
        stage.flows.flows = [flow(PODS[0], translated=True)]
        stage.prober.expect(moved(PODS[0]))
        stage.prober.expect(moved(PODS[0], path=HERE))
        stage.prober.go()
        await asyncio.sleep(0.1)
        assert stage.journal.entries[1][2] == []


async def test_a_second_move_begins_the_moments_anew() -> None:
    async with running() as stage:
        stage.flows.flows = [flow(pod) for pod in PODS]
        begin = asyncio.get_running_loop().time()
        stage.move(moved(*PODS))
        await asyncio.sleep(1)
        stage.move(moved(PODS[0]))
        await asyncio.sleep(10)
        times = {pod: [at for at, flows in stage.probed() if flow(pod) in flows] for pod in PODS}
        assert times[PODS[0]] == [round(begin + at, 1) for at in (0, 0.6, *(1 + moment for moment in MOMENTS))]
        assert times[PODS[1]] == [round(begin + at, 1) for at in MOMENTS]
        assert not stage.prober._arrivals


async def test_more_than_it_looks_after(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(connection_prober, "LIMIT", 2)
    async with running() as stage:
        stage.flows.flows = [flow(PODS[0], port=port) for port in range(1, 4)]
        stage.flows.more = True
        stage.move(moved(PODS[0]))
        await asyncio.sleep(0.1)
        stage.flows.flows = [flow(PODS[1])]
        stage.move(moved(PODS[1]))
        await asyncio.sleep(10)
        assert {len(flows) for _, flows in stage.probed()} == {2}
        assert any(entry["log_level"] == "warning" for entry in stage.logged.entries)


@pytest.mark.parametrize("call", ["flows", "forget", "probe"])
async def test_what_is_refused_is_told(call: str) -> None:
    async with running() as stage:
        stage.flows.flows = [flow(PODS[0])]
        stage.journal.refuse = {call}
        stage.move(moved(PODS[0]))
        await asyncio.sleep(0.1)
        assert [entry["log_level"] for entry in stage.logged.entries if "error" in entry] == ["warning"]
        assert stage.value("nudge_failures") == 1
        stage.journal.refuse = set()
        await asyncio.sleep(1)
        assert bool(stage.probed()) is (call == "probe")
        stage.move(moved(PODS[0]))
        await asyncio.sleep(0.1)
        assert stage.probed()


@pytest.mark.parametrize("refused", [set(), {"change"}, {"marks"}])
async def test_an_agent_probes_when_the_kernel_has_another_path(refused: set[str]) -> None:
    """Also where the first attempt fails."""
    scene = Scene()
    scene.agent.flows.flows = [flow("10.244.1.5"), flow("10.244.2.5")]
    scene.cluster.policies.put(policy())
    scene.cluster.slices.put(endpoints(("10.244.1.5", "n1"), ("10.244.2.5", "n2")))
    scene.cluster.gateways.put(gateway(listed("n2", eip())))
    async with running_agent(scene):
        await until(lambda: not scene.agent.applier.missing())
        await asyncio.sleep(10)
        scene.journal.clear()
        scene.journal.refuse = refused
        scene.cluster.gateways.put(gateway(listed("n3", eip()), revision=2))
        await asyncio.sleep(0.05)
        scene.journal.refuse = set()
        await until(lambda: "probe" in scene.journal.calls())
        calls = scene.journal.calls()
        loaded = "sync" if refused else "change"
        assert calls.index(loaded) < calls.index("flows") < calls.index("probe")
        assert scene.journal.entries[calls.index("probe")][2] == [flow("10.244.1.5")]
