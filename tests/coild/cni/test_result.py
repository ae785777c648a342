"""The result of an ADD, as coild answers it and as the plugin hands it to the runtime."""

import json
from ipaddress import IPv4Address, IPv6Address
from typing import Any

import pytest

from coil.kernel.link import LinkName
from coil.podnet.host_link import PodAlias
from coil.podnet.plan import PodPlan, plan_pod
from coil_cni.result import convert_result
from coild.cni.result import render_result

V4, V6 = IPv4Address("10.1.0.5"), IPv6Address("fd01::5")


def plan(ipv4: IPv4Address | None, ipv6: IPv6Address | None) -> PodPlan:
    return plan_pod(
        host_name=LinkName("veth01234567"),
        ifname=LinkName("eth0"),
        alias=PodAlias("default", "c1", "eth0"),
        addresses=(ipv4, ipv6),
        mtu=1500,
    )


@pytest.mark.parametrize(
    ("ipv4", "ipv6", "ips", "routes"),
    [
        (V4, None, [("10.1.0.5/32", "169.254.1.1")], [("0.0.0.0/0", "169.254.1.1")]),
        (None, V6, [("fd01::5/128", "fe80::1")], [("::/0", "fe80::1")]),
        (
            V4,
            V6,
            [("10.1.0.5/32", "169.254.1.1"), ("fd01::5/128", "fe80::1")],
            [("0.0.0.0/0", "169.254.1.1"), ("::/0", "fe80::1")],
        ),
    ],
)
def test_what_coild_answers(
    ipv4: IPv4Address | None, ipv6: IPv6Address | None, ips: list[tuple[str, str]], routes: list[tuple[str, str]]
) -> None:
    made = plan(ipv4, ipv6)
    result = json.loads(render_result(made, netns="/run/netns/c1"))
    assert result == {
        "cniVersion": "1.0.0",
        "interfaces": [
            {"name": "eth0", "mac": made.pod.mac, "sandbox": "/run/netns/c1"},
            {"name": "veth01234567", "mac": made.host.mac},
        ],
        "ips": [{"interface": 0, "address": address, "gateway": gateway} for address, gateway in ips],
        "routes": [{"dst": network, "gw": gateway} for network, gateway in routes],
        "dns": {},
    }


@pytest.mark.parametrize("version", ["0.3.0", "0.3.1", "0.4.0", "1.0.0"])
def test_what_the_runtime_reads(version: str) -> None:
    answer = render_result(plan(V4, V6), netns="/run/netns/c1")
    result: dict[str, Any] = json.loads(convert_result(answer, version))
    assert result["cniVersion"] == version
    families = [ip.get("version") for ip in result["ips"]]
    assert families == (["4", "6"] if version.startswith("0.") else [None, None])
    assert [ip["address"] for ip in result["ips"]] == ["10.1.0.5/32", "fd01::5/128"]
