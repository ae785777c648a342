"""Control planes with the chart's kinds and roles, which test modules use one after the other.

To start one and to apply the chart takes as much processor time as many a module. Between two modules only its objects
are put back: whatever the one has left behind or changed, the next one finds the API server as the chart left it.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass

from integration.cluster.control_plane import ControlPlane
from integration.cluster.network import Network
from integration.cluster.workspace import Workspace
from integration.deployment import EIP_KINDS, KINDS, apply_chart, await_access
from integration.patience import wait_until

_PATHS = (
    "/api/v1/nodes",
    "/api/v1/pods",
    *(f"/apis/coil.cybozu.com/v2/{kind}" for kind in KINDS),
    *(f"/apis/egressgateway.spidernet.io/v1beta1/{kind}" for kind in EIP_KINDS),
)
"""Of what is not there before a module makes it."""


@dataclass(frozen=True, slots=True)
class _ChartedPlane:
    """`objects` is what it had stored when the chart had been applied, and nothing else."""

    plane: ControlPlane
    objects: Mapping[str, str]

    def restore(self) -> None:
        """Return when it is as it was, whatever has been done to it or with it."""
        self.plane.start_apiserver()
        self.plane.etcd.restore_objects(self.objects)
        wait_until(self._has_noticed, what="the API server has taken in that objects are gone")
        await_access(self.plane)

    def _has_noticed(self) -> bool:
        """Whether nothing is left in what it serves from memory, too, to those who ask for no version in particular."""
        return not any(self._list(path) for path in _PATHS)

    def _list(self, path: str) -> list[object]:
        items: list[object] = self.plane.read(f"{path}?resourceVersion=0")["items"]
        return items


class PlanePool:
    """Starts a control plane when none is idle. A context manager that ends them all."""

    def __init__(self) -> None:
        self._idle: list[_ChartedPlane] = []
        self._undo = ExitStack()

    @contextmanager
    def lend(self) -> Iterator[ControlPlane]:
        """One that is nobody else's until the end of the block; nodes and programs on the machine reach it."""
        if self._idle:
            charted = self._idle.pop()
            charted.restore()
        else:
            charted = self._start()
        yield charted.plane
        self._idle.append(charted)

    def _start(self) -> _ChartedPlane:
        workspace = self._undo.enter_context(Workspace.create())
        # The machine's end of a network: its address is reached from all others' namespaces, by way of the machine.
        plane = ControlPlane.start(workspace=workspace, address=Network.create(workspace).host4)
        apply_chart(plane)
        return _ChartedPlane(plane, plane.etcd.read_objects())

    def __enter__(self) -> PlanePool:
        return self

    def __exit__(self, *_: object) -> None:
        self._undo.close()
