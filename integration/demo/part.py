"""A part of the demo as a process of its own, so that it is prepared, or even over, before it is its turn.

What it says until then stays in the pipe: everything is read in the order in which it is shown. The process is ended by
SIGTERM alone, by `Part.close` or, when the demo dies, by the kernel; it cleans up as if it had been interrupted. Ctrl-C
at the terminal is the demo's to handle.
"""

import os
import signal
import subprocess
import sys
from collections.abc import Callable
from contextlib import suppress
from types import TracebackType
from typing import Self

from integration.cluster.__main__ import EXPECTED
from integration.demo.narration import DemoError
from integration.deployment import UnsupportedVersionError
from integration.helm.program import HelmError
from integration.image.error import ImageBuildError
from integration.vm.kernel import KernelError
from integration.vm.machine import MachineError

FAILURES = (DemoError, HelmError, ImageBuildError, KernelError, MachineError, UnsupportedVersionError, *EXPECTED)
"""Errors whose message is for whoever watches, without a traceback."""
END_SECONDS = 90.0
"""For a part that is told to end: a stage that is being built is built before it is taken down."""


class Part:
    """A module of the demo that calls `play`. A context manager; nothing of the part is left after it."""

    def __init__(self, title: str, module: str) -> None:
        self._title = title
        self._module = module
        self._process: subprocess.Popen[bytes] | None = None

    def begin(self) -> None:
        """Start it. Idempotent."""
        if self._process is None:
            self._process = subprocess.Popen(
                ["setpriv", "--pdeathsig", "TERM", sys.executable, "-u", "-m", self._module],
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=subprocess.STDOUT,
                start_new_session=True,
            )

    def show(self) -> None:
        """At its turn: print what it has said so far, then go along until its end. Raises DemoError if it failed.

        Starts it if it has not been.
        """
        self.begin()
        assert self._process is not None
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        with suppress(BrokenPipeError):
            self._process.stdin.write(b"\n")
            self._process.stdin.flush()
        while said := os.read(self._process.stdout.fileno(), 1 << 16):
            sys.stdout.buffer.write(said)
            sys.stdout.flush()
        if code := self._process.wait():
            raise DemoError(f"{self._title} did not hold (exit code {code}); the lines above say what")

    def close(self) -> None:
        """End it, if it has not ended; what it has not been asked to show stays unsaid. Idempotent."""
        if self._process is None:
            return
        self._process.terminate()
        try:
            # Also empties the pipe, which it may be waiting for.
            self._process.communicate(timeout=END_SECONDS)
        except subprocess.TimeoutExpired:
            # The guardians of its workspaces clean up instead.
            self._process.kill()
            self._process.communicate()
        self._process = None

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()


def play(show: Callable[[], None]) -> int:
    """What a part's process does; the exit code."""
    signal.signal(signal.SIGTERM, signal.default_int_handler)
    try:
        show()
    except FAILURES as error:
        print(f"\n{error}", file=sys.stderr)
        return 1
    except KeyboardInterrupt:
        return 130
    return 0


def wait_for_turn() -> None:
    """In a part's process: return when everything before it has been shown."""
    if not sys.stdin.buffer.readline():
        raise KeyboardInterrupt
