"""The host ports of this node's pods.

    ADD:  portMappings ─► coil.podnet.host_port: elements ─► the books ─► the table     all of them, or none
    DEL:  the pod's elements out of the books and the table, before its address may be another's

Which addresses are the node's, its Node says (`coild.hostports.own_addresses`). Until that is known, what the table has
counts.

The table is the journal: its elements name the pods' addresses, so the next process reads from it which ports are
whose (`adopt`), and what leads to no pod that is there is deleted. While this process runs, the books decide: what
others do to the table is undone.

A node whose pods have no host ports has no table, and libnftables is not loaded.

Invariant: the books are what the kernel is to hold. Where a transaction failed, the next one is a comparison of
everything, and no DEL of a pod with host ports succeeds before that has.
"""

import asyncio
from collections.abc import Callable, Collection, Iterable, Mapping
from dataclasses import dataclass
from typing import Protocol

from prometheus_client import CollectorRegistry, Gauge
from structlog.typing import FilteringBoundLogger

from coil.ipam.occupancy import AttachmentKey
from coil.kernel.family import IPAddress, IPNetwork
from coil.kernel.nft_element import ElementChanges, ElementKey, Elements, ElementValue, SetName, diff_elements
from coil.netlink.error import NetlinkError, PodCheckError
from coil.nft.netfilter import NftError
from coil.podnet.host_port import (
    PortMapping,
    describe_host_port,
    group_by_pod,
    host_ports,
    parse_own,
    plan_host_ports,
    plan_loopback,
    plan_own,
    udp_ports,
)
from coild.model.attachment import Attachment, HostPortTakenError
from coild.model.pod_network import PodNetwork
from coild.model.watched_table import undo_changes


class HostPortTable(Protocol):
    """The table in the kernel; `coild.hostports.kernel_table.KernelTable`. Calls take turns in the order in which they
    were made, raise NftError or BusyError, and may take effect after a cancellation.
    """

    async def read(self) -> Elements | None:
        """What is in its sets; None if there is no such table. One that earlier releases made may lack some sets."""
        ...

    async def sync(self, elements: Elements) -> bool:
        """Make the table, with these elements and no others; whether it was not so. Idempotent."""
        ...

    async def change(self, changes: ElementChanges) -> None:
        """Change the elements, in one transaction. Not idempotent; only after a `sync`."""
        ...

    async def changed(self) -> None:
        """Wait until something else has changed the table; for ever before the first `sync`. For one task."""
        ...

    async def forget_udp(self, ports: Mapping[IPAddress, frozenset[int]]) -> None:
        """Have conntrack forget UDP conversations with these ports of the node that go to the pods with these
        addresses, or that were not translated because the port was nobody's: they would go on as they began. Raises
        NetlinkError.
        """
        ...


@dataclass(frozen=True, slots=True)
class _Published:
    """What the books have for an attachment."""

    attachment: Attachment
    elements: Elements


class HostPorts:
    """Implements `coild.model.attachment.PodHostPorts`. One per process."""

    def __init__(
        self,
        network: PodNetwork,
        table: HostPortTable,
        *,
        registry: CollectorRegistry,
        random: Callable[[], float],
        log: FilteringBoundLogger,
    ) -> None:
        self._network = network
        self._table = table
        self._random = random
        self._log = log
        self._published: dict[AttachmentKey, _Published] = {}
        self._owners: dict[tuple[SetName, ElementKey], AttachmentKey] = {}
        """Of the node's ports, by the map that they are in and their key there."""
        self._own: Elements = {}
        self._in_sync = False
        self.used = asyncio.Event()
        """Set when there is a table: from then on it matters which addresses the node has."""
        ports = Gauge("coil_node_host_ports", "Ports of the node that lead to one of its pods.", registry=registry)
        ports.set_function(lambda: len(self._owners))

    async def adopt(self, attachments: Iterable[Attachment]) -> None:
        """Take over what an earlier process has published. Once, before the first ADD.

        Raises NftError: whose port is whose is not known then, and nothing may be published.
        """
        there = await self._table.read()
        if there is None:
            return
        self.used.set()
        self._own = plan_own(parse_own(there))
        by_pod = group_by_pod(there)
        for attachment in attachments:
            elements: dict[SetName, Mapping[ElementKey, ElementValue]] = {}
            for address in attachment.addresses:
                for name, words in by_pod.pop(address, {}).items():
                    elements[name] = {**elements.get(name, {}), **words}
            if elements:
                self._enter(_Published(attachment, elements))
        if by_pod:
            self._log.warning("host ports led to pods that are gone", addresses=sorted(map(str, by_pod)))
        await self._sync()
        await self._allow_loopback()

    async def set_own(self, networks: Collection[IPNetwork]) -> None:
        """The node's addresses, and networks in which every local address is its own. Idempotent. Raises NftError."""
        before, self._own = self._own, plan_own(networks)
        if self._own == before or not self.used.is_set():
            return
        try:
            await self._write(diff_elements(before, self._own))
        except BaseException:
            self._in_sync = False
            raise

    # --- one attachment, within its turn

    async def publish(self, attachment: Attachment, mappings: tuple[PortMapping, ...]) -> None:
        """See `PodHostPorts`."""
        key = attachment.key
        wanted = plan_host_ports(attachment.addresses, mappings)
        if not wanted and key not in self._published:
            return
        self.used.set()
        while rivals := self._rivals(attachment, wanted):
            await self.withdraw(rivals.pop())
        before = self._leave(key)
        self._enter(_Published(attachment, wanted))
        try:
            await self._write(diff_elements(before, wanted))
            # Not before the table is there, which keeps the pod off the loopback.
            if attachment.link is not None:
                await self._network.ensure_sysctls(plan_loopback(attachment.link, wanted))
        except BaseException:
            self._in_sync = False
            self._leave(key)
            raise
        await self._forget_udp(wanted)

    async def withdraw(self, key: AttachmentKey) -> None:
        """See `PodHostPorts`."""
        published = self._published.get(key)
        if published is None:
            return
        # An entry without elements stays until the kernel has none of them: a DEL that fails is repeated.
        gone = self._leave(key)
        self._enter(_Published(published.attachment, {}))
        try:
            await self._write(diff_elements(gone, {}))
        except BaseException:
            self._in_sync = False
            raise
        self._leave(key)
        await self._forget_udp(gone)

    async def check(self, key: AttachmentKey) -> None:
        """See `PodHostPorts`."""
        published = self._published.get(key)
        if published is None:
            return
        there = await self._table.read() or {}
        missing = [
            f"host port {describe_host_port(word)}"
            for name, word, pod in host_ports(published.elements)
            if there.get(name, {}).get(word) != str(pod)
        ]
        if missing:
            raise PodCheckError(tuple(missing))

    # --- all of them

    async def follow(self) -> None:
        """Undo what others do to the table, for ever."""
        await undo_changes(self._table.changed, self._restore, random=self._random)

    async def _restore(self) -> bool:
        try:
            different = await self._sync()
            await self._allow_loopback()
        except (NftError, NetlinkError) as error:
            self._log.warning("host ports may be missing", error=str(error))
            return False
        if different:
            self._log.warning("something else had changed the table of host ports; it is as it was")
        return True

    async def _allow_loopback(self) -> None:
        for published in self._published.values():
            if (link := published.attachment.link) is not None:
                await self._network.ensure_sysctls(plan_loopback(link, published.elements))

    async def _sync(self) -> bool:
        self._in_sync = False
        elements: dict[SetName, dict[ElementKey, ElementValue]] = {
            name: dict(words) for name, words in self._own.items()
        }
        for published in self._published.values():
            for name, words in published.elements.items():
                elements.setdefault(name, {}).update(words)
        different = await self._table.sync(elements)
        self._in_sync = True
        return different

    async def _write(self, changes: ElementChanges) -> None:
        if self._in_sync:
            try:
                await self._table.change(changes)
            except NftError as error:
                self._log.warning("the table of host ports is not as it was made; comparing it", error=str(error))
            else:
                return
        await self._sync()

    async def _forget_udp(self, elements: Elements) -> None:
        if ports := udp_ports(elements):
            try:
                await self._table.forget_udp(ports)
            except NetlinkError as error:
                self._log.warning("UDP conversations with a host port may go on as they were", error=str(error))

    # --- the books

    def _rivals(self, attachment: Attachment, wanted: Elements) -> set[AttachmentKey]:
        """Earlier sandboxes of the same pod that have some of the ports: they are on their way out, and give way.

        Raises HostPortTakenError if another pod has one.
        """
        rivals: set[AttachmentKey] = set()
        for name, key, _ in host_ports(wanted):
            owner = self._owners.get((name, key), attachment.key)
            if owner == attachment.key:
                continue
            pod = self._published[owner].attachment.pod
            if pod is None or attachment.pod is None or pod.full_name != attachment.pod.full_name:
                whose = "another pod" if pod is None else f"pod {pod.full_name}"
                raise HostPortTakenError(f"{whose} has host port {describe_host_port(key)} of this node")
            rivals.add(owner)
        return rivals

    def _enter(self, published: _Published) -> None:
        key = published.attachment.key
        self._published[key] = published
        self._owners |= {(name, word): key for name, word, _ in host_ports(published.elements)}

    def _leave(self, key: AttachmentKey) -> Elements:
        """Returns what the attachment had."""
        published = self._published.pop(key, None)
        if published is None:
            return {}
        for name, word, _ in host_ports(published.elements):
            self._owners.pop((name, word), None)
        return published.elements
