"""What an archive says about an image besides its files."""

import json
import tarfile
from dataclasses import replace
from pathlib import Path
from typing import Any

from integration.cluster.image import Image, machine_architecture, write_archive


def read_whole(path: Path) -> tuple[str, dict[str, Any]]:
    """The image's name and its description, followed from the index by digests."""
    with tarfile.open(path) as archive:

        def document(name: str) -> Any:
            member = archive.extractfile(name)
            assert member is not None
            return json.load(member)

        [descriptor] = document("index.json")["manifests"]
        manifest = document(f"blobs/sha256/{descriptor['digest'].removeprefix('sha256:')}")
        configuration = document(f"blobs/sha256/{manifest['config']['digest'].removeprefix('sha256:')}")
        assert configuration["rootfs"]["diff_ids"] == [layer["digest"] for layer in manifest["layers"]]
        assert isinstance(configuration, dict)
        return descriptor["annotations"]["io.containerd.image.name"], configuration


def read(path: Path) -> tuple[str, dict[str, Any]]:
    """Its name, and how it is started."""
    name, configuration = read_whole(path)
    return name, configuration["config"]


def test_the_configuration_says_how_to_start_it(tmp_path: Path) -> None:
    image = Image(name="a.test/b:1", layer=b"", environment={"PATH": "/x", "A": "b=c"}, labels={"k": "v"}, user="1:2")
    assert read(write_archive(tmp_path / "archive", [image])) == (
        "a.test/b:1",
        {"Env": ["PATH=/x", "A=b=c"], "Cmd": [], "Labels": {"k": "v"}, "User": "1:2"},
    )


def test_it_is_for_the_architecture_of_its_files(tmp_path: Path) -> None:
    image = Image(name="a.test/b:1", layer=b"")
    assert image.architecture == machine_architecture()
    for architecture in ("amd64", "arm64"):
        other = replace(image, architecture=architecture)
        _, configuration = read_whole(write_archive(tmp_path / architecture, [other]))
        assert (configuration["os"], configuration["architecture"]) == ("linux", architecture)


def test_the_same_image_gives_the_same_bytes(tmp_path: Path) -> None:
    image = Image(name="a.test/b:1", layer=b"layer", command=["/bin/sh"])
    first, second = (write_archive(tmp_path / name, [image]).read_bytes() for name in ("first", "second"))
    assert first == second


def test_images_may_share_a_layer_and_have_an_entrypoint(tmp_path: Path) -> None:
    images = [Image(name=f"a.test/{name}:1", layer=b"layer", entrypoint=[f"/{name}"]) for name in ("b", "c")]
    archive = write_archive(tmp_path / "archive", images)
    with tarfile.open(archive) as written:
        names = written.getnames()
    assert len(names) == len(set(names))
    # One layer; a configuration and a manifest for each; the layout and its index.
    assert len(names) == 7
    assert read(write_archive(tmp_path / "one", images[:1]))[1]["Entrypoint"] == ["/b"]
