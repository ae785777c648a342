"""A network configuration list that others have extended: their entries stay, ours are brought up to date."""

import json
from pathlib import Path
from typing import Any

import pytest

from coil_installer import conflist
from coil_installer.conflist import INSTALLED, install_conflist, merge_conflist, strip_conflist, uninstall_conflist
from coil_installer.durable_file import staged_file
from coil_installer.settings import InstallError

COIL = {"type": "coil", "socket": "/run/coild.sock"}
NEWER = COIL | {"capabilities": {"portMappings": True}}
PTP, BANDWIDTH = {"type": "ptp"}, {"type": "bandwidth", "capabilities": {"bandwidth": True}}
MESH, TUNING = {"type": "linkerd-cni", "log_level": "info"}, {"type": "tuning", "mtu": 1400}


def wanted(*entries: dict[str, Any], **keys: Any) -> str:
    return json.dumps({"cniVersion": "1.0.0", "name": "k8s-pod-network", "plugins": entries} | keys)


def entries(data: bytes | None) -> list[dict[str, Any]]:
    plugins: list[dict[str, Any]] = json.loads(data or b"{}")["plugins"]
    return plugins


def extended(installed: bytes, *plugins: dict[str, Any]) -> bytes:
    """As a mesh writes it: the whole file anew, with what it does not know as it was."""
    return json.dumps(json.loads(installed) | {"plugins": plugins}).encode()


@pytest.mark.parametrize(
    ("before", "present", "own", "after"),
    [
        ([COIL], [COIL, MESH], [COIL], [COIL, MESH]),
        ([COIL], [COIL, MESH], [NEWER], [NEWER, MESH]),
        ([COIL], [COIL, MESH, TUNING], [NEWER, BANDWIDTH], [NEWER, MESH, TUNING, BANDWIDTH]),
        ([COIL, BANDWIDTH], [COIL, BANDWIDTH, MESH], [COIL], [COIL, MESH]),
        ([COIL, BANDWIDTH], [COIL, MESH, BANDWIDTH], [COIL, BANDWIDTH], [COIL, MESH, BANDWIDTH]),
        ([COIL], [TUNING, COIL, MESH], [PTP, COIL], [TUNING, PTP, COIL, MESH]),
        # Somebody has edited ours, which does not make it theirs.
        ([COIL], [COIL | {"mtu": 9}, MESH], [NEWER], [NEWER, MESH]),
        # Two of one type are told apart by what they say.
        ([COIL, TUNING], [COIL, TUNING, TUNING | {"mtu": 9}], [COIL, TUNING], [COIL, TUNING, TUNING | {"mtu": 9}]),
        # Another name of the plugin; ours taken out by hand. A chained plugin never comes first.
        ([COIL], [COIL, MESH], [{"type": "kuryr"}], [{"type": "kuryr"}, MESH]),
        ([COIL], [MESH], [COIL], [COIL, MESH]),
    ],
)
def test_entries_of_others_stay(
    before: list[dict[str, Any]],
    present: list[dict[str, Any]],
    own: list[dict[str, Any]],
    after: list[dict[str, Any]],
) -> None:
    found = extended(merge_conflist(wanted(*before), None), *present)
    merged = merge_conflist(wanted(*own), found)
    assert entries(merged) == after
    assert json.loads(merged)[INSTALLED] == own
    assert merge_conflist(wanted(*own), merged) == merged
    stripped = strip_conflist(merged)
    assert entries(stripped) == [entry for entry in after if entry not in own]
    assert strip_conflist(stripped or b"") == stripped
    again = entries(merge_conflist(wanted(*own), stripped))
    assert again == [*own, *(entry for entry in after if entry not in own)]


@pytest.mark.parametrize(
    "present",
    [
        None,
        b"",
        b"damaged",
        b"[]",
        b"\xff",
        json.dumps({"plugins": [COIL, MESH]}).encode(),
        json.dumps({"plugins": [COIL, 7], INSTALLED: [COIL]}).encode(),
        json.dumps({"plugins": {}, INSTALLED: [COIL]}).encode(),
        json.dumps({"plugins": [COIL, MESH], INSTALLED: "coil"}).encode(),
    ],
)
def test_what_is_not_an_extension_of_ours_is_replaced(present: bytes | None) -> None:
    """Such as the list of another program, or of Coil v2, under the same name."""
    assert merge_conflist(wanted(COIL), present) == merge_conflist(wanted(COIL), None)
    assert present is None or strip_conflist(present) is None


def test_the_runtime_asks_others_plugins_for_no_version_that_they_were_not_told() -> None:
    text = wanted(COIL, cniVersions=["1.0.0", "1.1.0"])
    installed = merge_conflist(text, None)
    assert json.loads(installed)["cniVersions"] == ["1.0.0", "1.1.0"]
    merged = json.loads(merge_conflist(text, extended(installed, COIL, MESH)))
    assert "cniVersions" not in merged
    assert merged["cniVersion"] == "1.0.0"


def test_in_the_file(tmp_path: Path) -> None:
    path = tmp_path / "10-coil.conflist"
    install_conflist(path, wanted(COIL))
    path.write_bytes(extended(path.read_bytes(), COIL, MESH))
    install_conflist(path, wanted(NEWER))
    assert entries(path.read_bytes()) == [NEWER, MESH]
    before = path.stat()
    install_conflist(path, wanted(NEWER))
    assert path.stat() == before
    for _ in range(2):
        assert uninstall_conflist(path) == ("linkerd-cni",)
        assert entries(path.read_bytes()) == [MESH]
    install_conflist(path, wanted(COIL))
    path.write_bytes(extended(path.read_bytes(), COIL))
    assert uninstall_conflist(path) == ()
    assert list(tmp_path.iterdir()) == []
    assert uninstall_conflist(path) == ()


def test_what_is_written_meanwhile_is_not_lost(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "10-coil.conflist"
    install_conflist(path, wanted(COIL))
    writers: list[dict[str, Any]] = [MESH, TUNING]

    def staged(path: Path, data: bytes, *, mode: int) -> Any:
        if writers:
            path.write_bytes(extended(path.read_bytes(), *entries(path.read_bytes()), writers.pop(0)))
        return staged_file(path, data, mode=mode)

    monkeypatch.setattr(conflist, "staged_file", staged)
    install_conflist(path, wanted(NEWER))
    assert entries(path.read_bytes()) == [NEWER, MESH, TUNING]
    writers.extend([MESH] * 5)
    for remove in (False, True):
        writers[:] = [MESH] * 5
        with pytest.raises(InstallError, match=r"10-coil.conflist changes as often as it is written"):
            uninstall_conflist(path) if remove else install_conflist(path, wanted(COIL))
    assert entries(path.read_bytes())[0] == NEWER
