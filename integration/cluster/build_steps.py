"""The steps of a build, one after the other: bounded, with progress, and ended with whoever runs them."""

from __future__ import annotations

import os
import subprocess
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import IO

PROGRESS_INTERVAL = 15.0  # seconds between two lines about a running step
STEP_TIMEOUT = 3600.0  # seconds after which a step is given up
TAIL_LINES = 30  # of a failed step's output


class BuildError(Exception):
    """A program could not be found or built; the message says why and what to do."""


class BuildSteps:
    """Runs steps, their output to the file ``log``. Whatever they start inherits ``lock``, an open file."""

    def __init__(self, log: Path, *, lock: IO[str]) -> None:
        self._log = log
        self._lock = lock
        self._start = time.monotonic()

    def elapsed(self) -> float:
        """Seconds since the build began."""
        return time.monotonic() - self._start

    def say(self, what: str) -> None:
        """One line of progress."""
        print(f"[{self.elapsed():4.0f} s] {what}", flush=True)

    def run(
        self, what: str, argv: Sequence[str], env: Mapping[str, str] | None = None, *, cwd: Path | None = None
    ) -> None:
        """Run one program to its end. Raises BuildError with the end of its output when it fails."""
        self.say(what)
        begun = time.monotonic()
        with self._log.open("w") as log:
            process = subprocess.Popen(
                # The program must not outlive a killed build; make and go hand the signal on to what they run.
                ["setpriv", "--pdeathsig", "TERM", *argv],
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=subprocess.STDOUT,
                env=env,
                cwd=cwd,
                pass_fds=[self._lock.fileno()],
                start_new_session=True,
            )
            try:
                while (code := self._wait(process)) is None:
                    if time.monotonic() - begun > STEP_TIMEOUT:
                        raise BuildError(f"{what}: given up after {STEP_TIMEOUT:.0f} s\n{self._tail()}")
                    self.say(f"still {what}")
            finally:
                if process.poll() is None:
                    os.killpg(process.pid, 9)
                    process.wait()
        if code:
            raise BuildError(f"{what} failed with exit code {code}; the end of its output:\n{self._tail()}")

    @staticmethod
    def _wait(process: subprocess.Popen[bytes]) -> int | None:
        try:
            return process.wait(PROGRESS_INTERVAL)
        except subprocess.TimeoutExpired:
            return None

    def _tail(self) -> str:
        return "\n".join(self._log.read_text(errors="replace").splitlines()[-TAIL_LINES:])
