"""Pods of the stage: what a test asks of one that runs, whoever made it."""

import socket
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from integration.apiserver.sandbox import Sandbox
from integration.cluster.process import Process
from integration.egress.external_host import family_of
from integration.egress.station import Station
from integration.kernel_state import KernelState
from integration.netns.netns import call_inside

SECONDS = 60.0


def child_of(pid: int) -> int | None:
    """The process that a supervisor runs; None while there is none."""
    children = Path(f"/proc/{pid}/task/{pid}/children").read_text().split()
    return int(children[0]) if children else None


@dataclass(slots=True, kw_only=True)
class RunningPod:
    """A pod whose ADD has succeeded; `addresses` by IP version. `container` is the first process of a router pod's."""

    document: dict[str, Any]
    station: Station
    sandbox: Sandbox
    addresses: dict[int, str]
    container: Process | None = None
    ready: bool = field(default=False)

    @property
    def uid(self) -> str:
        uid: str = self.document["metadata"]["uid"]
        return uid

    @property
    def path(self) -> str:
        """In the API."""
        return f"/api/v1/namespaces/{self.sandbox.pod.namespace}/pods/{self.sandbox.pod.name}"

    @property
    def kernel(self) -> KernelState:
        return self.sandbox.kernel

    @property
    def netns(self) -> Path:
        return Path(self.sandbox.netns)

    @property
    def agent(self) -> int | None:
        """The process in a router pod that the first one runs; None while there is none."""
        assert self.container is not None
        return child_of(self.container.pid)

    def socket(self, kind: socket.SocketKind, address: str, protocol: int = 0) -> socket.socket:
        """A socket of the pod's namespace, of that address's family."""
        made = call_inside(self.netns, lambda: socket.socket(family_of(address), kind, protocol))
        made.settimeout(SECONDS)
        return made
