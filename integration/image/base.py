"""Debian 13 from this machine's own package sources: what the Dockerfile's BASE is where there is no registry.

    parse_sources, wanted_sources,
    first_mirror                     from the text of the machine's files; pure
    describe_base                    what a base is made of, for its name in the cache
    make_base                        debootstrap(8), and the machine's sources and certificates

Nothing of it comes into the image, whose last stage begins with nothing.
"""

import platform
import re
import shutil
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from integration.cluster.apt_source import ETC_APT
from integration.cluster.image import machine_architecture
from integration.image.command import run_logged
from integration.image.error import ImageBuildError

SUITE = "trixie"
NAMES = ("debian:13-slim", "debian:trixie-slim", "debian:13", "debian:trixie")
"""What a Dockerfile may call it."""
_PARTS = ("", "-updates", "-security")
"""Of a release, the first one first: what follows its name in the names of its suites."""
_CERTIFICATES = Path("usr/local/share/ca-certificates")
_MIRROR_LIST = "mirror+file:"
_RECIPE = "1"
"""To be changed with what make_base does."""


@dataclass(frozen=True, slots=True)
class PackageSource:
    """One suite at one place."""

    uri: str
    suite: str


def parse_sources(text: str) -> Iterator[PackageSource]:
    """Of a file of sources.list(5) in either style: those of binary packages that are enabled and have `main`."""
    for line in text.splitlines():
        words = re.sub(r"\[[^]]*\]", " ", line).split()
        if words[:1] == ["deb"] and "main" in words[3:]:
            yield PackageSource(words[1], words[2])
    for stanza in re.split(r"\n[ \t]*\n", text):
        lines = (line for line in stanza.splitlines() if not line.startswith("#"))
        fields = {name.strip().lower(): value.split() for name, _, value in (line.partition(":") for line in lines)}
        enabled = fields.get("enabled", ["yes"])[0].lower() not in ("no", "false", "0")
        if enabled and "deb" in fields.get("types", ()) and "main" in fields.get("components", ()):
            for uri in fields.get("uris", ()):
                yield from (PackageSource(uri, suite) for suite in fields.get("suites", ()))


def wanted_sources(texts: Sequence[str], *, machine: str) -> list[PackageSource]:
    """Debian 13's, the release itself first: as listed, or else at the places of the release that the machine runs.

    A mirror has all releases in one place, so that a machine of another one needs no entry for the image's sake. Raises
    ImageBuildError where neither of them is listed.
    """
    known = dict.fromkeys(source for text in texts for source in parse_sources(text))
    for release in (SUITE, machine):
        suites = [f"{release}{part}" for part in _PARTS]
        found = sorted((source for source in known if source.suite in suites), key=lambda one: suites.index(one.suite))
        if found and found[0].suite == release:
            return [PackageSource(one.uri, SUITE + one.suite.removeprefix(release)) for one in found]
    raise ImageBuildError(f"the machine's package sources do not have {SUITE} (Debian 13); add it, or use docker")


def machine_sources() -> list[PackageSource]:
    """Where apt on this machine finds Debian, with the suites of Debian 13. Raises ImageBuildError."""
    folder = ETC_APT / "sources.list.d"
    files = [ETC_APT / "sources.list", *sorted(folder.glob("*.list")), *sorted(folder.glob("*.sources"))]
    texts = [path.read_text() for path in files if path.is_file()]
    sources = wanted_sources(texts, machine=platform.freedesktop_os_release().get("VERSION_CODENAME", SUITE))
    return [PackageSource(_without_list(source.uri), source.suite) for source in sources]


def _without_list(uri: str) -> str:
    """debootstrap knows no lists of mirrors, which Debian's cloud images have (apt-transport-mirror(1))."""
    if not uri.startswith(_MIRROR_LIST):
        return uri
    path = Path("/", uri.removeprefix(_MIRROR_LIST).lstrip("/"))
    try:
        return first_mirror(path.read_text())
    except OSError as error:
        raise ImageBuildError(f"the list of mirrors {path} cannot be read: {error}") from error


def first_mirror(text: str) -> str:
    """The place in the first line of a list of mirrors. Raises ImageBuildError where it names none."""
    for line in text.splitlines():
        if words := line.partition("#")[0].split():
            return words[0]
    raise ImageBuildError("the machine's list of mirrors is empty; name a mirror in its package sources")


def describe_base(architecture: str) -> str:
    """A text that is another one when `make_base` would make another base. Raises ImageBuildError."""
    certificates = [path.read_text() for path in _own_certificates()]
    return "\n".join([_RECIPE, architecture, *map(_line, machine_sources()), *certificates])


def make_base(folder: Path, log: Path, *, architecture: str) -> None:
    """The root file system in the new folder; a minute or two and root. Raises ImageBuildError.

    That of another architecture than this machine's takes the emulation of it (`integration.image.emulation`).
    """
    sources = machine_sources()
    if shutil.which("debootstrap") is None:
        raise ImageBuildError("debootstrap is missing; install it: apt-get install debootstrap")
    options = ["--variant=minbase", "--include=ca-certificates"]
    if architecture != machine_architecture():
        options.append(f"--arch={architecture}")
    run_logged(["debootstrap", *options, SUITE, str(folder), sources[0].uri], log=log)
    (folder / "etc/apt/sources.list").write_text("".join(f"{_line(source)}\n" for source in sources))
    if certificates := list(_own_certificates()):
        for path in certificates:
            shutil.copy(path, folder / _CERTIFICATES)
        run_logged(["chroot", str(folder), "update-ca-certificates"], log=log)
    # A mount point for the machine's own, which may change.
    resolver = folder / "etc/resolv.conf"
    resolver.unlink(missing_ok=True)
    resolver.touch()
    run_logged(["chroot", str(folder), "apt-get", "clean"], log=log)


def _line(source: PackageSource) -> str:
    return f"deb {source.uri} {source.suite} main"


def _own_certificates() -> Iterator[Path]:
    """Authorities that this machine trusts beyond Debian's, as the way to its package sources may need them."""
    return (path for path in sorted((Path("/") / _CERTIFICATES).glob("*.crt")) if path.is_file())
