"""How an interface comes to this instance, and how it goes.

    note the token ─► create, with tags and ranges ─► attach ─► flag: it goes with the instance
    detach ─► delete

A process may end between any two of these, and the answer to any may be lost. What is left is found again:

* The request is in the journal with its token before EC2 hears of it. With the same token EC2 makes one interface,
  however often it is asked, so a creation of which nobody knows the outcome is repeated as it was.
* An interface has its tags from its first moment. One that has this cluster's and this instance's and is attached to
  nothing is a *spare*: it is attached when the next one is wanted, or else deleted. Spares are searched for before one
  is created and before the node comes to rest, whenever there may be some, and once more when a search cannot be of
  before that any more.
* One that is attached and would outlive the instance is flagged, whenever that was left undone.
* One that EC2 does not know is given up, but not right after it was created: EC2 may not know it yet everywhere.

Every method makes one call that changes something at EC2.
"""

from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass, field
from datetime import datetime
from random import Random
from typing import Final

from structlog.typing import FilteringBoundLogger

from coil.aws.ec2 import AttachmentId, Ec2, InstanceId, InterfaceRecord, InterfaceRequest
from coil.aws.error import (
    Ec2Error,
    GoneError,
    InUseError,
    LimitError,
    ThrottledError,
    UnavailableError,
)
from coil.eni.interface import InterfaceId, SubnetId
from coil.eni.tag import CREATED_TAG, is_managed, render_created
from coild.eni.inventory import Inventory
from coild.eni.journal import Creation, EniJournal

DETACH_SECONDS: Final = 5.0
"""For which EC2 takes an interface for used after it was told to detach it; it takes longer at times."""
DESCRIPTION: Final = "Coil: addresses of pods on {instance}"
AVAILABLE: Final = "available"


@dataclass(slots=True)
class _Spare:
    record: InterfaceRecord
    since: float
    ready: float
    """From when on EC2 will take it for unused."""
    tried: bool = False
    """It was to be attached, and will be, or is."""
    unfit: bool = False
    """EC2 does not attach it, or would not."""


@dataclass(slots=True, kw_only=True)
class InterfaceLifecycle:
    """One per process, and one call at a time. `clock` never jumps, `wall` is the time of day. All raise Ec2Error."""

    ec2: Ec2
    instance: InstanceId
    zone: str
    """The instance's. No interface in another one can be attached to it."""
    inventory: Inventory
    journal: EniJournal
    clock: Callable[[], float]
    wall: Callable[[], datetime]
    random: Random
    log: FilteringBoundLogger
    _unsure_since: float | None = float("-inf")
    """Since when there may be spares that are not known here; None: there are none."""
    _search_at: float = float("-inf")
    _spares: dict[InterfaceId, _Spare] = field(default_factory=dict)
    _settled: set[InterfaceId] = field(default_factory=set)
    """Interfaces whose creation is dealt with: tags tell the seconds apart, and no less."""
    _deleted: dict[InterfaceId, float] = field(default_factory=dict)
    """When each was deleted that a search may still find."""

    def attachable(self) -> InterfaceRecord | None:
        """A spare that may be attached now."""
        now = self.clock()
        found = (spare.record for spare in self._spares.values() if spare.ready <= now and not spare.unfit)
        return next(found, None)

    def deletable(self, *, unfit_only: bool = False) -> InterfaceRecord | None:
        """A spare that may be deleted now."""
        now = self.clock()
        found = (
            spare.record for spare in self._spares.values() if spare.ready <= now and (spare.unfit or not unfit_only)
        )
        return next(found, None)

    @property
    def attaching(self) -> bool:
        """Whether a spare is about to be attached once more: none is to be created beside it."""
        now = self.clock()
        return any(spare.tried and not spare.unfit and spare.ready > now for spare in self._spares.values())

    @property
    def next_ready(self) -> float | None:
        """In how many seconds a spare that is not may be; None if there is none."""
        now = self.clock()
        return min((spare.ready - now for spare in self._spares.values() if spare.ready > now), default=None)

    @property
    def has_spares(self) -> bool:
        """Whether any is known."""
        return bool(self._spares)

    @property
    def unsure(self) -> bool:
        """Whether there may be spares that are not known here."""
        return self._unsure_since is not None

    def note_unsure(self) -> None:
        """There may be one since now."""
        self._unsure_since = self._search_at = self.clock()

    def note_sure(self) -> None:
        """An earlier process has left none."""
        self._unsure_since = None

    @property
    def search_left(self) -> float | None:
        """In how many seconds a search can tell of spares that are not known; None if there are none."""
        return None if self._unsure_since is None else self._search_at - self.clock()

    async def search(self) -> None:
        """Find the spares, whoever left them."""
        now = self.clock()
        lag = self.inventory.describe_lag
        oldest = now - lag
        self._deleted = {interface: at for interface, at in self._deleted.items() if at > oldest}
        described = await self.ec2.find_interfaces(self.inventory.tags, status=AVAILABLE)
        found = [each for each in described if each.id not in self._deleted and is_managed(each.tags)]
        recent = {key: spare for key, spare in self._spares.items() if spare.since > oldest}
        self._spares = {each.id: recent.pop(each.id, self._spare(each)) for each in found} | recent
        own = self.inventory.own()
        # By one description they are attached, by another one they are not: one of the two is past.
        both = [each for record in own if (each := self._spares.pop(record.id, None)) is not None]
        self._settle_creation([*own, *found])
        since = self._unsure_since
        if both or (since is not None and now < since + lag):
            self._search_at = now + lag / 2 if both else (since or now) + lag
        else:
            self._unsure_since = None

    async def create(
        self, subnet: SubnetId, groups: Collection[str], *, addresses: int = 0, prefixes: int = 0
    ) -> InterfaceRecord:
        """A new interface, not attached yet; the one that was asked for before if nobody knows what came of it."""
        repeated = self.journal.creation is not None
        creation = self.journal.creation or Creation(
            token=f"coil-{self.random.getrandbits(128):032x}",
            subnet=subnet,
            groups=tuple(sorted(groups)),
            tags=self._tags_now(),
            description=DESCRIPTION.format(instance=self.instance),
            addresses=addresses,
            prefixes=prefixes,
        )
        self.journal.note_creation(creation)
        try:
            record = await self.ec2.create_interface(_request(creation))
        except UnavailableError:
            self.note_unsure()  # it may be there, or come to be
            raise
        except ThrottledError:
            raise
        except Ec2Error:
            # With a token that EC2 has seen before, this refusal does not say that nothing was made then.
            if repeated:
                self.note_unsure()
            self.journal.note_creation(None)
            raise
        self._spares[record.id] = self._spare(record)
        self.log.info("interface created", interface=record.id, subnet=record.subnet, ranges=len(record.ranges))
        return record

    async def attach(self, record: InterfaceRecord) -> None:
        """As the device with the lowest number that is free. It does not go with the instance yet."""
        device = self.inventory.lowest_free_device()
        try:
            attachment = await self.ec2.attach_interface(record.id, self.instance, device=device)
        except GoneError:
            spare = self._spares.get(record.id)
            if spare is not None and self.clock() < spare.since + self.inventory.describe_lag:
                self._put_off(record, tried=True)
            else:
                # Collected as an orphan, or the answer to a token whose interface is deleted already.
                self._forget(record)
            raise
        except (UnavailableError, InUseError):
            self._put_off(record, tried=True)
            raise
        except (ThrottledError, LimitError):
            raise
        except Ec2Error:
            # Whatever EC2 has against it, and where the role does not allow it, nothing is left over.
            if (spare := self._spares.get(record.id)) is not None:
                spare.unfit = True
            raise
        self._forget(record)
        self.inventory.attached(record, device, attachment, now=self.clock())
        self.log.info("interface attached", interface=record.id, device=device)

    async def flag(self) -> bool:
        """Have an own interface that would outlive the instance deleted with it; whether there was one."""
        doubted = self.inventory.doubted_interfaces
        for record in self.inventory.managed():
            if self.inventory.is_primary(record) or record.id in doubted:
                continue
            if record.attachment is not None and not record.deleted_with_instance:
                try:
                    await self.ec2.delete_with_instance(record.id, record.attachment)
                except GoneError:
                    self.inventory.missed(record.id, now=self.clock())
                    raise
                self.inventory.flagged(record, now=self.clock())
                return True
        return False

    async def detach(self, record: InterfaceRecord, attachment: AttachmentId) -> None:
        """It is a spare from then on."""
        try:
            await self.ec2.detach_interface(attachment)
        except (UnavailableError, GoneError):
            self.note_unsure()
            raise
        now = self.clock()
        self.inventory.detached(record.id, now=now)
        self._spares[record.id] = _Spare(record, now, now + DETACH_SECONDS)
        self.log.info("interface detached", interface=record.id)

    async def delete(self, record: InterfaceRecord) -> None:
        """A spare."""
        try:
            await self.ec2.delete_interface(record.id)
        except GoneError:
            pass
        except Ec2Error:
            self._put_off(record)
            raise
        self._deleted[record.id] = self.clock()
        self._forget(record)
        self.log.info("interface deleted", interface=record.id)

    # --- inside

    def _spare(self, record: InterfaceRecord) -> _Spare:
        """One that is attached to nothing. An administrator may have given any interface the tags that it has."""
        now = self.clock()
        return _Spare(record, now, now, unfit=record.zone not in ("", self.zone))

    def _tags_now(self) -> Mapping[str, str]:
        return {**self.inventory.tags, CREATED_TAG: render_created(self.wall())}

    def _put_off(self, record: InterfaceRecord, *, tried: bool = False) -> None:
        """It may be in use, for a while or for good, or not be known everywhere yet."""
        self.note_unsure()
        if (spare := self._spares.get(record.id)) is not None:
            spare.tried = tried
            spare.ready = self.clock() + DETACH_SECONDS

    def _forget(self, record: InterfaceRecord) -> None:
        self._spares.pop(record.id, None)
        self._settle_creation([record])

    def _settle_creation(self, found: Collection[InterfaceRecord]) -> None:
        """One of these may be what EC2 was asked to make, in which case its token is of no use any more."""
        creation = self.journal.creation
        if creation is not None and any(
            each.id not in self._settled and creation.tags.items() <= each.tags.items() for each in found
        ):
            self.journal.note_creation(None)
        self._settled |= {each.id for each in found}


def _request(creation: Creation) -> InterfaceRequest:
    return InterfaceRequest(
        subnet=creation.subnet,
        groups=creation.groups,
        token=creation.token,
        description=creation.description,
        tags=creation.tags,
        addresses=creation.addresses,
        prefixes=creation.prefixes,
    )
