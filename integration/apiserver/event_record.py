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
    """Begins with what there is. Ends with the cluster."""

    def __init__(self, node: BareNode, plural: str) -> None:
        path = f"{GROUP_PATH}/{plural}"
        listed = json.loads(node.plane.kubectl("get", "--raw", path))
        self._first = [Event("ADDED", entry) for entry in listed["items"]]
        revision = listed["metadata"]["resourceVersion"]
        watch = f"{path}?watch=true&resourceVersion={revision}&timeoutSeconds={_SECONDS}"
        command = [find_kubectl(), f"--kubeconfig={node.plane.admin_kubeconfig}", "get", "--raw", watch]
        self._process: Process = node.workspace.spawn(f"events-{plural}-{revision}", command)

    def count(self, matches: Callable[[bytes], bool]) -> int:
        """How many events have been heard of whose text matches. Quick, for who waits for the next one."""
        return sum(map(matches, self._process.log.read_bytes().splitlines()))

    def events(self) -> list[Event]:
        """What has been heard of so far, in order. Raises ComponentError when the watch has ended."""
        if self._process.poll() is not None:
            raise self._process.failure("ended")
        heard = [json.loads(line) for line in complete_lines(self._process.log)]
        return self._first + [Event(entry["type"], entry["object"]) for entry in heard]

    def first_versions(self) -> dict[str, dict[str, Any]]:
        """Each object that ever was, by UID, as it was created."""
        return {event.uid: event.object for event in self.events() if event.kind == "ADDED"}

    def present(self) -> set[str]:
        """Names of the objects that are there now, as far as heard."""
        names: set[str] = set()
        for event in self.events():
            (names.discard if event.kind == "DELETED" else names.add)(event.name)
        return names
