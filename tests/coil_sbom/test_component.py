"""Packages as Debian and Python describe them."""

from pathlib import Path

import pytest

from coil_sbom.component import UnreadablePackageError, debian_components, python_components

LIBC = "Package: libc6\nSource: glibc\nVersion: 2.41-12\nArchitecture: amd64\n"


def written(folder: Path, **files: str) -> Path:
    for name, text in files.items():
        (folder / name).write_text(text)
    return folder


def urls(folder: Path) -> list[str]:
    return [str(component.url) for component in debian_components(folder)]


@pytest.mark.parametrize(
    ("control", "url"),
    [
        (LIBC, "pkg:deb/debian/libc6@2.41-12?arch=amd64&distro=debian-13&upstream=glibc"),
        (
            "Package: netbase\nVersion: 1:6.5\nArchitecture: all\n",
            "pkg:deb/debian/netbase@1:6.5?arch=all&distro=debian-13&upstream=netbase",
        ),
        # A rebuild for one architecture: defects are known by the version of the source.
        (
            "Package: libjansson4\nSource: jansson (2.14-2)\nVersion: 2.14-2+b3\nArchitecture: arm64\n",
            "pkg:deb/debian/libjansson4@2.14-2%2Bb3?arch=arm64&distro=debian-13&upstream=jansson%402.14-2",
        ),
    ],
    ids=["another source", "its own source", "another version of the source"],
)
def test_a_package_of_debian(tmp_path: Path, control: str, url: str) -> None:
    assert urls(written(tmp_path, package=control)) == [url]


@pytest.mark.parametrize("missing", ["Package", "Version", "Architecture"])
def test_what_does_not_say_what_it_is_is_an_error(tmp_path: Path, missing: str) -> None:
    without = "".join(f"{line}\n" for line in LIBC.splitlines() if not line.startswith(missing))
    with pytest.raises(UnreadablePackageError, match=f"package: there is no {missing}"):
        urls(written(tmp_path, package=without))


def test_static_libraries_say_what_they_have_become_part_of(tmp_path: Path) -> None:
    [component] = debian_components(written(tmp_path, libc6=LIBC), linked_into="/plugin")
    assert component.linked_into == "/plugin"


def test_distributions_of_python_wherever_they_are_each_once(tmp_path: Path) -> None:
    for folder, name in (("a", "One_Thing"), ("a/b", "other"), ("c", "one.thing")):
        metadata = tmp_path / folder / f"{name}-1.dist-info/METADATA"
        metadata.parent.mkdir(parents=True)
        metadata.write_text(f"Metadata-Version: 2.4\nName: {name}\nVersion: 1.0\n\nName: no field\n")
    assert [str(component.url) for component in python_components(tmp_path)] == [
        "pkg:pypi/one-thing@1.0",
        "pkg:pypi/other@1.0",
    ]
