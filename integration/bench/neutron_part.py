"""coil-raven between a real API server and a real Neutron, beside a bare loop of openstacksdk that creates such ports.

    pods created ─► coil-raven ─► Neutron ─► annotation       until the last of them has its annotation
                    openstacksdk ─► Neutron                   until the last of as many ports is there

Neutron (one process, sqlite) takes nearly all of the time on both sides. Each side creates its ports singly, with as
many calls under way as the other, on the same network, and deletes them before the other's turn.
"""

import asyncio
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Collection, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, asynccontextmanager
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any, Final, TypeVar

import structlog
from openstack.connection import Connection
from prometheus_client import CollectorRegistry

from coil.crd.builtin import PODS, Pod
from coil.kube.client import KubeClient
from coil.neutron.handoff import ANNOTATION_PORT, parse_handoff
from coil.openstack.client import OpenStackClient
from coil.openstack.neutron import NeutronApi
from coil.reconcile.informer import Informer, InformerMetrics
from coil_raven.network_removal import POD_OWNER
from integration.apiserver.ipam_world import until
from integration.apiserver.plane_pool import PlanePool
from integration.bench.figure import Better, Figure, Reading
from integration.bench.part import Part
from integration.bench.process_state import resident_megabytes
from integration.bench.room import require_room
from integration.bench.sample import median, paired_ratios, percentile, spread
from integration.metrics_page import fetch_here
from integration.neutron.environment import find_environment
from integration.neutron.neutron_server import NeutronServer
from integration.neutron.raven_world import RavenWorld

T = TypeVar("T")

READY = Figure("neutron.port_ready_ms", "ms")
CALLS = Figure("neutron.calls_per_pod", "calls")
READY_POOL = Figure("neutron.port_ready_ms.pool", "ms")
RATE_POOL = Figure("neutron.pods_per_s.pool", "1/s", Better.HIGHER)
RATE = Figure("neutron.pods_per_s", "1/s", Better.HIGHER, peer="a bare openstacksdk loop with the same concurrency")
RSS = Figure("neutron.raven.rss_mb.pods5000", "MB")

NODE: Final = "node-a"
_CONCURRENCY: Final = 8
_ROUNDS: Final = 20
_PODS: Final = 24
_CROWD: Final = 5000
_POOL: Final = 2 * _PODS
"""More than half of them are idle at any time, unless a crowd comes: then a pool is filled up again."""
_FLAGS: Final = (f"--concurrency={_CONCURRENCY}", "--gc-interval=1h", "--port-cooling=0s")
_CALL_COUNT: Final = "coil_openstack_call_duration_seconds_count{"
_ROUND_SECONDS: Final = 120.0
_CROWD_SECONDS: Final = 3600.0


@dataclass(frozen=True, slots=True, kw_only=True)
class RavenRound:
    """`ready_ms` is from a pod's creation to its annotation, of each pod."""

    pods_per_s: float
    ready_ms: tuple[float, ...]


class Side:
    """Pods of one namespace, and when each came to have its port. Make one in the loop that `client` belongs to."""

    def __init__(self, world: RavenWorld, client: KubeClient, namespace: str) -> None:
        self._world = world
        self._client = client
        self._namespace = namespace
        self._created: list[str] = []
        self._ready: dict[str, float] = {}
        self._changed = asyncio.Event()
        self._pods = Informer(
            client.collection(PODS, namespace=namespace),
            log=structlog.wrap_logger(structlog.ReturnLogger(), processors=[]),
            metrics=InformerMetrics(CollectorRegistry()),
        )
        self._pods.subscribe(self._notice)

    async def run(self) -> None:
        """Follow the pods until cancelled."""
        await self._pods.run()

    async def take_round(self, number: int, pods: int, *, timeout: float) -> RavenRound:
        """Create pods, and wait until each has its port."""
        created: dict[str, float] = {}

        async def create(name: str) -> None:
            created[name] = time.monotonic()
            self._created.append(name)
            await self._world.add_pod(self._namespace, name, node=NODE)

        names = [f"web-{number}-{index}" for index in range(pods)]
        began = time.monotonic()
        await in_turns(_CONCURRENCY, [partial(create, name) for name in names])
        await self._wait(lambda: self._ready.keys() >= set(names), timeout)
        return RavenRound(
            pods_per_s=pods / (max(self._ready[name] for name in names) - began),
            ready_ms=tuple(1000 * (self._ready[name] - created[name]) for name in names),
        )

    async def clear(self, ports: NeutronApi, *, timeout: float) -> None:
        """Delete the pods, and wait until Neutron has none of their ports; those that wait for pods stay."""
        await in_turns(_CONCURRENCY, [partial(self._world.delete_pod, self._namespace, name) for name in self._created])
        self._created.clear()
        self._ready.clear()

        async def gone() -> bool:
            return not any(port.device_id for port in await ports.ports(device_owner=POD_OWNER))

        await until(gone, what="no port is left", timeout=timeout)

    async def a_port(self, ports: NeutronApi) -> Any:
        """The port of one of the pods, as it was created."""
        pod = next(pod for pod in self._pods.items() if ANNOTATION_PORT in pod.metadata.annotations)
        handoff = parse_handoff(pod.metadata.annotations[ANNOTATION_PORT], pod_uid=pod.metadata.uid)
        return await ports.port(handoff.port)

    def _notice(self, _old: Pod | None, new: Pod | None) -> None:
        if new is not None and ANNOTATION_PORT in new.metadata.annotations and new.metadata.name not in self._ready:
            self._ready[new.metadata.name] = time.monotonic()
            self._changed.set()

    async def _wait(self, done: Callable[[], bool], timeout: float) -> None:
        async with asyncio.timeout(timeout):
            while not done():
                self._changed.clear()
                await self._changed.wait()


async def in_turns(width: int, calls: list[Callable[[], Awaitable[object]]]) -> None:
    """No more than `width` under way at a time."""
    turns = asyncio.Semaphore(width)

    async def take(call: Callable[[], Awaitable[object]]) -> None:
        async with turns:
            await call()

    async with asyncio.TaskGroup() as group:
        for call in calls:
            group.create_task(take(call))


def create_bare(connection: Connection, body: dict[str, Any], count: int) -> float:
    """Ports per second, by a loop of openstacksdk with as many threads as coil-raven has. Deletes them afterwards."""
    with ThreadPoolExecutor(_CONCURRENCY) as threads:
        began = time.monotonic()
        ports = list(
            threads.map(lambda number: connection.network.create_port(**body, name=f"bare-{number}"), range(count))
        )
        seconds = time.monotonic() - began
        list(threads.map(lambda port: connection.network.delete_port(port.id), ports))
    return count / seconds


def count_calls(exposition: str) -> int:
    """How many calls to OpenStack a page of metrics tells of. Pure."""
    return int(sum(float(line.rpartition(" ")[2]) for line in exposition.splitlines() if line.startswith(_CALL_COUNT)))


def measure_ports(wanted: Collection[Figure]) -> Iterator[Reading]:
    """Both sides in turns, then a crowd of pods for the memory, if that is wanted."""
    require_room()
    yield from asyncio.run(_measure(wanted))


async def _measure(wanted: Collection[Figure]) -> list[Reading]:
    readings = []
    with ExitStack() as stack:
        folder = Path(stack.enter_context(TemporaryDirectory(prefix="coil-neutron-")))
        plane = stack.enter_context(stack.enter_context(PlanePool()).lend())
        neutron = stack.enter_context(NeutronServer.start(folder, hosts=[NODE]))
        connection = stack.enter_context(neutron.connect())
        client = stack.enter_context(OpenStackClient(neutron.connect))
        async with KubeClient.connect(plane.admin_kubeconfig) as kube:
            ports = NeutronApi(client)
            if {READY_POOL, RATE_POOL} & set(wanted):
                flags = (*_FLAGS, f"--port-pool-size={_POOL}")
                with RavenWorld.start(plane, kube, neutron, folder, *flags) as world:
                    async with _side(world, kube) as side:
                        readings += await _measure_pool(side, ports)
            with RavenWorld.start(plane, kube, neutron, folder, *_FLAGS) as world:
                async with _side(world, kube) as side:
                    if {READY, CALLS, RATE} & set(wanted):
                        readings += await _measure_rounds(side, world, ports, connection)
                    if RSS in wanted:
                        await side.take_round(_ROUNDS, _CROWD, timeout=_CROWD_SECONDS)
                        readings.append(_read_memory(world))
    return readings


@asynccontextmanager
async def _side(world: RavenWorld, kube: KubeClient) -> AsyncIterator[Side]:
    side = Side(world, kube, await world.add_namespace("bench"))
    async with asyncio.TaskGroup() as group:
        following = group.create_task(side.run())
        yield side
        following.cancel()


async def _measure_pool(side: Side, ports: NeutronApi) -> list[Reading]:
    """A crowd, then a pod by itself, each with a pool that has a port for every pod."""

    async def is_filled() -> bool:
        found = await ports.ports(device_owner=POD_OWNER)
        return sum(not port.device_id for port in found) > _POOL // 2

    rounds: list[RavenRound] = []
    alone: list[float] = []
    # The first pod has its pool made.
    await side.take_round(-1, 1, timeout=_ROUND_SECONDS)
    for number in range(_ROUNDS):
        await until(is_filled, what="the pool has a port for every pod", timeout=_ROUND_SECONDS)
        rounds.append(await side.take_round(number, _PODS, timeout=_ROUND_SECONDS))
        await until(is_filled, what="the pool has a port for every pod", timeout=_ROUND_SECONDS)
        alone += (await side.take_round(_ROUNDS + number, 1, timeout=_ROUND_SECONDS)).ready_ms
        await side.clear(ports, timeout=_ROUND_SECONDS)
        await side.take_round(-2 - number, 1, timeout=_ROUND_SECONDS)
    await side.clear(ports, timeout=_ROUND_SECONDS)
    return list(read_pool(rounds, alone))


def read_pool(rounds: Sequence[RavenRound], alone: Sequence[float]) -> Iterator[Reading]:
    """With ports that wait for pods. Pure."""
    crowded = [milliseconds for each in rounds for milliseconds in each.ready_ms]
    about = (
        f"{len(rounds)} rounds of {len(rounds[0].ready_ms)} pods at once, on one node, IPv4 and IPv6, Neutron on "
        f"sqlite, a pool of {_POOL} ports"
    )
    yield Reading(
        figure=READY_POOL,
        value=median(alone),
        runs=len(alone),
        note=f"pod created to annotation seen by a watch, one pod at a time; runs {spread(alone)}; in a crowd (p50, "
        f"p99) {median(crowded):.0f}, {percentile(crowded, 99):.0f}: {about}",
    )
    rates = [each.pods_per_s for each in rounds]
    yield Reading(
        figure=RATE_POOL,
        value=median(rates),
        runs=len(rounds),
        note=f"{about}, {_CONCURRENCY} calls under way; runs {spread(rates)}",
    )


async def _measure_rounds(side: Side, world: RavenWorld, ports: NeutronApi, connection: Connection) -> list[Reading]:
    ours: list[RavenRound] = []
    bare: list[float] = []
    calls: list[float] = []
    alone: list[float] = []
    # The first is to warm up, and shows what such a port is.
    await side.take_round(-1, 1, timeout=_ROUND_SECONDS)
    port = await side.a_port(ports)
    body = {
        "network_id": port.network_id,
        "project_id": port.project_id,
        "device_owner": POD_OWNER,
        "binding_host_id": NODE,
        "security_groups": sorted(port.security_groups),
        "fixed_ips": [{"subnet_id": fixed.subnet_id} for fixed in port.fixed_ips],
    }
    await side.clear(ports, timeout=_ROUND_SECONDS)
    for number in range(_ROUNDS):
        for turn in range(2):
            if (turn + number) % 2:
                bare.append(await asyncio.to_thread(create_bare, connection, body, _PODS))
                continue
            before = count_calls(fetch_here(world.metrics))
            ours.append(await side.take_round(number, _PODS, timeout=_ROUND_SECONDS))
            calls.append((count_calls(fetch_here(world.metrics)) - before) / _PODS)
            alone += (await side.take_round(_ROUNDS + number, 1, timeout=_ROUND_SECONDS)).ready_ms
            await side.clear(ports, timeout=_ROUND_SECONDS)
    return list(read_rounds(ours, bare, calls=calls, alone=alone))


def read_rounds(
    ours: Sequence[RavenRound], bare: Sequence[float], *, calls: Sequence[float], alone: Sequence[float]
) -> Iterator[Reading]:
    """Rounds of the same number are neighbours. `alone` are the times of pods that came by themselves. Pure."""
    rates = [each.pods_per_s for each in ours]
    crowded = [milliseconds for each in ours for milliseconds in each.ready_ms]
    about = f"{len(ours)} rounds of {len(ours[0].ready_ms)} pods at once, on one node, IPv4 and IPv6, Neutron on sqlite"
    yield Reading(
        figure=READY,
        value=median(alone),
        runs=len(alone),
        note=f"pod created to annotation seen by a watch, one pod at a time, without a pool of ports; runs "
        f"{spread(alone)}; in a crowd (p50, p99) {median(crowded):.0f}, {percentile(crowded, 99):.0f}: {about}",
    )
    yield Reading(figure=CALLS, value=median(calls), runs=len(calls), note=f"{about}; runs {spread(calls)}")
    yield Reading(
        figure=RATE,
        value=median(rates),
        peer_value=median(bare),
        runs=len(ours),
        note=f"{about}, {_CONCURRENCY} calls under way; runs {spread(rates)} against {spread(bare)}; neighbouring runs "
        f"have the ratio {median(paired_ratios(rates, bare)):.2f}. Ours begins with the pods' creation and ends with "
        "their annotations",
    )


def _read_memory(world: RavenWorld) -> Reading:
    return Reading(
        figure=RSS,
        value=resident_megabytes(world.raven.process.pid, "VmRSS"),
        runs=1,
        note=f"VmRSS after {_CROWD} pods on one node got their ports, one replica, IPv4 and IPv6",
    )


PART = Part("neutron", (READY_POOL, RATE_POOL, READY, CALLS, RATE, RSS), measure_ports, fetch=find_environment)
