"""Run a command where Foo-over-UDP is: directly on a kernel that has it, otherwise in the virtual machine."""

import os
import shutil
import subprocess
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from enum import Enum, auto
from pathlib import Path, PurePosixPath
from typing import BinaryIO

from integration.vm.archive import Archive
from integration.vm.boot import Errand, check_folder, render_boot, render_errand
from integration.vm.bytecode import missing_bytecode
from integration.vm.feature import MODULES, missing_features
from integration.vm.kernel import Kernel, KernelError, cached_kernel
from integration.vm.layer import REPOSITORY, select_files
from integration.vm.machine import QEMU, Machine, MachineError, choose_accelerator, run_machine
from integration.vm.module_tree import BOOT, FOLDERS, OTHERS, ModuleTree, parse_dependencies

TIMEOUT = 1800.0
MEMORY = 3072
INSIDE_VARIABLE = "COIL_VM"
"""Set to "1" in the environment of a command that runs in the virtual machine."""

_INDEXES = (
    *("modules.dep", "modules.dep.bin", "modules.alias", "modules.alias.bin", "modules.softdep", "modules.symbols"),
    *("modules.symbols.bin", "modules.builtin", "modules.builtin.bin", "modules.builtin.alias.bin", "modules.order"),
)


class Place(Enum):
    """Where a command may run."""

    ANYWHERE = auto()
    MACHINE = auto()
    """On this kernel, whatever it lacks."""
    GUEST = auto()


@dataclass(frozen=True, slots=True, kw_only=True)
class Terms:
    """How a command runs. `payload` are files and folders that shall be in the guest's memory as well."""

    place: Place = Place.ANYWHERE
    timeout: float = TIMEOUT
    memory: int = MEMORY
    results: Path | None = None
    payload: Sequence[Path] = ()


def run_with_fou(argv: Sequence[str], *, terms: Terms, environment: Mapping[str, str] | None = None) -> int:
    """Run `argv` in the current folder and return its exit code; output goes where this process' output goes.

    Raises KernelError or MachineError. Needs root. Cancelled (KeyboardInterrupt), it leaves nothing running.
    """
    wanted = dict(os.environ if environment is None else environment)
    if terms.place is Place.MACHINE or (terms.place is Place.ANYWHERE and not missing_features()):
        return _run_here(argv, wanted, timeout=terms.timeout)
    return _run_in_guest(argv, wanted, terms)


def _run_here(argv: Sequence[str], environment: Mapping[str, str], *, timeout: float) -> int:
    command = ["setpriv", "--pdeathsig", "KILL", *argv]
    try:
        return subprocess.run(command, env=environment, timeout=timeout, check=False).returncode
    except subprocess.TimeoutExpired as error:
        raise MachineError(f"given up after {timeout:.0f} s") from error


def _run_in_guest(argv: Sequence[str], environment: Mapping[str, str], terms: Terms) -> int:
    kernel = cached_kernel()
    if kernel is None:
        raise KernelError("there is no kernel to boot; python -m integration.vm.kernel brings one")
    if shutil.which(QEMU) is None:
        raise KernelError(f"{QEMU} is missing; install it: apt-get install qemu-system-x86")
    needed = needed_folders(terms.payload)
    for folder in (*needed, *([terms.results] if terms.results else [])):
        if problem := check_folder(folder):
            raise MachineError(problem)
    tree = parse_dependencies((kernel.modules / "modules.dep").read_text())
    boot_modules = tree.paths(BOOT)
    errand = Errand(
        argv=argv,
        environment={**_inherited(environment), INSIDE_VARIABLE: "1"},
        folder=Path.cwd(),
        results=terms.results,
        needed=needed,
        boot_modules=[PurePosixPath(path).name for path in boot_modules],
        modules=MODULES,
    )
    with os.fdopen(os.memfd_create("coil-vm"), "wb") as initial:
        _write_initial(initial, errand, kernel, tree, payload=terms.payload)
        machine = Machine(
            kernel=kernel.image,
            modules=kernel.root,
            initial=initial.fileno(),
            accelerator=choose_accelerator(),
            memory=terms.memory,
            processors=min(os.cpu_count() or 1, 4),
            results=terms.results,
        )
        sys.stdout.flush()
        sys.stderr.flush()
        return run_machine(machine, output=1, error=2, timeout=terms.timeout)


def needed_folders(payload: Sequence[Path]) -> list[Path]:
    """The folders that a run of the project's own programs reads, outermost only: checkout, interpreter, payload."""
    asked = {REPOSITORY, *(Path(prefix).resolve() for prefix in (sys.prefix, sys.base_prefix)), Path.cwd()}
    asked |= {path.resolve() if path.is_dir() else path.resolve().parent for path in payload}
    asked.discard(Path("/"))
    return sorted(path for path in asked if not any(path != other and path.is_relative_to(other) for other in asked))


def _inherited(environment: Mapping[str, str]) -> dict[str, str]:
    """Without proxies, none of which leads anywhere from inside, and without the machine's certificate authorities.

    An HTTP library reads all of these on its import, for seconds under emulation. Nobody inside is told to trust them.
    """
    kept = {name: value for name, value in environment.items() if not name.lower().endswith("_proxy")}
    return {**kept, "SSL_CERT_FILE": os.devnull, "SSL_CERT_DIR": os.devnull}


def _write_initial(
    output: BinaryIO, errand: Errand, kernel: Kernel, tree: ModuleTree, *, payload: Sequence[Path]
) -> None:
    archive = Archive(output)
    busybox = shutil.which("busybox")
    if busybox is None:
        raise KernelError("busybox is missing; install it: apt-get install busybox-static")
    archive.add_path(PurePosixPath("/bin/busybox"), Path(busybox).resolve())
    archive.add_bytes(PurePosixPath("/init"), render_boot(errand).encode(), mode=0o755)
    archive.add_bytes(PurePosixPath("/errand"), render_errand(errand).encode())
    for path in tree.paths(BOOT):
        archive.add_path(PurePosixPath("/boot-modules") / PurePosixPath(path).name, kernel.modules / path)
    layer = PurePosixPath("/layer")
    modules = layer / "usr/lib/modules" / kernel.version
    for path in [*_INDEXES, *tree.paths([*tree.below(FOLDERS), *MODULES, *OTHERS])]:
        if (source := kernel.modules / path).exists():
            archive.add_path(modules / path, source)
    sources = list(dict.fromkeys(select_files(payload)))
    # Before the others: the first of a name wins, and theirs may be old.
    for cache, content in missing_bytecode(sources):
        archive.add_bytes(layer / str(cache).removeprefix("/"), content)
    for source in sources:
        archive.add_path(layer / str(source).removeprefix("/"), source)
    archive.close()
