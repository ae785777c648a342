"""A thread that accompanies a block of a test, and whose failure is the test's."""

import threading
from abc import ABC, abstractmethod
from collections.abc import Callable
from typing import Self


class SideThread(ABC):
    """A context manager: the work runs in a thread from entry to exit. Leaving it raises what the work raised.

    `failed` is called in the thread when the work has raised, for those who cannot wait until the exit.
    """

    def __init__(self, name: str, *, failed: Callable[[], None] | None = None) -> None:
        self.stopped = threading.Event()
        """Set on exit; the work returns soon after."""
        self._thread = threading.Thread(target=self._run, name=name)
        self._failed = failed
        self._failure: Exception | None = None

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self.stopped.set()
        self._thread.join()
        if self._failure is not None:
            raise self._failure

    @abstractmethod
    def work(self) -> None:
        """Until `stopped` is set. May raise."""

    def _run(self) -> None:
        try:
            self.work()
        except Exception as error:
            self._failure = error
            if self._failed is not None:
                self._failed()
