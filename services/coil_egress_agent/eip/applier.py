"""Makes the node's kernel what the gateways ask of it. One task; a second one (`EipDevice.run`) only takes addresses
off, and a third one lets connections bear what was decided for them, when a change has rested.

Each round takes what has changed and carries it out in this order:

    addresses that go: no longer announced, off the device
      ─► tunnel, peers ─► marks, old and new ─► elements ─► marks, only the new
      ─► addresses that come: on the device ─► announced ─► the round's revisions are published

So a packet never meets a mark without a route, nor an EIP without its maps; and a revision is published only when the
addresses that leave by it are off.

It is no reconciler: a round is about everything that has changed, in one order. What fails is tried again from the
start, as a whole comparison, with a backoff. A mesh that cannot be set up does not hold up the rest: policies whose
node cannot be reached fail as their gateway says.
"""

import asyncio
import random
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

from structlog.typing import FilteringBoundLogger

from coil.crd.egress_gateway import PolicyRef
from coil.crd.meta import Condition, OwnerReference
from coil.crd.names import NodeName
from coil.eip.tunnel_plan import Peer
from coil.kernel.family import IPAddress
from coil_egress_agent.eip.announcer import Announcer
from coil_egress_agent.eip.change_tracker import ChangeTracker, Snapshot
from coil_egress_agent.eip.connection_prober import ConnectionProber
from coil_egress_agent.eip.data_plane_builder import DataPlaneBuilder, Outcome
from coil_egress_agent.eip.eip_device import RETRY_BACKOFF, EipDevice
from coil_egress_agent.eip.kernel import KERNEL_ERRORS, Overlay, Tables, bounded, sentence
from coil_egress_agent.eip.kernel_lease import KernelLease
from coil_egress_agent.eip.lease_renewer import LeaseDemand, LeaseRenewer
from coil_egress_agent.eip.mesh import MeshSync, plan_marks
from coil_egress_agent.eip.metric import NodeMetrics, Operation
from coil_egress_agent.eip.node_assignment import LeaseState, NodeAssignment, carrying_nodes, plan_assignment
from coil_egress_agent.eip.node_pods import crowded_condition
from coil_egress_agent.eip.pod_hold import PodHold

MESH_SECONDS: Final = 2.0
"""How long after a failure the mesh is tried again, unless a round comes first."""
GATHER_SECONDS: Final = 0.005
"""How long a round waits for related changes."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Deps:
    """What the applier works with. `note` is called with conditions of the node's EgressTunnel."""

    overlay: Overlay
    tables: Tables
    mesh: MeshSync
    renewer: LeaseRenewer
    kernel_lease: KernelLease
    announcer: Announcer
    prober: ConnectionProber
    tracker: ChangeTracker
    builder: DataPlaneBuilder
    pod_hold: PodHold
    note: Callable[[Condition], object]


class Applier:
    """Run `run` in one task; the rest is synchronous. Not before the caches are synced. `compute` runs a
    function with its arguments without blocking the event loop; `on_loaded` is called once, when the kernel holds
    everything for the first time and no lease is asked for yet.
    """

    def __init__(
        self,
        deps: Deps,
        *,
        node: NodeName,
        metrics: NodeMetrics,
        log: FilteringBoundLogger,
        random: Callable[[], float] = random.random,
        compute: Callable[..., Awaitable[Any]] = asyncio.to_thread,
        on_loaded: Callable[[], object] = lambda: None,
    ) -> None:
        self._deps = deps
        self._compute = compute
        self._on_loaded = on_loaded
        self._node = node
        self._metrics = metrics
        self._log = log
        self._random = random
        self._hints = deps.tracker.changed
        self._device = EipDevice(
            deps.overlay,
            deps.renewer,
            kernel_lease=deps.kernel_lease,
            announcer=deps.announcer,
            metrics=metrics,
            log=log,
            ended=self._hints.set,
            random=random,
        )
        self._look_at_overlay = self._look_at_tables = True  # the next round compares them with the kernel
        self._peers: tuple[Peer, ...] = ()
        self._marks: dict[int, tuple[IPAddress, ...]] = {}  # in the kernel
        self._remade = 0
        self._published: Mapping[str, int] = {}
        self._refused: frozenset[IPAddress] = frozenset()
        self._excess: frozenset[PolicyRef] = frozenset()
        self._crowded: frozenset[str] = frozenset()
        self._loaded = self._leaving = False
        self._released = asyncio.Event()
        self._mesh_retry: asyncio.TimerHandle | None = None
        self._turn = asyncio.Lock()  # whose turn it is at the index and the tables
        self._settled = asyncio.Event()
        self.trouble = "not tried yet"
        """What readiness lacks; "" for nothing."""

    @property
    def addresses(self) -> frozenset[IPAddress]:
        """The EIPs that are on the device."""
        return self._device.addresses

    def note_term(self) -> None:
        """The renewer's term has changed."""
        if self._deps.renewer.term is None:
            self._device.note_end()
        self._hints.set()

    def look_at_overlay(self) -> None:
        """Something may have changed links, addresses or rules: compare."""
        self._look_at_overlay = True
        self._hints.set()

    def look_at_tables(self) -> None:
        """Somebody else has changed the tables: compare."""
        self._look_at_tables = True
        self._hints.set()

    def look_around(self) -> None:
        """Compare everything."""
        self._look_at_tables = True
        self.look_at_overlay()

    def missing(self) -> str | None:
        """What readiness lacks."""
        return self.trouble or None

    async def leave(self, *, seconds: float) -> None:
        """Take all EIPs off, give the lease back, and wait until other nodes have been given them, at most so long.

        Until then the pods of this node have no way out; afterwards the kernel leads them to the others.
        """
        if not self._loaded:
            return  # the kernel holds what a predecessor has left, if anything
        self._leaving = True
        self._released.clear()
        self._hints.set()
        try:
            async with asyncio.timeout(seconds):
                await self._released.wait()
        except TimeoutError:
            self._log.warning("leaving before other nodes have been given all addresses")

    async def run(self) -> None:
        """Work until cancelled. The kernel then stays as it is, and its timeouts run out by themselves."""
        try:
            async with asyncio.TaskGroup() as group:
                group.create_task(self._device.run(), name="withdrawal")
                group.create_task(self._work(), name="rounds")
                group.create_task(self._renew_decisions(), name="decisions")
        finally:
            self._cancel_mesh_retry()

    async def _work(self) -> None:
        attempt = 0
        while True:
            await self._hints.wait()
            await asyncio.sleep(GATHER_SECONDS)
            snapshot = self._deps.tracker.take()
            try:
                async with self._turn:
                    await self._round(snapshot)
                self.trouble = self._deps.mesh.trouble
            except KERNEL_ERRORS as error:
                self._look_at_overlay = self._look_at_tables = True
                self._deps.tracker.put_back(snapshot)
                self.trouble = sentence(error)
                self._log.error("the kernel is not what it should be", error=self.trouble)
                pause = RETRY_BACKOFF.delay(attempt, self._random)
                attempt += 1
                await asyncio.sleep(pause)
                self._hints.set()
            else:
                attempt = 0

    async def _renew_decisions(self) -> None:
        """What fails is left to the next round, which compares everything."""
        index = self._deps.builder.index
        pause: float | None = None
        while True:
            if pause is None:
                await self._settled.wait()
            else:
                await asyncio.sleep(pause)
            async with self._turn:
                self._settled.clear()
                pause = None
                if self._look_at_tables or not self._loaded:
                    continue
                try:
                    if changes := await self._compute(index.renew):
                        await self._deps.tables.change(changes)
                        self._metrics.set_elements(index.counts())
                except KERNEL_ERRORS as error:
                    self._log.warning("connections are looked up packet by packet", error=sentence(error))
                    self.look_at_tables()
                else:
                    pause = index.wait()

    def _cancel_mesh_retry(self) -> None:
        if self._mesh_retry is not None:
            self._mesh_retry.cancel()
            self._mesh_retry = None

    async def _round(self, snapshot: Snapshot) -> None:
        deps = self._deps
        self._cancel_mesh_retry()
        look, self._look_at_overlay = self._look_at_overlay, False
        term = None if self._leaving else deps.renewer.term
        lease = LeaseState(node=self._node, term=term, applied=deps.renewer.applied, of_nodes=snapshot.node_addresses)
        assignment = plan_assignment(snapshot.gateways, lease, labels=_labels(snapshot))
        self._note_refused(assignment.refused)
        self._ask(snapshot, assignment, done=False)
        await self._device.withdraw(assignment.addresses, look=look)
        if snapshot.tunnels_changed:
            self._peers = await deps.mesh.choose_peers(snapshot.tunnels, node=self._node)
        with self._metrics.measured(Operation.OVERLAY):
            peers = await deps.mesh.sync(snapshot.own, self._peers, carrier=assignment.wanted, look=look)
        with self._metrics.measured(Operation.COMPUTE):
            outcome = await self._compute(deps.builder.update, snapshot, lease, peers=peers, held=assignment.addresses)
        self._note_excess(deps.builder.excess)
        self._note_crowded(outcome.crowded)
        deps.prober.expect(outcome.moved)
        marks = self._wanted_marks(snapshot, peers, outcome)
        await self._set_marks({**self._marks, **marks}, look=look)
        await self._set_elements(outcome)
        if snapshot.pods is not None:
            deps.pod_hold.enter(snapshot.pods.version)
        await self._set_marks(marks, look=False)
        if term is not None and not await self._device.bring(assignment.addresses, term):
            self._hints.set()
        deps.prober.go()
        self._ask(snapshot, assignment, done=True)
        self._metrics.set_peers(len(peers))
        if deps.mesh.trouble:
            self._mesh_retry = asyncio.get_running_loop().call_later(MESH_SECONDS, self._hints.set)
        if self._leaving and not deps.tracker.own_status_names():
            self._released.set()

    def _note_refused(self, refused: frozenset[IPAddress]) -> None:
        if new := refused - self._refused:
            addresses = sorted(map(str, new))
            self._log.error("these EIPs are addresses of Nodes: take them out of the ranges", addresses=addresses)
        self._refused = refused

    def _note_excess(self, excess: frozenset[PolicyRef]) -> None:
        if new := excess - self._excess:
            namespaces = sorted({ref.namespace for ref in new})
            self._log.error("policies exceed the limits of their namespaces: not served", namespaces=namespaces)
        self._excess = excess
        self._metrics.set_excess(len(excess))

    def _note_crowded(self, pods: frozenset[str]) -> None:
        condition = crowded_condition(pods)
        if pods - self._crowded:
            self._log.warning("pods have more policies than apply to a pod", reason=condition.message)
        self._crowded = pods
        self._metrics.set_crowded(len(pods))
        self._deps.note(condition)

    async def _set_elements(self, outcome: Outcome) -> None:
        tables = self._deps.tables
        if self._look_at_tables:
            self._look_at_tables = False
            with self._metrics.measured(Operation.RULES):
                elements = await self._compute(self._deps.builder.index.elements)
                different = await bounded(tables.sync(elements))
            if different and self._loaded and not outcome.changes:
                self._metrics.count_repair("tables")
                self._log.warning("something else had changed the tables")
            if different and self._loaded:
                self._deps.builder.index.distrust()
                self._hints.set()
            if not self._loaded:
                self._on_loaded()
            self._loaded = True
        elif outcome.changes:
            with self._metrics.measured(Operation.ELEMENTS):
                await tables.change(outcome.changes)
        self._deps.builder.index.settle()
        self._settled.set()
        self._metrics.set_elements(self._deps.builder.index.counts())

    def _wanted_marks(
        self, snapshot: Snapshot, peers: Sequence[Peer], outcome: Outcome
    ) -> dict[int, tuple[IPAddress, ...]]:
        """Ways to the nodes that carry anything, and, on one that does, back to those whose pods leave through it."""
        if outcome.clients is None:
            return plan_marks(peers, None)
        return plan_marks(peers, carrying_nodes(snapshot.gateways) | outcome.clients)

    async def _set_marks(self, marks: Mapping[int, tuple[IPAddress, ...]], *, look: bool) -> None:
        mesh = self._deps.mesh
        if not mesh.working or (marks == self._marks and not look and mesh.remade == self._remade):
            return
        remade = mesh.remade
        with self._metrics.measured(Operation.OVERLAY):
            await bounded(self._deps.overlay.sync_marks(marks))
        self._marks, self._remade = dict(marks), remade

    def _ask(self, snapshot: Snapshot, assignment: NodeAssignment, *, done: bool) -> None:
        """Tell the renewer what the round has found, or (`done`) brought about."""
        wanted = (assignment.wanted and not self._leaving) or bool(self._device.addresses)
        if not (done or (wanted and self._loaded)):
            # It is asked for when all else is in the kernel, as loading a hundred thousand elements may take longer
            # than the fence; and given back when nothing is there any more.
            return
        if done:
            self._published = assignment.revisions
        node = snapshot.node
        owners = (
            (OwnerReference(api_version="v1", kind="Node", name=self._node, uid=node.metadata.uid),)
            if node is not None
            else ()
        )
        self._deps.renewer.ask(
            LeaseDemand(
                wanted=wanted,
                known_term=assignment.known_term,
                owners=owners,
                applied=self._published,
                gateways=frozenset(gateway.metadata.uid for gateway in snapshot.gateways),
            ),
            hurry=assignment.leaves,
        )


def _labels(snapshot: Snapshot) -> Mapping[str, str] | None:
    return snapshot.node.metadata.labels if snapshot.node is not None else None
