"""Network configurations that no runtime could use."""

import json
from typing import Any

import pytest

from coil_installer.settings import InstallError, check_conf, check_conflist
from tests.coil_installer.node import CONFLIST


@pytest.mark.parametrize(
    "changes",
    [
        {},
        {"cniVersion": "0.3.1"},
        {"cniVersion": "1.1.0"},
        {"disableCheck": True},
        {"plugins": [{"type": "ptp"}, {"type": "coil", "socket": "/run/coild.sock", "capabilities": {}}]},
    ],
)
def test_accepted(changes: dict[str, Any]) -> None:
    check_conflist(json.dumps(CONFLIST | changes))


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("", "not JSON"),
        ("{", "not JSON"),
        ("[]", "not a JSON object"),
        (json.dumps(CONFLIST | {"cniVersion": "0.2.0"}), "cniVersion is '0.2.0'"),
        (json.dumps(CONFLIST | {"cniVersion": None}), "cniVersion is None"),
        (json.dumps(CONFLIST | {"name": ""}), "name is ''"),
        (json.dumps(CONFLIST | {"name": "a b"}), "name is 'a b'"),
        (json.dumps(CONFLIST | {"name": "a\n"}), "name is"),
        (json.dumps(CONFLIST | {"plugins": {}}), "plugins is not a list"),
        (json.dumps(CONFLIST | {"plugins": []}), "plugins is not a list with an entry"),
        (json.dumps(CONFLIST | {"plugins": ["coil"]}), r"plugins\[0\]"),
        (json.dumps(CONFLIST | {"plugins": [{"type": "coil"}, {}]}), r"plugins\[1\]"),
        (json.dumps(CONFLIST | {"plugins": [{"type": "coil", "socket": "s"}]}), r"plugins\[0\].socket"),
        (json.dumps(CONFLIST | {"plugins": [{"type": "bridge"}]}), "type coil"),
    ],
)
def test_refused(text: str, message: str) -> None:
    with pytest.raises(InstallError, match=message):
        check_conflist(text)


@pytest.mark.parametrize("changes", [{}, {"cniVersion": "0.1.0"}, {"cniVersion": "1.0.0", "socket": "/run/coild.sock"}])
def test_one_plugin_is_accepted(changes: dict[str, Any]) -> None:
    check_conf(json.dumps({"name": "kuryr-network", "type": "coil"} | changes))


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"cniVersion": "0.0.9"}, "cniVersion is '0.0.9'"),
        ({"type": "bridge"}, "type is 'bridge', not 'coil'"),
        ({"name": None}, "name is None"),
        ({"socket": "coild.sock"}, "socket is 'coild.sock'"),
    ],
)
def test_one_plugin_is_refused(changes: dict[str, Any], message: str) -> None:
    with pytest.raises(InstallError, match=message):
        check_conf(json.dumps({"name": "kuryr-network", "type": "coil"} | changes))
