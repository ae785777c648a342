"""The images of the tests' pods, with stand-ins for Debian and the programs: names, programs, what is left."""

import io
import json
import tarfile
from pathlib import Path
from typing import Any

import pytest

from integration.conformance import images
from integration.conformance.images import build_images


class NoDebian:
    """In the place of `Layers`: a root with one file."""

    made = 0

    def __init__(self, folder: Path) -> None:
        pass

    def make(self, layers: object, *, base: str) -> None:
        NoDebian.made += 1

    def pack(self, layers: object, *, base: str, inside: str, output: Path) -> None:
        with tarfile.open(output, "w") as root:
            entry = tarfile.TarInfo("./usr/bin/curl")
            root.addfile(entry, io.BytesIO())


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    assets = tmp_path / "assets"
    assets.mkdir()
    for program in ("agnhost", "coredns", "e2e.test"):
        (assets / program).write_text(program)
    monkeypatch.setenv("KUBEBUILDER_ASSETS", str(assets))
    monkeypatch.setattr(images, "Layers", NoDebian)
    monkeypatch.setattr(images, "describe_base", lambda _: "no Debian")
    NoDebian.made = 0
    return tmp_path / "images"


def read(archive: Path) -> dict[str, tuple[dict[str, Any], set[str]]]:
    """Each image's configuration and the files of its layer, by its name."""
    found = {}
    with tarfile.open(archive) as outer:

        def blob(digest: str) -> bytes:
            file = outer.extractfile(f"blobs/sha256/{digest.removeprefix('sha256:')}")
            assert file is not None
            return file.read()

        index = outer.extractfile("index.json")
        assert index is not None
        for descriptor in json.load(index)["manifests"]:
            manifest = json.loads(blob(descriptor["digest"]))
            configuration = json.loads(blob(manifest["config"]["digest"]))["config"]
            with tarfile.open(fileobj=io.BytesIO(blob(manifest["layers"][0]["digest"]))) as layer:
                files = set(layer.getnames())
            found[descriptor["annotations"]["io.containerd.image.name"]] = (configuration, files)
    return found


def test_each_image_has_its_program(folder: Path) -> None:
    found = read(build_images(folder))
    assert set(found) == {
        "coil.test/coredns:1",
        "coil.test/e2e/agnhost:2.66.1",
        "coil.test/e2e/glibc-dns-testing:2.1.1",
        "coil.test/e2e/nginx:1.27.0-2",
        "coil.test/e2e/pause:3.10.2",
    }
    configuration, files = found["coil.test/e2e/agnhost:2.66.1"]
    # Pods name arguments, which take the command's place.
    assert (configuration["Entrypoint"], configuration["Cmd"]) == (["/agnhost"], ["pause"])
    assert files == {"./agnhost", "./localhost.crt", "./localhost.key", "./usr/bin/curl"}
    assert found["coil.test/coredns:1"][1] == {"./coredns"}


def test_they_are_made_once_and_leave_nothing_else(folder: Path) -> None:
    (folder / "conformance.killed.d").mkdir(parents=True)
    archive = build_images(folder)
    assert build_images(folder) == archive
    assert NoDebian.made == 1
    assert {path.name for path in folder.iterdir()} == {archive.name, "lock"}


def test_another_program_gives_another_archive(folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    first = build_images(folder)
    monkeypatch.setenv("KUBEBUILDER_ASSETS", str((tmp_path / "assets").rename(tmp_path / "others")))
    assert build_images(folder) != first
