"""A container runtime's side of CNI, as libcni in containerd does it: a process for each operation, parameters in CNI_*
variables, the configuration and the cached result on standard input."""

import json
import subprocess
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import IO, Any, cast

from integration.apiserver.sandbox import Sandbox
from integration.patience import wait_until

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


class Execution:
    """One run of the plugin, under way. End it with `finish` or `abandon`."""

    def __init__(self, command: str, process: subprocess.Popen[bytes]) -> None:
        self._command = command
        self._process = process

    def finish(self) -> bytes:
        """Wait for its end; what it printed. Raises CniError."""
        try:
            output, _ = self._process.communicate(timeout=PATIENCE)
        except subprocess.TimeoutExpired:
            self.abandon(0)
            raise
        if self._process.returncode:
            raise CniError(self._command, json.loads(output))
        return output

    def result(self) -> dict[str, Any]:
        """Wait for its end; the result of an ADD. Raises CniError."""
        document: dict[str, Any] = json.loads(self.finish())
        return document

    def abandon(self, seconds: float) -> bool:
        """Kill it after so many seconds; False when it had come to its end by then, whichever that was."""
        try:
            self._process.wait(seconds)
        except subprocess.TimeoutExpired:
            self._process.kill()
        self._process.communicate()
        return self._process.returncode < 0


@dataclass(frozen=True, slots=True)
class Runtime:
    """Executes `plugin`, after `entrance` where it needs the node's namespaces; `configuration` is what it is given
    besides the network's name.
    """

    plugin: Path
    configuration: Mapping[str, Any]
    entrance: Sequence[str] = ()

    def add(self, sandbox: Sandbox, *, version: str = "1.0.0", more_args: str = "") -> dict[str, Any]:
        """ADD; returns the result. `more_args` end CNI_ARGS, separator included. Raises CniError."""
        return self.begin("ADD", sandbox, version=version, more_args=more_args).result()

    def add_at_last(self, sandbox: Sandbox) -> dict[str, Any]:
        """ADD, tried again as a kubelet does it; returns the result. Raises CniError when that is of no use."""
        results: list[dict[str, Any]] = []

        def added() -> bool:
            try:
                results.append(self.add(sandbox))
            except CniError as failure:
                if failure.code != TRY_AGAIN_LATER:
                    raise
            return bool(results)

        wait_until(added, what=f"{sandbox.pod} is attached")
        return results[0]

    def delete(self, sandbox: Sandbox, *, version: str = "1.0.0", cached: dict[str, Any] | None = None) -> None:
        """DEL; `cached` is the result of the ADD, if there was one. Raises CniError."""
        self.begin("DEL", sandbox, version=version, cached=cached).finish()

    def check(self, sandbox: Sandbox, *, version: str = "1.0.0", cached: dict[str, Any] | None = None) -> None:
        """CHECK. Raises CniError."""
        self.begin("CHECK", sandbox, version=version, cached=cached).finish()

    def status(self) -> None:
        """STATUS, by which the runtime learns whether the node is ready for pods. Raises CniError."""
        self._start("STATUS", {}, version="1.1.0").finish()

    def begin(
        self,
        command: str,
        sandbox: Sandbox,
        *,
        version: str = "1.0.0",
        cached: dict[str, Any] | None = None,
        netns: str | None = None,
        more_args: str = "",
    ) -> Execution:
        """Start an operation without waiting for its end; `netns` is the sandbox's unless it is given."""
        pod = sandbox.pod
        environment = {
            "CNI_CONTAINERID": sandbox.container_id,
            "CNI_NETNS": sandbox.netns if netns is None else netns,
            "CNI_IFNAME": "eth0",
            "CNI_ARGS": ";".join(
                (
                    "IgnoreUnknown=1",
                    f"K8S_POD_NAMESPACE={pod.namespace}",
                    f"K8S_POD_NAME={pod.name}",
                    f"K8S_POD_INFRA_CONTAINER_ID={sandbox.container_id}",
                    f"K8S_POD_UID={pod.uid}",
                )
            )
            + more_args,
        }
        previous = {} if cached is None else {"prevResult": cached}
        return self._start(command, environment, version=version, **previous)

    def _start(self, command: str, environment: Mapping[str, str], *, version: str, **more: Any) -> Execution:
        """Of the plugin; `more` is for the network configuration."""
        netconf = {"cniVersion": version, "name": "pods", **self.configuration, **more}
        own = {"PATH": _SEARCH_PATH, "CNI_COMMAND": command, "CNI_PATH": str(self.plugin.parent)}
        process = subprocess.Popen(
            [*self.entrance, str(self.plugin)],
            env={**own, **environment},
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
        )
        # A pipe takes all of it at once, and a plugin that has died already does not mind.
        with suppress(BrokenPipeError), cast(IO[bytes], process.stdin) as stdin:
            stdin.write(json.dumps(netconf).encode())
        process.stdin = None
        return Execution(command, process)


def addresses_of(result: dict[str, Any]) -> list[str]:
    """The addresses in a result, without their prefix lengths."""
    return [entry["address"].partition("/")[0] for entry in result["ips"]]
