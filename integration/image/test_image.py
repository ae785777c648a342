"""The image as it is handed to a runtime: its configuration, what is in it, and what is not."""

import json
import re
import tarfile
from email.parser import HeaderParser
from pathlib import Path

import pytest

from coil_installer.node_files import check_self_contained
from coil_sbom.document import parse_sbom
from integration.cluster.image import BUSYBOX_IMAGE
from integration.image.build import IMAGE, REPOSITORY, SBOM, build_image, read_stages, sbom_of
from integration.image.programs import read_programs
from integration.image.rootfs import Rootfs

LARGEST = 144 << 20
"""Bytes of the unpacked layer. OpenStack's client library and what it needs are 14 MB of them, pyroute2 and the SQLite
that it imports 7.
"""
TABLES = {"iptables", "ip6tables", "xtables", "arptables", "ebtables", "nfnl_osf"}
"""What the names of the package iptables' programs begin with."""


def pins() -> dict[str, str]:
    """Package → version of constraints.txt, with the names as pip compares them."""
    lines = (line.partition("==") for line in (REPOSITORY / "constraints.txt").read_text().splitlines())
    return {normal(name): version for name, _, version in lines}


def normal(name: str) -> str:
    return re.sub(r"[-_.]+", "-", name).lower()


def distributions(image: Rootfs) -> dict[str, str]:
    found = {}
    for path in image.root.glob("**/*.dist-info/METADATA"):
        fields = HeaderParser().parsestr(path.read_text())
        found[normal(fields["Name"])] = fields["Version"]
    return found


def test_the_name_is_one_that_no_registry_has(image: Rootfs) -> None:
    assert IMAGE.partition("/")[0] == BUSYBOX_IMAGE.partition("/")[0]
    index = json.loads((image.layer.parents[2] / "index.json").read_text())
    [name] = [descriptor["annotations"]["io.containerd.image.name"] for descriptor in index["manifests"]]
    assert name == IMAGE


def test_the_user_is_a_number_that_is_not_roots(image: Rootfs) -> None:
    assert image.user == "65532:65532"
    assert "65532:65532:" in (image.root / "etc/passwd").read_text()


def test_the_variables_that_programs_count_on(image: Rootfs) -> None:
    assert image.environment["PATH"].split(":")[0] == "/usr/local/bin"
    assert (image.root / image.environment["COIL_PATH"].lstrip("/")).is_file()


def test_the_plugin_needs_nothing_of_a_node(image: Rootfs) -> None:
    check_self_contained((image.root / image.environment["COIL_PATH"].lstrip("/")).read_bytes())


def test_protocols_have_names(image: Rootfs) -> None:
    """libnftables looks them up: without them it refuses a whole table."""
    names = {line.split()[0] for line in (image.root / "etc/protocols").read_text().splitlines() if line[:1].isalpha()}
    assert {"tcp", "udp", "icmp", "ipv6-icmp", "ipencap", "ipv6"} <= names


def test_exactly_the_pinned_packages(image: Rootfs) -> None:
    found = distributions(image)
    own = found.pop("coil")
    assert f"coil.test/coil:{own}" == IMAGE
    assert found == {name: pins().get(name) for name in found}
    assert not found.keys() & {
        "pip",
        "setuptools",
        "wheel",
        "hatchling",
        "pytest",
        "mypy",
        "ruff",
    }


def test_the_sbom_names_all_that_is_in_it(image: Rootfs, archive: Path) -> None:
    text = (image.root / SBOM).read_text()
    assert sbom_of(archive).read_text() == text
    found = parse_sbom(text)
    assert {one.url.name: one.url.version for one in found if one.url.type == "pypi"} == distributions(image)
    packages = {path.name for path in (image.root / "var/lib/dpkg/status.d").iterdir()}
    assert {one.url.name for one in found if one.url.type == "deb" and not one.linked_into} == packages
    stages = read_stages()
    linked = {one.url.name for one in found if one.linked_into == image.environment["COIL_PATH"]}
    assert linked == set(stages[0].environment["LINKED"].split())


def test_no_program_but_ours_the_interpreter_and_netfilters(image: Rootfs) -> None:
    interpreter = str((image.root / "usr/bin/python3").readlink())
    names = set()
    for folder in ("usr/bin", "usr/sbin", "usr/local/bin", "usr/local/sbin"):
        names |= {path.name for path in (image.root / folder).glob("*")}
    assert {name for name in names if name.partition("-")[0] not in TABLES} == {
        "conntrack",
        "python3",
        interpreter,
        *read_programs(),
    }
    elsewhere = {
        path.relative_to(image.root)
        for path in image.root.glob("**/*")
        if path.is_file()
        and path.stat().st_mode & 0o111
        and path.parent.name not in ("bin", "sbin")
        and (path.read_bytes()[:4] == b"\x7fELF" and ".so" not in path.name)
    }
    assert elsewhere == {Path(image.environment["COIL_PATH"]).relative_to("/")}


def test_everything_is_roots_and_of_no_time(image: Rootfs) -> None:
    with tarfile.open(image.layer) as layer:
        members = layer.getmembers()
    assert [member.name for member in members if (member.uid, member.gid, member.mtime) != (0, 0, 0)] == []
    assert [member.name for member in members if member.mode & 0o6000] == []
    writable = [member.name for member in members if member.mode & 0o022 and not member.issym()]
    assert writable == ["./tmp"]
    assert [member.name for member in members if member.isdev()] == []


def test_every_module_has_bytecode_that_no_time_makes_stale(image: Rootfs) -> None:
    """Where it were missing, each start would compile it again: nothing can be written beside it."""
    tag = image.run("python3", "-c", "import sys; print(sys.implementation.cache_tag)").stdout.strip()
    without = []
    for path in image.root.glob("usr/**/*.py"):
        cache = path.parent / "__pycache__" / f"{path.stem}.{tag}.pyc"
        # The second word of the header: a hash of the source, which is not compared (PEP 552).
        if not cache.is_file() or cache.read_bytes()[4:8] != b"\1\0\0\0":
            without.append(str(path.relative_to(image.root)))
    assert without == []


def test_the_licences_are_there(image: Rootfs) -> None:
    packages = {path.name for path in (image.root / "var/lib/dpkg/status.d").iterdir()}
    assert len(packages) > 20
    without = {name for name in packages if not (image.root / "usr/share/doc" / name / "copyright").is_file()}
    assert without == set()


def test_it_is_small(image: Rootfs) -> None:
    assert image.layer.stat().st_size < LARGEST


@pytest.mark.usefixtures("archive")
def test_a_second_call_builds_nothing(capsys: pytest.CaptureFixture[str]) -> None:
    first = build_image()
    file = first.stat().st_ino
    capsys.readouterr()
    assert build_image() == first
    assert first.stat().st_ino == file
    assert capsys.readouterr().out == ""
