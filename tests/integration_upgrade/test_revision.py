"""A revision out of a repository: its files as they were, and one sentence when it is not there."""

import subprocess
from pathlib import Path

import pytest

from integration.upgrade.revision import Revision, RevisionError, check_revision


def git(folder: Path, *arguments: str) -> str:
    identity = ["-c", "user.name=test", "-c", "user.email=test@example.com", "-c", "commit.gpgsign=false"]
    done = subprocess.run(
        ["git", *identity, "-C", str(folder), *arguments], capture_output=True, text=True, timeout=60, check=True
    )
    return done.stdout.strip()


@pytest.fixture
def repository(tmp_path: Path) -> Path:
    """With two revisions; `HEAD~` is the former one."""
    folder = tmp_path / "repository"
    folder.mkdir()
    git(folder, "init", "--quiet")
    (folder / "charts" / "coil").mkdir(parents=True)
    for content in ("former", "present"):
        (folder / "charts" / "coil" / "values.yaml").write_text(content)
        git(folder, "add", ".")
        git(folder, "commit", "--quiet", "--message", content)
    return folder


def test_the_files_are_those_of_the_revision(repository: Path, tmp_path: Path) -> None:
    target = tmp_path / "target"
    target.mkdir()
    revision = Revision.check_out("HEAD~", target, repository)
    assert (revision.chart / "values.yaml").read_text() == "former"
    assert [path.name for path in target.iterdir()] == ["charts"]
    assert git(repository, "status", "--porcelain") == ""


def test_a_clone_that_is_too_shallow_is_told_so_in_one_sentence(repository: Path, tmp_path: Path) -> None:
    former = git(repository, "rev-parse", "HEAD~")
    shallow = tmp_path / "shallow"
    git(tmp_path, "clone", "--quiet", "--depth=1", repository.as_uri(), str(shallow))
    check_revision(former, repository)
    with pytest.raises(RevisionError, match=f"^the revision {former} is not in the history .*--unshallow.*--from[.]$"):
        check_revision(former, shallow)


def test_a_revision_whose_chart_installs_nothing_is_told_so_in_one_sentence(repository: Path) -> None:
    git(repository, "rm", "--quiet", "charts/coil/values.yaml")
    git(repository, "commit", "--quiet", "--message", "without")
    check_revision("HEAD~", repository)
    with pytest.raises(RevisionError, match=r"^the revision HEAD has no Helm chart that .*--from[.]$"):
        check_revision("HEAD", repository)
