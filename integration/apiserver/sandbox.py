"""Throwaway network namespaces that stand for pods, made and destroyed as a container runtime does it.

A namespace is held by one process and by nothing else, and goes with it: no mount of it can be caught in a copy of the
machine's mounts, which would keep a "destroyed" pod on the network.
"""

import subprocess
from dataclasses import dataclass
from typing import IO, cast

from integration.cluster.process import marked_environment
from integration.kernel_state import KernelState

# Its line on standard output says that the namespace is there.
_HOLD = ["unshare", "--net", "sh", "-c", "echo; exec busybox sleep infinity"]
_REAP_TIMEOUT = 60.0


class SandboxError(Exception):
    """The namespace could not be made."""


@dataclass(frozen=True, slots=True)
class PodName:
    """A pod as the API server knows it; without a UID where no such object is made."""

    namespace: str
    name: str
    uid: str = "00000000-0000-0000-0000-000000000000"


class Sandbox:
    """One attempt to run a pod: a container ID and a network namespace."""

    def __init__(self, pod: PodName, *, container_id: str, cluster: str) -> None:
        self.pod = pod
        self.container_id = container_id
        self._holder = subprocess.Popen(
            _HOLD, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, env=marked_environment(cluster)
        )
        with cast(IO[bytes], self._holder.stdout) as said:
            there = bool(said.readline())
        if not there:
            self.destroy()
            raise SandboxError(f"no network namespace for {pod.name}")

    @property
    def netns(self) -> str:
        """The path of the namespace; empty when it was destroyed, as a runtime then says it."""
        return f"/proc/{self._holder.pid}/ns/net" if self._holder.returncode is None else ""

    @property
    def kernel(self) -> KernelState:
        """What the kernel holds in the namespace."""
        return KernelState(self.netns)

    def destroy(self) -> None:
        """Destroy the namespace, with or without a DEL before. Idempotent."""
        if self._holder.returncode is None:
            self._holder.kill()
            self._holder.wait(_REAP_TIMEOUT)
