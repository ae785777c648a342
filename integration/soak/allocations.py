"""Who has which address, from what the plugin answered and nothing else. Thread-safe.

A pod has its addresses from the answer to its ADD until its DEL is asked for: from then on they may be another's.
An address that comes back to the same node too soon is remembered, with how long it has rested at most.
"""

import threading
from collections import Counter
from dataclasses import dataclass

from integration.soak.history import History
from integration.soak.observation import Pod


@dataclass(frozen=True, slots=True)
class Return:
    """An address that was given again on the node that had taken it back, `rest` seconds later at most."""

    address: str
    container_id: str
    pool: str
    node: str
    at: float
    rest: float


class Allocations:
    """One for a run. Times are the history's."""

    def __init__(self, history: History) -> None:
        self._history = history
        self._lock = threading.Lock()
        self._holders: dict[str, Pod] = {}
        self._left: dict[tuple[str, str], float] = {}
        self._given: Counter[str] = Counter()
        self._returns: list[Return] = []

    def enter(self, pod: Pod) -> None:
        """An ADD was answered. Raises Violation when another pod has one of the addresses."""
        with self._lock:
            now = self._history.now()
            for address in pod.addresses:
                holder = self._holders.setdefault(address, pod)
                if holder.container_id != pod.container_id:
                    subjects = {address, pod.container_id, holder.container_id}
                    what = f"{address} is {_name(holder)}'s and was given to {_name(pod)}"
                    raise self._history.violation(what, subjects)
                self._given[address] += 1
                if (left := self._left.pop((pod.node, address), None)) is not None:
                    self._returns.append(Return(address, pod.container_id, pod.pool, pod.node, at=now, rest=now - left))

    def leave(self, pod: Pod) -> None:
        """Its DEL is about to be asked for, or its namespace to be destroyed."""
        with self._lock:
            now = self._history.now()
            for address in pod.addresses:
                del self._holders[address]
                self._left[pod.node, address] = now

    def pods(self) -> list[Pod]:
        """Those that have addresses."""
        with self._lock:
            return list({pod.container_id: pod for pod in self._holders.values()}.values())

    def returns(self, *, within: float) -> list[Return]:
        """Addresses that were given again before they can have rested so many seconds."""
        with self._lock:
            return [entry for entry in self._returns if entry.rest < within]

    @property
    def reused(self) -> int:
        """How many addresses were given more than once."""
        with self._lock:
            return sum(1 for times in self._given.values() if times > 1)


def _name(pod: Pod) -> str:
    return f"{pod.container_id[:12]} on {pod.node}"
