"""Emulation ends with its context, or with the process that had it, and leaves the machine as it was before."""

import signal
import subprocess
import sys
from pathlib import Path

import pytest

from integration.image import emulation as emulation_module
from integration.image.emulation import emulation, list_handlers
from integration.image.rootfs import Rootfs
from integration.patience import wait_until

HOLD = """
import sys
from integration.image import emulation as module
module._machine_has = lambda _: False
with module.emulation("arm64"):
    print("ready", flush=True)
    sys.stdin.read()
"""


def names() -> set[str]:
    return {handler.name for handler in list_handlers()}


@pytest.fixture
def alone(monkeypatch: pytest.MonkeyPatch) -> None:
    """As on a machine that has no handler of its own."""
    monkeypatch.setattr(emulation_module, "_machine_has", lambda _: False)


@pytest.mark.usefixtures("alone")
def test_a_handler_lasts_as_long_as_its_context() -> None:
    before, mounts = names(), Path("/proc/self/mountinfo").read_text()
    with emulation("arm64"):
        [made] = names() - before
        with emulation("arm64"):
            assert len(names() - before) == 2
        assert names() - before == {made}
        assert Path("/proc/self/mountinfo").read_text() == mounts
    assert names() == before


@pytest.mark.usefixtures("alone")
def test_an_error_in_the_context_takes_the_handler_along() -> None:
    before = names()
    with pytest.raises(ZeroDivisionError), emulation("arm64"):
        raise ZeroDivisionError
    assert names() == before


@pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGINT])
def test_a_handler_does_not_outlive_whoever_had_it(number: signal.Signals) -> None:
    before = names()
    command = [sys.executable, "-c", HOLD]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL) as process:
        assert process.stdout is not None
        assert process.stdout.readline() == b"ready\n"
        assert len(names() - before) == 1
        process.send_signal(number)
        process.wait(20)
    wait_until(lambda: names() == before, what="the handler is removed")


def test_the_root_of_an_emulated_program_needs_no_qemu(image: Rootfs) -> None:
    assert [str(path) for path in image.root.rglob("*qemu*")] == []
    assert image.run("python3", "-c", "print('emulated')", seconds=300).stdout == "emulated\n"
