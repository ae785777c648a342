"""DELs that the plugin has recorded because no coild was there, or none that answered.

    plugin, DEL ─► <socket>.deletes/<container>:<interface>:<milliseconds> ─► MissedDeletes ─► PodService.delete

The runtime has been told that the attachment is gone, and has removed the sandbox since. Its addresses cool down from
the time of the DEL (`coil_cni.recorded_delete` has what the plugin does; the clock, CLOCK_MONOTONIC, is the same).

Invariants:

* All that is recorded when coild starts is carried out before it serves the first call, so before it gives an address.
* A record goes only after its attachment has: whoever dies in between finds it again, and a DEL may be repeated.
* Of one attachment's DEL and ADD, the DEL is the older one, as a runtime calls one after the other: an ADD waits for a
  record of its own container and interface (`settle`), and whatever is recorded of any other one leaves it alone. No
  record is carried out twice at a time, so none can meet an ADD that came after it.
"""

import asyncio
import os
import re
import stat
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Final, Protocol

from structlog.typing import FilteringBoundLogger

from coil.ipam.occupancy import AttachmentKey, ContainerId
from coil.netlink.error import NetlinkError
from coil.nft.netfilter import NftError

SUFFIX: Final = ".deletes"
"""Of the folder's name, which is beside the socket."""
LOOK_SECONDS: Final = 1.0
"""Between two looks for records that were made while coild ran: of DELs that it has not answered in time."""
MOST_RECORDS: Final = 1024
"""The plugin makes no more (`coil_cni.recorded_delete`); of a folder with more, so many are carried out at a time."""

_NAME: Final = re.compile(r"(?P<container>[A-Za-z0-9][A-Za-z0-9_.-]*):(?P<ifname>[^:/\s]+):(?P<at>[0-9]{1,15})")
_WRITABLE_BY_OTHERS: Final = stat.S_IWGRP | stat.S_IWOTH


class Deletes(Protocol):
    """The part of `coild.model.attachment.PodService` that is used here."""

    async def delete(self, key: AttachmentKey, *, ended: float | None = None) -> None:
        """See `PodService`."""
        ...


@dataclass(frozen=True, slots=True)
class _Record:
    name: str
    key: AttachmentKey
    at: float
    """By the clock, in seconds."""


class MissedDeletes:
    """One per process; `run` is its task. `socket` is coild's, beside which the folder is once there was a record.
    `clock` is CLOCK_MONOTONIC in seconds.

    A folder that others than the user of this process may write to is not read: whoever could would detach any pod.
    """

    def __init__(
        self,
        socket: Path,
        pods: Deletes,
        *,
        log: FilteringBoundLogger,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._folder = socket.with_name(socket.name + SUFFIX)
        self._pods = pods
        self._log = log
        self._clock = clock
        self._under_way: dict[AttachmentKey, asyncio.Task[None]] = {}
        self._said: set[str] = set()

    def read(self) -> dict[AttachmentKey, float]:
        """When which attachments were deleted, by the clock; of several DELs of one, the last counts."""
        return {key: max(record.at for record in records) for key, records in self._find().items()}

    async def apply(self) -> None:
        """Carry out all that is recorded now. What fails is logged, and tried again later."""
        self._begin()
        if self._under_way:
            await asyncio.wait(list(self._under_way.values()))

    async def settle(self, key: AttachmentKey) -> None:
        """Before an ADD: carry out a recorded DEL of the same attachment, and begin with all others.

        Raises what that DEL raises, NetlinkError or NftError; then the attachment is as it was.
        """
        self._begin()
        while (task := self._under_way.get(key)) is not None:
            await asyncio.shield(task)
            self._begin()  # there may have been one more DEL since that one was begun

    async def run(self) -> None:
        """Carry out what is recorded while coild runs. Until cancelled."""
        while True:
            await asyncio.sleep(LOOK_SECONDS)
            await self.apply()

    # --- inside

    def _begin(self) -> None:
        """Start what is not under way. Nobody else comes between the look and that."""
        for key, records in self._find().items():
            if key not in self._under_way:
                task = asyncio.create_task(self._carry_out(key, records), name=f"recorded DEL of {key.container_id}")
                self._under_way[key] = task
                task.add_done_callback(partial(self._report, key))

    async def _carry_out(self, key: AttachmentKey, records: list[_Record]) -> None:
        ended = min(max(record.at for record in records), self._clock())
        try:
            await self._pods.delete(key, ended=ended)
            with self._open() as folder:
                for record in records:
                    with suppress(FileNotFoundError):
                        os.unlink(record.name, dir_fd=folder)
        finally:
            # In the same step as the record goes: who looks next finds both, or neither.
            del self._under_way[key]
        age = round(self._clock() - ended, 1)
        self._log.info("carried out a DEL that the plugin has recorded", container=key.container_id, seconds_ago=age)

    def _report(self, key: AttachmentKey, task: asyncio.Task[None]) -> None:
        if task.cancelled() or (error := task.exception()) is None:
            return
        if isinstance(error, NetlinkError | NftError | OSError):
            self._say("a recorded DEL is not carried out yet", container=key.container_id, error=str(error))
        else:
            self._log.error("a recorded DEL failed", container=key.container_id, exc_info=error)

    def _find(self) -> dict[AttachmentKey, list[_Record]]:
        """What is recorded, the oldest first."""
        try:
            with self._open() as folder, os.scandir(folder) as entries:
                names = [entry.name for entry in entries]
        except FileNotFoundError:
            return {}
        except OSError as error:
            self._say("recorded DELs are not read", error=str(error))
            return {}
        records = sorted(filter(None, map(self._parse, names)), key=lambda record: record.at)
        found: dict[AttachmentKey, list[_Record]] = {}
        for record in records[:MOST_RECORDS]:
            found.setdefault(record.key, []).append(record)
        return found

    def _parse(self, name: str) -> _Record | None:
        if (match := _NAME.fullmatch(name)) is None:
            self._say("this is no record of a DEL", file=name)
            return None
        key = AttachmentKey(ContainerId(match["container"]), match["ifname"])
        return _Record(name, key, int(match["at"]) / 1000)

    @contextmanager
    def _open(self) -> Iterator[int]:
        """The folder, if it can be trusted. Raises OSError."""
        folder = os.open(self._folder, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC)
        try:
            status = os.fstat(folder)
            if status.st_uid != os.geteuid() or status.st_mode & _WRITABLE_BY_OTHERS:
                raise PermissionError(f"{self._folder} may be written by others than the user of coild")
            yield folder
        finally:
            os.close(folder)

    def _say(self, what: str, **details: str) -> None:
        """Once per process: the next look finds the same."""
        if what not in self._said:
            self._said.add(what)
            self._log.warning(what, folder=str(self._folder), **details)
