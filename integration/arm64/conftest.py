"""The image for arm64, made once and unpacked, where its programs can be executed."""

import os
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest

from integration.image.build import build_image, read_plan
from integration.image.emulation import emulation
from integration.image.rootfs import Rootfs, unpack_image
from integration.plugin.jail import Jail

ARCHITECTURE = "arm64"


@pytest.fixture(scope="session", autouse=True)
def emulated() -> Iterator[None]:
    """Programs for arm64 can be executed during the session."""
    assert os.geteuid() == 0, "the image is built in root file systems of its own, which takes root"
    with emulation(ARCHITECTURE):
        yield


@pytest.fixture(scope="session")
def image() -> Iterator[Rootfs]:
    """Its files and configuration."""
    archive = build_image(read_plan(ARCHITECTURE))
    with tempfile.TemporaryDirectory(prefix="coil-image-") as folder:
        # Others than root enter as well.
        Path(folder).chmod(0o755)
        yield unpack_image(archive, Path(folder))


@pytest.fixture(scope="session")
def plugin(image: Rootfs) -> Path:
    """The executable that the image's installer puts on a node."""
    return image.root / image.environment["COIL_PATH"].lstrip("/")


@pytest.fixture
def jail(plugin: Path) -> Iterator[Jail]:
    """The root of a node with that plugin, and nothing else. Its path is short enough for a socket's name."""
    with tempfile.TemporaryDirectory(prefix="coil-jail-") as folder:
        made = Jail(Path(folder))
        made.install(plugin)
        yield made
