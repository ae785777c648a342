"""A worker of a controller that a test moves on by hand, from one gate of the API to the next, and may kill at each."""

from collections.abc import Coroutine, Generator
from dataclasses import dataclass
from types import coroutine
from typing import Any

from coil.kube.errors import ApiError
from coil_ipam_controller.block_request_reconciler import StaleCacheError
from tests.coil.kube.memory_api import Call, Moment
from tests.coil_ipam_controller.scene import Life


@coroutine
def _pause(step: tuple[Call, Moment]) -> Generator[tuple[Call, Moment], None, None]:
    yield step


async def stop_at_every_call(call: Call, moment: Moment) -> None:
    """The gate for the client of such a worker."""
    await _pause((call, moment))


@dataclass
class Worker:
    """At work on at most one object. Those of one life belong to one process; a life may also have a single one."""

    life: Life
    work: Coroutine[Any, Any, Any] | None = None

    def step(self) -> None:
        """On to the next gate, or to the end; an error that a queue would retry is an end."""
        if self.work is None:
            return
        try:
            self.work.send(None)
        except (StopIteration, ApiError, StaleCacheError):
            self.work = None

    def kill(self) -> None:
        """The process is gone at this gate."""
        if self.work is not None:
            self.work.close()
            self.work = None
