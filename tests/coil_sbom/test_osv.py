"""Known defects: which versions a record is about, where the records come from, and what the command says."""

import json
import zipfile
from pathlib import Path
from typing import Any

import pytest
from packageurl import PackageURL

from coil_sbom import osv
from coil_sbom.check import main
from coil_sbom.component import Component
from coil_sbom.document import render_sbom
from coil_sbom.osv import Database, UnreadableDatabaseError, known_defects, read_database

OPENSSL = "pkg:deb/debian/libssl3t64@{version}?arch=amd64&distro=debian-13&upstream=openssl"


def component(url: str, **more: str) -> Component:
    return Component(url=PackageURL.from_string(url), **more)


def record(ecosystem: str, name: str, *events: dict[str, str], **more: Any) -> dict[str, Any]:
    affected = {
        "package": {"ecosystem": ecosystem, "name": name},
        "ranges": [{"type": "ECOSYSTEM", "events": list(events)}],
    }
    return {"id": "X-1", "modified": "2026-11-20T00:00:00Z", "affected": [affected], **more}


def defects(what: Component, *records: dict[str, Any]) -> list[str]:
    return [one.identifier for one in known_defects([what], Database(records=records, modified=""))]


@pytest.mark.parametrize(
    ("version", "affected"),
    [("1.9", False), ("2.0rc1", False), ("2.0", True), ("2.10", True), ("2.11", False), ("3.1", True)],
)
def test_a_range_of_python_versions(version: str, affected: bool) -> None:
    one = record("PyPI", "Some.Thing", {"introduced": "2.0"}, {"fixed": "2.11"}, {"introduced": "3"})
    assert bool(defects(component(f"pkg:pypi/some-thing@{version}"), one)) == affected


@pytest.mark.parametrize(
    ("version", "affected"),
    # The update for a stable release is before the version with which the next one comes, and epochs are above all.
    [
        ("3.5.4-1~deb13u1", True),
        ("3.5.4-1~deb13u2", False),
        ("3.5.4-1", False),
        ("1:3.0-1", False),
        ("3.5~rc1-1", True),
        ("0~rc1", True),
    ],
)
def test_a_range_of_debian_versions(version: str, affected: bool) -> None:
    one = record("Debian:13", "openssl", {"introduced": "0"}, {"fixed": "3.5.4-1~deb13u2"})
    assert bool(defects(component(OPENSSL.format(version=version)), one)) == affected


def test_a_range_that_ends_with_its_last_version() -> None:
    one = record("PyPI", "thing", {"introduced": "0"}, {"last_affected": "1.2"})
    assert [bool(defects(component(f"pkg:pypi/thing@{version}"), one)) for version in ("1.2", "1.2.1")] == [True, False]


def test_events_are_taken_in_the_order_of_their_versions() -> None:
    one = record("PyPI", "thing", {"fixed": "2"}, {"introduced": "3"}, {"fixed": "4"}, {"introduced": "1"})
    found = [bool(defects(component(f"pkg:pypi/thing@{version}"), one)) for version in ("0.9", "1", "2", "3", "4")]
    assert found == [False, True, False, True, False]


def test_what_is_no_python_version_is_before_all_that_are() -> None:
    one = record("PyPI", "thing", {"introduced": "the beginning"}, {"fixed": "2"})
    assert [bool(defects(component(f"pkg:pypi/thing@{version}"), one)) for version in ("0.1", "2")] == [True, False]


@pytest.mark.parametrize(("version", "fixed"), [("1.1", "1.2"), ("2.0", "2.1"), ("3.0", "")])
def test_the_fix_is_the_next_one(version: str, fixed: str) -> None:
    branches = [{"introduced": "2"}, {"fixed": "2.1"}, {"introduced": "0"}, {"fixed": "1.2"}, {"introduced": "3"}]
    one = record("PyPI", "thing", *branches)
    [defect] = known_defects([component(f"pkg:pypi/thing@{version}")], Database(records=(one,), modified=""))
    assert defect.fixed == fixed


def test_versions_that_are_listed() -> None:
    affected = {"package": {"ecosystem": "PyPI", "name": "thing"}, "versions": ["1.0", "1.1"]}
    one = {"id": "X-1", "affected": [affected]}
    assert [bool(defects(component(f"pkg:pypi/thing@{version}"), one)) for version in ("1.1", "1.2")] == [True, False]


def test_the_source_package_counts_and_its_version() -> None:
    url = "pkg:deb/debian/libjansson4@2.14-2%2Bb3?arch=amd64&distro=debian-13&upstream=jansson%402.14-2"
    fixed = record("Debian:13", "jansson", {"introduced": "0"}, {"fixed": "2.14-2"})
    assert defects(component(url), fixed) == []
    rebuilt = record("Debian:13", "jansson", {"introduced": "0"}, {"fixed": "2.14-2+b1"})
    assert defects(component(url), rebuilt) == ["X-1"]
    binary = record("Debian:13", "libjansson4", {"introduced": "0"})
    assert defects(component(url), binary) == []


@pytest.mark.parametrize("ecosystem", ["Debian:12", "Debian", "PyPI", "npm"])
def test_other_releases_and_ecosystems_are_none_of_ours(ecosystem: str) -> None:
    assert defects(component(OPENSSL.format(version="1")), record(ecosystem, "openssl", {"introduced": "0"})) == []


def test_what_is_withdrawn_is_none() -> None:
    one = record("PyPI", "thing", {"introduced": "0"}, withdrawn="2026-01-01T00:00:00Z")
    assert defects(component("pkg:pypi/thing@1"), one) == []


def test_versions_of_commits_are_not_compared() -> None:
    one = record("PyPI", "thing", {"introduced": "0"})
    one["affected"][0]["ranges"][0]["type"] = "GIT"
    assert defects(component("pkg:pypi/thing@1"), one) == []


@pytest.mark.parametrize("packed", [True, False])
def test_a_zip_or_a_folder(tmp_path: Path, *, packed: bool) -> None:
    one = record("PyPI", "thing", {"introduced": "0"}, {"fixed": "2"})
    folder = tmp_path / "records"
    folder.mkdir()
    (folder / "X-1.json").write_text(json.dumps(one))
    (folder / "README").write_text("no record")
    path = folder
    if packed:
        path = tmp_path / "all.zip"
        with zipfile.ZipFile(path, "w") as archive:
            for file in folder.iterdir():
                archive.write(file, file.name)
    assert read_database([path]) == Database(records=(one,), modified="2026-11-20T00:00:00Z")


@pytest.mark.parametrize(
    ("files", "said"),
    [
        ({}, "there is no record"),
        ({"a.json": "{"}, "a.json"),
        ({"a.json": "[]"}, "no record of a defect"),
        ({"a.json": '{"id": 1}'}, "no record of a defect"),
        ({"a.json": " " * 2000}, "larger than"),
    ],
)
def test_what_cannot_be_read_is_told_and_not_passed_over(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, files: dict[str, str], said: str
) -> None:
    monkeypatch.setattr(osv, "_LARGEST_RECORD", 1000)
    path = tmp_path / "all.zip"
    with zipfile.ZipFile(path, "w") as archive:
        for name, text in files.items():
            archive.writestr(name, text)
    with pytest.raises(UnreadableDatabaseError, match=said):
        read_database([path])


@pytest.mark.parametrize(
    "affected",
    ["thing", {"package": {"ecosystem": "PyPI", "name": "thing"}, "ranges": [{"type": "ECOSYSTEM", "events": 1}]}],
)
def test_a_record_that_is_not_as_it_should_be_is_told(affected: object) -> None:
    one = {"id": "X-1", "affected": [affected]}
    with pytest.raises(UnreadableDatabaseError, match="X-1"):
        defects(component("pkg:pypi/thing@1"), one)


@pytest.fixture
def sbom(tmp_path: Path) -> Path:
    path = tmp_path / "sbom.json"
    libc = "pkg:deb/debian/libc6-dev@2.41-12?arch=amd64&distro=debian-13&upstream=glibc"
    components = [component("pkg:pypi/thing@1.0"), component(libc, linked_into="/plugin")]
    path.write_text(render_sbom("coil", "0.1.0", components))
    return path


def database(tmp_path: Path, *records: dict[str, Any]) -> Path:
    folder = tmp_path / "database"
    folder.mkdir()
    for number, one in enumerate(records):
        (folder / f"{number}.json").write_text(json.dumps(one))
    return folder


def test_the_command_names_component_defect_and_fix(
    sbom: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    fixed = record("PyPI", "thing", {"introduced": "0"}, {"fixed": "1.1"}, aliases=["CVE-1"], summary="It breaks.")
    unfixed = record("Debian:13", "glibc", {"introduced": "0"}) | {"id": "X-2", "details": "Long.\nLonger."}
    folder = database(tmp_path, fixed, unfixed)
    assert main([str(sbom), str(folder)]) == 1
    assert capsys.readouterr().out.splitlines() == [
        "thing 1.0: X-1, CVE-1: fixed in 1.1: It breaks.",
        "libc6-dev 2.41-12, linked into /plugin: X-2: no fix yet: Long.",
        "2 components, 2 records (the latest of 2026-11-20T00:00:00Z): 1 known defects with a fix, 1 without",
    ]


@pytest.mark.parametrize("ignored", ["X-1", "CVE-1", "CVE-2"])
def test_a_defect_that_does_not_apply(sbom: Path, tmp_path: Path, ignored: str) -> None:
    one = record("PyPI", "thing", {"introduced": "0"}, {"fixed": "1.1"}, aliases=["CVE-1"], upstream=["CVE-2"])
    assert main([str(sbom), str(database(tmp_path, one)), "--ignore", ignored]) == 0


def test_what_has_no_fix_is_listed_and_no_failure(
    sbom: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main([str(sbom), str(database(tmp_path, record("PyPI", "thing", {"introduced": "0"})))]) == 0
    assert "no fix yet" in capsys.readouterr().out


def test_unreadable_files_are_another_exit_status(
    sbom: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main([str(sbom), str(tmp_path / "none.zip")]) == 2
    assert main([str(tmp_path / "none.json"), str(database(tmp_path, record("PyPI", "thing")))]) == 2
    assert capsys.readouterr().err.count("check: ") == 2
