"""Run the long sessions of `make test` in two lanes, side by side: most of one waits while the other computes.

`python -m integration.lanes` runs each session of a lane by `nox -s`, one after the other, with its output in
`build/lanes/<session>.log`, and prints that output when the session has ended. The first session that fails ends all:
the other lane gets SIGINT, cleans up, and is killed if it has not within a minute. The exit code is 1 then.
"""

import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path

LANES = (
    ("egress", "eip"),
    ("kernel", "image", "apiserver", "soak", "cluster"),
)
"""A virtual machine computes all the time, so the first lane has it and little else."""

_LOGS = Path(__file__).parents[1] / "build" / "lanes"
_GRACE = 60.0
"""Seconds for a session to end its clusters, after SIGINT."""


class Lane(threading.Thread):
    """Sessions, one after the other; `failed` is the first that did, and none begins after `cancel`."""

    def __init__(self, sessions: Sequence[str]) -> None:
        super().__init__(daemon=True)
        self.failed: str | None = None
        self._sessions = sessions
        self._lock = threading.Lock()
        self._process: subprocess.Popen[bytes] | None = None
        self._cancelled = False

    def run(self) -> None:
        for session in self._sessions:
            if (code := self._run(session)) is None:
                return
            if code:
                self.failed = None if self._cancelled else session
                return

    def cancel(self) -> None:
        """End the session that runs, and begin no other. Returns when it has ended."""
        with self._lock:
            self._cancelled = True
            process = self._process
        if process is not None and process.poll() is None:
            with suppress(ProcessLookupError):
                os.killpg(process.pid, signal.SIGINT)
            try:
                process.wait(_GRACE)
            except subprocess.TimeoutExpired:
                with suppress(ProcessLookupError):
                    os.killpg(process.pid, signal.SIGKILL)
                process.wait()

    def _run(self, session: str) -> int | None:
        """The exit code of the session; None if it was not begun."""
        log = _LOGS / f"{session}.log"
        began = time.monotonic()
        with log.open("wb") as output:
            with self._lock:
                if self._cancelled:
                    return None
                command = [sys.executable, "-m", "nox", "--non-interactive", "-s", session]
                # A group of its own, so that the whole session can be interrupted as by a keyboard.
                self._process = subprocess.Popen(
                    command, stdin=subprocess.DEVNULL, stdout=output, stderr=output, start_new_session=True
                )
            code = self._process.wait()
        text = log.read_text(errors="replace")
        outcome = "failed" if code else "ended"
        print(f"{text}\n== {session} {outcome} after {time.monotonic() - began:.0f} s", flush=True)
        return code


def main() -> int:
    _LOGS.mkdir(parents=True, exist_ok=True)
    lanes = [Lane(sessions) for sessions in LANES]
    print(f"side by side: {' | '.join(', '.join(lane) for lane in LANES)}; as it goes, in {_LOGS}", flush=True)
    for lane in lanes:
        lane.start()
    try:
        while any(lane.is_alive() for lane in lanes) and not any(lane.failed for lane in lanes):
            time.sleep(0.5)
    finally:
        # Nothing is left to cancel when all went well; else, and when interrupted, the others end.
        for lane in lanes:
            lane.cancel()
            lane.join()
    failed = [lane.failed for lane in lanes if lane.failed]
    if failed:
        print(f"failed: {', '.join(failed)}", file=sys.stderr)
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
