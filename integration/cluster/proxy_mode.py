"""How kube-proxy has the kernel do its work, and what the choice rests on."""

from __future__ import annotations

import os
from enum import StrEnum

from integration.cluster.command_line import Version
from integration.cluster.requirement import probe

PROXY_MODE_VARIABLE = "COIL_PROXY_MODE"
_STABLE = Version(1, 33)
_PROXY_RULES = """
add table ip probe
add chain ip probe nat { type nat hook postrouting priority srcnat; }
add map ip probe endpoints { type mark : ipv4_addr . inet_service; }
add rule ip probe nat fib daddr type local numgen random mod 2 vmap { 0 : accept, 1 : accept }
add rule ip probe nat meta mark set mark or 0x4000 masquerade fully-random
"""
"""Of what kube-proxy writes, what a kernel may lack."""


class ProxyMode(StrEnum):
    """The name is also that of the mode's settings in kube-proxy's configuration."""

    NFTABLES = "nftables"
    IPTABLES = "iptables"
    IPVS = "ipvs"


def choose_proxy_mode(version: Version) -> ProxyMode:
    """What ``COIL_PROXY_MODE`` says, by default nftables where kube-proxy and this kernel can do it."""
    if said := os.environ.get(PROXY_MODE_VARIABLE):
        return ProxyMode(said)
    if version < _STABLE or probe("nft", _PROXY_RULES):
        return ProxyMode.IPTABLES
    return ProxyMode.NFTABLES
