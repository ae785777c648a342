"""Carries out what `coil.eni.warm_pool` decides, one call to EC2 at a time, by what EC2 is known to grant.

What comes first: an interface that would outlive the instance, then addresses that are missing, then what makes
nobody wait (security groups, interfaces that nobody wants, addresses that are too many).

Prefixes are asked for where they are configured and the instance can have them (`coild.eni.capacity`), and single
addresses in their place where no subnet has a whole prefix left. Nothing is fetched, or given back, while nobody knows
what came of the last call of that kind (`coild.eni.lost_answers`); `coild.eni.giving_back` has the way back.
"""

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Final

from structlog.typing import FilteringBoundLogger

from coil.aws.ec2 import Ec2, InterfaceRecord
from coil.aws.error import (
    GoneError,
    InUseError,
    LimitError,
    NotSentError,
    SubnetFullError,
    UnavailableError,
)
from coil.eni.interface import InterfaceId
from coil.eni.surplus import SurplusWindow
from coil.eni.warm_pool import (
    ADDRESSES_OF_PREFIX,
    AssignRanges,
    CreateInterface,
    Demand,
    Obstacles,
    Step,
    decide,
    surplus_addresses,
)
from coil.kernel.family import IPNetwork
from coild.eni.call_rests import (
    ASSIGN,
    ASSIGN_IPV6,
    ATTACH,
    CREATE,
    DELETE,
    DESCRIBE,
    MODIFY,
    CallRests,
)
from coild.eni.capacity import LEARNT_SECONDS, NodeCapacity
from coild.eni.departure import Departure
from coild.eni.giving_back import GivingBack
from coild.eni.interface_lifecycle import InterfaceLifecycle
from coild.eni.inventory import Inventory
from coild.eni.lost_answers import LostAnswers
from coild.eni.node_subnets import NodeSubnets
from coild.eni.settings import EniSettings
from coild.eni.store import EniStore

GATHER_SECONDS: Final = 2.0
"""For which addresses that nobody waits for may be missing, so that one call fetches what many pods have taken."""


@dataclass(slots=True, kw_only=True)
class PoolKeeper:
    """One per process. `checkpoint` writes down what the node has, without what is `withdrawn`."""

    ec2: Ec2
    store: EniStore
    settings: EniSettings
    capacity: NodeCapacity
    inventory: Inventory
    lifecycle: InterfaceLifecycle
    subnets: NodeSubnets
    rests: CallRests
    checkpoint: Callable[[], None]
    departure: Departure
    clock: Callable[[], float]
    log: FilteringBoundLogger
    _lost: LostAnswers = field(init=False)
    _giving_back: GivingBack = field(init=False)
    _surplus: SurplusWindow = field(init=False)
    _missing_since: float | None = None
    _full: dict[InterfaceId, float] = field(default_factory=dict)
    """Until when EC2 is believed that an interface can have no more addresses."""

    def __post_init__(self) -> None:
        self._surplus = SurplusWindow(self.settings.unneeded)
        self._lost = LostAnswers(lag=self.settings.describe_lag)
        self._giving_back = GivingBack(
            ec2=self.ec2,
            store=self.store,
            inventory=self.inventory,
            lifecycle=self.lifecycle,
            rests=self.rests,
            lost=self._lost,
            departure=self.departure,
            checkpoint=self.checkpoint,
            clock=self.clock,
            log=self.log,
        )

    async def step(self) -> bool:
        """Do the next thing, if there is one. Raises Ec2Error; after any but a ThrottledError look at EC2 first."""
        now = self.clock()
        if not self.rests.rests(MODIFY) and await self.lifecycle.flag():
            self.rests.succeeded(MODIFY)
            return True
        if self.settings.version == 6:
            return await self._step_ipv6()
        if self.capacity.limits is None:
            return False
        surplus = self._note_surplus(now)
        if surplus < 0 and self._gathering(now):
            return await self._regroup()
        if surplus < 0 and not self._lost.adding:
            await self.subnets.search(range_size=self.capacity.range_size)
            if (found := self._decide_fetch()) is not None and await self._fetch(*found):
                return True
        return (
            await self._regroup()
            or await self._find_spares()
            or await self._drop_spare(wanted=surplus < 0)
            or (surplus > 0 and not self._lost.taking and await self._give_back(now))
        )

    def settle(self, *, asked: float) -> None:
        """EC2 has described the interfaces, asked at that time: what it still has may be given again."""
        self._lost.resolve(self.inventory.find, asked=asked)
        self._giving_back.settle()

    def next_look(self, *, asked: float) -> float | None:
        """When a description can tell what that of a question at that time could not; None if that one said all."""
        dues = (self.inventory.next_look, self._lost.next_look(asked=asked))
        return min((due for due in dues if due is not None), default=None)

    @property
    def withdrawn(self) -> frozenset[IPNetwork]:
        """What EC2 has been asked to take, or is about to be."""
        return self._giving_back.withdrawn

    @property
    def may_have_spares(self) -> bool:
        """Whether the next process has to look for interfaces that are attached to nothing."""
        return self._giving_back.detaching or self.lifecycle.unsure or self.lifecycle.has_spares

    @property
    def shortage(self) -> str | None:
        """Why the addresses that are missing do not come; None if none is missing, or they are on their way."""
        if self.settings.version == 6:
            return (self._lost.reason or self.rests.reason) if self._lacks_ipv6() else None
        if self.capacity.limits is None:
            return self.rests.reason or "EC2 has not told yet what it allows the instance's type"
        if surplus_addresses(self.capacity.uses(), self.capacity.targets, self.capacity.room, self._demand()) >= 0:
            return None
        if self._lost.adding:
            return self._lost.reason
        if not self.rests.quiet_left and self._decide_fetch() is not None:
            return None
        silence = self.rests.reason if self.rests.quiet_left else None
        exhausted = "; ".join(filter(None, (self.capacity.exhausted, self.subnets.dry)))
        return silence or self.subnets.shortage or self.rests.reason or exhausted

    @property
    def next_due(self) -> float | None:
        """In how many seconds something may be done that nobody's change brings about; None if there is nothing."""
        now = self.clock()
        gathered = None if self._missing_since is None else self._missing_since + GATHER_SECONDS - now
        dues = (
            self.rests.next_end,
            self.lifecycle.next_ready,
            self.lifecycle.search_left,
            self.subnets.next_change,
            self._surplus.next_lasting(now=now),
            self._giving_back.next_due,
            gathered if gathered is not None and gathered > 0 else None,
            self.capacity.next_doubtful_link,
            self.capacity.refusal_left,
            _at_least(GATHER_SECONDS, self.store.cooldown_left),
            self.store.demand_left,
            *(until - now for until in self._full.values() if until > now),
        )
        return min((due for due in dues if due is not None), default=None)

    # --- what to do

    def _demand(self, range_size: int | None = None) -> Demand:
        return Demand(
            waiting=self.store.demand(self.settings.version), range_size=range_size or self.capacity.range_size
        )

    def _note_surplus(self, now: float) -> int:
        surplus = surplus_addresses(self.capacity.uses(), self.capacity.targets, self.capacity.room, self._demand())
        self._surplus.note(surplus, now=now)
        if surplus >= 0:
            self._missing_since = None
        elif self._missing_since is None:
            self._missing_since = now
        return surplus

    def _gathering(self, now: float) -> bool:
        """Whether addresses are missing that nobody waits for, and have not been for long."""
        if self.store.demand(self.settings.version) or not any(use.up and use.free for use in self.capacity.uses()):
            return False
        return self._missing_since is not None and now < self._missing_since + GATHER_SECONDS

    def _decide_fetch(self) -> tuple[Step, int] | None:
        """The step, and the size of its ranges."""
        for range_size in (ADDRESSES_OF_PREFIX, 1) if self.capacity.prefixes else (1,):
            step = decide(
                self.capacity.uses(),
                self.capacity.targets,
                self.capacity.room,
                self._demand(range_size),
                give_back=0,
                obstacles=self._obstacles(range_size),
            )
            if step is not None:
                return step, range_size
        return None

    def _obstacles(self, range_size: int) -> Obstacles:
        now = self.clock()
        own = self.inventory.own()
        full = {
            each.id
            for each in own
            if self.rests.rests(ASSIGN)
            or each.id in self._lost.taking | self.inventory.doubted_interfaces
            or self._full.get(each.id, now) > now
            or self.subnets.most(each.subnet, range_size=range_size) == 0
        }
        offered = not self.rests.rests(CREATE) and self.subnets.choose(range_size=range_size) is not None
        creatable = offered or self.lifecycle.attachable() is not None
        return Obstacles(
            full=frozenset(full), no_creation=self.rests.rests(ATTACH) or self.lifecycle.attaching or not creatable
        )

    # --- addresses that are missing

    async def _fetch(self, step: Step, range_size: int) -> bool:
        match step:
            case AssignRanges(interface, count):
                return await self._assign(interface, count, range_size)
            case CreateInterface(count):
                await self._create(count, range_size)
        return True

    async def _assign(self, interface: InterfaceId, count: int, range_size: int) -> bool:
        if (record := self.inventory.find(interface)) is None:
            return False  # gone, and the store has not been told yet: nothing is to be done about it at once
        most = self.subnets.most(record.subnet, range_size=range_size)
        count = count if most is None else min(count, most)
        assign = self.ec2.assign_prefixes if range_size > 1 else self.ec2.assign_addresses
        try:
            new = await assign(interface, count)
        except SubnetFullError as error:
            await self.subnets.note_refusal(record.subnet, error, range_size=range_size, asked=count)
            return True
        except LimitError:
            self._full[interface] = self.clock() + LEARNT_SECONDS
            raise
        except UnavailableError as error:
            self._note_lost_assignment(record, error)
            raise
        except GoneError:
            self.inventory.missed(interface, now=self.clock())
            raise
        self.rests.succeeded(ASSIGN)
        self.inventory.assigned(interface, new, now=self.clock())
        self.log.info("addresses assigned", interface=interface, ranges=sorted(map(str, new)))
        return True

    async def _create(self, count: int, range_size: int) -> None:
        await self._find_spares()
        spare = self.lifecycle.attachable() or await self._create_spare(count, range_size)
        if spare is None:
            return
        await self.subnets.ensure_network(spare.subnet)
        try:
            await self.lifecycle.attach(spare)
        except LimitError:
            self.capacity.note_refusal()
            raise
        except (UnavailableError, InUseError) as error:
            # In use: by an attachment of ours, of which the answer was lost.
            if not isinstance(error, NotSentError):
                self._lost.to_attach(ATTACH, spare.id, at=self.clock())
            raise
        self.rests.succeeded(ATTACH)

    async def _create_spare(self, count: int, range_size: int) -> InterfaceRecord | None:
        if (offer := self.subnets.choose(range_size=range_size)) is None:
            return None
        most = self.subnets.most(offer.id, range_size=range_size)
        if most is not None and range_size == 1:
            most -= 1  # the interface's own address is one, too
        if most is not None and most <= 0:
            self.subnets.note_too_small(offer.id, range_size=range_size)
            return None
        count = count if most is None else min(count, most)
        counts = {"prefixes": count} if range_size > 1 else {"addresses": count}
        # Where nobody knows what came of a creation, that one is repeated as it was.
        pending = self.store.journal.creation
        subnet = offer.id if pending is None else pending.subnet
        try:
            record = await self.lifecycle.create(offer.id, self._groups(), **counts)
        except SubnetFullError as error:
            asked = count + 1 if range_size == 1 else count
            await self.subnets.note_refusal(subnet, error, range_size=range_size, asked=asked)
            return None
        except GoneError as error:
            self.subnets.note_gone(subnet, error)
            return None
        self.rests.succeeded(CREATE)
        return record

    # --- what nobody waits for

    async def _regroup(self) -> bool:
        """New interfaces are in the primary one's security groups, and follow their changes."""
        if self.rests.rests(MODIFY) or (record := self._misgrouped()) is None:
            return False
        groups = self._groups()
        try:
            await self.ec2.set_groups(record.id, groups)
        except GoneError:
            self.inventory.missed(record.id, now=self.clock())
            raise
        self.rests.succeeded(MODIFY)
        self.inventory.grouped(record, groups, now=self.clock())
        self.log.info("security groups changed", interface=record.id, groups=sorted(groups))
        return True

    async def _find_spares(self) -> bool:
        """What earlier processes have left, and calls of which nobody knows what came of them."""
        left = self.lifecycle.search_left
        if left is None or left > 0 or self.rests.rests(DESCRIBE):
            return False
        await self.lifecycle.search()
        self.rests.succeeded(DESCRIBE)
        return True

    async def _drop_spare(self, *, wanted: bool) -> bool:
        """An interface that is attached to nothing, and is not about to be; `wanted`: if EC2 would attach one, now."""
        if self.rests.rests(DELETE):
            return False
        spare = self.lifecycle.deletable(unfit_only=wanted and self.rests.rests(ATTACH))
        if spare is None:
            return False
        await self.lifecycle.delete(spare)
        self.rests.succeeded(DELETE)
        return True

    def _groups(self) -> tuple[str, ...]:
        primary = self.inventory.primary
        return self.settings.groups or (primary.groups if primary is not None else ())

    def _misgrouped(self) -> InterfaceRecord | None:
        """An own interface, other than the primary one, with other security groups than it is to have."""
        groups = set(self._groups())
        # An attachment that is not known is the journal's word, which does not know the groups either.
        doubted = self.inventory.doubted_interfaces
        known = [each for each in self.inventory.managed() if each.attachment is not None and each.id not in doubted]
        made = [each for each in known if not self.inventory.is_primary(each)]
        return next((each for each in made if groups and set(each.groups) != groups), None)

    async def _give_back(self, now: float) -> bool:
        step = decide(
            self.capacity.uses(),
            self.capacity.targets,
            self.capacity.room,
            self._demand(),
            give_back=self._surplus.lasting(now=now),
        )
        return await self._giving_back.carry_out(step)

    def _note_lost_assignment(self, record: InterfaceRecord, error: UnavailableError, *, call: str = ASSIGN) -> None:
        if not isinstance(error, NotSentError):
            self._lost.to_assign(call, record.id, before=record.ranges, at=self.clock())

    # --- IPv6

    def _lacks_ipv6(self) -> bool:
        primary = self.inventory.primary
        return primary is None or all(each.version == 4 for each in primary.ranges)

    async def _step_ipv6(self) -> bool:
        """One prefix on the primary interface is enough for every pod of the node."""
        primary = self.inventory.primary
        if primary is None or not self._lacks_ipv6() or self._lost.adding or self.rests.rests(ASSIGN_IPV6):
            return False
        try:
            prefix = await self.ec2.assign_ipv6_prefix(primary.id)
        except UnavailableError as error:
            self._note_lost_assignment(primary, error, call=ASSIGN_IPV6)
            raise
        self.rests.succeeded(ASSIGN_IPV6)
        self.inventory.assigned(primary.id, [prefix], now=self.clock())
        self.log.info("prefix assigned", interface=primary.id, prefix=str(prefix))
        return True


def _at_least(least: float, seconds: float | None) -> float | None:
    return None if seconds is None else max(least, seconds)
