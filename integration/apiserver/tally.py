"""What all workers have done so far, and which addresses are in whose hands. Thread-safe."""

import threading
from collections import Counter
from collections.abc import Collection
from enum import Enum


class Operation(Enum):
    """What is counted when it succeeds."""

    ADD = "ADD"
    DEL = "DEL"


class DuplicateAddressError(AssertionError):
    """One address in two live pods: what must never happen."""


class Tally:
    """One for all workers of a run."""

    def __init__(self) -> None:
        self._changed = threading.Condition()
        self._succeeded: Counter[Operation] = Counter()
        self._failed = 0
        self._holders: dict[str, str] = {}
        self._given: Counter[str] = Counter()

    def enter(self, container_id: str, addresses: Collection[str]) -> None:
        """A pod has these addresses from now on. Raises DuplicateAddressError."""
        with self._changed:
            for address in addresses:
                holder = self._holders.setdefault(address, container_id)
                if holder != container_id:
                    raise DuplicateAddressError(f"{address} is {holder}'s and was given to {container_id}")
                self._given[address] += 1

    def leave(self, container_id: str) -> None:
        """A pod is about to go: from now on others may have its addresses."""
        with self._changed:
            self._holders = {address: holder for address, holder in self._holders.items() if holder != container_id}

    def succeeded(self, operation: Operation) -> None:
        with self._changed:
            self._succeeded[operation] += 1
            self._changed.notify_all()

    def failed(self) -> None:
        with self._changed:
            self._failed += 1
            self._changed.notify_all()

    def await_successes(self, count: int, *, timeout: float) -> bool:
        """Return when so many operations have succeeded; False when they have not within `timeout` seconds."""
        with self._changed:
            return self._changed.wait_for(lambda: self._succeeded.total() >= count, timeout)

    def await_failures(self, count: int, *, timeout: float) -> bool:
        """Return when so many tries have failed; False when they have not within `timeout` seconds."""
        with self._changed:
            return self._changed.wait_for(lambda: self._failed >= count, timeout)

    @property
    def successes(self) -> int:
        with self._changed:
            return self._succeeded.total()

    @property
    def failures(self) -> int:
        with self._changed:
            return self._failed

    @property
    def reused(self) -> int:
        """How many addresses were given more than once, one after the other."""
        with self._changed:
            return sum(1 for times in self._given.values() if times > 1)

    def __str__(self) -> str:
        with self._changed:
            done = ", ".join(f"{self._succeeded[operation]} {operation.value}" for operation in Operation)
            return f"{done}, {self._failed} failed tries, {len(self._given)} addresses given"
