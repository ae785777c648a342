"""Keeps the clients of this node to their routers: a pod that names an Egress is sent nothing encapsulated by anybody
but the router pods of its Egresses (`coil.egress.client_filter`).

    EgressClients ─► set_peers ─► the books ─► the table        before the ADD returns
                     forget ────► the books ─► the table        soon
    others' changes of the table ─► undone

Invariants:
* Until a pod has been looked at (`set_peers`), what an earlier process let in to it stays let in, and nothing else.
* The books are what the kernel is to hold. Where a transaction failed, the next one is a comparison of everything.
* A node whose pods have no tunnels has no table, and libnftables is not loaded.
"""

import asyncio
import time
from collections.abc import Callable, Collection
from contextlib import suppress
from typing import Final, Protocol

from prometheus_client import CollectorRegistry
from structlog.typing import FilteringBoundLogger

from coil.egress.client_filter import UNSOLICITED, Peers, parse_client_elements, plan_client_elements
from coil.ipam.occupancy import AttachmentKey
from coil.kernel.family import IPAddress
from coil.kernel.nft_element import ElementChanges, Elements, diff_elements
from coil.netlink.error import BusyError
from coil.nft.netfilter import NftError
from coild.model.attachment import Attachment
from coild.model.dropped_packets import CountingTable, DroppedPackets, DropReport
from coild.model.watched_table import undo_changes

_REPORT: Final = DropReport(
    counter=UNSOLICITED,
    metric="coil_node_egress_unsolicited_packets",
    about="Encapsulated packets for clients of egress NAT that did not come from a router pod; they were dropped.",
    line="encapsulated packets for egress clients do not come from their router pods; dropped",
)


class ClientTable(CountingTable, Protocol):
    """The table in the kernel; `coild.model.watched_table.WatchedTable`. Calls take turns in the order in which they
    were made, raise NftError or BusyError, and may take effect after a cancellation.
    """

    async def read(self) -> Elements | None:
        """What is in its sets; None if there is no such table."""
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


class TunnelFilter(Protocol):
    """Who may send encapsulated packets to pods of this node."""

    async def set_peers(self, key: AttachmentKey, peers: Peers) -> None:
        """Have the attachment's addresses take encapsulated packets from these only; one that is missing takes them
        from anybody, as the pod has no tunnel. Idempotent. Raises NftError and BusyError, and
        may be repeated.
        """
        ...

    def forget(self, key: AttachmentKey) -> None:
        """The attachment goes, and its addresses may soon be another's. Returns at once."""
        ...


class NoTunnelFilter:
    """`--verify-routers=false`."""

    async def set_peers(self, key: AttachmentKey, peers: Peers) -> None:
        pass

    def forget(self, key: AttachmentKey) -> None:
        pass


class ClientFilter:
    """A `TunnelFilter`. One per process; `adopt` comes first."""

    def __init__(
        self,
        table: ClientTable,
        *,
        registry: CollectorRegistry,
        random: Callable[[], float],
        log: FilteringBoundLogger,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._table = table
        self._random = random
        self._log = log
        self._dropped = DroppedPackets(table, _REPORT, registry=registry, log=log, clock=clock)
        self._peers: dict[IPAddress, frozenset[IPAddress]] = {}
        self._owners: dict[IPAddress, AttachmentKey] = {}
        """Whose an address is; the one that has it last, should one have gone unnoticed."""
        self._addresses: dict[AttachmentKey, frozenset[IPAddress]] = {}
        self._kernel: dict[IPAddress, frozenset[IPAddress]] | None = None
        """What the table has; None where nobody knows."""
        self._used = asyncio.Event()
        """That there is a table, or has to be one."""
        self._turn = asyncio.Lock()
        self._left = asyncio.Event()

    async def adopt(self, attachments: Collection[Attachment]) -> None:
        """Take over what an earlier process has made for these; the rest is deleted soon. Raises NftError and
        BusyError.
        """
        there = await self._table.read()
        if there is None:
            return
        self._used.set()
        peers = parse_client_elements(there)
        for attachment in attachments:
            self._enter(attachment.key, {each: peers[each] for each in attachment.addresses if each in peers})
        self._left.set()

    async def set_peers(self, key: AttachmentKey, peers: Peers) -> None:
        """See `TunnelFilter`."""
        self._enter(key, peers)
        try:
            await self._write()
        except NftError as error:
            reason = f"{error.reason}; --verify-routers=false does without"
            raise NftError(doing="keep egress clients to their routers", reason=reason) from error

    def forget(self, key: AttachmentKey) -> None:
        """See `TunnelFilter`."""
        if key in self._addresses:
            self._enter(key, {})
            self._left.set()

    # --- all of them

    async def follow(self) -> None:
        """Undo what others do to the table, for ever."""
        await undo_changes(self._table.changed, self._restore, random=self._random)

    async def clean_up(self) -> None:
        """Delete what is left of pods that have gone, for ever."""
        await undo_changes(self._wait_left, self._try_write, random=self._random)

    async def count(self) -> None:
        """Read what was dropped, for ever, and tell of it in the log now and then."""
        await self._used.wait()
        with suppress(NftError, BusyError, KeyError):  # without a table yet, nothing was dropped either
            await self._dropped.begin()
        await self._dropped.count()

    async def _wait_left(self) -> None:
        await self._left.wait()
        self._left.clear()

    async def _restore(self) -> bool:
        return await self._try_write(compare=True)

    async def _try_write(self, *, compare: bool = False) -> bool:
        try:
            different = await self._write(compare=compare)
        except (NftError, BusyError) as error:
            self._log.warning("who may send encapsulated packets to egress clients is out of date", error=str(error))
            return False
        if compare and different:
            self._log.warning("something else had changed the table of egress clients; it is as it was")
        return True

    # --- the books

    def _enter(self, key: AttachmentKey, peers: Peers) -> None:
        for address in self._addresses.pop(key, frozenset()) - peers.keys():
            if self._owners.get(address) == key:
                del self._owners[address], self._peers[address]
        if peers:
            self._addresses[key] = frozenset(peers)
            self._peers |= peers
            self._owners |= dict.fromkeys(peers, key)

    async def _write(self, *, compare: bool = False) -> bool:
        """Have the kernel hold what the books say by the time its turn comes; whether it did not. With `compare`, what
        it has is not taken for granted.
        """
        async with self._turn:
            wanted, there = dict(self._peers), None if compare else self._kernel
            if there == wanted or not (wanted or self._used.is_set()):
                return False
            self._used.set()
            self._kernel = None
            if there is None:
                different = await self._table.sync(plan_client_elements(wanted))
            else:
                different = True
                touched = [each for each in wanted.keys() | there.keys() if wanted.get(each) != there.get(each)]
                before = plan_client_elements({each: there[each] for each in touched if each in there})
                after = plan_client_elements({each: wanted[each] for each in touched if each in wanted})
                await self._table.change(diff_elements(before, after))
            self._kernel = wanted
            return different
