"""Whom the CNI figures compare: a side is a plugin, its configuration and the daemon behind it, if it has one.

All get the same operations in the same namespaces; what differs between them is only in here and in `coil_side`.
"""

import json
import socket
import subprocess
import tempfile
from collections.abc import Mapping
from pathlib import Path
from types import TracebackType
from typing import Protocol, Self
from uuid import NAMESPACE_DNS, uuid5

from integration.apiserver.sandbox import PodName
from integration.bench.plugin_exec import Operation
from integration.bench.process_state import CpuTime

PEER_NAME = "ptp + host-local"
BRIDGE_NAME = "bridge + host-local"
PEER_FOLDER = Path("/usr/lib/cni")
_BRIDGE = "bench-bridge"
POD_NAMESPACE = "default"
POD_NAMES = tuple(f"bench-{number:03}" for number in range(128))
_CNI_VERSION = "1.0.0"
_SECONDS = 30


class Wiring(Protocol):
    """Who wires pods, and which."""

    @property
    def plugin(self) -> Path:
        """The executable that the runtime would exec."""

    @property
    def netconf(self) -> bytes:
        """What the runtime would write to its standard input."""

    def pod(self, number: int) -> PodName:
        """The pod in the namespace of that number, as the API server knows it."""

    def daemon_cpu(self) -> CpuTime:
        """What the daemon that works for the plugin has spent so far; nothing without one."""


class Side(Wiring, Protocol):
    """A context manager: what it needs is running inside the block, and gone after it."""

    name: str

    def __enter__(self) -> Self: ...

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None, /
    ) -> None: ...


class PeerSide:
    """Debian's `ptp` with `host-local`, IPv4 only (with IPv6, `ptp` waits for duplicate address detection)."""

    name = PEER_NAME
    _type = "ptp"
    _subnet = "10.99.0.0/16"
    _own: Mapping[str, object] = {"ipMasq": False}

    def __init__(self, folder: Path = PEER_FOLDER) -> None:
        self._folder = folder
        self._data: tempfile.TemporaryDirectory[str] | None = None

    def __enter__(self) -> Self:
        absent = [name for name in (self._type, "host-local") if not (self._folder / name).exists()]
        if absent:
            raise FileNotFoundError(f"{self._folder} has no {', '.join(absent)}: install containernetworking-plugins")
        self._data = tempfile.TemporaryDirectory(prefix="coil-bench-host-local-")
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None, /
    ) -> None:
        if self._data is not None:
            self._data.cleanup()
            self._data = None

    @property
    def plugin(self) -> Path:
        return self._folder / self._type

    @property
    def netconf(self) -> bytes:
        if self._data is None:
            raise RuntimeError("the side is not entered")
        ipam = {"type": "host-local", "dataDir": self._data.name, "subnet": self._subnet}
        network = {"cniVersion": _CNI_VERSION, "name": f"peer-{self._type}", "type": self._type, "ipam": ipam}
        return json.dumps({**network, **self._own}).encode()

    def pod(self, number: int) -> PodName:
        name = POD_NAMES[number]
        return PodName(POD_NAMESPACE, name, str(uuid5(NAMESPACE_DNS, name)))  # no API server is asked

    def daemon_cpu(self) -> CpuTime:
        return CpuTime()


class BridgeSide(PeerSide):
    """Debian's `bridge` with `host-local`: the pods on a bridge of their own, which has the gateway's address."""

    name = BRIDGE_NAME
    _type = "bridge"
    _subnet = "10.97.0.0/16"
    _own: Mapping[str, object] = {"bridge": _BRIDGE, "isGateway": True, "ipMasq": False}

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None, /
    ) -> None:
        # The plugin has made it with the first pod, and removes it with none.
        if _BRIDGE in {name for _, name in socket.if_nameindex()}:
            subprocess.run(["ip", "link", "delete", _BRIDGE], check=True, timeout=_SECONDS)
        super().__exit__(kind, error, trace)


def coil_netconf(socket: Path) -> bytes:
    """The network configuration of Coil's plugin, for the coild behind that socket."""
    return json.dumps({"cniVersion": _CNI_VERSION, "name": "bench", "type": "coil", "socket": str(socket)}).encode()


def pod_operations(side: Wiring, command: str, *, netns: list[str], serial: int, first: int = 0) -> list[Operation]:
    """The same command for one pod in each namespace, from pod `first` on, with the arguments that containerd passes.

    Container ids are 64 hex digits, as containerd's, and differ with `serial`: ADD and DEL of a pod share it.
    """
    operations = []
    for number, path in enumerate(netns, start=first):
        pod, container = side.pod(number), f"{serial:032x}{number:032x}"
        arguments = (
            f"IgnoreUnknown=1;K8S_POD_NAMESPACE={pod.namespace};"
            f"K8S_POD_NAME={pod.name};K8S_POD_INFRA_CONTAINER_ID={container};K8S_POD_UID={pod.uid}"
        )
        operations.append(
            Operation(
                plugin=side.plugin,
                command=command,
                netconf=side.netconf,
                container_id=container,
                netns=path,
                arguments=arguments,
            )
        )
    return operations
