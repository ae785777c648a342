"""Which of the machine's files the guest has in memory.

All others are seen as well, over a shared file system on which every look takes milliseconds under emulation. So
nothing here decides what works, only what is fast: the interpreter and its library, the environment's packages, the
checkout, and the programs of the tests with the libraries that they load.
"""

import re
import shutil
import subprocess
import sys
import sysconfig
from collections.abc import Iterator, Sequence
from pathlib import Path

REPOSITORY = Path(__file__).resolve().parents[2]

PROGRAMS = (
    *("busybox", "sh", "bash", "env", "timeout", "nsenter", "unshare", "setpriv", "mount", "umount", "cat", "sleep"),
    *("ip", "tc", "ss", "nft", "iptables", "ip6tables", "iptables-save", "iptables-restore", "ip6tables-restore"),
    *("conntrack", "ipset", "modprobe", "kmod", "tcpdump", "ldconfig", "grep", "sed"),
)
"""What the tests and kube-proxy start; those that the machine does not have are left out."""

_STANDARD_LIBRARY_UNUSED = {"test", "idlelib", "tkinter", "turtledemo", "ensurepip", "lib2to3", "pydoc_data"}
_CHECKOUT_UNUSED = {
    *(".git", ".venv", ".nox", ".mypy_cache", ".ruff_cache", ".pytest_cache", ".hypothesis", ".import_linter_cache"),
    *("build", "docs", "tests"),
}
_PACKAGES_UNUSED = {
    *("playwright", "mypy", "mypyc", "pip", "setuptools", "virtualenv", "black", "blib2to3", "isort", "grimp"),
    *("grpc", "grpc_tools", "hatchling", "importlinter", "tzdata", "pendulum", "celpy", "lark"),
    *("ast_serialize", "librt", "distlib", "nox", "jinja2", "re2"),
}
_PARTS_UNUSED = (
    # The generated client, of which the project uses next to nothing.
    Path("kubernetes_asyncio/client/models"),
    Path("kubernetes_asyncio/client/api"),
)
_LARGE_PROGRAM = 4 << 20


def select_files(extra: Sequence[Path]) -> Iterator[Path]:
    """Absolute paths without a symbolic link on the way; folders before what is in them. May repeat itself."""
    yield from _standard_library()
    yield from _environment()
    yield from _walk(REPOSITORY, unused=_CHECKOUT_UNUSED)
    programs = [Path(found) for name in PROGRAMS if (found := shutil.which(name))]
    for program in [Path(sys.executable), *programs]:
        yield from _with_links(program)
    executables = [path.resolve() for path in [Path(sys.executable), *programs]]
    libraries = list(Path(sysconfig.get_path("stdlib")).glob("lib-dynload/*.so"))
    plugins = [path.resolve() for path in Path("/usr/lib").glob("*-linux-gnu/xtables/*.so")]
    yield from plugins
    yield from loaded_libraries([*executables, *libraries, *_environment_libraries()])
    for path in extra:
        yield from _walk(path.resolve(), unused=set())


def loaded_libraries(files: Sequence[Path]) -> Iterator[Path]:
    """The shared libraries that these executables and libraries load, with the links that lead to them."""
    # A static program makes it fail; what it says about the others counts.
    said = subprocess.run(["ldd", *map(str, files)], check=False, capture_output=True, text=True, timeout=60).stdout
    for path in sorted(set(re.findall(r"(/\S+) \(0x", said))):
        yield from _with_links(Path(path))


def _standard_library() -> Iterator[Path]:
    return _walk(Path(sysconfig.get_path("stdlib")).resolve(), unused=_STANDARD_LIBRARY_UNUSED | {"site-packages"})


def _environment() -> Iterator[Path]:
    prefix = Path(sys.prefix).resolve()
    for path in _walk(prefix / "bin", unused=set()):
        if path.is_symlink() or path.stat().st_size < _LARGE_PROGRAM:
            yield path
    packages = Path(sysconfig.get_path("purelib")).resolve()
    if (configuration := prefix / "pyvenv.cfg").is_file():
        yield configuration
    unused_parts = tuple(packages / part for part in _PARTS_UNUSED)
    for path in _walk(packages, unused=_PACKAGES_UNUSED):
        if "__mypyc." not in path.name and not any(path.is_relative_to(part) for part in unused_parts):
            yield path


def _environment_libraries() -> Iterator[Path]:
    return (path for path in _environment() if path.name.endswith(".so"))


def _with_links(path: Path) -> Iterator[Path]:
    """The file, and every link on the way to it as the file system has it."""
    while True:
        place = path.parent.resolve() / path.name
        yield place
        if not place.is_symlink():
            return
        path = place.parent / place.readlink()


def _walk(top: Path, *, unused: set[str]) -> Iterator[Path]:
    """All of a folder except what has these names at its top; or a single file."""
    yield top
    if not top.is_dir() or top.is_symlink():
        return
    for path in sorted(top.iterdir()):
        if path.name not in unused:
            yield from _walk(path, unused=set())
