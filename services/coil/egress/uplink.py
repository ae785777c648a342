"""The link that a pod had before any tunnel, as far as the plans depend on it."""

from dataclasses import dataclass
from typing import Final

from coil.kernel.family import Family
from coil.kernel.link import LinkName
from coil.kernel.route import Route

TUNNEL_OVERHEAD: Final = {Family.IPV4: 20 + 8, Family.IPV6: 40 + 8}
"""Bytes that a tunnel adds to each packet: an IP header without options, and UDP (RFC 768)."""

LEAST_MTU: Final = {Family.IPV4: 68, Family.IPV6: 1280}
"""RFC 791, RFC 8200; on a link below its own the kernel silently turns IPv6 off."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Uplink:
    """`routes` are those of the main table that leave by this link, both families."""

    name: LinkName
    index: int
    mtu: int
    routes: tuple[Route, ...] = ()

    def tunnel_mtu(self, family: Family) -> int:
        """What fits into a tunnel of the family. Raises ValueError where the family does not work with so little."""
        mtu = self.mtu - TUNNEL_OVERHEAD[family]
        if mtu < LEAST_MTU[family]:
            version = 4 if family is Family.IPV4 else 6
            raise ValueError(f"the MTU of {self.name} is {self.mtu}, too small for a tunnel of IPv{version}")
        return mtu
