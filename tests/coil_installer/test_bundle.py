"""The bundle: complete, in order, and the same for the same sources."""

import marshal
import shutil
from pathlib import Path

import pytest

import coil_cni
from coil_installer.bundle import build_bundle
from coil_installer.error import InstallError

SOURCE = Path(coil_cni.__file__).parent


@pytest.fixture
def source(tmp_path: Path) -> Path:
    return shutil.copytree(SOURCE, tmp_path / "coil_cni", ignore=shutil.ignore_patterns("__pycache__"))


def test_every_module_comes_after_those_that_it_imports() -> None:
    names = [name for name, _ in marshal.loads(build_bundle(SOURCE).data)]  # noqa: S302 - our own
    stems = {path.stem for path in SOURCE.glob("*.py")} - {"__init__", "__main__"}
    assert set(names) == {"coil_cni"} | {f"coil_cni.{stem}" for stem in stems}
    assert names[-1] == "coil_cni.main"
    for earlier, later in [("error", "message"), ("hpack", "http2"), ("http2", "grpc"), ("grpc", "plugin")]:
        assert names.index(f"coil_cni.{earlier}") < names.index(f"coil_cni.{later}")


def test_the_digest_depends_on_the_sources_alone(source: Path) -> None:
    assert build_bundle(source).digest == build_bundle(SOURCE).digest
    (source / "version.py").write_text("SUPPORTED = ()\n")
    assert build_bundle(source).digest != build_bundle(SOURCE).digest


@pytest.mark.parametrize(
    ("name", "text", "message"),
    [
        ("error.py", "def (", "does not compile"),
        ("error.py", "\0", "does not compile"),
        ("error.py", "from coil_cni.plugin import run\n", "import each other"),
        ("error.py", "from coil_cni.absent import x\n", "lacks the module"),
    ],
)
def test_sources_that_make_no_plugin(source: Path, name: str, text: str, message: str) -> None:
    (source / name).write_text(text)
    with pytest.raises(InstallError, match=message):
        build_bundle(source)
