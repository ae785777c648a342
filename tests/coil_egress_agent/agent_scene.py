"""The agent's work in virtual time: real informer, book, queue and synchronization between a cluster and a kernel in
memory.
"""

import asyncio
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from functools import partial
from ipaddress import ip_address

import structlog
from prometheus_client import CollectorRegistry
from structlog.testing import LogCapture

from coil.crd.egress import Egress, EgressSpec, EgressStatus
from coil.crd.egress_client_slice import EgressClientSlice
from coil.crd.meta import ObjectMeta
from coil.egress.gateway import RouterSpec
from coil.kernel.family import IPAddress
from coil.reconcile.informer import Informer, InformerMetrics
from coil.reconcile.metric import ReconcileMetrics
from coil.reconcile.queue import WorkQueue
from coil_egress_agent.egress.client_index import ClientIndex
from coil_egress_agent.egress.peer_sync import (
    RETRY_BACKOFF,
    Change,
    DesiredPeers,
    EgressSettings,
    PeerMetrics,
    PeerSync,
)
from tests.coil_egress_agent.memory_router import MemoryRouter
from tests.coil_egress_agent.slice_world import EGRESS, SliceWorld

OWN = (ip_address("10.0.0.250"), ip_address("fd00::fa"))
RESYNC = 300.0


class Agent:
    """One life of the process."""

    def __init__(self, world: SliceWorld, router: MemoryRouter, *, own: tuple[IPAddress, ...] = OWN) -> None:
        clock = asyncio.get_running_loop().time
        self.logged = LogCapture()
        log = structlog.wrap_logger(None, processors=[self.logged])
        self.registry = CollectorRegistry()
        self.router = router
        self.clients = ClientIndex(own)
        self.settings = EgressSettings(log=log)
        self.informer = Informer(
            world, log=log, metrics=InformerMetrics(self.registry), clock=clock, random=lambda: 0.5
        )
        queue = WorkQueue(
            "peers",
            metrics=ReconcileMetrics(self.registry),
            backoff=RETRY_BACKOFF,
            clock=clock,
            random=lambda: 0.5,
        )
        self.peers = PeerSync(
            router,
            DesiredPeers(
                spec=RouterSpec(addresses=own),
                clients=self.clients,
                settings=self.settings,
                known=partial(self.informer.wait_synced, 1e9),
            ),
            queue=queue,
            resync_interval=RESYNC,
            metrics=PeerMetrics(self.registry),
            log=log,
            clock=clock,
        )
        self.informer.subscribe(self._note)

    @property
    def kernel(self) -> set[IPAddress]:
        return set(self.router.kernel)

    def change_egress(self, *destinations: str, auto: bool = False, cluster: tuple[str, ...] = ()) -> None:
        """As the process does it when its cache has an event."""
        spec = EgressSpec(destinations=destinations, fou_source_port_auto=auto)
        metadata = ObjectMeta(name=EGRESS.name, namespace=EGRESS.namespace)
        match self.settings.observe(
            Egress(metadata=metadata, spec=spec, status=EgressStatus(cluster_networks=cluster))
        ):
            case Change.SOURCE_PORT:
                self.peers.look_at_all()
            case Change.DESTINATIONS:
                self.peers.look_around()

    def events(self, name: str) -> list[dict[str, object]]:
        return [dict(entry) for entry in self.logged.entries if entry["event"] == name]

    async def run(self) -> None:
        async with asyncio.TaskGroup() as group:
            group.create_task(self.informer.run())
            group.create_task(self.peers.run())

    def _note(self, old: EgressClientSlice | None, new: EgressClientSlice | None) -> None:
        self.peers.look(self.clients.observe(old, new))


@asynccontextmanager
async def running(world: SliceWorld, router: MemoryRouter, *, own: tuple[IPAddress, ...] = OWN) -> AsyncIterator[Agent]:
    """An agent that works for the time of the block; a fault of it is raised at its end."""
    agent = Agent(world, router, own=own)
    task = asyncio.create_task(agent.run())
    try:
        yield agent
    finally:
        if not task.done():
            task.cancel()
        result = (await asyncio.gather(task, return_exceptions=True))[0]
    if not isinstance(result, asyncio.CancelledError):
        raise AssertionError("the agent has ended by itself") from result


async def until(holds: Callable[[], object], *, seconds: float = 100.0) -> None:
    """Return when it holds; looked at every virtual hundredth of a second."""
    loop = asyncio.get_running_loop()
    deadline = loop.time() + seconds
    while not holds():
        assert loop.time() < deadline, "not in time"
        await asyncio.sleep(0.01)
