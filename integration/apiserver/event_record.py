"""Everything that ever happened to the objects of one kind: a watch, written to a file by kubectl."""

import json
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from integration.apiserver.bare_node import GROUP_PATH, BareNode
from integration.cluster.control_plane import find_kubectl
from integration.cluster.process import Process, complete_lines

_SECONDS = 3600  # how long the API server keeps the watch open; longer than any test


@dataclass(frozen=True, slots=True)
class Event:
    """`kind` is ADDED, MODIFIED or DELETED."""

    kind: str
    object: dict[str, Any]

    @property
    def name(self) -> str:
        name: str = self.object["metadata"]["name"]
        return name

    @property
    def uid(self) -> str:
        uid: str = self.object["metadata"]["uid"]
        return uid


class EventRecord:
    """Begins with what there is. Ends with the cluster.

    An API server may end a watch at any time; the next one begins where it ended, so that nothing is missed.
    """

    def __init__(self, node: BareNode, plural: str) -> None:
        self._node, self._plural = node, plural
        self._path = f"{GROUP_PATH}/{plural}"
        listed = node.plane.read(self._path)
        self._first = [Event("ADDED", entry) for entry in listed["items"]]
        self._watches: list[Process] = []
        self._watch(listed["metadata"]["resourceVersion"])

    def count(self, matches: Callable[[bytes], bool]) -> int:
        """How many events have been heard of whose text matches. Quick, for who waits for the next one."""
        self._resume()
        return sum(matches(line) for watch in self._watches for line in watch.log.read_bytes().splitlines())

    def events(self) -> list[Event]:
        """What has been heard of so far, in order. Raises ComponentError when a watch has failed."""
        self._resume()
        return self._first + [event for watch in self._watches for event in _heard(watch)]

    def _watch(self, revision: str) -> None:
        self._revision = revision
        path = f"{self._path}?watch=true&resourceVersion={revision}&timeoutSeconds={_SECONDS}"
        command = [find_kubectl(), f"--kubeconfig={self._node.plane.admin_kubeconfig}", "get", "--raw", path]
        name = f"events-{self._plural}-{revision}-{len(self._watches)}"
        self._watches.append(self._node.workspace.spawn(name, command))

    def _resume(self) -> None:
        last = self._watches[-1]
        if (code := last.poll()) is None:
            return
        events = _heard(last)
        if code or any(event.kind == "ERROR" for event in events):
            raise last.failure("ended")
        self._watch(events[-1].object["metadata"]["resourceVersion"] if events else self._revision)

    def first_versions(self) -> dict[str, dict[str, Any]]:
        """Each object that ever was, by UID, as it was created."""
        return {event.uid: event.object for event in self.events() if event.kind == "ADDED"}

    def present(self) -> set[str]:
        """Names of the objects that are there now, as far as heard."""
        names: set[str] = set()
        for event in self.events():
            (names.discard if event.kind == "DELETED" else names.add)(event.name)
        return names


def _heard(watch: Process) -> list[Event]:
    return [Event(entry["type"], entry["object"]) for entry in map(json.loads, complete_lines(watch.log))]
