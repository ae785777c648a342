"""The first process of an agent's container: runs the agent, and restarts it when it dies.

If the kubelet did so, a router pod would be unready meanwhile, its Service would send its clients elsewhere, and their
flows would end although the kernel still serves them. A moment without an agent harms no flow: it only creates and
deletes tunnels. The probes ask the agent, so one that does not come back, or hangs, is left to the kubelet as before.

Nothing that takes memory is imported here: the agent is another process.
"""

import os
import signal
import sys
import time
from collections.abc import Sequence
from typing import Final

PAUSES: Final = (0.1, 1.0, 3.0, 5.0)
"""Seconds before a restart after so many early deaths in a row; after one more the supervisor exits with its code."""

PROBATION: Final = 60.0
"""Seconds after which a death is not an early one."""

USAGE: Final = 2
"""The exit code for invalid arguments: a restart would not help."""

_ASKED: Final = (signal.SIGTERM, signal.SIGINT)
_SIGNALS: Final = frozenset({signal.SIGCHLD, *_ASKED})


def main() -> int:
    """Run the agent with this process's arguments and environment; its exit code."""
    return keep_running([sys.executable, "-m", "coil_egress_agent", *sys.argv[1:]])


def main_node() -> int:
    """The same for the agent of a node.

    A new process finds tunnels, rules and sets in the kernel and repairs only differences; that it is back sooner than
    the kubelet would have it matters to pods that come and go meanwhile. The lease seldom outlives a crash: its fence
    is shorter than the start of a process, and the EIPs are on another node by then.
    """
    return keep_running([sys.executable, "-m", "coil_egress_agent.eip", *sys.argv[1:]])


def keep_running(command: Sequence[str], *, pauses: Sequence[float] = PAUSES, probation: float = PROBATION) -> int:
    """Run `command` until it exits with 0, was told to stop, or dies too often; its last exit code, as a shell has it.

    SIGTERM and SIGINT are passed on. In the main thread only, whose signals stay blocked afterwards. As process 1 of a
    container it also reaps orphans.
    """
    signal.pthread_sigmask(signal.SIG_BLOCK, _SIGNALS)
    deaths = 0
    while True:
        begun = time.monotonic()
        code, asked = _attend(_start(command))
        if asked or code in (0, USAGE):
            return code
        deaths = 1 if time.monotonic() - begun >= probation else deaths + 1
        if deaths > len(pauses):
            _say(f"the agent ended with code {code}, {deaths} times in a row: giving up")
            return code
        pause = pauses[deaths - 1]
        _say(f"the agent ended with code {code}; it is run again in {pause:g} s")
        if _asked_within(pause):
            return code


def _start(command: Sequence[str]) -> int:
    # A blocked signal would stay blocked in the child.
    return os.posix_spawn(command[0], list(command), os.environ, setsigmask=())


def _attend(child: int) -> tuple[int, bool]:
    """Wait for its end; its exit code, and whether it had been told to stop."""
    asked = False
    while True:
        number = signal.sigwait(_SIGNALS)
        if number in _ASKED:
            asked = True
            os.kill(child, number)
        elif (code := _reap().get(child)) is not None:
            return code, asked


def _reap() -> dict[int, int]:
    """The exit codes of all children that have ended."""
    ended: dict[int, int] = {}
    while True:
        try:
            child, status = os.waitpid(-1, os.WNOHANG)
        except ChildProcessError:
            return ended
        if child == 0:
            return ended
        code = os.waitstatus_to_exitcode(status)
        ended[child] = code if code >= 0 else 128 - code


def _asked_within(seconds: float) -> bool:
    deadline = time.monotonic() + seconds
    while (left := deadline - time.monotonic()) > 0:
        heard = signal.sigtimedwait(_SIGNALS, left)
        if heard is not None and heard.si_signo in _ASKED:
            return True
        _reap()
    return False


def _say(text: str) -> None:
    sys.stderr.write(f"coil-egress-agent: {text}\n")
    sys.stderr.flush()


if __name__ == "__main__":
    sys.exit(main())
