"""Our side with ports of Neutron: a node with the plugin and coild, whose pods have been told of their ports.

The ports are of the type `bridge`, on one network, IPv4 as the pools' pods, and ACTIVE: an ADD waits for coild alone.
"""

import json
from contextlib import ExitStack
from dataclasses import replace
from pathlib import Path
from types import TracebackType
from typing import Any, Self

from coil.neutron.handoff import ANNOTATION_PORT, BRIDGE, render_handoff
from integration.apiserver.bare_node import BareNode
from integration.apiserver.plane_pool import PlanePool
from integration.apiserver.runtime import Runtime
from integration.apiserver.sandbox import PodName
from integration.bench.bound_pods import bind_pods
from integration.bench.cni_side import coil_netconf
from integration.bench.coild_module import PLAIN, run_by
from integration.bench.process_state import CpuTime, cpu_time
from integration.cluster.control_plane import ControlPlane
from integration.deployment import coild_command, grant_node_list
from integration.service import Service
from tests.coild.neutron.port_node import handoff

_SEGMENTATION = 17
_MTU = 1300
"""Of the network: what fits into the node's uplink."""


class PortSide:
    """A context manager: the node is there inside, with coild, and gone after it."""

    name = "coil, ports of Neutron"

    def __init__(self) -> None:
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
            for number, pod in enumerate(self._pods, start=1):
                _annotate(plane, pod, number)
            flags = ("--address-source=neutron", "--enable-egress=false")
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


def _annotate(plane: ControlPlane, pod: PodName, number: int) -> None:
    port = handoff(number, pod.uid, type=BRIDGE, segmentation=_SEGMENTATION, mtu=_MTU)
    text = render_handoff(replace(port, addresses=port.addresses[:1]))
    patch: dict[str, Any] = {"metadata": {"annotations": {ANNOTATION_PORT: text}}}
    plane.kubectl(
        "patch", "pod", pod.name, f"--namespace={pod.namespace}", "--type=merge", f"--patch={json.dumps(patch)}"
    )
