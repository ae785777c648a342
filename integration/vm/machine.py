"""One run of QEMU: boots a kernel and an initial file system, hands the guest's output through, returns its report.

Nothing of it stays: QEMU is killed when the caller leaves, and by the kernel when the caller dies. It never sees a
terminal, and the guest's console goes into memory, to be told only when the guest does not report. A guest whose first
program does not say in time that it is there is given up and booted again.
"""

import os
import re
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass
from enum import StrEnum
from pathlib import Path

from integration.vm.boot import ERROR_PORT, KERNEL_TAG, MACHINE_TAG, OUTPUT_PORT, REPORT_PORT, RESULTS_TAG

QEMU = "qemu-system-x86_64"
BOOT_SECONDS = 120.0
"""Until the first program speaks. Under emulation a command in the guest began 6 to 11 s after its start."""

_BOOTS = 3
_CONSOLE_LINES = 40
_KERNEL_ARGUMENTS = (
    *("console=ttyS0", "loglevel=4", "panic=-1", "rdinit=/init"),
    # Every one of these costs time under emulation and guards against nobody here.
    *("mitigations=off", "nokaslr", "apparmor=0", "audit=0", "nowatchdog", "no_timer_check", "tsc=reliable"),
    # The tests look for net.ipv4 and no predictable names.
    "net.ifnames=0",
)


class Accelerator(StrEnum):
    """How QEMU executes the guest."""

    KVM = "kvm"
    EMULATION = "tcg,thread=multi,tb-size=512"


class MachineError(Exception):
    """The guest did not report; the message has the end of its console."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Machine:
    """What is to be booted."""

    kernel: Path
    modules: Path
    """A root directory with nothing but the kernel's modules."""
    initial: int
    """A file descriptor: the initial file system."""
    accelerator: Accelerator
    memory: int
    """In MiB."""
    processors: int
    results: Path | None

    def command(self, *, report: int, output: int, error: int, console: int) -> list[str]:
        """QEMU's command line; the arguments are file descriptors that it inherits."""
        ports = {OUTPUT_PORT: output, ERROR_PORT: error, REPORT_PORT: report}
        return [
            # Killed by the kernel when the thread that started it is gone.
            *("setpriv", "--pdeathsig", "KILL", QEMU),
            *("-nodefaults", "-no-user-config", "-display", "none", "-no-reboot"),
            *("-machine", "q35", "-accel", self.accelerator, "-cpu", self._processor),
            *("-m", f"{self.memory}M", "-smp", str(self.processors)),
            *("-kernel", str(self.kernel), "-initrd", f"/proc/self/fd/{self.initial}"),
            *("-append", " ".join(_KERNEL_ARGUMENTS)),
            *_handed_over(console, "console"),
            *("-serial", "chardev:console"),
            *("-device", "virtio-serial-pci"),
            *(word for name, fd in ports.items() for word in _port(name, fd)),
            *_shared(Path("/"), tag=MACHINE_TAG, options="readonly=on"),
            *_shared(self.modules, tag=KERNEL_TAG, options="readonly=on"),
            *(_shared(self.results, tag=RESULTS_TAG, options="readonly=off") if self.results else ()),
            *("-netdev", "user,id=net", "-device", "virtio-net-pci,netdev=net,romfile="),
        ]

    @property
    def _processor(self) -> str:
        # Emulated, the plainest is the fastest: coild's modules were there after 6.4 s, with "max" after 9.2. RDRAND is
        # where a kernel without a past takes its first random numbers from.
        return "host" if self.accelerator is Accelerator.KVM else "qemu64,+rdrand"


def choose_accelerator(device: Path = Path("/dev/kvm"), processors: Path = Path("/proc/cpuinfo")) -> Accelerator:
    """KVM where the processor itself offers virtualization and the device may be used, otherwise emulation.

    A device alone proves nothing: inside some virtual machines it opens, and its guests never execute an instruction.
    """
    offered = re.search(r"^flags\s*:.*\b(vmx|svm)\b", processors.read_text(), re.MULTILINE)
    return Accelerator.KVM if offered and os.access(device, os.R_OK | os.W_OK) else Accelerator.EMULATION


class _NotBootedError(MachineError):
    """The guest's first program has not said that it is there: it is late, or the guest ended before that.

    Under emulation on a busy machine both have been seen of guests that came up the next time.
    """


def run_machine(
    machine: Machine, *, output: int, error: int, timeout: float, boot_timeout: float = BOOT_SECONDS
) -> int:
    """Boot it and return the exit code of its command; `output` and `error` are file descriptors to write to.

    Raises MachineError when there is no report within `timeout` seconds of its boot, or the guest ends without one. A
    guest whose first program has said nothing at its end, or after `boot_timeout` seconds, which is the shorter, is
    booted again, twice at most: nothing has run in it yet.
    """

    def run() -> int:
        return _Run(machine, output=output, error=error).wait(timeout, boot_timeout=boot_timeout)

    for boot in range(1, _BOOTS):
        try:
            return run()
        except _NotBootedError as refusal:
            print(f"{refusal}\nboot {boot} of {_BOOTS}; it is booted again", file=sys.stderr, flush=True)
    return run()


class _Run:
    """One boot and what comes of it."""

    def __init__(self, machine: Machine, *, output: int, error: int) -> None:
        self._console: list[bytes] = []
        self._report: list[bytes] = []
        self._pumps = [
            _Pump(lambda data: _write_all(output, data)),
            _Pump(lambda data: _write_all(error, data)),
            _Pump(self._report.append),
            _Pump(self._console.append),
        ]
        out, err, said, screen = (pump.writer for pump in self._pumps)
        self._begun = time.monotonic()
        self._qemu = subprocess.Popen(
            machine.command(report=said, output=out, error=err, console=screen),
            stdin=subprocess.DEVNULL,
            stdout=screen,
            stderr=screen,
            pass_fds=[machine.initial, out, err, said, screen],
            start_new_session=True,
        )

    def wait(self, timeout: float, *, boot_timeout: float) -> int:
        """The exit code of its command. Nothing of it is left, whatever happens."""
        try:
            for pump in self._pumps:
                pump.start()
            self._wait(timeout, boot_timeout=boot_timeout)
        finally:
            self._qemu.kill()
            self._qemu.wait()
            for pump in self._pumps:
                pump.finish()
        match = re.search(rb"ended (\d+)\n", b"".join(self._report))
        if match is None:
            said = b"".join(self._report).decode(errors="replace").strip()
            seconds, code = time.monotonic() - self._begun, self._qemu.returncode
            message = (
                f"the guest ended after {seconds:.0f} s, QEMU with code {code}, without a report "
                f"({said or 'not a word'}); {_last_words(self._console)}"
            )
            raise MachineError(message) if said else _NotBootedError(message)
        return int(match.group(1))

    def _wait(self, timeout: float, *, boot_timeout: float) -> None:
        try:
            with suppress(subprocess.TimeoutExpired):
                self._qemu.wait(min(boot_timeout, timeout))
                return
            if not self._report:
                raise _NotBootedError(f"the guest is not up after {boot_timeout:.0f} s; {_last_words(self._console)}")
            self._qemu.wait(max(0.0, timeout - boot_timeout))
        except subprocess.TimeoutExpired:
            raise MachineError(f"given up after {timeout:.0f} s; {_last_words(self._console)}") from None


class _Pump:
    """Takes what is written to `writer`, until nobody holds it any more."""

    def __init__(self, take: Callable[[bytes], object]) -> None:
        self._reader, self.writer = os.pipe()
        self._take = take
        self._thread = threading.Thread(target=self._run, daemon=True)

    def start(self) -> None:
        """QEMU has its copy of the writer; ours would keep the pipe open."""
        os.close(self.writer)
        self._thread.start()

    def finish(self) -> None:
        """Wait for the last byte."""
        self._thread.join()

    def _run(self) -> None:
        with os.fdopen(self._reader, "rb", buffering=0) as reader:
            while data := reader.read(1 << 16):
                self._take(data)


def _write_all(descriptor: int, data: bytes) -> None:
    view = memoryview(data)
    while view:
        view = view[os.write(descriptor, view) :]


def _handed_over(descriptor: int, name: str) -> list[str]:
    # Through a set QEMU takes it as it is; "append" because otherwise it would truncate it, which no pipe knows.
    file = f"file,id={name},path=/dev/fdset/{descriptor},append=on"
    return ["-add-fd", f"fd={descriptor},set={descriptor}", "-chardev", file]


def _port(name: str, descriptor: int) -> list[str]:
    return [*_handed_over(descriptor, name), "-device", f"virtserialport,chardev={name},name={name}"]


def _shared(folder: Path, *, tag: str, options: str) -> list[str]:
    return [
        *("-fsdev", f"local,id={tag},path={folder},security_model=none,multidevs=remap,{options}"),
        *("-device", f"virtio-9p-pci,fsdev={tag},mount_tag={tag}"),
    ]


def _last_words(console: Sequence[bytes]) -> str:
    text = b"".join(console).decode(errors="replace")
    # Firmware positions the cursor and colours its text.
    plain = re.sub(r"\x1b(\[[0-9;?=]*[A-Za-z]|.)", "", text).replace("\r", "")
    return "the end of its console:\n" + "\n".join(plain.splitlines()[-_CONSOLE_LINES:])
