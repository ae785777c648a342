"""Programs of another architecture on this machine: the kernel starts QEMU's user emulation for them (binfmt_misc).

    header            how an executable of an architecture begins; pure
    parse_handlers    what binfmt_misc lists; pure
    list_handlers     of this machine
    emulation         a context in which such programs can be executed, in any root; nothing is done where they can be

A handler with the flag F brings its interpreter along: the kernel opened the file when the handler was registered, so
that a root without QEMU will do, even one without anything. One of the machine's own is used as it is. Otherwise there
is a handler of a name of its own for as long as the context lasts, registered by a process that removes it when it is
told to, or when whoever could tell it has ended. binfmt_misc is mounted for these processes alone.
"""

import re
import secrets
import shutil
import subprocess
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from integration.cluster.image import machine_architecture
from integration.image.error import ImageBuildError

PACKAGE: Final = "qemu-user-static"
"""Debian's, in Debian 12 and 13."""
_OURS: Final = "coil-"
"""How the names of our handlers begin. Each belongs to one context, and ends with it."""
_SECONDS: Final = 60


@dataclass(frozen=True, slots=True)
class Architecture:
    """What an architecture is called where images do not call it by their name."""

    machine: str
    """uname(2), and QEMU."""
    number: int
    """e_machine of elf(5)."""


ARCHITECTURES: Final[Mapping[str, Architecture]] = {
    "amd64": Architecture("x86_64", 62),
    "arm64": Architecture("aarch64", 183),
}
"""Those that the image can be built for, by the names that Debian and images have for them."""


class EmulationError(ImageBuildError):
    """Programs of that architecture cannot be executed here; the message says why and what to do."""


@dataclass(frozen=True, slots=True)
class Handler:
    """An entry of binfmt_misc."""

    name: str
    enabled: bool
    flags: str
    offset: int
    magic: bytes
    mask: bytes

    def takes(self, beginning: bytes) -> bool:
        """Whether the kernel gives it files that begin so."""
        part = beginning[self.offset : self.offset + len(self.magic)].ljust(len(self.magic), b"\0")
        compared = zip(part, self.magic, self.mask, strict=True)
        return self.enabled and bool(self.magic) and not any((one ^ other) & mask for one, other, mask in compared)


def header(architecture: str) -> bytes:
    """The first fields of an executable (elf(5)): 64 bits, little-endian, not of a particular system, ET_EXEC."""
    beginning = b"\x7fELF" + bytes((2, 1, 1)) + bytes(9)
    return beginning + (2).to_bytes(2, "little") + ARCHITECTURES[architecture].number.to_bytes(2, "little")


_MASK: Final = b"\xff" * 7 + b"\0" + b"\xff" * 8 + b"\xfe\xff" + b"\xff\xff"
"""Of the header: for any system, and for ET_DYN as well, which most executables are."""


def parse_handlers(text: str) -> list[Handler]:
    """Lines `name:line` of all files. Those that go by the ends of files' names have no magic, and take nothing."""
    files: dict[str, dict[str, str]] = {}
    for line in text.splitlines():
        name, _, said = line.partition(":")
        word, _, rest = said.partition(" ")
        files.setdefault(name, {})[word.rstrip(":")] = rest
    return [
        Handler(
            name=name,
            enabled="enabled" in lines,
            flags=lines.get("flags", ""),
            offset=int(lines.get("offset", "0")),
            magic=bytes.fromhex(lines.get("magic", "")),
            # Without one all bits count.
            mask=bytes.fromhex(lines.get("mask", "ff" * (len(lines.get("magic", "")) // 2))),
        )
        for name, lines in files.items()
        if "interpreter" in lines
    ]


@contextmanager
def emulation(architecture: str) -> Iterator[None]:
    """Programs of that architecture can be executed in it. Raises EmulationError; leaves nothing registered."""
    if architecture == machine_architecture() or _machine_has(architecture):
        yield
        return
    name = f"{_OURS}{architecture}-{secrets.token_hex(4)}"
    interpreter = _interpreter(ARCHITECTURES[architecture].machine)
    # P keeps a program's first argument, by which some find out what they are. F is for roots without the interpreter.
    rule = f":{name}:M::{_escaped(header(architecture))}:{_escaped(_MASK)}:{interpreter}:PF"
    with _start(_REGISTER, name, rule) as holder:
        assert holder.stdin is not None
        assert holder.stdout is not None
        try:
            if holder.stdout.readline() != "registered\n":
                raise EmulationError(_sentence(holder.communicate(timeout=_SECONDS)[1]))
            yield
        finally:
            holder.stdin.close()
            holder.wait(_SECONDS)


def _machine_has(architecture: str) -> bool:
    """Whether a handler of the machine's own takes such programs wherever they are."""
    return any(
        handler.takes(header(architecture)) and "F" in handler.flags and not handler.name.startswith(_OURS)
        for handler in list_handlers()
    )


def list_handlers() -> list[Handler]:
    """All that are registered. Raises EmulationError where there is no use in any, or none can be."""
    with _start(_LIST) as process:
        listing, said = process.communicate(timeout=_SECONDS)
    if process.returncode:
        raise EmulationError(_sentence(said))
    if "status:enabled" not in listing.splitlines():
        raise EmulationError(_sentence("binfmt_misc is switched off"))
    return parse_handlers(listing)


def _interpreter(machine: str) -> Path:
    """QEMU's program for it that needs no shared library: in the root of what it executes there may be none."""
    for name in (f"qemu-{machine}-static", f"qemu-{machine}"):
        found = shutil.which(name)
        # A dynamically linked program names its loader near its start (ELF, PT_INTERP).
        if found is not None and b"/ld-" not in Path(found).read_bytes()[:4096]:
            return Path(found).resolve()
    raise EmulationError(f"programs for {machine} take QEMU's user emulation; install it: apt-get install {PACKAGE}")


def _escaped(data: bytes) -> str:
    return "".join(f"\\x{octet:02x}" for octet in data)


def _sentence(said: str) -> str:
    reason = re.sub(r"\s+", " ", said).strip() or "no reason was given"
    return (
        f"programs of other architectures cannot be executed here ({reason}); "
        "use a machine or a virtual machine whose kernel has binfmt_misc, outside a restricted container"
    )


_MOUNT: Final = "set -e; mount -t binfmt_misc binfmt_misc /sys; cd /sys; "
"""A folder that every machine has and that these processes need nothing of; nobody else sees what is mounted there."""
_LIST: Final = _MOUNT + "grep -s '' * || :"
"""`register` is a file that cannot be read."""
_REGISTER: Final = (
    _MOUNT
    + """
printf %s "$2" >register
echo registered
read -r _ || :
echo -1 >"$1"
"""
)
"""The kernel would remove it with the last mount of binfmt_misc, but only since Linux 6.7."""


def _start(script: str, *arguments: str) -> subprocess.Popen[str]:
    return subprocess.Popen(
        ["unshare", "--mount", "--propagation=private", "sh", "-c", script, "sh", *arguments],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        # An interrupt from the keyboard must not end it before what it is there for.
        start_new_session=True,
    )
