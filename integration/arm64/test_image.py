"""Every file in the image that a processor executes is for arm64, and the image says so of itself."""

import struct
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

from coil_installer.node_files import check_self_contained
from integration.image.build import IMAGE
from integration.image.rootfs import Rootfs
from integration.image.test_image import LARGEST, distributions, pins

EM_AARCH64 = 183  # elf(5)
PT_LOAD = 1
LARGEST_PAGE = 1 << 16
"""Kernels for arm64 have pages of 4, 16 or 64 KiB."""


def executables(image: Rootfs) -> Iterator[tuple[str, bytes]]:
    """Programs and shared libraries by their paths; each once, under its own name."""
    for path in sorted(image.root.rglob("*")):
        if path.is_file() and not path.is_symlink() and (data := path.read_bytes())[:4] == b"\x7fELF":
            yield str(path.relative_to(image.root)), data


def machine(data: bytes) -> int:
    return int.from_bytes(data[18:20], "little")


def alignments(data: bytes) -> list[int]:
    """p_align of the segments that are mapped."""
    offset, size, count = (*struct.unpack_from("<Q", data, 32), *struct.unpack_from("<HH", data, 54))
    headers = (struct.unpack_from("<IIQQQQQQ", data, offset + size * index) for index in range(count))
    return [fields[7] for fields in headers if fields[0] == PT_LOAD]


def test_the_configuration_names_the_architecture(image: Rootfs) -> None:
    assert (image.configuration["os"], image.configuration["architecture"]) == ("linux", "arm64")


def test_every_executable_is_for_it(image: Rootfs, plugin: Path) -> None:
    found = {name: machine(data) for name, data in executables(image)}
    assert Counter(found.values()) == {EM_AARCH64: len(found)}
    # Of the interpreter, libraries of Debian's packages, and of Python packages.
    assert {str(plugin.relative_to(image.root)), "usr/bin/python3.13"} <= found.keys()
    assert any(name.startswith("usr/lib/aarch64-linux-gnu/libnftables.so") for name in found)
    assert any("dist-packages/msgspec/" in name for name in found)


def test_kernels_with_large_pages_can_map_every_executable(image: Rootfs) -> None:
    small = {name for name, data in executables(image) if any(size % LARGEST_PAGE for size in alignments(data))}
    assert small == set()


def test_debians_packages_are_those_of_the_architecture(image: Rootfs) -> None:
    stated = {}
    for path in (image.root / "var/lib/dpkg/status.d").iterdir():
        [line] = (line for line in path.read_text().splitlines() if line.startswith("Architecture: "))
        stated[path.name] = line.partition(" ")[2]
    assert len(stated) > 20
    assert {name: said for name, said in stated.items() if said not in ("arm64", "all")} == {}
    assert stated["libc6"] == "arm64"


def test_the_plugin_needs_nothing_of_a_node(plugin: Path) -> None:
    check_self_contained(plugin.read_bytes())


def test_the_python_packages_are_the_pinned_ones(image: Rootfs) -> None:
    found = distributions(image)
    own = found.pop("coil")
    assert IMAGE.endswith(f":{own}")
    assert found == {name: pins().get(name) for name in found}


def test_it_is_small(image: Rootfs) -> None:
    assert image.layer.stat().st_size < LARGEST
