"""VERSION: needs no environment but its own, no configuration and no daemon."""

import json

import pytest

from coil_cni.invocation import NEWEST, SINCE, SUPPORTED, allows
from tests.coil_cni.edges import ENVIRON, run_plugin

VERSION = {"CNI_COMMAND": "VERSION"}
VERSIONS = ["0.1.0", "0.2.0", "0.3.0", "0.3.1", "0.4.0", "1.0.0", "1.1.0"]


@pytest.mark.parametrize(
    ("stdin", "version"),
    [
        (b"", "1.1.0"),
        (b"\n", "1.1.0"),
        (b"{}", "1.1.0"),
        (b'{"cniVersion":"0.4.0"}', "0.4.0"),
        (b'{"cniVersion":"1.0.0"}', "1.0.0"),
        (b'{"cniVersion":"2.0.0"}', "2.0.0"),
    ],
)
def test_version(stdin: bytes, version: str) -> None:
    outcome = run_plugin(VERSION, stdin)
    assert (outcome.status, outcome.connected) == (0, 0)
    assert outcome.document == {"cniVersion": version, "supportedVersions": VERSIONS}


def test_version_with_the_environment_of_a_pod_and_a_wrong_name_in_it() -> None:
    assert run_plugin(ENVIRON | VERSION | {"CNI_IFNAME": "a/b"}, json.dumps({}).encode()).status == 0


@pytest.mark.parametrize("stdin", [b"{", b"[]", b'{"cniVersion":1}'])
def test_malformed_input(stdin: bytes) -> None:
    assert run_plugin(VERSION, stdin).code == 6


def test_the_table_of_commands() -> None:
    allowed = {version: [command for command in SINCE if allows(version, command)] for version in SUPPORTED}
    first, checked = ["ADD", "DEL", "VERSION"], ["ADD", "DEL", "CHECK", "VERSION"]
    assert allowed == {
        "0.1.0": first,
        "0.2.0": first,
        "0.3.0": first,
        "0.3.1": first,
        "0.4.0": checked,
        "1.0.0": checked,
        "1.1.0": ["ADD", "DEL", "CHECK", "GC", "STATUS", "VERSION"],
    }
    assert NEWEST == "1.1.0"
