"""One node in memory: an API server, an ipam-controller, a kernel, and coild's parts on them, one life after another.

`Coild.start` wires what `coild.main` wires, in the same order.
"""

import asyncio
import random
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, TypeAlias

import structlog
from prometheus_client import CollectorRegistry
from structlog.testing import LogCapture

from coil.crd.address_block import ADDRESS_BLOCKS, AddressBlock
from coil.crd.address_pool import ADDRESS_POOLS, AddressPool, SubnetSet
from coil.crd.block_request import BLOCK_REQUESTS, BlockRequest
from coil.crd.builtin import NAMESPACES, NODES, Namespace, Node
from coil.crd.meta import ObjectMeta
from coil.crd.names import ANNOTATION_POOL, LABEL_NODE, PoolName
from coil.ipam.node_ledger import AttachmentKey, ContainerId
from coil.podnet.plan import DEFAULT_POLICY, LINK_LOCAL, PodPlan
from coil.reconcile.backoff import Backoff
from coil.reconcile.event_recorder import EventSubject
from coil.reconcile.informer import Informer, InformerMetrics, T
from coil.reconcile.metric import ReconcileMetrics
from coild.addresses.pool_demand import WaitOutcome
from coild.addresses.pool_ipam import PoolDeps, PoolIpam
from coild.model.address_source import NONE_ENDED, Ended
from coild.model.attachment import AddRequest, NoEgress, NoHostPorts, PodEgress, PodHostPorts, PodName
from coild.model.keyed_executor import KeyedExecutor
from coild.model.repairs import Repairs
from coild.pods.engine import PodEngine
from coild.pods.veth import VethWiring
from coild.settings import Settings
from tests.coil.kube.memory_api import BIRTH, Call, MemoryClient, Moment
from tests.coild.block_granter import NODE, BlockGranter, pool
from tests.coild.memory_network import Kernel, MemoryNetwork
from tests.coild.virtual_loop import pass_turns
from tests.coild.watched_api import MemorySource, WatchedApi

COOLDOWN = 10.0
ACQUIRE_TIMEOUT = 10.0
REFUSAL_BACKOFF = Backoff(base=1.0, cap=30.0, jitter=0.0)
LOG = structlog.wrap_logger(structlog.ReturnLogger(), processors=[])

DUAL = pool("default", SubnetSet(ipv4="10.1.0.0/24", ipv6="fd01::/120"))
"""Blocks of two addresses."""
SECOND = pool("second", SubnetSet(ipv4="10.2.0.0/29"))
TINY = pool("tiny", SubnetSet(ipv6="fd03::/127"))
"""One block and no more."""
MIXED = pool("mixed", SubnetSet(ipv4="10.4.0.0/31"), SubnetSet(ipv6="fd04::/127"))
"""As Coil v2 stored some: a block of each family."""
POOL_OF_NAMESPACE = {"apps": "", "lab": "second", "den": "tiny", "old": "mixed", "lost": "nowhere"}


def now() -> float:
    return asyncio.get_running_loop().time()


def key(container: str, ifname: str = "eth0") -> AttachmentKey:
    return AttachmentKey(ContainerId(container), ifname)


def addresses(plan: PodPlan | None) -> list[str]:
    assert plan is not None
    return [str(assignment.address) for assignment in plan.assignments]


Wait: TypeAlias = tuple[PoolName, float, WaitOutcome]


@dataclass
class ListRecorder:
    """What was told, in order: kind, name, reason, message."""

    told: list[tuple[str, str, str, str]] = field(default_factory=list)
    subjects: list[EventSubject] = field(default_factory=list)

    def warn(self, subject: EventSubject, *, reason: str, message: str) -> None:
        self.subjects.append(subject)
        self.told.append((subject.kind, subject.name, reason, message))

    def note(self, subject: EventSubject, *, reason: str, message: str) -> None:
        raise NotImplementedError


class World:
    """What outlives coild."""

    def __init__(self, *pools: AddressPool, seed: int = 0, journal: Path | None = None) -> None:
        self.rng = random.Random(seed)
        self.journal = journal
        self.api = WatchedApi()
        self.kernel = Kernel()
        pools = pools or (DUAL, SECOND, TINY, MIXED)
        for known in pools:
            self.api.create(ADDRESS_POOLS, known)
        self.granter = BlockGranter(self.api, *pools)
        self.api.create(NODES, Node(metadata=ObjectMeta(name=NODE)))
        for name, annotation in POOL_OF_NAMESPACE.items():
            annotations = {ANNOTATION_POOL: annotation} if annotation else {}
            self.api.create(NAMESPACES, Namespace(metadata=ObjectMeta(name=name, annotations=annotations)))
        self.tasks = [asyncio.create_task(self.granter.run())]

    async def close(self) -> None:
        await end(self.tasks)

    @property
    def blocks(self) -> list[str]:
        return [block.name for block in self.api.all(ADDRESS_BLOCKS)]

    @property
    def requests(self) -> list[str]:
        return [request.metadata.name for request in self.api.all(BLOCK_REQUESTS)]

    @property
    def exported(self) -> set[str]:
        return {str(route.destination) for route in self.kernel.exported}

    @property
    def live(self) -> set[str]:
        return {address for veth in self.kernel.veths.values() for address in veth.addresses}


@dataclass
class Gate:
    """Stands before and after every call to the API server. `delay` comes on both sides of it."""

    delay: Callable[[], float] = lambda: 0.0
    fault: Callable[[Call, Moment], Exception | None] = lambda call, moment: None
    closed: bool = False

    async def __call__(self, call: Call, moment: Moment) -> None:
        if (delay := self.delay()) > 0:
            await asyncio.sleep(delay)
        if self.closed:
            raise asyncio.CancelledError  # the process is no more; nobody hears an answer
        if (error := self.fault(call, moment)) is not None:
            raise error


@dataclass
class Coild:
    """One life of the process. Use `start`, then `kill` or `stop`."""

    world: World
    compat_calico: bool = False
    cooldown: float = COOLDOWN
    warm: int = 0
    egress: PodEgress = field(default_factory=NoEgress)
    host_ports: PodHostPorts = field(default_factory=NoHostPorts)
    watch_delay: Callable[[], float] = lambda: 0.0
    gate: Gate = field(default_factory=Gate)

    def __post_init__(self) -> None:
        world = self.world
        self.client = MemoryClient(world.api, self.gate)
        self.network = MemoryNetwork(world.kernel)
        self._tasks: list[asyncio.Task[Any]] = []
        self._endless: list[asyncio.Task[Any]] = []
        own = {LABEL_NODE: str(NODE)}
        metrics = InformerMetrics(CollectorRegistry())
        self.block_source = MemorySource(world.api, ADDRESS_BLOCKS, labels=own, delay=self.watch_delay)
        self.request_source = MemorySource(world.api, BLOCK_REQUESTS, labels=own, delay=self.watch_delay)
        self.blocks: Informer[AddressBlock] = self._informer(self.block_source, metrics)
        self.requests: Informer[BlockRequest] = self._informer(self.request_source, metrics)
        self.waits: list[Wait] = []
        self.recorder = ListRecorder()
        self.logged = LogCapture()
        self.registry = CollectorRegistry(auto_describe=True)
        self.ipam = ipam = PoolIpam(
            Settings(
                node_name=NODE,
                cooling=self.cooldown,
                warm_addresses=self.warm,
                acquire_timeout=ACQUIRE_TIMEOUT,
                journal=world.journal,
            ),
            PoolDeps(
                repairs=Repairs(CollectorRegistry()),
                client=self.client,
                network=self.network,
                blocks=self.blocks,
                requests=self.requests,
                namespace_of=self._namespace,
                wiring=VethWiring(
                    self.network,
                    mtu=1500,
                    gateways=LINK_LOCAL,
                    policy=DEFAULT_POLICY,
                    compat_calico=self.compat_calico,
                    log=LOG,
                ),
                recorder=self.recorder,
                reconcile_metrics=ReconcileMetrics(CollectorRegistry()),
                rng=world.rng,
                log=structlog.wrap_logger(None, processors=[self.logged]),
                observe_wait=self._note_wait,
                clock=now,
                wall=lambda: BIRTH.timestamp() + now(),
            ),
            node_uid=world.api.get(NODES, NODE).metadata.uid,
            refusal_backoff=REFUSAL_BACKOFF,
            export_backoff=REFUSAL_BACKOFF,
        )
        self.journal, self.changes, self.store, self.source = ipam.journal, ipam.changes, ipam.store, ipam.source
        self.requester, self.sizes, self.demand, self.export = ipam.requester, ipam.sizes, ipam.demand, ipam.export
        self.release, self.queue, self.stuck = ipam.release, ipam.release_queue, ipam.stuck
        for collector in self.source.metrics():
            self.registry.register(collector)
        self.executor = KeyedExecutor(LOG)
        self.pods = PodEngine(
            source=self.source,
            egress=self.egress,
            host_ports=self.host_ports,
            executor=self.executor,
            acquire_timeout=ACQUIRE_TIMEOUT,
            recorder=self.recorder,
            log=LOG,
        )

    def _note_wait(self, pool: PoolName, seconds: float, outcome: WaitOutcome) -> None:
        self.waits.append((pool, seconds, outcome))

    def _informer(self, source: MemorySource[T], metrics: InformerMetrics) -> Informer[T]:
        return Informer(source, log=LOG, metrics=metrics, clock=now, random=self.world.rng.random)

    async def _namespace(self, name: str) -> Namespace:
        return await self.client.get(NAMESPACES, name)

    async def start(self, ended: Ended = NONE_ENDED) -> None:
        self._run(self.blocks.run())
        self._run(self.requests.run())
        await self.blocks.wait_synced(60)
        await self.requests.wait_synced(60)
        await self.pods.recover(ended)
        self.start_tasks()
        self.spawn(self.ipam.discard_stale_requests())

    def start_tasks(self) -> None:
        """What runs once the source has recovered."""
        for task in self.ipam.tasks().values():
            self._run(task)

    async def start_again(self) -> "Coild":
        """Kill this life; the next one, started."""
        await self.kill()
        successor = replace(self, gate=Gate())
        await successor.start()
        return successor

    @property
    def ended(self) -> list[asyncio.Task[Any]]:
        """What was to run as long as the process, and does not: coild stops then."""
        return [task for task in self._endless if task.done()]

    def _run(self, work: Any) -> None:
        self._endless.append(self.spawn(work))

    def spawn(self, work: Any) -> asyncio.Task[Any]:
        task = asyncio.create_task(work)
        self._tasks.append(task)
        return task

    async def kill(self) -> None:
        """kill -9: nothing that this life had begun has any effect from now on."""
        self.gate.closed = self.network.killed = True
        spared = {asyncio.current_task(), *self.world.tasks}
        while others := {task for task in asyncio.all_tasks() if task not in spared}:
            await end(others)  # and what they have begun in their last moments
        self.journal.close()

    # --- the runtime's side

    def request(self, container: str, namespace: str = "apps", *, pod: str = "", netns: str = "") -> AddRequest:
        return AddRequest(
            key=key(container),
            netns=self.world.kernel.namespace(netns or container),
            pod=PodName(namespace, pod or f"pod-of-{container}"),
        )

    async def add(self, container: str, namespace: str = "apps", *, pod: str = "") -> list[str]:
        """An ADD; the addresses that it gave."""
        return addresses(await self.pods.add(self.request(container, namespace, pod=pod)))

    @property
    def traces(self) -> list[str]:
        """What is left of pods: veths, and attachments in the source."""
        return [*self.world.kernel.veths, *(str(held) for held in self.source.held())]

    async def delete(self, container: str) -> None:
        await self.pods.delete(key(container))


async def end(tasks: Any) -> None:
    ending = list(tasks)
    for task in ending:
        task.cancel()
    await asyncio.gather(*ending, return_exceptions=True)


async def advance(seconds: float = 0.0) -> None:
    """Let virtual time pass, and everything happen that is due."""
    await pass_turns()
    if seconds:
        await asyncio.sleep(seconds)
        await pass_turns()
