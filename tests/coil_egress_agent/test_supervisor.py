"""The supervisor with real processes: what it runs again, what it passes on, and when it gives up."""

import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

BOUND = 60.0

# Who started the tests in the background may have left SIGINT ignored, which a shell then cannot trap.
SUPERVISOR = """
import signal, sys
from coil_egress_agent.supervisor import keep_running
signal.signal(signal.SIGINT, signal.default_int_handler)
sys.exit(keep_running(sys.argv[2:], pauses=(0.0, 0.0, float(sys.argv[1])), probation=1000.0))
"""


@contextmanager
def supervisor(*command: str, last_pause: float = 0.0) -> Iterator[subprocess.Popen[str]]:
    argv = [sys.executable, "-c", SUPERVISOR, str(last_pause), *command]
    with subprocess.Popen(argv, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) as process:
        try:
            yield process
        finally:
            process.kill()


def outcome(*script: str) -> tuple[int, list[str]]:
    """The supervisor's exit code, and what the shell script and it have said."""
    with supervisor("/bin/sh", "-c", *script) as process:
        said, complaints = process.communicate(timeout=BOUND)
    return process.returncode, [*said.split(), *complaints.splitlines()]


def test_who_ends_well_is_not_run_again() -> None:
    assert outcome("echo once") == (0, ["once"])


def test_wrong_arguments_stay_wrong() -> None:
    assert outcome("echo usage; exit 2") == (2, ["usage"])


@pytest.mark.parametrize(("death", "code"), [("exit 7", 7), ("kill -KILL $$", 137)])
def test_who_dies_is_run_again_a_few_times(death: str, code: int) -> None:
    ended, said = outcome(f"echo run; {death}")
    assert ended == code
    assert said.count("run") == 4
    assert said[-1].endswith(f"code {code}, 4 times in a row: giving up")


def test_who_recovers_lives_on(tmp_path: Path) -> None:
    ended, said = outcome(f"echo run; [ -e {tmp_path}/mark ] && exit 0; touch {tmp_path}/mark; exit 1")
    assert (ended, said[:2]) == (0, ["run", "run"])


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_an_end_that_is_asked_for_is_the_childs(number: signal.Signals) -> None:
    with supervisor(
        "/bin/sh", "-c", "trap 'echo bye; exit 3' TERM INT; echo ready; while :; do sleep 0.05; done"
    ) as process:
        assert process.stdout is not None
        assert process.stdout.readline() == "ready\n"
        process.send_signal(number)
        said, _ = process.communicate(timeout=BOUND)
    assert (process.returncode, said) == (3, "bye\n")


def test_an_end_that_is_asked_for_between_two_lives() -> None:
    with supervisor("/bin/sh", "-c", "exit 1", last_pause=1000.0) as process:
        assert process.stderr is not None
        while "in 1000 s" not in (line := process.stderr.readline()):
            assert line
        process.terminate()
        assert process.wait(BOUND) == 1


def test_the_next_life_can_be_asked_to_end() -> None:
    """Blocked signals are inherited: a child that had them blocked could only be killed."""
    with supervisor("/bin/sh", "-c", "grep SigBlk /proc/self/status; exit 0") as process:
        said, _ = process.communicate(timeout=BOUND)
    assert int(said.split()[1], 16) & (1 << (signal.SIGTERM - 1)) == 0


def test_orphans_are_taken_leave_of() -> None:
    """As process 1 of a container, which the children of the dead are given to; here it asks for them."""
    adopting = "import ctypes; ctypes.CDLL(None).prctl(36, 1)\n" + SUPERVISOR  # PR_SET_CHILD_SUBREAPER
    # A subshell leaves two behind; when its last one has printed, the other has ended before it.
    script = '(sleep 0.2 & sleep 0.4 &); sleep 0.8; cat /proc/[0-9]*/stat 2>/dev/null | grep -c ") Z $PPID "; true'
    argv = [sys.executable, "-c", adopting, "0", "/bin/sh", "-c", script]
    done = subprocess.run(argv, capture_output=True, text=True, timeout=BOUND, check=False)
    assert (done.returncode, done.stdout) == (0, "0\n"), "nobody is left a zombie"


def test_an_orphan_that_lives_on_holds_nothing_up() -> None:
    adopting = "import ctypes; ctypes.CDLL(None).prctl(36, 1)\n" + SUPERVISOR
    argv = [sys.executable, "-c", adopting, "0", "/bin/sh", "-c", "sleep 1000 >/dev/null 2>&1 & echo $!; exit 2"]
    with subprocess.Popen(argv, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        orphan = int(process.stdout.readline())
        try:
            assert process.wait(BOUND) == 2
        finally:
            os.kill(orphan, signal.SIGKILL)
            process.kill()
