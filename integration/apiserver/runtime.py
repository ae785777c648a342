"""A container runtime's side of CNI, as libcni in containerd does it: a process for each operation, parameters in CNI_*
variables, the configuration and the cached result on standard input."""

import json
import subprocess
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from integration.apiserver.sandbox import Sandbox

TRY_AGAIN_LATER = 11
PATIENCE = 90.0
"""Seconds for one exec. The plugin gives up after a minute, so that only a defect takes longer."""

_SEARCH_PATH = "/usr/sbin:/usr/bin:/sbin:/bin"


class CniError(Exception):
    """An operation failed; with the fields of its error document."""

    def __init__(self, command: str, document: dict[str, Any]) -> None:
        self.code: int = document["code"]
        self.message: str = " ".join(filter(None, (document["msg"], document.get("details", ""))))
        super().__init__(f"{command}: code {self.code}: {self.message}")


@dataclass(frozen=True, slots=True)
class Runtime:
    """`plugin` as the installer put it there; `socket` where coild listens."""

    plugin: Path
    socket: Path

    def add(self, sandbox: Sandbox, *, version: str = "1.0.0") -> dict[str, Any]:
        """ADD; returns the result. Raises CniError."""
        result: dict[str, Any] = json.loads(self._execute("ADD", sandbox, version=version))
        return result

    def delete(self, sandbox: Sandbox, *, version: str = "1.0.0", cached: dict[str, Any] | None = None) -> None:
        """DEL; `cached` is the result of the ADD, if there was one. Raises CniError."""
        self._execute("DEL", sandbox, version=version, cached=cached)

    def check(self, sandbox: Sandbox, *, version: str = "1.0.0", cached: dict[str, Any] | None = None) -> None:
        """CHECK. Raises CniError."""
        self._execute("CHECK", sandbox, version=version, cached=cached)

    def _execute(self, command: str, sandbox: Sandbox, *, version: str, cached: dict[str, Any] | None = None) -> bytes:
        netconf: dict[str, Any] = {"cniVersion": version, "name": "pods", "type": "coil", "socket": str(self.socket)}
        if cached is not None:
            netconf["prevResult"] = cached
        pod = sandbox.pod
        done = subprocess.run(
            [self.plugin],
            env={
                "PATH": _SEARCH_PATH,
                "CNI_COMMAND": command,
                "CNI_CONTAINERID": sandbox.container_id,
                "CNI_NETNS": sandbox.netns,
                "CNI_IFNAME": "eth0",
                "CNI_PATH": str(self.plugin.parent),
                "CNI_ARGS": ";".join(
                    (
                        "IgnoreUnknown=1",
                        f"K8S_POD_NAMESPACE={pod.namespace}",
                        f"K8S_POD_NAME={pod.name}",
                        f"K8S_POD_INFRA_CONTAINER_ID={sandbox.container_id}",
                        "K8S_POD_UID=00000000-0000-0000-0000-000000000000",
                    )
                ),
            },
            input=json.dumps(netconf).encode(),
            capture_output=True,
            timeout=PATIENCE,
            check=False,
        )
        if done.returncode:
            raise CniError(command, json.loads(done.stdout))
        return done.stdout


def addresses_of(result: dict[str, Any]) -> list[str]:
    """The addresses in a result, without their prefix lengths."""
    return [entry["address"].partition("/")[0] for entry in result["ips"]]
