"""QEMU's command line, the choice of its accelerator, and what is said of a guest that did not report."""

from pathlib import Path

import pytest

from integration.vm.boot import Errand, render_boot, render_errand
from integration.vm.machine import Accelerator, Machine, choose_accelerator

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
    boot_modules=["a.ko", "b.ko"],
    modules=["fou"],
)


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
        machine = Machine(**{**{name: getattr(MACHINE, name) for name in Machine.__slots__}, "results": results})
        return [word for word in machine.command(report=3, output=4, error=5, console=6) if "security_model" in word]

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
