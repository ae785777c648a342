"""Long-running programs of a cluster: started with its mark, logged to a file, and telling their last words in errors.

Invariant: whatever is started here carries the cluster's mark (see ``cleanup``), so it cannot outlive the cluster.
"""

from __future__ import annotations

import json
import os
import subprocess
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

from integration.cluster.cleanup import MARKER

TAIL_LINES = 25  # of a failed component's log, in the error
POLL_INTERVAL = 0.05  # seconds between two looks at whether something is ready
STOP_TIMEOUT = 5.0  # seconds that a process has to end after SIGTERM


class ComponentError(Exception):
    """A component ended or did not become ready; the message has the end of its log."""


def marked_environment(cluster: str, extra: Mapping[str, str] | None = None) -> dict[str, str]:
    """The environment for a process of the cluster. Proxies are left out: none of them leads into a cluster."""
    kept = {name: value for name, value in os.environ.items() if not name.lower().endswith("_proxy")}
    return {**kept, **(extra or {}), MARKER: cluster}


def complete_lines(log: Path) -> list[str]:
    """The lines of a log but for a last one that has no end yet: its program may be writing it."""
    text = log.read_text()
    return text[: text.rfind("\n") + 1].splitlines()


class Process(subprocess.Popen[bytes]):
    """A running program with a name and a log; for the rest what ``subprocess.Popen`` is."""

    def __init__(
        self,
        name: str,
        argv: Sequence[str],
        *,
        cluster: str,
        log: Path,
        env: Mapping[str, str] | None = None,
        cwd: Path | None = None,
    ) -> None:
        self.name = name
        self.log = log
        with log.open("ab") as output:
            super().__init__(
                list(argv),
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=subprocess.STDOUT,
                env=marked_environment(cluster, env),
                cwd=cwd,
                # Ctrl-C at a terminal is the owner's to handle, in its order.
                start_new_session=True,
            )

    def tail(self) -> str:
        """The last lines of its log."""
        return "\n".join(self.log.read_text(errors="replace").splitlines()[-TAIL_LINES:])

    def entries(self) -> list[dict[str, Any]]:
        """What a program that logs JSON has logged so far; lines that are none, such as a traceback's, are left out."""
        return [json.loads(line) for line in complete_lines(self.log) if line.startswith("{")]

    def failure(self, what: str) -> ComponentError:
        """An error about this process, to be raised."""
        return ComponentError(f"{self.name} {what}; the end of {self.log}:\n{self.tail()}")

    def wait_ready(self, ready: Callable[[], bool], *, timeout: float) -> None:
        """Return as soon as ``ready`` does. Raises ComponentError when the process ends or ``timeout`` seconds pass."""
        deadline = time.monotonic() + timeout
        while not ready():
            if (code := self.poll()) is not None:
                raise self.failure(f"ended with code {code} before it was ready")
            if time.monotonic() > deadline:
                raise self.failure(f"was not ready after {timeout:.0f} s")
            time.sleep(POLL_INTERVAL)

    def stop(self, *, timeout: float = STOP_TIMEOUT) -> None:
        """SIGTERM, and SIGKILL when it has not ended in time. Idempotent."""
        self.terminate()
        try:
            self.wait(timeout)
        except subprocess.TimeoutExpired:
            self.kill()
            self.wait(timeout)
