"""Deletes links, many at once, and returns as soon as they are gone.

Two facts of the kernel make this worth a module (measured; net/core/dev.c). A deletion spends a fraction of a
millisecond on the link and 15 ms more on a wait for the other processors, in which the link is already out of
every table: `monitor.LinkWatch` reports that moment. And a deletion of a whole group of links pays for its waits
once.

    remove(name) ─► pending ─► batch: set group on each, delete group (a thread, 20 ms) ─► next batch
                       │
                       └─ returns on RTM_DELLINK for the name, or on the batch's answer

Invariant: a link in the group is to be deleted, whoever put it there; so batches that overlap, and one that a
crash cut in half, do no harm.
"""

import asyncio
import errno
from collections.abc import Collection
from functools import partial
from typing import Final

from coil.kernel.link import LinkGroup, LinkName
from coil.netlink.connection import Connection
from coil.netlink.error import BusyError
from coil.netlink.link import delete_group, set_group
from coil.netlink.monitor import LinkWatch
from coil.netlink.worker import Worker

_MAX_BATCH: Final = 64  # the kernel holds the lock of all links for the whole batch: 0.3 ms for each
MAX_BATCHES: Final = 16  # at a time: one after the other, deletions would take 20 ms each
_MAX_PENDING: Final = 4096
_GONE: Final = {errno.ENODEV, errno.ESRCH}


class LinkRemoval:
    """Belongs to one event loop; `worker` runs in the namespace that `watch` looks at."""

    def __init__(self, worker: Worker, watch: LinkWatch) -> None:
        self._worker = worker
        self._watch = watch
        self._pending: dict[LinkName, asyncio.Future[None]] = {}
        self._batches: set[asyncio.Future[None]] = set()

    async def remove(self, name: LinkName) -> None:
        """Delete the link; when this returns, it is gone. Idempotent: no such link is success.

        A cancelled call takes effect nevertheless. Raises NetlinkError, and BusyError if far too many wait.
        """
        with self._watch.expect(name) as gone:
            answer = self._request(name)
            await asyncio.wait({answer, gone}, return_when=asyncio.FIRST_COMPLETED)
        if answer.done():
            answer.result()

    def _request(self, name: LinkName) -> asyncio.Future[None]:
        """The answer to be: the same for all who ask before the batch starts."""
        if name not in self._pending:
            if len(self._pending) >= _MAX_PENDING:
                raise BusyError(f"{len(self._pending)} links wait for their deletion")
            loop = asyncio.get_running_loop()
            answer = self._pending[name] = loop.create_future()
            answer.add_done_callback(_observe)
            # Not at once: what else is asked for in this turn of the loop goes into the same batch.
            loop.call_soon(self._start)
        return self._pending[name]

    def _start(self) -> None:
        while self._pending and len(self._batches) < MAX_BATCHES:
            batch = {name: self._pending.pop(name) for name in list(self._pending)[:_MAX_BATCH]}
            job = asyncio.wrap_future(self._worker.submit(remove_links, tuple(batch)))
            self._batches.add(job)
            job.add_done_callback(partial(self._end, tuple(batch.values())))

    def _end(self, answers: tuple[asyncio.Future[None], ...], job: asyncio.Future[None]) -> None:
        self._batches.discard(job)
        for answer in answers:
            if job.cancelled():
                answer.cancel()
            elif error := job.exception():
                answer.set_exception(error)
            else:
                answer.set_result(None)
        self._start()

    async def aclose(self) -> None:
        """Wait until everything that was asked for is deleted."""
        while self._pending or self._batches:
            await asyncio.wait([*self._pending.values(), *self._batches])


def remove_links(names: Collection[LinkName]) -> None:
    """Delete the links in one go. Runs in a thread, in the namespace of the links. Raises KernelError."""
    marks = [set_group(name, LinkGroup.DOOMED) for name in names]
    with Connection() as connection:
        connection.apply([*marks, delete_group(LinkGroup.DOOMED)], tolerate=_GONE)


def remove_unfinished() -> None:
    """Delete what a crash left of veth in the making. Runs as `remove_links` does, before the first veth is
    made.
    """
    with Connection() as connection:
        connection.apply([delete_group(LinkGroup.UNFINISHED)], tolerate=_GONE)


def _observe(answer: asyncio.Future[None]) -> None:
    """Look at a result that nobody may be waiting for any more: the link is gone, whatever came after that."""
    if not answer.cancelled():
        answer.exception()
