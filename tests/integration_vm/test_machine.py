"""QEMU's command line, the choice of its accelerator, and what becomes of a guest that does not report."""

import os
import subprocess
import sys
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any, ClassVar

import pytest

from integration.patience import wait_until
from integration.vm.boot import REPORT_PORT, Errand, check_folder, render_boot, render_errand
from integration.vm.machine import QEMU, Accelerator, Machine, MachineError, choose_accelerator, run_machine

MACHINE = Machine(
    kernel=Path("/cache/vmlinuz"),
    modules=Path("/cache/root"),
    initial=9,
    accelerator=Accelerator.EMULATION,
    memory=1024,
    processors=2,
    results=None,
)
ERRAND = Errand(
    argv=["echo", "two words", "it's"],
    environment={"NAME": "a value"},
    folder=Path("/work here"),
    results=None,
    needed=[],
    boot_modules=["a.ko", "b.ko"],
    modules=["fou"],
)

ALIVE = "os.write(report, b'alive\\n')"
DONE = "open(done, 'w').close()"
SILENT = f"{DONE}; time.sleep(60)"
PATIENCE = 60.0
"""Seconds in which an interpreter starts on any machine."""

BOOT_TIMEOUT = 1.0
"""Seconds after it has done what a test is about; see `PatientPopen`."""
Emulator = Callable[..., int]


class PatientPopen(subprocess.Popen[bytes]):
    """Its time runs from when it has written the file `done`, or has ended: not every machine starts it at once."""

    done: ClassVar[Path]

    def __init__(self, *arguments: Any, **options: Any) -> None:
        self.done.unlink(missing_ok=True)
        super().__init__(*arguments, **options)

    def wait(self, timeout: float | None = None) -> int:
        if timeout is not None:
            wait_until(
                lambda: self.done.exists() or self.poll() is not None, what="QEMU is under way", timeout=PATIENCE
            )
        return super().wait(timeout)


@pytest.fixture
def run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Emulator:
    """Run the machine with a QEMU that does at each boot what is given, the last of it for all further ones."""

    def run(*boots: str, timeout: float = 120.0) -> int:
        count, PatientPopen.done = tmp_path / "boots", tmp_path / "done"
        lines = [
            f"#!{sys.executable}",
            "import os, re, sys, time",
            f"report = int(re.search(r'id={REPORT_PORT},path=/dev/fdset/(\\d+)', ' '.join(sys.argv)).group(1))",
            f"count = open({str(count)!r}, 'a+'); count.write('x'); count.seek(0)",
            f"done = {str(PatientPopen.done)!r}",
            f"boots = {boots!r}",
            "exec(boots[min(len(count.read()), len(boots)) - 1])",
        ]
        emulator = tmp_path / QEMU
        emulator.write_text("\n".join(lines))
        emulator.chmod(0o755)
        monkeypatch.setenv("PATH", f"{tmp_path}:{os.environ['PATH']}")
        monkeypatch.setattr("integration.vm.machine.subprocess.Popen", PatientPopen)
        with (tmp_path / "initial").open("wb") as initial:
            machine = replace(MACHINE, initial=initial.fileno())
            return run_machine(machine, output=1, error=2, timeout=timeout, boot_timeout=BOOT_TIMEOUT)

    return run


def test_the_exit_code_is_that_of_the_guests_command(run: Emulator) -> None:
    booted = f"{ALIVE}; {DONE}; time.sleep({2 * BOOT_TIMEOUT}); os.write(report, b'ended 3\\n')"
    assert run(booted) == 3


def test_a_guest_that_does_not_come_up_is_booted_again(run: Emulator, capfd: pytest.CaptureFixture[str]) -> None:
    boots = (f"print('stuck', flush=True); {SILENT}", f"{ALIVE}; os.write(report, b'ended 0\\n')")
    assert run(*boots) == 0
    said = capfd.readouterr().err
    assert "the guest is not up after 1 s; the end of its console:\nstuck\nboot 1 of 3; it is booted again" in said


def test_one_that_never_comes_up_is_given_up(run: Emulator, tmp_path: Path) -> None:
    with pytest.raises(MachineError, match="is not up after 1 s"):
        run(SILENT)
    assert (tmp_path / "boots").read_text() == "xxx"


def test_one_that_was_up_is_waited_for_and_never_run_twice(run: Emulator, tmp_path: Path) -> None:
    with pytest.raises(MachineError, match="given up after 2 s"):
        run(f"{ALIVE}; {SILENT}", timeout=2.0)
    with pytest.raises(MachineError, match=r"without a report \(alive\)"):
        run(ALIVE)
    assert (tmp_path / "boots").read_text() == "xx"


def test_one_that_ends_before_its_first_word_is_booted_again(run: Emulator) -> None:
    assert run("print('no such device')", f"{ALIVE}; os.write(report, b'ended 0\\n')") == 0


def test_one_that_always_ends_before_its_first_word_is_given_up(run: Emulator, tmp_path: Path) -> None:
    with pytest.raises(MachineError, match=r"(?s)with code 0, without a report \(not a word\).*no such device"):
        run("print('no such device')")
    assert (tmp_path / "boots").read_text() == "xxx"


@pytest.mark.parametrize(
    ("flags", "mode", "wanted"),
    [
        ("fpu vmx sse", 0o600, Accelerator.KVM),
        ("fpu svm", 0o600, Accelerator.KVM),
        ("fpu hypervisor vmxnot", 0o600, Accelerator.EMULATION),
        ("fpu vmx", None, Accelerator.EMULATION),
    ],
)
def test_the_accelerator_is_the_processors_own(
    tmp_path: Path, flags: str, mode: int | None, wanted: Accelerator
) -> None:
    device, processors = tmp_path / "kvm", tmp_path / "cpuinfo"
    processors.write_text(f"vendor_id\t: Somebody\nflags\t\t: {flags}\nbugs\t\t: vmx\n")
    if mode is not None:
        device.touch(mode)
    assert choose_accelerator(device, processors) is wanted


def test_the_machines_files_are_read_only_and_results_are_not() -> None:
    def shared(results: Path | None) -> list[str]:
        command = replace(MACHINE, results=results).command(report=3, output=4, error=5, console=6)
        return [word for word in command if "security_model" in word]

    assert all(word.endswith("readonly=on") for word in shared(None))
    assert [word for word in shared(Path("/results")) if word.endswith("readonly=off")] == [
        "local,id=results,path=/results,security_model=none,multidevs=remap,readonly=off"
    ]


def test_the_command_reaches_the_guest_as_it_is() -> None:
    script = render_errand(ERRAND)
    assert """env -i 'NAME=a value' echo 'two words' 'it'"'"'s' </dev/null""" in script
    assert "cd '/work here'" in script


def test_modules_are_loaded_in_their_order() -> None:
    script = render_boot(ERRAND)
    assert script.index("/boot-modules/a.ko") < script.index("/boot-modules/b.ko")


def test_a_checkout_below_a_folder_of_the_guests_own_is_seen_there() -> None:
    text = render_boot(replace(ERRAND, needed=[Path("/run/a checkout"), Path("/home/me/other")]))
    kept = text.index("mount --bind './run/a checkout' /needed/0")
    hidden = text.index("mount -t tmpfs -o mode=755 tmpfs run")
    back = text.index("mkdir -p './run/a checkout' && mount --move /needed/0 './run/a checkout'")
    assert kept < hidden < back
    assert "/home/me/other" not in text


@pytest.mark.parametrize("folder", ["/dev/coil", "/proc/1/root/coil", "/sys/coil"])
def test_a_folder_that_no_guest_can_see_is_named(folder: str) -> None:
    assert folder in check_folder(Path(folder))


@pytest.mark.parametrize("folder", ["/run/coil", "/device/coil", "/run/user/0/coil"])
def test_any_other_folder_can_be_seen(folder: str) -> None:
    assert check_folder(Path(folder)) == ""
