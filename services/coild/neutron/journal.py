"""Which pod is plugged into which port, on disk: so that a DEL, a restart, a kill -9 and a reboot need neither the API
server nor Neutron.

    given    the pod gets the port: from here on it may be plugged in
    bound    it is plugged in
    left     the pod is gone, and the port is still to be unplugged
    gone     nothing is left of it

A record is written before what it announces is begun, and after what it confirms is done. The file survives a reboot
(`coild.model.journal_file`), which the links do not: what was plugged in then is still to be unplugged.
"""

from collections.abc import Collection, Iterator
from dataclasses import dataclass, replace
from ipaddress import ip_address

import msgspec

from coil.ipam.occupancy import AttachmentKey, ContainerId
from coil.kernel.link import LinkName, MacAddress
from coil.neutron.handoff import Handoff, parse_address, parse_rules
from coil.neutron.resource import NetworkId, PortId, ProjectId
from coild.model.attachment import PodName
from coild.model.journal_file import JournalFile
from coild.neutron.binding import PortBinding


@dataclass(frozen=True, slots=True, kw_only=True)
class PortHolding:
    """A port, and the attachment that has it. `link` is the host's end; `since` is in seconds since 1970.

    `reported` is whether the pod's annotation says if the port is ACTIVE; nobody does for one that only CNI_ARGS name.
    """

    key: AttachmentKey
    pod: PodName
    link: LinkName
    port: Handoff
    since: float
    reported: bool = True
    bound: bool = False

    @property
    def binding(self) -> PortBinding:
        return PortBinding(port=self.port, ifname=self.link, endpoint=self.key.container_id)


class _Record(msgspec.Struct, frozen=True, array_like=True):
    container: ContainerId
    ifname: str

    @property
    def key(self) -> AttachmentKey:
        return AttachmentKey(self.container, self.ifname)


class _Given(_Record, frozen=True, array_like=True, tag="given"):
    namespace: str
    pod: str
    uid: str
    link: LinkName
    pod_uid: str
    """That of the annotation: a static pod has two."""
    since: float
    port: PortId
    mac: MacAddress
    addresses: list[tuple[str, str]]
    """Each with its prefix length, and the gateway of its subnet or ""."""
    network: NetworkId
    project: ProjectId
    port_type: str
    mtu: int
    segmentation: int | None
    nameservers: list[str]
    reported: bool
    rules: list[str] | None = None


class _Bound(_Record, frozen=True, array_like=True, tag="bound"):
    pass


class _Left(_Record, frozen=True, array_like=True, tag="left"):
    port: PortId


class _Gone(_Record, frozen=True, array_like=True, tag="gone"):
    port: PortId


_Entry = _Given | _Bound | _Left | _Gone
_encode = msgspec.json.Encoder().encode
_decode = msgspec.json.Decoder(_Entry).decode


class PortJournal:
    """`load` once, before anything is noted; `start` with what is known then."""

    def __init__(self, file: JournalFile) -> None:
        self._file = file

    def load(self) -> tuple[dict[AttachmentKey, PortHolding], dict[PortId, PortHolding]]:
        """What an earlier process has noted: the ports that attachments had, and those that were still to be unplugged.

        A record that cannot be read is skipped, as if it had never been written.
        """
        held: dict[AttachmentKey, PortHolding] = {}
        left: dict[PortId, PortHolding] = {}
        for line in self._file.load():
            try:
                entry = _decode(line)
                match entry:
                    case _Given():
                        held[entry.key] = _parse(entry)
                    case _Bound():
                        if (found := held.get(entry.key)) is not None:
                            held[entry.key] = replace(found, bound=True)
                    case _Left():
                        if (found := held.pop(entry.key, None)) is not None:
                            left[entry.port] = found
                    case _Gone():
                        left.pop(entry.port, None)
                        if (found := held.get(entry.key)) is not None and found.port.port == entry.port:
                            del held[entry.key]
            except (msgspec.MsgspecError, ValueError):
                continue
        return held, left

    def start(self, held: Collection[PortHolding], left: Collection[PortHolding]) -> None:
        """Begin the file anew with these. Nothing is written before."""
        self._file.replace(_snapshot(held, left))

    def note_given(self, holding: PortHolding) -> None:
        self._file.append(_encode(_render(holding)))

    def note_bound(self, key: AttachmentKey) -> None:
        self._file.append(_encode(_Bound(key.container_id, key.ifname)))

    def note_left(self, holding: PortHolding) -> None:
        self._file.append(_encode(_render_left(holding)))

    def note_gone(self, holding: PortHolding) -> None:
        key = holding.key
        self._file.append(_encode(_Gone(key.container_id, key.ifname, holding.port.port)))

    def compact(self, held: Collection[PortHolding], left: Collection[PortHolding]) -> None:
        """Write the file anew, if it has grown large or lacks a record. To be called after each note."""
        if self._file.grown:
            self._file.replace(_snapshot(held, left))

    def close(self) -> None:
        """Nothing is written after this."""
        self._file.close()


def _snapshot(held: Collection[PortHolding], left: Collection[PortHolding]) -> Iterator[bytes]:
    """The fewest records that say all that is known."""
    for holding in left:
        yield _encode(_render(holding))
        yield _encode(_render_left(holding))
    for holding in held:
        yield _encode(_render(holding))
        if holding.bound:
            yield _encode(_Bound(holding.key.container_id, holding.key.ifname))


def _render_left(holding: PortHolding) -> _Left:
    return _Left(holding.key.container_id, holding.key.ifname, holding.port.port)


def _render(holding: PortHolding) -> _Given:
    port = holding.port
    return _Given(
        holding.key.container_id,
        holding.key.ifname,
        holding.pod.namespace,
        holding.pod.name,
        holding.pod.uid,
        holding.link,
        port.pod_uid,
        holding.since,
        port.port,
        port.mac,
        [
            (str(address.interface), "" if address.gateway is None else str(address.gateway))
            for address in port.addresses
        ],
        port.network,
        port.project,
        port.type,
        port.mtu,
        port.segmentation,
        [str(address) for address in port.nameservers],
        holding.reported,
        None if port.rules is None else list(map(str, port.rules)),
    )


def _parse(entry: _Given) -> PortHolding:
    return PortHolding(
        key=entry.key,
        pod=PodName(entry.namespace, entry.pod, entry.uid),
        link=entry.link,
        port=Handoff(
            port=entry.port,
            pod_uid=entry.pod_uid,
            mac=entry.mac,
            addresses=tuple(parse_address(ip, gateway) for ip, gateway in entry.addresses),
            network=entry.network,
            project=entry.project,
            type=entry.port_type,
            mtu=entry.mtu,
            segmentation=entry.segmentation,
            nameservers=tuple(ip_address(text) for text in entry.nameservers),
            rules=parse_rules(entry.rules),
        ),
        since=entry.since,
        reported=entry.reported,
    )
