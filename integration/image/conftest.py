"""The image, built from the checkout, and unpacked once for the session."""

import os
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest

from integration.image.build import build_image
from integration.image.rootfs import Rootfs, unpack_image


@pytest.fixture(scope="session")
def archive() -> Path:
    """The archive, from the cache or made now."""
    assert os.geteuid() == 0, "the image is built in root file systems of its own, which takes root"
    return build_image()


@pytest.fixture(scope="session")
def image(archive: Path) -> Iterator[Rootfs]:
    """Its files and configuration."""
    with tempfile.TemporaryDirectory(prefix="coil-image-") as folder:
        # Others than root enter as well.
        Path(folder).chmod(0o755)
        yield unpack_image(archive, Path(folder))
