"""Keeps the node's interfaces as `coil.eni.warm_pool` wants them. EC2 is the truth.

    EC2 ─► Inventory ─► NodePicture ─► EniStore.update ─► pods get addresses
     ▲                                     │ changed
     └─ one call at a time ◄─ PoolKeeper ◄─┘

Three tasks share one picture: `_keep_pool` asks EC2, `_follow_links` brings the picture to the kernel and to the store
whenever a link comes or goes, `_watch_metadata` notices what others have changed, and the VPC's CIDRs.

Invariants:

* An address is given only after EC2 has confirmed it, the link of its interface is up, and the VPC's CIDRs are known: a
  connection within the VPC that is taken for one to the outside is translated until it ends. Until EC2 has answered for
  the first time, what the journal and the metadata service agree upon counts, and nothing is changed at EC2.
* What is to be given back is withdrawn in the store, and left out of the journal, before EC2 is asked; it is given
  again only after EC2 has said that it is still there.
* After a call whose outcome nobody knows, EC2 describes the interfaces before it is asked to change anything, and is
  asked for the same again only when that description cannot be of before the call (`coild.eni.lost_answers`).
* What the node has changed stands against descriptions of before, and what one of them lacks is not given, but gone
  only when a second one lacks it, too (`coild.eni.inventory`).
* What EC2 has refused is not asked for again before a rest (`coild.eni.call_rests`, `coild.eni.node_subnets`).
* Which instance this is, the metadata service says. The journal does only if the link of its primary interface is here:
  a disk, or an image of it, may have come from another instance, and that one's interfaces are in use.
* EC2 describes the interfaces when `coild.eni.describe_schedule` says so, and not for each question.
"""

import asyncio
from collections.abc import Callable, Collection
from contextlib import suppress
from dataclasses import dataclass
from datetime import UTC, datetime
from random import Random
from typing import Final

from structlog.typing import FilteringBoundLogger

from coil.aws.ec2 import Ec2, InstanceLimits
from coil.aws.error import DeniedError, Ec2Error, ThrottledError, UnavailableError
from coil.aws.metadata import InstanceIdentity, InstanceMetadata, MetadataError, MetadataInterface
from coil.crd.names import NodeName
from coil.eni.interface import InterfaceId
from coil.eni.tag import CLUSTER_TAG, INSTANCE_TAG
from coil.kernel.link import MacAddress
from coil.netlink.error import NetlinkError
from coil.nft.netfilter import NftError
from coil.reconcile.event_recorder import Recorder
from coild.eni.call_rests import DENIED_BACKOFF, DESCRIBE, LIMITS, CallRests, rights_of
from coild.eni.capacity import NodeCapacity
from coild.eni.departure import Departure
from coild.eni.describe_schedule import DescribeSchedule
from coild.eni.first_picture import guess_interfaces
from coild.eni.handover import checkpoint_of, identity_of, recorded_interfaces, take_checkpoint
from coild.eni.interface_lifecycle import InterfaceLifecycle
from coild.eni.inventory import Inventory
from coild.eni.journal import Checkpoint
from coild.eni.lost_addresses import LostAddresses
from coild.eni.node_picture import InterfaceNetwork, NodePicture, PictureSource
from coild.eni.node_subnets import NodeSubnets
from coild.eni.pod_limit_watch import PodLimitWatch
from coild.eni.pool_keeper import PoolKeeper
from coild.eni.settings import EniSettings
from coild.eni.store import EniStore
from coild.eni.vpc_watch import VpcWatch
from coild.model.node_subject import node_subject

LAG_SHARE: Final = 0.6
"""How late the metadata service may be, as a share of the settings' `resync`. It is asked twice in that time, so that
what it still tells the second time has EC2 asked."""
APPLY_SECONDS: Final = 5.0
"""After a failure of the kernel's."""
CALM_SECONDS: Final = 0.1
"""After a change while no pod waits: pods come and go in crowds, and a look after each one would delay the next."""
IDENTITY_SECONDS: Final = 5.0
"""After the metadata service has not said which instance this is."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ProvisionerStatus:
    """What metrics and people see. `described` is when EC2 described the interfaces last, by the clock."""

    source: PictureSource
    own: int
    foreign: int
    described: float | None
    addresses_most: int | None
    shortage: str | None


@dataclass(frozen=True, slots=True)
class _Node:
    """Which instance this is, and what is done for it."""

    identity: InstanceIdentity
    keeper: PoolKeeper

    @property
    def inventory(self) -> Inventory:
        return self.keeper.inventory


class Provisioner:
    """One per process. `clock` never jumps, `wall` is the time of day."""

    def __init__(  # noqa: PLR0913 - every one of them is another's
        self,
        *,
        ec2: Ec2,
        metadata: InstanceMetadata,
        store: EniStore,
        network: InterfaceNetwork,
        settings: EniSettings,
        clock: Callable[[], float],
        random: Random,
        recorder: Recorder,
        node: NodeName,
        departure: Departure,
        log: FilteringBoundLogger,
        wall: Callable[[], datetime] = lambda: datetime.now(UTC),
    ) -> None:
        self._ec2 = ec2
        self._metadata = metadata
        self._store = store
        self._network = network
        self._settings = settings
        self._clock = clock
        self._random = random
        self._recorder = recorder
        self._subject = node_subject(node)
        self._departure = departure
        self._log = log
        self._wall = wall
        self._rests = CallRests(clock=clock, random=random.random, log=log)
        self._vpc = self._make_vpc_watch()
        self._pod_limit = PodLimitWatch(store=store, recorder=recorder, subject=self._subject, log=log)
        self._node: _Node | None = None
        self._picture = NodePicture(
            store=store,
            network=network,
            settings=settings,
            vpc=self._vpc,
            lost=LostAddresses(store=store, recorder=recorder, log=log),
            checkpoint=self._note_checkpoint,
            log=log,
        )
        self._republish = asyncio.Event()
        self._mistrusted = False
        """The journal's instance has not been recognized; said once."""
        self._schedule = DescribeSchedule(resync=settings.resync, clock=clock, random=random.random)

    async def start(self, *, timeout: float) -> None:
        """Have a first picture, by whoever answers within so many seconds. Never raises for want of an answer."""
        checkpoint = self._store.journal.checkpoint
        found: list[MetadataInterface] | None = None
        with suppress(TimeoutError, MetadataError):
            async with asyncio.timeout(timeout / 2):
                self._be(self._identify(await self._metadata.identity()))
                found = await self._vpc.ask_metadata()
                self._schedule.note_metadata(answers=found is not None)
        if self._node is None and checkpoint is not None:
            await self._recognize(checkpoint)
        self._guess(found)
        await self._picture.publish()
        if self._node is None or any(use.up and use.free for use in self._store.uses()):
            return  # nobody can do anything about it, or no pod needs EC2
        try:
            async with asyncio.timeout(timeout / 2):
                answers = await asyncio.gather(
                    self._describe(self._node), self._ensure_limits(self._node), return_exceptions=True
                )
        except TimeoutError:
            self._log.warning("EC2 has not answered yet", timeout=timeout / 2)
            return
        for answer in answers:
            if isinstance(answer, Ec2Error):
                self._failed(answer)
            elif answer is not None:
                raise answer
        await self._picture.publish()

    async def run(self) -> None:
        """Until cancelled. What is under way at EC2 then is found by the next process."""
        async with asyncio.TaskGroup() as tasks:
            tasks.create_task(self._keep_pool(), name="interfaces: pool")
            tasks.create_task(self._follow_links(), name="interfaces: links")
            tasks.create_task(self._watch_metadata(), name="interfaces: metadata")

    @property
    def status(self) -> ProvisionerStatus:
        """As of now."""
        node = self._node
        return ProvisionerStatus(
            source=self._picture.source,
            own=len(self._picture.known()),
            foreign=node.inventory.foreign if node is not None else 0,
            described=self._schedule.described,
            addresses_most=node.keeper.capacity.most_addresses if node is not None else None,
            shortage=self._store.shortage,
        )

    # --- tasks

    async def _keep_pool(self) -> None:
        changed = self._store.changed
        while True:
            changed.clear()
            wait = await self._turn()
            if wait > 0:
                await _first(changed, timeout=wait)
                if changed.is_set() and not self._store.waiting(self._settings.version):
                    await asyncio.sleep(CALM_SECONDS)
            else:
                await asyncio.sleep(0)

    async def _follow_links(self) -> None:
        links = self._network.links_changed
        while True:
            await _first(links, self._republish, timeout=APPLY_SECONDS if self._picture.failing else None)
            links.clear()
            self._republish.clear()
            await self._picture.publish()

    async def _watch_metadata(self) -> None:
        while True:
            await asyncio.sleep(self._vpc.period * (0.9 + 0.1 * self._random.random()))
            before = self._vpc.cidrs
            found = await self._vpc.look()
            if self._schedule.note_metadata(answers=found is not None):
                self._store.changed.set()
            if not self._picture.described:
                self._guess(found)
                self._republish.set()
            elif found is not None:
                self._heed(found)
            if self._vpc.cidrs != before:
                self._republish.set()

    # --- one turn

    async def _turn(self) -> float:
        """Do the next thing; returns in how many seconds there may be another, unless something changes."""
        if (quiet := self._rests.quiet_left) > 0:
            self._tell()
            return quiet
        acted = False
        try:
            if (node := self._node) is None:
                node = self._identify(await self._metadata.identity())
                self._be(node)
                self._guess(await self._vpc.ask_metadata())
                await self._picture.publish()
            acted = await self._act(node)
        except MetadataError as error:
            self._log.info("the instance is not known yet", error=str(error))
            self._store.shortage = f"which instance this is, the metadata service does not say: {error}"
            if (checkpoint := self._store.journal.checkpoint) is not None:
                await self._recognize(checkpoint)
            return IDENTITY_SECONDS if self._node is None else 0.0
        except Ec2Error as error:
            self._failed(error)
            # That call rests, and others may clear up after it.
            acted = isinstance(error, DeniedError)
        self._tell()
        return 0.0 if acted else self._next_due()

    async def _act(self, node: _Node) -> bool:
        keeper = node.keeper
        if self._schedule.left <= 0:
            if self._rests.rests(DESCRIBE):
                return False
            await self._redescribe(node)
        await self._ensure_limits(node)
        acted = await keeper.step()
        if acted:
            await self._picture.publish()
        return acted

    async def _ensure_limits(self, node: _Node) -> None:
        """Know what EC2 allows the instance's type."""
        capacity = node.keeper.capacity
        if capacity.limits is None and not self._rests.rests(LIMITS):
            capacity.limits = await self._ec2.instance_limits(node.identity.instance_type)
            self._rests.succeeded(LIMITS)
            if self._settings.prefixes and not capacity.prefixes:
                self._log.warning(
                    "instances of this type have no prefixes, so pods get single addresses",
                    instance_type=node.identity.instance_type,
                )
            self._note_checkpoint()

    async def _redescribe(self, node: _Node) -> None:
        """Describe and publish; a description that EC2 refuses is put off if nothing depends on it."""
        try:
            await self._describe(node)
        except ThrottledError as error:
            seconds = self._schedule.refused()
            if self._schedule.doubt:
                raise
            self._log.debug("description put off", error=str(error), seconds=seconds)
        else:
            await self._picture.publish()

    async def _describe(self, node: _Node) -> None:
        keeper = node.keeper
        asked = self._clock()
        records = await self._ec2.interfaces_of(node.identity.instance_id)
        here = [each for each in records if each.network_card == 0]
        primary = next(filter(keeper.inventory.is_primary, here), None)
        if primary is None:
            mac = keeper.inventory.primary_mac or "which nobody has named yet"
            raise UnavailableError(DESCRIBE, "NoPrimaryInterface", f"EC2 describes the instance without it: {mac}")
        if not self._vpc.vpc:
            self._vpc.vpc = (await self._ec2.subnet(primary.subnet)).vpc
        if self._picture.translates:
            await self._vpc.ensure()
        await keeper.subnets.use_primary(primary.subnet, self._vpc.vpc)
        for each in here:
            if keeper.inventory.is_own(each):
                await keeper.subnets.ensure_network(each.subnet)
        keeper.inventory.describe(records, asked=asked)
        keeper.settle(asked=asked)
        self._rests.succeeded(DESCRIBE)
        self._picture.source = PictureSource.EC2
        again = keeper.next_look(asked=asked)
        self._schedule.succeeded(asked, again=None if again is None else again - asked)

    def _failed(self, error: Ec2Error) -> None:
        self._rests.failed(error)
        if isinstance(error, DeniedError):
            self._recorder.warn(
                self._subject,
                reason="Ec2CallDenied",
                message=f"EC2 denies {error.call}, and has done nothing: the role of coild on this node lacks "
                f"{rights_of(error.call)}, or a condition of its policy does not hold; coild asks again every "
                f"{DENIED_BACKOFF.base:.0f} s",
            )
        if not isinstance(error, ThrottledError | DeniedError):
            self._schedule.doubt = True

    def _next_due(self) -> float:
        if (quiet := self._rests.quiet_left) > 0:
            return quiet
        dues = [self._rests.next_end]
        if not self._rests.rests(DESCRIBE):
            dues.append(self._schedule.left)
        if self._node is not None:
            dues.append(self._node.keeper.next_due)
        # The rounding of clocks must not make a loop without rest of it.
        return max(0.01, min((due for due in dues if due is not None), default=self._settings.resync))

    def _tell(self) -> None:
        self._store.ip_max = self._node.keeper.capacity.most_addresses if self._node is not None else None
        self._pod_limit.look()
        if self._picture.described and self._node is not None:
            self._store.shortage = self._node.keeper.shortage
        else:
            self._store.shortage = self._rests.reason or "EC2 has not described the node's interfaces yet"

    # --- who this is, and what others say

    def _make_vpc_watch(self) -> VpcWatch:
        return VpcWatch(
            ec2=self._ec2,
            metadata=self._metadata,
            period=self._settings.resync / 2,
            clock=self._clock,
            random=self._random.random,
            log=self._log,
        )

    async def _recognize(self, checkpoint: Checkpoint) -> None:
        """The node is the journal's if it has the primary interface's link; otherwise nobody knows which it is."""
        node = self._identify(identity_of(checkpoint))
        here: frozenset[InterfaceId] = frozenset()
        with suppress(NetlinkError, NftError):
            here = await self._network.apply(self._picture.state(checkpoint.interfaces))
        if any(each.is_primary and each.interface.id in here for each in checkpoint.interfaces):
            self._be(node)
            self._guess(None)
            self._republish.set()
        else:
            if not self._mistrusted:
                self._log.warning("the journal may be another instance's", instance=checkpoint.instance)
            self._mistrusted = True
            self._vpc = self._picture.vpc = self._make_vpc_watch()

    def _be(self, node: _Node) -> None:
        """This is it."""
        self._node, self._picture.keeper = node, node.keeper

    def _identify(self, identity: InstanceIdentity) -> _Node:
        journal = self._store.journal
        self._vpc.primary = identity.mac
        tags = {CLUSTER_TAG: self._settings.cluster, INSTANCE_TAG: str(identity.instance_id)}
        if (creation := journal.creation) is not None and not tags.items() <= creation.tags.items():
            journal.note_creation(None)  # of another instance, whose disk this one has
        inventory = Inventory(
            tags=tags,
            primary_mac=identity.mac,
            version=self._settings.version,
            lag=LAG_SHARE * self._settings.resync,
            describe_lag=self._settings.describe_lag,
        )
        lifecycle = InterfaceLifecycle(
            ec2=self._ec2,
            instance=identity.instance_id,
            zone=identity.zone,
            inventory=inventory,
            journal=journal,
            clock=self._clock,
            wall=self._wall,
            random=self._random,
            log=self._log,
        )
        capacity = NodeCapacity(settings=self._settings, inventory=inventory, store=self._store, clock=self._clock)
        keeper = PoolKeeper(
            ec2=self._ec2,
            store=self._store,
            settings=self._settings,
            capacity=capacity,
            inventory=inventory,
            lifecycle=lifecycle,
            subnets=NodeSubnets(
                ec2=self._ec2,
                zone=identity.zone,
                rests=self._rests,
                clock=self._clock,
                random=self._random.random,
                log=self._log,
            ),
            rests=self._rests,
            checkpoint=self._note_checkpoint,
            departure=self._departure,
            clock=self._clock,
            log=self._log,
        )
        if (checkpoint := checkpoint_of(journal, identity)) is not None:
            capacity.pods = checkpoint.limits.pods
            keeper.subnets.networks |= {each.interface.subnet: each.subnet for each in checkpoint.interfaces}
            self._vpc.resume(checkpoint.inside)
            self._vpc.vpc = checkpoint.vpc
            now = self._clock()
            age = max(0.0, self._wall().timestamp() - checkpoint.written)
            inventory.resume(recorded_interfaces(checkpoint, tags=tags), written=now - age, now=now)
            if checkpoint.instance_type == identity.instance_type:
                limits = checkpoint.limits
                if checkpoint.spares or journal.creation is not None:
                    lifecycle.note_unsure()
                else:
                    lifecycle.note_sure()
                capacity.limits = InstanceLimits(
                    interfaces=limits.interfaces, addresses=limits.slots, prefixes=limits.prefixes
                )
        return _Node(identity, keeper)

    def _guess(self, found: Collection[MetadataInterface] | None) -> None:
        """What counts while EC2 has not answered."""
        node = self._node
        checkpoint = checkpoint_of(self._store.journal, node.identity) if node is not None else None
        primary = node.identity.mac if node is not None else MacAddress("")
        self._picture.tentative = guess_interfaces(found, checkpoint, primary=primary, version=self._settings.version)
        if node is not None:
            told = {each.subnet: each.subnet_ipv4 for each in found or ()}
            node.keeper.subnets.networks |= {subnet: cidr for subnet, cidr in told.items() if cidr is not None}
        silent = PictureSource.CHECKPOINT if self._picture.tentative else PictureSource.NONE
        self._picture.source = PictureSource.METADATA if found is not None else silent

    def _heed(self, found: list[MetadataInterface]) -> None:
        """Have EC2 asked if the metadata service tells what EC2 never did."""
        if self._node is None:
            return
        known = self._node.inventory.trace(found, now=self._clock())
        if self._schedule.heed(found, known=known):
            self._store.changed.set()

    def _note_checkpoint(self) -> None:
        node = self._node
        if not self._picture.described or node is None or node.keeper.capacity.limits is None:
            return
        inventory = node.inventory
        written = None
        if inventory.written is not None:
            written = self._wall().timestamp() - (self._clock() - inventory.written)
        checkpoint = take_checkpoint(
            node.identity,
            vpc=node.keeper.subnets.vpc,
            inside=self._vpc.cidrs,
            limits=node.keeper.capacity.told,
            interfaces=self._picture.known(),
            left_out=node.keeper.withdrawn | inventory.unproven,
            spares=node.keeper.may_have_spares,
            written=written,
            before=self._store.journal.checkpoint,
        )
        self._store.journal.note_checkpoint(checkpoint)


async def _first(*events: asyncio.Event, timeout: float | None) -> None:
    """Until one of them is set, at most so many seconds."""
    waits = [asyncio.ensure_future(event.wait()) for event in events]
    try:
        await asyncio.wait(waits, timeout=timeout, return_when=asyncio.FIRST_COMPLETED)
    finally:
        for wait in waits:
            wait.cancel()
