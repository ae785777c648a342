"""A plugin without a process around it, and with a network that counts."""

import json
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from coil_cni.error import CniError
from coil_cni.grpc import connect
from coil_cni.invocation import SUPPORTED, Invocation
from coil_cni.plugin import Edges, run

POD_ARGS = "IgnoreUnknown=1;K8S_POD_NAMESPACE=shop;K8S_POD_NAME=cart-0;K8S_POD_INFRA_CONTAINER_ID=c0ffee;K8S_POD_UID=1"
ENVIRON = {
    "CNI_COMMAND": "ADD",
    "CNI_CONTAINERID": "c0ffee",
    "CNI_NETNS": "/run/netns/pod",
    "CNI_IFNAME": "eth0",
    "CNI_ARGS": POD_ARGS,
    "CNI_PATH": "/opt/cni/bin",
}
NETCONF: dict[str, object] = {"cniVersion": "1.0.0", "name": "k8s-pod-network", "type": "coil"}


@dataclass(frozen=True)
class Outcome:
    status: int
    output: bytes
    connected: int
    """How often the plugin tried to reach coild."""

    @property
    def document(self) -> dict[str, Any]:
        document = json.loads(self.output)
        assert isinstance(document, dict)
        return document

    @property
    def code(self) -> object:
        """The error code, after a look at the document's shape."""
        document = self.document
        assert self.status == 1
        assert set(document) == {"cniVersion", "code", "msg", "details"}
        assert document["cniVersion"] in SUPPORTED
        assert isinstance(document["msg"], str)
        assert document["msg"]
        assert isinstance(document["details"], str)
        return document["code"]


def refuse_record(socket: str, invocation: Invocation, reason: CniError) -> None:
    """Record no DEL, as where there is no folder for it: the default socket's would be this machine's."""
    raise reason


def run_plugin(
    environ: dict[str, str] | dict[bytes, bytes],
    stdin: bytes | OSError,
    *,
    record_delete: Callable[[str, Invocation, CniError], None] = refuse_record,
) -> Outcome:
    """Run it; it may reach a real socket where the configuration names one."""
    written: list[bytes] = []
    connected: list[str] = []

    def read_input(_: float) -> bytes:
        if isinstance(stdin, OSError):
            raise stdin
        return stdin

    def counted(path: str, seconds: float) -> Any:
        connected.append(path)
        return connect(path, seconds)

    octets = {_octets(name): _octets(value) for name, value in environ.items()}
    edges = Edges(
        octets, read_input=read_input, write_output=written.append, connect=counted, record_delete=record_delete
    )
    status = run(edges)
    assert len(written) <= 1
    return Outcome(status, b"".join(written), len(connected))


def _octets(text: str | bytes) -> bytes:
    return text.encode() if isinstance(text, str) else text
