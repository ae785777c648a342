"""The node's nftables tables, without waiting for them on the event loop.

Two threads: what keeps the EIPs alive never stands in line behind the elements of a hundred thousand pods. Within the
kernel it still waits for the transaction that runs, so many changes are carried out in steps where that can be: what is
looked up by something comes before that, and goes after it.
"""

from collections.abc import Iterable, Iterator
from contextlib import AsyncExitStack
from functools import partial
from itertools import islice
from pathlib import Path
from types import TracebackType
from typing import Final

from coil.eip.data_plane import DataPlaneIndex
from coil.eip.eip_table import FUSES, SETS, TABLE, EipTableOptions, plan_eip_tables
from coil.kernel.nft_element import ElementChanges, ElementKey, ElementValue, SetName
from coil.kernel.nft_table import TableFamily
from coil.netlink.link_watch import open_event_socket
from coil.netlink.namespace import Namespace
from coil.netlink.table_watch import NETLINK_NETFILTER, TableWatch, unique_thread_name
from coil.netlink.worker import Worker
from coil.nft.element_sync import TableReconciler, refresh_timeouts
from coil.nft.netfilter import NetfilterSocket
from coil.nft.table_sync import delete_table

STEP: Final = 4096
"""Elements in one transaction, where there may be several: what the fuse may have to wait for."""

_CLASSES: Final = frozenset(name for sets in SETS.values() for name in (sets.classes, sets.subnet_classes))
_CHOICES: Final = frozenset(name for sets in SETS.values() for name in (sets.choices, sets.default_choices))


class NftStore:
    """The tables of the process's namespace, or of the one at `netns`. An async context manager; leaving it waits for
    running jobs and leaves the kernel's state as it is. All methods raise NftError, and BusyError where far too much
    waits.
    """

    def __init__(self, options: EipTableOptions, *, netns: Path | None = None) -> None:
        self._netns = netns
        self._tables = plan_eip_tables(options)
        self._stack = AsyncExitStack()
        self._worker: Worker
        self._fuse: Worker
        self._fuse_line = NetfilterSocket()
        self._watch: TableWatch
        self._kept: TableReconciler

    async def __aenter__(self) -> "NftStore":
        async with AsyncExitStack() as stack:
            home = stack.enter_context(Namespace(self._netns) if self._netns is not None else Namespace.current())
            threads = unique_thread_name()
            stack.callback(self._fuse_line.close)
            self._fuse = Worker(threads, home, threads=1)
            stack.push_async_callback(self._fuse.aclose)
            events = await self._fuse.run(open_event_socket, NETLINK_NETFILTER)
            self._watch = TableWatch(events, [(table.family, table.name) for table in self._tables], own=threads)
            stack.callback(self._watch.close)
            self._kept = TableReconciler(
                self._tables, transaction=self._watch.unheard, split=partial(split_changes, limit=STEP)
            )
            stack.callback(self._kept.close)
            self._worker = Worker(threads, home, threads=1)
            stack.push_async_callback(self._worker.aclose)
            self._stack = stack.pop_all()
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, value: BaseException | None, traceback: TracebackType | None
    ) -> None:
        await self._stack.aclose()

    async def sync(self, book: DataPlaneIndex) -> bool:
        """Make both tables, with rules and elements, what the book says; whether anything was different.

        The book must not change meanwhile. The first time before `keep_alive`: what is there is then read by the
        library, which would not come to an end.
        """
        return await self._worker.run(self._sync, book)

    def _sync(self, book: DataPlaneIndex) -> bool:
        return self._kept.load(book.elements())

    async def change(self, changes: ElementChanges) -> None:
        """Carry out the changes. After an error some of them may have happened: `sync` is the way on."""
        for step in split_changes(changes, limit=STEP):
            await self._worker.run(self._change, step)

    def _change(self, changes: ElementChanges) -> None:
        self._kept.change(changes)

    async def changed(self) -> None:
        """Wait until somebody else has, or may have, changed the tables since this returned last. For one task."""
        await self._watch.changed()

    async def keep_alive(self, seconds: float) -> None:
        """Whole milliseconds, rounded down."""
        await self._fuse.run(refresh_timeouts, FUSES, int(seconds * 1000), self._fuse_line)

    async def silence(self) -> None:
        """Nothing is alive any more."""
        await self._fuse.run(refresh_timeouts, FUSES, 0, self._fuse_line)

    async def clean_up(self) -> None:
        """Delete both tables. Idempotent."""
        for family in (TableFamily.INET, TableFamily.ARP):
            await self._worker.run(delete_table, TABLE, family)


def split_changes(changes: ElementChanges, *, limit: int) -> Iterator[ElementChanges]:
    """The changes as one, or, where there are more than `limit`, in steps of so many, as far as that can be: what only
    adds, with policies first and classes last.

    Sources that go altogether go before all else, in steps. With other deletes among them the rest stays one: between
    two steps an element would be missing that is there before and after.
    """
    if len(changes) <= limit:
        yield changes
        return
    going = [
        (name, key)
        for name, keys in changes.deletes.items()
        if name in _CLASSES
        for key in keys
        if key not in changes.adds.get(name, {})
    ]
    for start in range(0, len(going), limit):
        yield _deletes(going[start : start + limit])
    gone = set(going)
    left = [(name, key) for name, keys in changes.deletes.items() for key in keys if (name, key) not in gone]
    changes = ElementChanges(deletes=_deletes(left).deletes, adds=changes.adds, anew=changes.anew)
    if left or changes.anew or len(changes) <= limit:
        if changes:
            yield changes
        return
    ordered = sorted(changes.adds.items(), key=lambda entry: (entry[0] in _CLASSES, entry[0] in _CHOICES))
    elements = ((name, key, value) for name, added in ordered for key, value in added.items())
    while step := list(islice(elements, limit)):
        adds: dict[SetName, dict[ElementKey, ElementValue]] = {}
        for name, key, value in step:
            adds.setdefault(name, {})[key] = value
        yield ElementChanges(adds=adds)


def _deletes(elements: Iterable[tuple[SetName, ElementKey]]) -> ElementChanges:
    keys: dict[SetName, list[ElementKey]] = {}
    for name, key in elements:
        keys.setdefault(name, []).append(key)
    return ElementChanges(deletes={name: tuple(found) for name, found in keys.items()})
