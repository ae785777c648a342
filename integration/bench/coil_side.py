"""Our side of the CNI figures: the installed plugin, coild, and a real control plane with ipam-controller behind it.

Everything runs as it would on a node: programs with their own service accounts, the plugin put there by the installer,
the socket in a file. One pool, IPv4 as the peer's, with a block that is larger than all pods of all runs, so that a run
waits for coild and never for a block or for an address to have rested.
"""

import json
from contextlib import ExitStack
from pathlib import Path
from tempfile import TemporaryDirectory
from types import TracebackType
from typing import Self

from integration.bench.process_state import cpu_seconds
from integration.bench.room import UPLINK_ADDRESS
from integration.cluster.control_plane import ControlPlane
from integration.cluster.process import Process
from integration.deployment import (
    apply,
    apply_chart,
    install_plugin,
    ready_probe,
    start_coild,
    start_ipam_controller,
)

_NODE = "bench"
_START_SECONDS = 60.0
_COILD_HEALTH = 9385
_CONTROLLER_HEALTH = 9387
_NODE_DOCUMENT = {"apiVersion": "v1", "kind": "Node", "metadata": {"name": _NODE}}
_NODE_STATUS = {"status": {"addresses": [{"type": "InternalIP", "address": UPLINK_ADDRESS}]}}
_POOL_DOCUMENT = {
    "apiVersion": "coil.cybozu.com/v2",
    "kind": "AddressPool",
    "metadata": {"name": "default"},
    "spec": {"blockSizeBits": 12, "subnets": [{"ipv4": "10.98.0.0/16"}]},
}


class CoilSide:
    """A context manager: started inside, and all of it gone after it."""

    name = "coil"

    def __init__(self) -> None:
        self._undo = ExitStack()
        self._folder: Path | None = None
        self._plugin: Path | None = None
        self._coild: Process | None = None

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
            apply(plane, _NODE_DOCUMENT, _POOL_DOCUMENT)
            status = f"--patch={json.dumps(_NODE_STATUS)}"
            plane.kubectl("patch", "node", _NODE, "--subresource=status", "--type=merge", status)
            start_ipam_controller(plane, ports=(9386, _CONTROLLER_HEALTH)).wait_ready(
                ready_probe(_CONTROLLER_HEALTH), timeout=_START_SECONDS
            )
            self._coild = start_coild(plane, node=_NODE, spawn=plane.workspace.spawn, socket=self._socket)
            self._coild.wait_ready(ready_probe(_COILD_HEALTH), timeout=_START_SECONDS)
            self._undo = undo.pop_all()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None, /
    ) -> None:
        self._undo.close()
        self._folder = self._plugin = self._coild = None

    @property
    def plugin(self) -> Path:
        if self._plugin is None:
            raise RuntimeError("the side is not entered")
        return self._plugin

    @property
    def netconf(self) -> bytes:
        return json.dumps(
            {"cniVersion": "1.0.0", "name": "bench", "type": "coil", "socket": str(self._socket)}
        ).encode()

    def daemon_cpu_seconds(self) -> float:
        """coild's alone: the controller and the API server do nothing for a pod that needs no new block."""
        if self._coild is None:
            raise RuntimeError("the side is not entered")
        return cpu_seconds(self._coild.pid)

    @property
    def _socket(self) -> Path:
        if self._folder is None:
            raise RuntimeError("the side is not entered")
        return self._folder / "coild.sock"
