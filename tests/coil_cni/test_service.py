"""Results in every version of the specification that the plugin speaks."""

import json
from typing import Any

import pytest

from coil_cni.error import CniError
from coil_cni.service import convert_result

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


OLDEST: dict[str, Any] = {
    "cniVersion": "0.2.0",
    "ip4": {
        "ip": "10.1.2.3/32",
        "gateway": "169.254.1.1",
        "routes": [{"dst": "0.0.0.0/0", "gw": "169.254.1.1"}],
    },
    "ip6": {"ip": "fd00::3/128", "gateway": "fe80::1", "routes": []},
}


@pytest.mark.parametrize("received", [RESULT, OLD], ids=["from 1.0.0", "from 0.4.0"])
@pytest.mark.parametrize(
    ("version", "expected"),
    [
        ("0.1.0", OLDEST | {"cniVersion": "0.1.0"}),
        ("0.2.0", OLDEST),
        ("0.3.0", OLD | {"cniVersion": "0.3.0"}),
        ("0.3.1", OLD | {"cniVersion": "0.3.1"}),
        ("0.4.0", OLD),
        ("1.0.0", RESULT),
        ("1.1.0", RESULT | {"cniVersion": "1.1.0"}),
    ],
)
def test_conversion(received: dict[str, Any], version: str, expected: dict[str, Any]) -> None:
    assert json.loads(convert_result(json.dumps(received).encode(), version)) == expected


def test_a_result_in_the_version_that_is_asked_for_stays_as_it_is() -> None:
    data = json.dumps(RESULT, indent=2).encode()
    assert convert_result(data, "1.0.0") == data


@pytest.mark.parametrize(
    ("received", "version", "expected"),
    [
        ({}, "0.3.1", {}),
        ({}, "0.2.0", {}),
        ({"ips": None, "routes": None}, "0.2.0", {}),
        ({"ips": [{"address": "10.0.0.1/32"}, {"address": "10.0.0.2/32"}]}, "0.2.0", "10.0.0.1/32"),
        ({"dns": {"domain": "a"}}, "0.1.0", {"dns": {"domain": "a"}}),
    ],
)
def test_a_result_that_lacks_parts(received: dict[str, Any], version: str, expected: Any) -> None:
    if isinstance(expected, str):
        expected = {"ip4": {"ip": expected, "routes": []}}
    assert json.loads(convert_result(json.dumps(received).encode(), version)) == {"cniVersion": version} | expected


@pytest.mark.parametrize(
    "data",
    [
        *(b"", b"[]", b'{"ips":{"a":1}}', b'{"ips":[1]}', b'{"ips":[{}]}', b'{"ips":[{"address":1}]}'),
        *(b'{"routes":{"a":1}}', b'{"routes":[{}]}'),
    ],
)
def test_what_is_no_result(data: bytes) -> None:
    with pytest.raises(CniError) as raised:
        convert_result(data, "1.0.0")
    assert raised.value.code == 6
