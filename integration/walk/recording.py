"""Which modules a traced program calls while something happens."""

import json
import signal
import sys
import time
from collections.abc import Callable, Sequence
from pathlib import Path

from integration.cluster.process import Process
from integration.patience import wait_until
from integration.walk.story import called

_TRACED_PROGRAM = str(Path(__file__).with_name("traced_program.py"))
"""By its path: programs are started in folders from which the tests cannot be imported."""
_MOMENT = 2.0


class Recording:
    """What a program that was started by `traced` writes to `file`."""

    def __init__(self, file: Path) -> None:
        self._file = file

    def traced(self, command: Sequence[str]) -> list[str]:
        """The command line of a program of ours (`python -m MODULE ARGUMENTS…`) with its calls noted."""
        executable, option, *module = command
        assert (executable, option) == (sys.executable, "-m"), command
        return [executable, _TRACED_PROGRAM, str(self._file), *module]

    def read(self) -> list[str]:
        """What a program that has ended has called, in the order of first calls."""
        modules: list[str] = json.loads(self._file.read_text())
        return modules

    def during(self, process: Process, happen: Callable[[], object]) -> list[str]:
        """The modules that the program calls while `happen` runs, in the order of first calls."""
        self.since_last(process)
        happen()
        return self.since_last(process)

    def await_rest(self, process: Process, module: str) -> None:
        """Return when the program has not called that module, or any of the room of that name, for a moment.

        Longer than any batch window: what is still to come of an earlier change would be taken for a step.
        """

        def rests() -> bool:
            self.since_last(process)
            time.sleep(_MOMENT)
            return not called(module, self.since_last(process))

        wait_until(rests, what=f"{module} has nothing to do")

    def since_last(self, process: Process) -> list[str]:
        """The modules that the program has called since it was last asked, or started, in the order of first calls."""
        self._file.unlink(missing_ok=True)
        process.send_signal(signal.SIGUSR1)
        wait_until(self._file.exists, what="what the program has called")
        return self.read()
