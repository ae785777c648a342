"""The router pod's agent as a real process, with what a container would give it: one capability, read-only sysctls."""

import os
import subprocess
import sys
from collections.abc import Collection
from pathlib import Path
from types import TracebackType
from typing import Final, Self

from coil.egress.router_plan import families_of, plan_router_sysctls
from coil.kernel.family import IPAddress
from integration.bench.egress_text import EGRESS_NAME, ROUTER_NAMESPACE
from integration.deployment import ready_probe
from integration.netns.netns import Netns
from integration.patience import wait_until

_HEALTH: Final = 8081
_START_SECONDS: Final = 120.0
_STOP_SECONDS: Final = 30.0
_PAUSE: Final = 0.5
_CONTAINER = """
mount --bind -o ro /proc/sys /proc/sys
exec setpriv --no-new-privs --inh-caps=-all --bounding-set=-all,+net_admin -- "$@"
"""


class RouterAgent:
    """A context manager: ready inside, gone after it. `kubeconfig` is its service account's."""

    def __init__(self, netns: Netns, *, addresses: Collection[IPAddress], kubeconfig: Path, log: Path) -> None:
        self._netns = netns
        self._addresses = addresses
        self._kubeconfig = kubeconfig
        self._log = log
        self._process: subprocess.Popen[bytes]

    @property
    def pid(self) -> int:
        """Every program of the way there has replaced the one before."""
        return self._process.pid

    def __enter__(self) -> Self:
        """Raises RuntimeError with the end of its log when it ends, AssertionError when it is not ready in time."""
        for sysctl in plan_router_sysctls(families_of(self._addresses)):  # coild's part
            self._netns.set_sysctl(sysctl.path, sysctl.value)
        inside = ["nsenter", f"--net={self._netns.path}", "--", "unshare", "--mount", "--propagation=private"]
        agent = [sys.executable, "-m", "coil_egress_agent", f"--kubeconfig={self._kubeconfig}", "--drain=0s"]
        with self._log.open("ab") as output:
            self._process = subprocess.Popen(
                [*inside, "sh", "-ec", _CONTAINER, "sh", *agent],
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=subprocess.STDOUT,
                env={
                    **os.environ,
                    "COIL_POD_NAMESPACE": ROUTER_NAMESPACE,
                    "COIL_EGRESS_NAME": EGRESS_NAME,
                    "COIL_POD_ADDRESSES": ",".join(map(str, self._addresses)),
                },
            )
        try:
            wait_until(self._is_ready, what="the agent is ready", timeout=_START_SECONDS, pause=_PAUSE)
        except BaseException:
            self._end()
            raise
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None, /
    ) -> None:
        self._end()

    def _is_ready(self) -> bool:
        if (code := self._process.poll()) is not None:
            tail = self._log.read_text(errors="replace").splitlines()[-5:]
            raise RuntimeError(f"the agent ended with code {code}: {' '.join(tail)}")
        return self._netns.call(ready_probe(_HEALTH))

    def _end(self) -> None:
        self._process.terminate()
        try:
            self._process.wait(_STOP_SECONDS)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait(_STOP_SECONDS)
