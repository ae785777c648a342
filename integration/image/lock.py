"""`python -m integration.image.lock`: renew the locks, by which the image has the same packages wherever it is built.

    image/debian.ARCHITECTURE.sha256    Debian's, as sha256sum(1) checks them: as apt finds them at this moment
    image/programs.lock, …              Python's, with hashes, as pip requires them: the versions of constraints.txt

Nothing is installed, and no root is needed.
"""

import re
import subprocess
import sys
import tempfile
import tomllib
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Final

from integration.image.base import SUITE, machine_sources
from integration.image.build import REPOSITORY, read_stages
from integration.image.emulation import ARCHITECTURES
from integration.image.error import ImageBuildError

FOLDER: Final = REPOSITORY / "image"
PYTHON_VERSION: Final = "3.13"
"""Debian 13's."""
BUILD_TOOLS: Final = ("cyclonedx-python-lib", "hatchling", "packageurl-python", "packaging")
"""What runs while the image is built, and is not in it."""
_SECONDS: Final = 600
_URI = re.compile(r"^'[^']*' (?P<file>\S+\.deb) \d+ SHA256:(?P<digest>[0-9a-f]{64})$", re.MULTILINE)


def main() -> int:
    """Exit status 0 when all locks are written; otherwise 1, and those that are not written are as before."""
    try:
        for architecture in ARCHITECTURES:
            text = lock_debian(architecture, names=debian_packages())
            (FOLDER / f"debian.{architecture}.sha256").write_text(text)
        for name, requirements in python_requirements().items():
            (FOLDER / f"{name}.lock").write_text(lock_python(requirements))
    except ImageBuildError as error:
        print(f"lock: {error}", file=sys.stderr)
        return 1
    return 0


def debian_packages() -> list[str]:
    """Those whose content is in the image: as they are, and linked into the plugin."""
    build = read_stages()[0]
    return sorted(f"{build.environment['PACKAGES']} {build.environment['LINKED']}".split())


def python_requirements() -> Mapping[str, Sequence[str]]:
    """By lock, what is asked for: pyproject.toml names what the programs need."""
    project = tomllib.loads((REPOSITORY / "pyproject.toml").read_text())["project"]
    extras = project["optional-dependencies"]
    return {
        "build": BUILD_TOOLS,
        "kubectl-coil": extras["cli"],
        "programs": [*project["dependencies"], *extras["aws"], *extras["node-dump"], *extras["openstack"]],
    }


def lock_debian(architecture: str, *, names: Sequence[str]) -> str:
    """What `sha256sum --check` takes, sorted by file. Raises ImageBuildError."""
    with tempfile.TemporaryDirectory(prefix="coil-lock-") as folder:
        apt = ["apt-get", "--quiet=2", *_apart(Path(folder), architecture)]
        _run([*apt, "update"])
        found = {
            match["file"]: match["digest"] for match in _URI.finditer(_run([*apt, "--print-uris", "download", *names]))
        }
    if len(found) != len(names):
        missing = set(names) - {file.partition("_")[0] for file in found}
        raise ImageBuildError(f"Debian has no {', '.join(sorted(missing))} for {architecture}")
    return "".join(f"{digest}  {file}\n" for file, digest in sorted(found.items()))


def lock_python(requirements: Iterable[str]) -> str:
    """Requirements with the hashes of their files. Of wheels only: nothing is built by tools that are not locked.

    Raises ImageBuildError.
    """
    options = ["--python-version", PYTHON_VERSION, "--python-platform", "linux", "--only-binary", ":all:"]
    form = ["--generate-hashes", "--no-header", "--no-annotate", "--quiet"]
    constraints = ["--constraints", str(REPOSITORY / "constraints.txt")]
    with tempfile.TemporaryDirectory(prefix="coil-lock-") as folder:
        wanted = Path(folder) / "requirements.in"
        wanted.write_text("".join(f"{requirement}\n" for requirement in requirements))
        return _run([sys.executable, "-m", "uv", "pip", "compile", *options, *form, *constraints, str(wanted)])


def _apart(folder: Path, architecture: str) -> Iterator[str]:
    """Options by which apt knows the sources of Debian 13 and that architecture, and nothing of what is installed."""
    for name in ("lists/partial", "archives/partial"):
        (folder / name).mkdir(parents=True)
    (folder / "status").touch()
    sources = [source for source in machine_sources() if source.suite.startswith(SUITE)]
    (folder / "sources.list").write_text("".join(f"deb {source.uri} {source.suite} main\n" for source in sources))
    options = {
        "APT::Architecture": architecture,
        "APT::Architectures": architecture,
        "Dir::Etc::SourceList": folder / "sources.list",
        "Dir::Etc::SourceParts": "-",
        "Dir::State": folder,
        "Dir::State::Lists": folder / "lists",
        "Dir::State::Status": folder / "status",
        "Dir::Cache": folder,
        "Dir::Cache::Archives": folder / "archives",
    }
    for name, value in options.items():
        yield from ("-o", f"{name}={value}")


def _run(argv: Sequence[str]) -> str:
    """What it printed. Raises ImageBuildError."""
    try:
        done = subprocess.run(argv, capture_output=True, text=True, timeout=_SECONDS, check=False)
    except (OSError, subprocess.TimeoutExpired) as error:
        raise ImageBuildError(f"{argv[0]} did not end as it should: {error}") from error
    if done.returncode:
        raise ImageBuildError(f"exit code {done.returncode} from {' '.join(argv)[:200]}\n{done.stderr[-2000:]}")
    return done.stdout


if __name__ == "__main__":
    sys.exit(main())
