"""Our side of the CNI figures: the installed plugin, coild, and a real control plane with ipam-controller behind it.

Everything runs as it would on a node: programs with their own service accounts, the plugin put there by the installer,
the socket in a file. One pool, with a block that is larger than all pods of all runs, so that a run waits for coild and
never for a block or for an address to have rested.
"""

import json
import time
from collections.abc import Mapping, Sequence
from contextlib import ExitStack
from pathlib import Path
from tempfile import TemporaryDirectory
from types import TracebackType
from typing import Self

from integration.apiserver.sandbox import PodName
from integration.bench.bound_pods import bind_pods
from integration.bench.cni_side import coil_netconf
from integration.bench.coild_module import COILD, run_by
from integration.bench.process_state import CpuTime, cpu_time
from integration.bench.room import UPLINK_ADDRESS
from integration.cluster.control_plane import ControlPlane
from integration.cluster.process import Process
from integration.deployment import (
    apply,
    apply_chart,
    coild_command,
    install_plugin,
    ready_probe,
    start_ipam_controller,
)

_NODE = "bench"
_START_SECONDS = 60.0
_COILD_HEALTH = 9385
_CONTROLLER_HEALTH = 9387
_NODE_DOCUMENT = {"apiVersion": "v1", "kind": "Node", "metadata": {"name": _NODE}}
_NODE_STATUS = {"status": {"addresses": [{"type": "InternalIP", "address": UPLINK_ADDRESS}]}}
_POLL_SECONDS = 0.005
_REAP_SECONDS = 10.0

IPV4 = {"ipv4": "10.98.0.0/16"}
DUAL_STACK = {**IPV4, "ipv6": "fd98::/112"}


class CoilSide:
    """A context manager: started inside, and all of it gone after it. `subnet` is the pool's: IPv4 as the peers'."""

    name = "coil"

    def __init__(self, subnet: Mapping[str, str] = IPV4) -> None:
        self._subnet = subnet
        self._undo = ExitStack()
        self._plane: ControlPlane | None = None
        self._folder: Path | None = None
        self._plugin: Path | None = None
        self._coild: Process | None = None
        self._pods: tuple[PodName, ...] = ()

    def __enter__(self) -> Self:
        """Raises what a component said when it did not start; nothing of it is left then."""
        with ExitStack() as undo:
            self._folder = Path(undo.enter_context(TemporaryDirectory(prefix="coil-bench-node-")))
            bin_dir, etc_dir = self._folder / "bin", self._folder / "net.d"
            for target in (bin_dir, etc_dir):
                target.mkdir()
            self._plugin = install_plugin(bin_dir=bin_dir, etc_dir=etc_dir, socket=self._socket)
            plane = undo.enter_context(ControlPlane.start())
            apply_chart(plane)
            apply(plane, _NODE_DOCUMENT, _pool_document(self._subnet))
            self._pods = bind_pods(plane, _NODE)
            status = f"--patch={json.dumps(_NODE_STATUS)}"
            plane.kubectl("patch", "node", _NODE, "--subresource=status", "--type=merge", status)
            start_ipam_controller(plane, ports=(9386, _CONTROLLER_HEALTH)).wait_ready(
                ready_probe(_CONTROLLER_HEALTH), timeout=_START_SECONDS
            )
            self._plane = plane
            self._start_coild(COILD, ())
            self._undo = undo.pop_all()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None, /
    ) -> None:
        self._undo.close()
        self._folder = self._plugin = self._plane = self._coild = None

    @property
    def plugin(self) -> Path:
        if self._plugin is None:
            raise RuntimeError("the side is not entered")
        return self._plugin

    @property
    def netconf(self) -> bytes:
        return coil_netconf(self._socket)

    def pod(self, number: int) -> PodName:
        return self._pods[number]

    def daemon_cpu(self) -> CpuTime:
        """coild's alone: the controller and the API server do nothing for a pod that needs no new block."""
        return cpu_time(self.coild.pid)

    @property
    def coild(self) -> Process:
        """The process as it runs now."""
        if self._coild is None:
            raise RuntimeError("the side is not entered")
        return self._coild

    def restart_coild(self, *, module: str = COILD, arguments: Sequence[str] = ()) -> float:
        """kill -9, and start it again; the seconds from the exec until `/readyz` said 200.

        Another module is one that runs coild's; it gets the arguments before coild's own.
        """
        self.coild.kill()
        self.coild.wait(_REAP_SECONDS)
        return self._start_coild(module, arguments)

    def _start_coild(self, module: str, arguments: Sequence[str]) -> float:
        if self._plane is None:
            raise RuntimeError("the side is not entered")
        own = coild_command(self._plane, socket=self._socket, flags=["--egress-fail-open=false"])
        command, environment = run_by(module, own, *arguments)
        ready = ready_probe(_COILD_HEALTH)
        began = time.perf_counter()
        coild = self._plane.workspace.spawn("coild", command, env={**environment, "COIL_NODE_NAME": _NODE})
        self._coild = coild
        while not ready():
            if coild.poll() is not None or time.perf_counter() - began > _START_SECONDS:
                raise coild.failure("did not become ready")
            time.sleep(_POLL_SECONDS)
        return time.perf_counter() - began

    @property
    def _socket(self) -> Path:
        if self._folder is None:
            raise RuntimeError("the side is not entered")
        return self._folder / "coild.sock"


def _pool_document(subnet: Mapping[str, str]) -> dict[str, object]:
    return {
        "apiVersion": "coil.cybozu.com/v2",
        "kind": "AddressPool",
        "metadata": {"name": "default"},
        "spec": {"blockSizeBits": 12, "subnets": [dict(subnet)]},
    }
