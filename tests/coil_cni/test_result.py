"""Results in every version of the specification that the plugin speaks."""

import json
from typing import Any

import pytest

from coil_cni.error import CniError
from coil_cni.result import convert_result

RESULT: dict[str, Any] = {
    "cniVersion": "1.0.0",
    "interfaces": [{"name": "eth0", "mac": "0a:00:00:00:00:01", "sandbox": "/run/netns/a"}, {"name": "veth0"}],
    "ips": [
        {"address": "10.1.2.3/32", "gateway": "169.254.1.1", "interface": 0},
        {"address": "fd00::3/128", "gateway": "fe80::1", "interface": 0},
    ],
    "routes": [{"dst": "0.0.0.0/0", "gw": "169.254.1.1"}],
}
OLD: dict[str, Any] = RESULT | {
    "cniVersion": "0.4.0",
    "ips": [RESULT["ips"][0] | {"version": "4"}, RESULT["ips"][1] | {"version": "6"}],
}


@pytest.mark.parametrize("received", [RESULT, OLD], ids=["from 1.0.0", "from 0.4.0"])
@pytest.mark.parametrize(
    ("version", "expected"),
    [("0.3.1", OLD | {"cniVersion": "0.3.1"}), ("0.4.0", OLD), ("1.0.0", RESULT)],
)
def test_conversion(received: dict[str, Any], version: str, expected: dict[str, Any]) -> None:
    assert convert_result(json.dumps(received).encode(), version) == expected


def test_a_result_without_addresses() -> None:
    assert convert_result(b"{}", "0.3.1") == {"cniVersion": "0.3.1"}


@pytest.mark.parametrize(
    "data", [b"", b"[]", b'{"ips":{}}', b'{"ips":[1]}', b'{"ips":[{}]}', b'{"ips":[{"address":1}]}']
)
def test_what_is_no_result(data: bytes) -> None:
    with pytest.raises(CniError) as raised:
        convert_result(data, "1.0.0")
    assert raised.value.code == 6
