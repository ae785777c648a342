"""Made twice of the same things, the image is the same to the last byte, at another time and in another place."""

import hashlib
import tarfile
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest

from integration.cluster.cache import cache_root
from integration.image.build import build_image, read_plan
from integration.image.layers import base_name
from integration.image.rootfs import unpack_image


def members(layer: Path) -> dict[str, tuple[object, ...]]:
    """What the layer has under each name."""
    found = dict[str, tuple[object, ...]]()
    with tarfile.open(layer) as archive:
        for member in archive:
            file = archive.extractfile(member) if member.isreg() else None
            content = hashlib.sha256(file.read()).hexdigest() if file else member.linkname
            found[member.name] = (member.type, member.mode, member.mtime, member.size, content)
    return found


@pytest.fixture
def place() -> Iterator[Path]:
    """A folder for hundreds of megabytes, which pytest's own would stay around with."""
    with tempfile.TemporaryDirectory(prefix="coil-image-") as folder:
        yield Path(folder)


@pytest.mark.usefixtures("archive")
@pytest.mark.slow
def test_a_second_build_gives_the_same(place: Path) -> None:
    plan = read_plan()
    first = build_image(plan)
    # Debian's base and the compilers, of which nothing is in the image, are not fetched again.
    for name in (base_name(plan.base), *(layer.name for layer in plan.layers[:2])):
        [known] = (cache_root() / "image").glob(f"*-{name}")
        (place / known.name).symlink_to(known)

    second = build_image(plan, folder=place)

    assert first.name == second.name
    images = [unpack_image(path, place / name) for path, name in ((first, "first"), (second, "second"))]
    one, other = (members(image.layer) for image in images)
    assert {name for name in one.keys() | other.keys() if one.get(name) != other.get(name)} == set()
    assert first.read_bytes() == second.read_bytes()
