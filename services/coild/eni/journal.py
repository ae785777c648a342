"""What the next process needs to know about the node's interfaces and their addresses, and neither the kernel nor EC2
says.

    boot                    the start of the machine that the times of what follows count from
    given, taken, revoked   which pod has which address, and which addresses are cooling down
    checkpoint              the instance and its interfaces as EC2 last described them
    creation                the interface that EC2 was asked to make, and whose answer has not been dealt with

The file survives a reboot (`coild.model.journal_file`). A reboot takes all pods: none of what was held is in the kernel
any more, so all of it begins to cool down when the machine starts, if not before.

Cooldowns are of the clock that counts from the machine's start and never jumps; the time of day says only since when a
pod has its address. What the file may lack keeps addresses back as well (`cooled_at`): it is not synced to the disk, so
after a power failure nobody knows what its last records were, and a disk may have been full.
"""

import time
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from datetime import UTC, datetime
from ipaddress import IPv4Address, IPv4Network, ip_address, ip_network

import msgspec

from coil.eni.interface import InterfaceId, NetworkInterface, SubnetId
from coil.eni.ledger import Allocation
from coil.eni.node_plan import AttachedInterface
from coil.eni.warm_pool import NodeLimits
from coil.ipam.occupancy import AttachmentKey, ContainerId
from coil.kernel.family import IPAddress, IPNetwork
from coil.kernel.link import MacAddress
from coild.model.address_source import NONE_ENDED, Ended
from coild.model.attachment import UNKNOWN_HOLDER, Holder, PodName
from coild.model.journal_file import JournalFile


@dataclass(frozen=True, slots=True, kw_only=True)
class Checkpoint:
    """The instance and its interfaces, as EC2 described them last. `inside` are the CIDRs of the VPC. With `spares`,
    there may be further interfaces of this node, which are attached to nothing. `written` is when EC2 has confirmed the
    last change of the interfaces, in seconds since 1970: descriptions of shortly after may be of before.

    `limits` are what EC2 allows the instance's type, and the pods that the Node may run.
    """

    instance: str
    instance_type: str
    region: str
    zone: str
    vpc: str
    limits: NodeLimits
    inside: tuple[IPv4Network, ...]
    interfaces: tuple[AttachedInterface, ...]
    spares: bool = True
    written: float = 0.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Creation:
    """What EC2 was asked to make. With the same token it answers with the same interface, if all else is the same."""

    token: str
    subnet: SubnetId
    groups: tuple[str, ...]
    tags: Mapping[str, str]
    description: str
    addresses: int = 0
    prefixes: int = 0


class _Record(msgspec.Struct, frozen=True, array_like=True):
    pass


class _Boot(_Record, frozen=True, array_like=True, tag="boot"):
    id: str


class _Given(_Record, frozen=True, array_like=True, tag="given"):
    container: ContainerId
    ifname: str
    namespace: str
    pod: str
    uid: str
    address: str
    since: float
    """Seconds since 1970."""

    @property
    def key(self) -> AttachmentKey:
        return AttachmentKey(self.container, self.ifname)


class _Taken(_Record, frozen=True, array_like=True, tag="taken"):
    """The key may be forgotten; the address is cooling down since then."""

    container: ContainerId
    ifname: str
    address: str
    at: float
    """Seconds since the machine's start."""


class _Revoked(_Record, frozen=True, array_like=True, tag="revoked"):
    container: ContainerId
    ifname: str


class _Interface(_Record, frozen=True, array_like=True):
    id: str
    mac: str
    device_number: int
    subnet: str
    subnet_ipv4: str
    primary: str
    ranges: list[str]
    is_primary: bool
    managed: bool


class _Checkpoint(_Record, frozen=True, array_like=True, tag="checkpoint"):
    instance: str
    instance_type: str
    region: str
    zone: str
    vpc: str
    limits: NodeLimits
    inside: list[str]
    interfaces: list[_Interface]
    spares: bool = True
    written: float = 0.0


class _Creating(_Record, frozen=True, array_like=True, tag="creating"):
    creation: Creation | None


_Entry = _Boot | _Given | _Taken | _Revoked | _Checkpoint | _Creating
_encode = msgspec.json.Encoder().encode
_decode = msgspec.json.Decoder(_Entry).decode


class EniJournal:
    """One per process. `cooldown` in seconds; `wall` is the time of day. `clock` never jumps and counts from the start
    of the machine, which `boot` names; "" if nobody knows its name.
    """

    def __init__(
        self,
        file: JournalFile,
        *,
        cooldown: float,
        boot: str,
        wall: Callable[[], float] = time.time,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._file = file
        self._cooldown = cooldown
        self._boot = boot
        self._noted_boot = ""
        """That the records which are applied are of; "" before the file names one."""
        self._past_end = float("inf")
        self._lacks_nothing = False
        self._wall = wall
        self._clock = clock
        self._given: dict[AttachmentKey, _Given] = {}
        self._cooldowns: dict[IPAddress, float] = {}
        """Until when, by the clock."""
        self._checkpoint: Checkpoint | None = None
        self._creation: Creation | None = None
        for record in file.load():
            try:
                self._apply(_decode(record))
            except (msgspec.MsgspecError, ValueError):
                continue  # written by a newer program
        self._remembered = self._noted_ranges()

    # --- addresses

    def holder(self, key: AttachmentKey) -> Holder:
        """Which pod the attachment is, and since when; unknown for one that an earlier process did not record."""
        given = self._given.get(key)
        if given is None or not given.pod:
            return UNKNOWN_HOLDER
        return Holder(PodName(given.namespace, given.pod, given.uid), _moment(given.since))

    def gave(self, allocation: Allocation, pod: PodName) -> None:
        """The pod was given the address now."""
        key = allocation.key
        self._note(
            _Given(
                key.container_id,
                key.ifname,
                pod.namespace,
                pod.name,
                pod.uid,
                str(allocation.address),
                self._wall(),
            )
        )

    def took(self, allocation: Allocation, *, at: float | None = None) -> None:
        """The address came back `at` that time of the clock, or now, and is cooling down since then."""
        key = allocation.key
        freed = self._clock() if at is None else at
        self._note(_Taken(key.container_id, key.ifname, str(allocation.address), freed))

    def revoked(self, allocation: Allocation) -> None:
        """The address came back unused."""
        self._note(_Revoked(allocation.key.container_id, allocation.key.ifname))

    def resume(self, held: Mapping[AttachmentKey, IPAddress], ended: Ended = NONE_ENDED) -> dict[IPAddress, float]:
        """Go on with what the kernel holds; returns which addresses cool down, and until when by the clock.

        An address that was given and is not held any more was freed while no process watched: its cooldown begins when
        its attachment has `ended`, or else now, or with the machine's start if that came between. Once, at start; the
        file is rewritten, and nothing is written before.
        """
        for key, given in list(self._given.items()):
            if str(held.get(key)) != given.address:
                freed = ended.get(key, self._clock())
                self._apply(_Taken(key.container_id, key.ifname, given.address, freed))
        for key, address in held.items():
            if key not in self._given:
                # Its pod is not known; but when it vanishes, its address has to cool down.
                self._given[key] = _Given(key.container_id, key.ifname, "", "", "", str(address), 0.0)
        now = self._clock()
        freed, self._lacks_nothing = self._freed_at(now), self._is_of_this_boot and self._file.intact
        self._noted_boot = self._boot
        if not self._file.replace(self._snapshot()):
            # Nor was it written, then, by the process before.
            freed, self._lacks_nothing = now, False
        self._past_end = freed + self._cooldown
        return {address: until for address, until in self._cooldowns.items() if until > now}

    def cooled_at(self, network: IPNetwork) -> float | None:
        """Until when by the clock a range's addresses cool down of which nothing is known; the node had it before this
        process. None if the journal would know, had one of them been in use. After `resume`.
        """
        return None if self._lacks_nothing and network in self._remembered else self._past_end

    # --- interfaces

    @property
    def checkpoint(self) -> Checkpoint | None:
        """As it was last noted, if ever."""
        return self._checkpoint

    def note_checkpoint(self, checkpoint: Checkpoint) -> None:
        """EC2 describes the node like this now. Writes nothing that is written already."""
        if checkpoint != self._checkpoint:
            self._note(_render_checkpoint(checkpoint))

    @property
    def creation(self) -> Creation | None:
        """The interface that EC2 was asked to make, and of which it is not known whether it has done so."""
        return self._creation

    def note_creation(self, creation: Creation | None) -> None:
        """EC2 is about to be asked; None: the interface is there and attached, or will never be."""
        if creation != self._creation:
            self._note(_Creating(creation))

    def close(self) -> None:
        self._file.close()

    # --- inside

    def _note(self, entry: _Entry) -> None:
        self._apply(entry)
        self._file.append(_encode(entry))
        if self._file.grown:
            self._file.replace(self._snapshot())

    def _apply(self, entry: _Entry) -> None:
        match entry:
            case _Boot():
                self._noted_boot = entry.id
            case _Given():
                address = ip_address(entry.address)
                self._given[entry.key] = entry
                self._cooldowns.pop(address, None)
            case _Taken():
                self._given.pop(AttachmentKey(entry.container, entry.ifname), None)
                self._start_cooldown(entry)
            case _Revoked():
                self._given.pop(AttachmentKey(entry.container, entry.ifname), None)
            case _Checkpoint():
                self._checkpoint = _parse_checkpoint(entry)
            case _Creating():
                self._creation = entry.creation

    def _noted_ranges(self) -> frozenset[IPNetwork]:
        if self._checkpoint is None:
            return frozenset()
        return frozenset(network for each in self._checkpoint.interfaces for network in each.interface.ranges)

    @property
    def _is_of_this_boot(self) -> bool:
        return self._boot != "" and self._noted_boot == self._boot

    def _freed_at(self, at: float) -> float:
        """When an address was freed at the latest, by this boot's clock, if a record says `at`."""
        if self._is_of_this_boot:
            return min(at, self._clock())
        # The machine's start, which the clock counts from, came between, unless one of the two boots has no name.
        return 0.0 if self._boot and self._noted_boot else self._clock()

    def _start_cooldown(self, entry: _Taken) -> None:
        now = self._clock()
        self._cooldowns = {address: until for address, until in self._cooldowns.items() if until > now}
        until = self._freed_at(entry.at) + self._cooldown
        if until > now:
            self._cooldowns[ip_address(entry.address)] = until

    def _snapshot(self) -> Iterator[bytes]:
        """The fewest records that say all that is known."""
        yield _encode(_Boot(self._boot))
        if self._checkpoint is not None:
            yield _encode(_render_checkpoint(self._checkpoint))
        if self._creation is not None:
            yield _encode(_Creating(self._creation))
        yield from (_encode(given) for given in self._given.values())
        now = self._clock()
        for address, until in self._cooldowns.items():
            if until > now:
                yield _encode(_Taken(ContainerId(""), "", str(address), until - self._cooldown))


def _render_checkpoint(checkpoint: Checkpoint) -> _Checkpoint:
    return _Checkpoint(
        checkpoint.instance,
        checkpoint.instance_type,
        checkpoint.region,
        checkpoint.zone,
        checkpoint.vpc,
        checkpoint.limits,
        [str(network) for network in checkpoint.inside],
        [_render_interface(known) for known in checkpoint.interfaces],
        checkpoint.spares,
        checkpoint.written,
    )


def _render_interface(known: AttachedInterface) -> _Interface:
    interface = known.interface
    return _Interface(
        interface.id,
        interface.mac,
        interface.device_number,
        interface.subnet,
        str(known.subnet),
        str(interface.primary),
        sorted(map(str, interface.ranges)),
        interface.is_primary,
        interface.managed,
    )


def _parse_checkpoint(record: _Checkpoint) -> Checkpoint:
    return Checkpoint(
        instance=record.instance,
        instance_type=record.instance_type,
        region=record.region,
        zone=record.zone,
        vpc=record.vpc,
        limits=record.limits,
        inside=tuple(map(IPv4Network, record.inside)),
        interfaces=tuple(map(_parse_interface, record.interfaces)),
        spares=record.spares,
        written=record.written,
    )


def _parse_interface(record: _Interface) -> AttachedInterface:
    return AttachedInterface(
        interface=NetworkInterface(
            id=InterfaceId(record.id),
            mac=MacAddress(record.mac),
            device_number=record.device_number,
            subnet=SubnetId(record.subnet),
            primary=IPv4Address(record.primary),
            ranges=frozenset(map(ip_network, record.ranges)),
            is_primary=record.is_primary,
            managed=record.managed,
        ),
        subnet=IPv4Network(record.subnet_ipv4),
    )


def _moment(at: float) -> datetime | None:
    try:
        return datetime.fromtimestamp(at, UTC)
    except (OverflowError, ValueError, OSError):
        return None
