"""Our side on a node of its own: an API server, the plugin and coild, with pods that are bound to the node."""

from collections.abc import Callable, Sequence
from contextlib import ExitStack
from pathlib import Path
from types import TracebackType
from typing import Self, TypeAlias

from integration.apiserver.bare_node import BareNode
from integration.apiserver.plane_pool import PlanePool
from integration.apiserver.runtime import Runtime
from integration.apiserver.sandbox import PodName
from integration.bench.bound_pods import bind_pods
from integration.bench.cni_side import coil_netconf
from integration.bench.coild_module import PLAIN, run_by
from integration.bench.process_state import CpuTime, cpu_time
from integration.deployment import coild_command, grant_node_list
from integration.service import Service

Prepare: TypeAlias = Callable[[BareNode, Sequence[PodName], ExitStack], Sequence[str]]
"""Before coild is started: has all there that it needs, to be undone with the stack; coild's flags."""


class NodeSide:
    """A context manager: the node is there inside, with coild, and gone after it."""

    def __init__(self, name: str, prepare: Prepare) -> None:
        self.name = name
        self._prepare = prepare
        self._undo = ExitStack()
        self._node: BareNode
        self._runtime: Runtime
        self._coild: Service
        self._pods: tuple[PodName, ...] = ()

    def __enter__(self) -> Self:
        with ExitStack() as undo:
            plane = undo.enter_context(undo.enter_context(PlanePool()).lend())
            grant_node_list(plane)
            self._node = undo.enter_context(BareNode.up(plane))
            self._runtime = self._node.install_plugin()
            self._pods = bind_pods(plane, self._node.name)
            flags = self._prepare(self._node, self._pods, undo)
            command, environment = run_by(PLAIN, coild_command(plane, socket=self._node.socket, flags=flags))
            self._coild = self._node.start_daemon(command, env=environment)
            undo.callback(lambda: self._coild.process.stop(timeout=60.0))
            self._coild.wait_ready()
            self._undo = undo.pop_all()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None, /
    ) -> None:
        self._undo.close()

    @property
    def plugin(self) -> Path:
        return self._runtime.plugin

    @property
    def netconf(self) -> bytes:
        return coil_netconf(self._node.socket)

    @property
    def pid(self) -> int:
        """coild's."""
        return self._coild.process.pid

    def pod(self, number: int) -> PodName:
        return self._pods[number]

    def daemon_cpu(self) -> CpuTime:
        return cpu_time(self.pid)
