"""Makes the node's kernel what the gateways ask of it. One task; a second one (`EipDevice.run`) only takes
addresses away.

Each round takes what has changed and brings it about in this order:

    addresses that go: announced no more, off the device
      ─► tunnel, peers ─► marks, old and new ─► elements ─► marks, only the new
      ─► addresses that come: on the device ─► announced ─► the round's revisions are published

So a packet never meets a mark without a way, nor an EIP without its maps; and a revision is published only when the
addresses that leave by it are off.

What fails is tried again from the beginning, as a whole comparison, with a backoff. A mesh that cannot be made keeps
nothing else from being done: policies whose node cannot be reached fail as their gateway says.
"""

import asyncio
import random
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Final, Protocol

from structlog.typing import FilteringBoundLogger

from coil.crd.meta import OwnerReference
from coil.crd.names import NodeName
from coil.kernel.family import IPAddress
from coil_egress_agent.eip.announcer import Announcer
from coil_egress_agent.eip.change_tracker import ChangeTracker, Snapshot
from coil_egress_agent.eip.connection_prober import ConnectionProber
from coil_egress_agent.eip.data_plane_builder import DataPlaneBuilder, Outcome
from coil_egress_agent.eip.eip_device import RETRY_BACKOFF, EipDevice
from coil_egress_agent.eip.kernel import KERNEL_ERRORS, Overlay, Tables, bounded, sentence
from coil_egress_agent.eip.kernel_lease import KernelLease
from coil_egress_agent.eip.lease_renewer import LeaseDemand
from coil_egress_agent.eip.mesh import MeshPeer, plan_marks, plan_peers
from coil_egress_agent.eip.mesh_sync import MeshSync
from coil_egress_agent.eip.metric import NodeMetrics, Operation
from coil_egress_agent.eip.node_assignment import LeaseState, Share, carrying_nodes, plan_share

MESH_SECONDS: Final = 2.0
"""How long after a failure the mesh is tried again, if nothing else happens before."""
GATHER_SECONDS: Final = 0.005
"""How long a round waits for more of what has begun to change."""


class Keeper(Protocol):
    """`LeaseRenewer`, as far as it matters here."""

    @property
    def term(self) -> int | None: ...

    @property
    def applied(self) -> Mapping[str, int]: ...

    def ask(self, wish: LeaseDemand, *, hurry: bool = False) -> None: ...


@dataclass(frozen=True, slots=True, kw_only=True)
class Deps:
    """What the applier works with."""

    overlay: Overlay
    tables: Tables
    mesh: MeshSync
    keeper: Keeper
    fuse: KernelLease
    announcer: Announcer
    nudger: ConnectionProber
    picture: ChangeTracker
    book: DataPlaneBuilder


class Applier:
    """Run `run` in one task; the rest is synchronous. `known` returns once the caches can be believed. `compute` runs a
    function with its arguments where it holds up nothing; `on_loaded` is called once, when the kernel holds everything
    for the first time and no lease is asked for yet.
    """

    def __init__(
        self,
        place: Deps,
        *,
        node: NodeName,
        known: Callable[[], Awaitable[None]],
        metrics: NodeMetrics,
        log: FilteringBoundLogger,
        random: Callable[[], float] = random.random,
        compute: Callable[..., Awaitable[Outcome]] = asyncio.to_thread,
        on_loaded: Callable[[], object] = lambda: None,
    ) -> None:
        self._place = place
        self._compute = compute
        self._on_loaded = on_loaded
        self._node = node
        self._known = known
        self._metrics = metrics
        self._log = log
        self._random = random
        self._hints = place.picture.changed
        self._device = EipDevice(
            place.overlay,
            place.keeper,
            fuse=place.fuse,
            announcer=place.announcer,
            metrics=metrics,
            log=log,
            ended=self._hints.set,
            random=random,
        )
        self._look_at_overlay = self._look_at_tables = True  # the next round compares them with the kernel
        self._peers: tuple[MeshPeer, ...] = ()
        self._marks: dict[int, tuple[IPAddress, ...]] = {}  # in the kernel
        self._remade = 0
        self._published: Mapping[str, int] = {}
        self._loaded = self._leaving = False
        self._settled = asyncio.Event()
        self.trouble = "not tried yet"
        """What readiness lacks; "" for nothing."""

    @property
    def addresses(self) -> frozenset[IPAddress]:
        """The EIPs that are on the device."""
        return self._device.addresses

    def note_term(self) -> None:
        """The keeper's term has changed."""
        if self._place.keeper.term is None:
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
        self._settled.clear()
        self._hints.set()
        try:
            async with asyncio.timeout(seconds):
                await self._settled.wait()
        except TimeoutError:
            self._log.warning("leaving before other nodes have been given all addresses")

    async def run(self) -> None:
        """Work until cancelled. The kernel then stays as it is, and the fuse blows by itself."""
        await self._known()
        async with asyncio.TaskGroup() as group:
            group.create_task(self._device.run(), name="withdrawal")
            group.create_task(self._work(), name="rounds")

    async def _work(self) -> None:
        attempt = 0
        while True:
            await self._hints.wait()
            await asyncio.sleep(GATHER_SECONDS)
            snapshot = self._place.picture.take()
            try:
                await self._round(snapshot)
                self.trouble = self._place.mesh.trouble
            except KERNEL_ERRORS as error:
                self._look_at_overlay = self._look_at_tables = True
                self._place.picture.put_back(snapshot)
                self.trouble = sentence(error)
                self._log.error("the kernel is not what it should be", why=self.trouble)
                pause = RETRY_BACKOFF.delay(attempt, self._random)
                attempt += 1
                await asyncio.sleep(pause)
                self._hints.set()
            else:
                attempt = 0

    async def _round(self, snapshot: Snapshot) -> None:
        place = self._place
        look, self._look_at_overlay = self._look_at_overlay, False
        term = None if self._leaving else place.keeper.term
        tenancy = LeaseState(node=self._node, term=term, applied=place.keeper.applied)
        share = plan_share(snapshot.gateways, tenancy, labels=_labels(snapshot))
        self._ask(snapshot, share, done=False)
        await self._device.withdraw(share.addresses, look=look)
        if snapshot.tunnels_changed:
            self._peers = plan_peers(snapshot.tunnels, node=self._node)
        with self._metrics.measured(Operation.OVERLAY):
            peers = await place.mesh.sync(snapshot.own, self._peers, carrier=share.wanted, look=look)
        with self._metrics.measured(Operation.COMPUTE):
            outcome = await self._compute(place.book.update, snapshot, tenancy, peers=peers, held=share.addresses)
        place.nudger.expect(outcome.moved)
        marks = self._wanted_marks(snapshot, peers, outcome)
        await self._set_marks({**self._marks, **marks}, look=look)
        await self._set_elements(outcome)
        await self._set_marks(marks, look=False)
        if term is not None and not await self._device.bring(share.addresses, term):
            self._hints.set()
        place.nudger.go()
        self._ask(snapshot, share, done=True)
        self._metrics.set_peers(len(peers))
        if place.mesh.trouble:
            asyncio.get_running_loop().call_later(MESH_SECONDS, self._hints.set)
        if self._leaving and not place.picture.own_status_names():
            self._settled.set()

    async def _set_elements(self, outcome: Outcome) -> None:
        tables = self._place.tables
        if self._look_at_tables:
            self._look_at_tables = False
            with self._metrics.measured(Operation.RULES):
                different = await bounded(tables.sync(self._place.book.book))
            if different and self._loaded and not outcome.changes:
                self._metrics.count_repair("tables")
                self._log.warning("something else had changed the tables")
            if not self._loaded:
                self._on_loaded()
            self._loaded = True
        elif outcome.changes:
            with self._metrics.measured(Operation.ELEMENTS):
                await bounded(tables.change(outcome.changes))
        self._metrics.set_elements(self._place.book.book.counts())

    def _wanted_marks(
        self, snapshot: Snapshot, peers: Sequence[MeshPeer], outcome: Outcome
    ) -> dict[int, tuple[IPAddress, ...]]:
        """Ways to the nodes that carry anything, and, on one that does, back to those whose pods leave through it."""
        if outcome.clients is None:
            return plan_marks(peers, None)
        return plan_marks(peers, carrying_nodes(snapshot.gateways) | outcome.clients)

    async def _set_marks(self, marks: Mapping[int, tuple[IPAddress, ...]], *, look: bool) -> None:
        mesh = self._place.mesh
        if not mesh.working or (marks == self._marks and not look and mesh.remade == self._remade):
            return
        remade = mesh.remade
        with self._metrics.measured(Operation.OVERLAY):
            await bounded(self._place.overlay.sync_marks(marks))
        self._marks, self._remade = dict(marks), remade

    def _ask(self, snapshot: Snapshot, share: Share, *, done: bool) -> None:
        """Tell the keeper what the round has found, or (`done`) brought about."""
        wanted = (share.wanted and not self._leaving) or bool(self._device.addresses)
        if not (done or (wanted and self._loaded)):
            # It is asked for when all else is in the kernel, as loading a hundred thousand elements may take longer
            # than the fence; and given back when nothing is there any more.
            return
        if done:
            self._published = share.revisions
        node = snapshot.node
        owners = (
            (OwnerReference(api_version="v1", kind="Node", name=self._node, uid=node.metadata.uid),)
            if node is not None
            else ()
        )
        self._place.keeper.ask(
            LeaseDemand(
                wanted=wanted,
                known_term=share.known_term,
                owners=owners,
                applied=self._published,
                gateways=frozenset(gateway.metadata.uid for gateway in snapshot.gateways),
            ),
            hurry=share.leaves,
        )


def _labels(snapshot: Snapshot) -> Mapping[str, str] | None:
    return snapshot.node.metadata.labels if snapshot.node is not None else None
