"""Throwaway network namespaces that stand for pods. They exist before anything is timed, and only inside the room."""

import subprocess
from collections.abc import Iterator
from contextlib import contextmanager

from integration.bench.room import NETNS_FOLDER

_LIMIT = 128
_SECONDS = 30


class PodNamespaces:
    """A fixed number of named namespaces, which one side at a time fills and empties."""

    def __init__(self, count: int) -> None:
        if not 0 < count <= _LIMIT:
            raise ValueError(f"between 1 and {_LIMIT} namespaces, not {count}")
        self._names = [f"pod-{number:03d}" for number in range(count)]
        self._present: list[str] = []

    @property
    def paths(self) -> list[str]:
        return [str(NETNS_FOLDER / name) for name in self._present]

    def create(self) -> None:
        for name in self._names:
            _netns("add", name)
            self._present.append(name)

    def remove(self) -> None:
        while self._present:
            _netns("delete", self._present.pop())

    def renew(self) -> None:
        """Empty namespaces again, after a side has left something behind in them."""
        self.remove()
        self.create()


@contextmanager
def pod_namespaces(count: int) -> Iterator[PodNamespaces]:
    """Namespaces for the time of the block."""
    namespaces = PodNamespaces(count)
    try:
        namespaces.create()
        yield namespaces
    finally:
        namespaces.remove()


def _netns(*arguments: str) -> None:
    subprocess.run(["ip", "netns", *arguments], check=True, timeout=_SECONDS)
