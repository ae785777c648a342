"""`python traced_program.py FILE MODULE [ARGUMENTS…]`: run a module as `python -m` would, and note whose functions are
called.

Each SIGUSR1 writes the modules that were called since the last one to FILE, as a JSON array in the order of their first
calls, and begins anew; so does the end of the program. The first one is written when the program starts. Only modules
of the project count, and only calls: what importing a module executes is not a step of any walk.
"""

import json
import os
import posix
import runpy
import signal
import sys
import threading
from pathlib import Path
from types import FrameType
from typing import Any

_OURS = ("coil", "coild")


class CallNotes:
    """The modules called since the last `flush`, by name, the earliest first. Any thread may call."""

    def __init__(self, file: Path) -> None:
        self._file = file
        self._modules: dict[str, None] = {}

    def note(self, frame: FrameType, event: str, _argument: Any) -> None:
        """A profile function (`sys.setprofile`)."""
        if event == "call":
            name = frame.f_globals.get("__name__", "")
            if name.startswith(_OURS) and name not in self._modules and not _is_import(frame):
                self._modules[name] = None

    def flush(self, *_signal: object) -> None:
        """Write and forget."""
        modules, self._modules = self._modules, {}
        whole = self._file.with_suffix(f".{os.getpid()}")
        whole.write_text(json.dumps(list(modules)))
        whole.replace(self._file)


def _is_import(frame: FrameType | None) -> bool:
    """Whether it runs on behalf of the first import of some module: bodies of classes, decorators, constants."""
    while frame is not None:
        if frame.f_code.co_name == "<module>" and frame.f_globals.get("__name__") != "__main__":
            return True
        frame = frame.f_back
    return False


def main() -> None:
    file, module, *arguments = sys.argv[1:]
    del sys.path[0]  # this folder, of which the program knows nothing
    notes = CallNotes(Path(file))
    notes.flush()
    signal.signal(signal.SIGUSR1, notes.flush)
    sys.argv = [module, *arguments]
    end = posix._exit

    def flush_and_end(status: int) -> None:
        # The plugin ends so, without anything that would run at the end of an interpreter.
        sys.setprofile(None)
        notes.flush()
        end(status)

    setattr(posix, "_exit", flush_and_end)  # noqa: B010 - a type checker has it as a constant
    threading.setprofile(notes.note)
    sys.setprofile(notes.note)
    try:
        runpy.run_module(module, run_name="__main__", alter_sys=True)
    finally:
        sys.setprofile(None)
        notes.flush()


if __name__ == "__main__":
    main()
