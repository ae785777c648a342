"""Debian source packages from the machine's own package sources, without touching /etc.

``debian_build`` needs the source of a package while most machines only list binary packages. The entries that the
machine already trusts are rewritten as source entries into a private folder, and apt is pointed at that folder for its
sources, its lists and its caches. So no host name is written down here, and nothing outside the given folder changes.
"""

from __future__ import annotations

import re
import subprocess
from collections.abc import Callable, Sequence
from pathlib import Path

ETC_APT = Path("/etc/apt")

Run = Callable[[str, Sequence[str]], None]
"""Runs one step: what it is in words, its argument list. Raises when the program fails."""


class SourcePackageError(Exception):
    """The source package cannot be had here; the message says why and what to do."""


def render_source_entries(text: str) -> str:
    """A deb822 file (sources.list(5)) with each stanza of binary packages turned into one of source packages.

    Stanzas without ``deb`` or ``deb-src`` in Types, and those with ``Enabled: no``, are left out.
    """
    stanzas = []
    for stanza in re.split(r"\n[ \t]*\n", text):
        lines = [line for line in stanza.splitlines() if line.strip() and not line.startswith("#")]
        fields = {name.strip().lower(): value.strip() for name, _, value in (line.partition(":") for line in lines)}
        if "types" not in fields or fields.get("enabled", "yes").lower() in ("no", "false", "0"):
            continue
        kept = [line for line in lines if not line.lower().startswith(("types:", "enabled:"))]
        stanzas.append("\n".join(["Types: deb-src", *kept]))
    return "".join(f"{stanza}\n\n" for stanza in stanzas)


def render_source_lines(text: str) -> str:
    """A one-line-style file (sources.list(5)) with each ``deb`` or ``deb-src`` line as one ``deb-src`` line."""
    wanted = (re.match(r"\s*deb(?:-src)?\s+(.*\S)", line) for line in text.splitlines())
    entries = dict.fromkeys(match.group(1) for match in wanted if match)
    return "".join(f"deb-src {entry}\n" for entry in entries)


class SourceIndex:
    """apt with source entries only, living in ``folder``; give the folder away and nothing is left."""

    def __init__(self, folder: Path, *, run: Run, etc: Path) -> None:
        self._run = run
        self._folder = folder
        parts = folder / "sources"
        lists = folder / "lists"
        for path in (parts, lists / "partial", folder / "cache" / "archives" / "partial"):
            path.mkdir(parents=True, exist_ok=True)
        written = [
            self._write(parts / path.name, render(path.read_text()))
            for path, render in (
                (etc / "sources.list", render_source_lines),
                *((path, render_source_lines) for path in sorted(etc.glob("sources.list.d/*.list"))),
                *((path, render_source_entries) for path in sorted(etc.glob("sources.list.d/*.sources"))),
            )
            if path.is_file()
        ]
        if not any(written):
            raise SourcePackageError(f"no package source is configured under {etc}; add Debian's to it")
        self._options = [
            *("-o", "Dir::Etc::SourceList=/dev/null"),
            *("-o", f"Dir::Etc::SourceParts={parts}"),
            *("-o", f"Dir::State::Lists={lists}"),
            *("-o", f"Dir::Cache={folder / 'cache'}"),
            *("-o", "Acquire::Languages=none"),
            *("-o", "Acquire::Retries=3"),
            # The folder is private to its owner, which apt's download user is not.
            *("-o", "APT::Sandbox::User=root"),
            "-q",
        ]

    @staticmethod
    def _write(path: Path, text: str) -> bool:
        if text:
            path.write_text(text)
        return bool(text)

    def version(self, package: str) -> str:
        """The newest version of the source package ``package`` after refreshing the lists; network access."""
        # A third party's source without source packages fails the update; only Debian's matters.
        failure: Exception | None = None
        try:
            self._run("refreshing the lists of source packages", ["apt-get", *self._options, "update"])
        except Exception as error:
            failure = error
        found = subprocess.run(
            ["apt-cache", *self._options, "showsrc", "--only-source", package],
            capture_output=True,
            text=True,
            check=False,
            timeout=60,
        )
        versions = re.findall(r"^Version: (\S+)$", found.stdout, re.MULTILINE)
        if not versions:
            raise SourcePackageError(
                f"the source package {package!r} is in none of this machine's package sources "
                f"(it is in Debian 12, component main): {failure or found.stderr.strip()}"
            )
        newest: str = versions[0]
        for version in versions[1:]:
            if subprocess.run(["dpkg", "--compare-versions", version, "gt", newest], check=False).returncode == 0:
                newest = version
        return newest

    def unpack(self, package: str, version: str, into: Path) -> Path:
        """Download, verify and unpack the source package below ``into``; the folder of its source is returned."""
        archives = into / "archives"
        archives.mkdir(parents=True, exist_ok=True)
        self._run(
            f"downloading the source of {package} {version}",
            # apt downloads into the working directory.
            [
                "env",
                "-C",
                str(archives),
                "apt-get",
                *self._options,
                "--download-only",
                "source",
                f"{package}={version}",
            ],
        )
        [description] = archives.glob(f"{package}_*.dsc")
        source = into / package
        self._run("unpacking it", ["dpkg-source", "--no-check", "-x", str(description), str(source)])
        return source
