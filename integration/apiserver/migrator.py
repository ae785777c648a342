"""coil-migrator as a person runs it: a process with the administrator's kubeconfig, and v1's etcd."""

import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass

from integration.apiserver.v1_etcd import V1Etcd
from integration.cluster.control_plane import ControlPlane
from integration.cluster.process import marked_environment

RUN_SECONDS = 180.0
"""For one run; only a failure takes so long."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Migrator:
    """v1's keys begin with `prefix`; `coild` is the DaemonSet to be restarted in the end, or empty."""

    plane: ControlPlane
    etcd: V1Etcd
    prefix: str
    coild: str

    def run(self, name: str, *arguments: str, answer: str = "") -> subprocess.CompletedProcess[str]:
        return subprocess.run(
            self._command(name, *arguments),
            input=answer,
            capture_output=True,
            text=True,
            timeout=RUN_SECONDS,
            check=False,
            env=marked_environment(self.plane.workspace.id),
        )

    @contextmanager
    def start(self, name: str, *arguments: str) -> Iterator[subprocess.Popen[str]]:
        """It has ended when the block has."""
        with subprocess.Popen(
            # Who started the tests in the background may have left SIGINT ignored.
            ["env", "--default-signal=INT", *self._command(name, *arguments)],
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            env=marked_environment(self.plane.workspace.id),
        ) as process:
            try:
                yield process
            finally:
                process.kill()

    def _command(self, name: str, *arguments: str) -> list[str]:
        own = [f"--kubeconfig={self.plane.admin_kubeconfig}", *arguments]
        if name == "dump":
            own += [*self.etcd.flags, f"--etcd-prefix={self.prefix}"]
        else:
            own += [f"--coild={self.coild}", "--interval=100ms"]
        return [sys.executable, "-m", "coil_migrator", name, *own]
