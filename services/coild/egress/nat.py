"""Puts together what `--enable-egress` adds to coild: three informers, the clients, and who follows what changes.

The start of coild does not depend on it: where Egresses cannot be listed (no such kind yet, no right to), addresses are
given and pods that name no Egress are wired, `/readyz` says what is missing, and an ADD reads what it needs. But
nothing is taken from a pod before everything has been listed: what is not known yet must not look as if it had gone.
"""

import asyncio
from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Any, Protocol

from structlog.typing import FilteringBoundLogger

from coil.crd.builtin import PODS, SERVICES
from coil.crd.egress import EGRESSES
from coil.egress.gateway import Replies, TunnelPolicy
from coil.egress.resolution import ClientOptions
from coil.egress.router_pod import EGRESS_SELECTOR
from coil.kube.client import KubeClient
from coil.kube.collection import Freshness
from coil.nat.client import ClientNetwork
from coil.netlink.host import HostNetwork
from coil.reconcile.backoff import Backoff
from coil.reconcile.cache import wait_synced
from coil.reconcile.controller import Controller
from coil.reconcile.event_recorder import Recorder
from coil.reconcile.informer import Informer, InformerMetrics
from coil.reconcile.metric import ReconcileMetrics
from coil.reconcile.queue import WorkQueue
from coil.runtime.process import Process
from coild.egress.api_reader import APIReader
from coild.egress.client import EgressClients
from coild.egress.directory import EgressDirectory
from coild.egress.follow import EgressFollow, render_key
from coild.egress.node_pods import INDEXERS, NodePods
from coild.egress.pod_tunnel import PodTunnels
from coild.egress.report import EgressMetrics, EgressReport
from coild.model.attachment import Attachment
from coild.model.keyed_executor import KeyedExecutor
from coild.model.pod_egress import NoEgress, PodEgress
from coild.settings import Settings

NAME = "egress-clients"
WORKERS = 4
"""Refreshes at a time: a DEL that comes may have to wait for so many."""
BACKOFF = Backoff(base=0.5, cap=60.0)
START_SECONDS = 5.0
"""How long the start waits for the lists, so that usually no ADD has to ask."""


@dataclass(frozen=True, kw_only=True)
class EgressDeps:
    """What the parts speak to."""

    kube: KubeClient
    network: HostNetwork
    turns: KeyedExecutor
    recorder: Recorder
    informer_metrics: InformerMetrics
    reconcile_metrics: ReconcileMetrics


class NodeEgress(Protocol):
    """What coild's start does with it. `clients` serves ADDs once it has adopted what is there."""

    @property
    def clients(self) -> PodEgress: ...

    async def wait_listed(self) -> None:
        """Return when everything has been listed, or has taken long enough."""

    def adopt(self, sites: Iterable[Attachment]) -> None:
        """Take over the attachments that an earlier process has made."""

    def follow(self) -> None:
        """Follow everything that changes, until the process stops."""


@dataclass(frozen=True, slots=True)
class WithoutEgress:
    """`--enable-egress=false`."""

    clients: PodEgress = field(default_factory=NoEgress)

    async def wait_listed(self) -> None:
        pass

    def adopt(self, sites: Iterable[Attachment]) -> None:
        pass

    def follow(self) -> None:
        pass


async def start_egress(
    settings: Settings, process: Process, around: EgressDeps, *, log: FilteringBoundLogger
) -> "EgressNat":
    """Begin to list and watch."""
    tunnels = await process.stack.enter_async_context(ClientNetwork())
    egress = EgressNat(settings, process, around, tunnels=tunnels, log=log)
    egress.start()
    return egress


class EgressNat:
    """A `NodeEgress`."""

    def __init__(
        self,
        settings: Settings,
        process: Process,
        around: EgressDeps,
        *,
        tunnels: ClientNetwork,
        log: FilteringBoundLogger,
    ) -> None:
        self._process = process
        self._log = log
        kube, metrics = around.kube, around.informer_metrics
        # Pods out of the API server's cache, where they are indexed by node; of them nothing depends on the latest
        # word. That an Egress or a Service is not there takes tunnels away, so theirs must be the latest.
        self._pods = Informer(
            kube.collection(PODS, fields=f"spec.nodeName={settings.node_name}", freshness=Freshness.CACHED),
            log=log,
            metrics=metrics,
            indexers=INDEXERS,
        )
        self._egresses = Informer(kube.collection(EGRESSES), log=log, metrics=metrics)
        self._services = Informer(kube.collection(SERVICES, labels=EGRESS_SELECTOR), log=log, metrics=metrics)
        self._informers: dict[str, Informer[Any]] = {
            "pods": self._pods,
            "egresses": self._egresses,
            "services": self._services,
        }
        reader = APIReader(kube, log)
        self.pods = NodePods(self._pods, reader, node=settings.node_name)
        self.clients = EgressClients(
            pods=self.pods,
            egresses=EgressDirectory(self._egresses, self._services, reader),
            tunnels=PodTunnels(tunnels, around.network),
            turns=around.turns,
            options=client_options(settings),
            report=EgressReport(around.recorder, EgressMetrics(process.registry)),
            log=log,
        )
        self._events = EgressFollow(self.clients)
        self._queue = WorkQueue(NAME, metrics=around.reconcile_metrics, backoff=BACKOFF)
        self._controller = Controller(
            NAME,
            self._events.reconcile,
            queue=self._queue,
            metrics=around.reconcile_metrics,
            log=log,
            workers=WORKERS,
        )

    def start(self) -> None:
        """See `start_egress`."""
        for name, informer in self._informers.items():
            self._process.spawn(name, informer.run())
        self._process.add_readiness("egress", self._missing)

    async def wait_listed(self) -> None:
        try:
            async with asyncio.timeout(START_SECONDS):
                await wait_synced(self._informers.values(), log=self._log)
        except TimeoutError:
            self._log.warning(
                "starting before all Egresses are listed; ADDs read what they need", missing=self._missing()
            )

    def adopt(self, sites: Iterable[Attachment]) -> None:
        self.clients.adopt(sites)

    def follow(self) -> None:
        self._process.spawn(NAME, self._run())

    async def _run(self) -> None:
        await wait_synced(self._informers.values(), log=self._log)
        for key in await self.clients.adopted():
            self._queue.add(render_key(key))
        self._controller.watch(self._pods, self._events.of_pod)
        self._controller.watch(self._egresses, self._events.of_egress)
        self._controller.watch(self._services, self._events.of_service)
        await self._controller.run()

    def _missing(self) -> str | None:
        missing = [name for name, informer in self._informers.items() if not informer.synced]
        return f"not listed yet: {', '.join(missing)}" if missing else None


def client_options(settings: Settings) -> ClientOptions:
    """What the settings say of all clients."""
    return ClientOptions(
        policy=TunnelPolicy(port=settings.egress_port, protocol=settings.protocol_id),
        replies=Replies.WHERE_THEY_CAME_FROM if settings.enable_originating_only else Replies.BY_ROUTE,
        fail_open=settings.egress_fail_open,
    )
