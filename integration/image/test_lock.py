"""The locks: what they have to say, and that a build takes nothing else."""

import re
import shutil
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

from integration.cluster.cache import cache_root
from integration.cluster.image import machine_architecture
from integration.image import build
from integration.image.emulation import ARCHITECTURES
from integration.image.error import ImageBuildError
from integration.image.layers import Layers, base_name
from integration.image.lock import FOLDER, debian_packages, lock_debian, python_requirements


def locked(name: str) -> dict[str, tuple[str, int]]:
    """Of a lock of Python packages, by name: the version and how many files may be taken."""
    entries = (FOLDER / f"{name}.lock").read_text().replace("\\\n", "").splitlines()
    found = {}
    for entry in entries:
        requirement = Requirement(entry.partition(" --hash")[0].strip())
        [specifier] = requirement.specifier
        assert specifier.operator == "=="
        found[str(canonicalize_name(requirement.name))] = (specifier.version, entry.count("--hash=sha256:"))
    return found


@pytest.mark.parametrize("name", sorted(python_requirements()))
def test_a_lock_has_what_is_asked_for_at_the_versions_of_the_checkout(name: str) -> None:
    lines = (line.partition("==") for line in (build.REPOSITORY / "constraints.txt").read_text().splitlines())
    constraints = {str(canonicalize_name(package)): version for package, _, version in lines}
    found = locked(name)
    assert {package: version for package, (version, _) in found.items()} == {
        package: constraints.get(package) for package in found
    }
    assert min(files for _, files in found.values()) > 0
    wanted = {str(canonicalize_name(Requirement(text).name)) for text in python_requirements()[name]}
    assert wanted <= found.keys()


@pytest.mark.parametrize("architecture", sorted(ARCHITECTURES))
def test_a_lock_of_debian_has_each_package_once(architecture: str) -> None:
    lines = (FOLDER / f"debian.{architecture}.sha256").read_text().splitlines()
    matches = [re.fullmatch(r"[0-9a-f]{64}  ([^_]+)_[^_]+_(\w+)\.deb", line) for line in lines]
    assert all(matches)
    found = [match.groups() for match in matches if match]
    assert sorted(name for name, _ in found) == debian_packages()
    assert {of for _, of in found} <= {architecture, "all"}


@pytest.fixture
def checkout(monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """A copy of what the image is built of, to be changed."""
    with tempfile.TemporaryDirectory(prefix="coil-image-") as folder:
        copy = Path(folder) / "checkout"
        for name in ("image", "cni", "services"):
            shutil.copytree(build.REPOSITORY / name, copy / name, ignore=shutil.ignore_patterns("__pycache__"))
        for name in ("Dockerfile", ".dockerignore", "LICENSE", "README.md", "pyproject.toml"):
            shutil.copy(build.REPOSITORY / name, copy)
        monkeypatch.setattr(build, "REPOSITORY", copy)
        yield copy


def fetch(folder: Path) -> None:
    """The steps of a locked build that fetch Debian's packages, on the base that is known."""
    plan = build.read_plan(arguments={"DEBIAN": "locked"})
    folder.mkdir()
    [base] = (cache_root() / "image").glob(f"*-{base_name(plan.base)}")
    (folder / base.name).symlink_to(base)
    Layers(folder).make(plan.layers[:2], base=plan.base)


@pytest.mark.usefixtures("archive")
@pytest.mark.slow
def test_a_build_takes_the_locked_packages_and_no_others(checkout: Path) -> None:
    architecture = machine_architecture()
    lock = checkout / "image" / f"debian.{architecture}.sha256"
    today = lock_debian(architecture, names=debian_packages())
    lock.write_text(today)
    fetch(checkout.parent / "as-locked")

    first, *others = today.splitlines(keepends=True)
    for number, text in enumerate(
        [
            "".join(others),  # one that is not in the lock
            first.replace(first[:8], "00000000", 1) + "".join(others),  # another file under the same name
            first.replace("_", "_9:", 1) + "".join(others),  # another version
        ]
    ):
        lock.write_text(text)
        with pytest.raises(ImageBuildError, match="SNAPSHOT="):
            fetch(checkout.parent / f"other-{number}")
