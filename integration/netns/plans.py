"""Plans of pods for the kernel tests."""

import secrets
from ipaddress import IPv4Address, IPv6Address

from coil.kernel.link import LinkName
from coil.podnet.host_link import PodAlias, random_link_name
from coil.podnet.plan import LINK_LOCAL, HostAddresses, PodPlan, plan_pod

DUAL = ("ipv4", "ipv6")


def pod_plan(
    number: int = 1, *, families: tuple[str, ...] = DUAL, gateways: HostAddresses = LINK_LOCAL, mtu: int = 1400
) -> PodPlan:
    """A pod with 10.64.x.y and fd64::n, `number` counted from 1, and a random container."""
    return plan_pod(
        host_name=random_link_name(secrets.token_bytes(4)),
        ifname=LinkName("eth0"),
        alias=PodAlias("default", secrets.token_hex(32), "eth0"),
        addresses=(
            IPv4Address(0x0A400000 + number) if "ipv4" in families else None,
            IPv6Address((0xFD64 << 112) + number) if "ipv6" in families else None,
        ),
        mtu=mtu,
        gateways=gateways,
    )
