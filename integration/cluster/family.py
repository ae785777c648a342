"""The IP families of a cluster: which addresses its nodes and Services have, and which of them come first."""

from __future__ import annotations

import enum
import os
from ipaddress import IPv4Address, IPv4Network, IPv6Address, IPv6Network

Address = IPv4Address | IPv6Address
SubnetRange = IPv4Network | IPv6Network

SERVICES_IPV4 = IPv4Network("198.19.0.0/16")
SERVICES_IPV6 = IPv6Network("fd5f:c011::/112")
"""Cluster addresses of Services. They exist in the nodes' NAT rules only, so all clusters may have the same."""

_APISERVER, _DNS = 1, 10
"""The host parts of the Services that have fixed addresses; the API server takes the first for its own."""


FAMILIES_VARIABLE = "COIL_FAMILIES"


class ClusterFamilies(enum.Enum):
    """The values are IP versions; the first is that of a node's first address, and of a Service that names none."""

    IPV4_FIRST = (4, 6)
    IPV6_FIRST = (6, 4)
    IPV4_ONLY = (4,)
    IPV6_ONLY = (6,)

    @classmethod
    def choose(cls) -> ClusterFamilies:
        """What ``COIL_FAMILIES`` says, `ipv6-only` for example; by default dual stack with IPv4 first."""
        said = os.environ.get(FAMILIES_VARIABLE)
        return cls.named(said) if said else cls.IPV4_FIRST

    @classmethod
    def named(cls, label: str) -> ClusterFamilies:
        """By its `label`. Raises KeyError."""
        return {families.label: families for families in cls}[label]

    @property
    def label(self) -> str:
        """As people write it."""
        return self.name.lower().replace("_", "-")

    def pick(self, ipv4: IPv4Address, ipv6: IPv6Address) -> list[Address]:
        """Those of a machine's addresses that it has in such a cluster, in their order."""
        addresses: dict[int, Address] = {4: ipv4, 6: ipv6}
        return [addresses[version] for version in self.value]

    def pick_texts(self, ipv4: IPv4Address, ipv6: IPv6Address) -> dict[int, str]:
        """The same as text, by IP version."""
        return {address.version: str(address) for address in self.pick(ipv4, ipv6)}

    @property
    def service_ranges(self) -> list[SubnetRange]:
        """Where Services' addresses are from, in the order that the API server is told."""
        ranges: dict[int, SubnetRange] = {4: SERVICES_IPV4, 6: SERVICES_IPV6}
        return [ranges[version] for version in self.value]

    @property
    def service_range_flag(self) -> str:
        """The same for a component's command line."""
        return f"--service-cluster-ip-range={','.join(map(str, self.service_ranges))}"

    @property
    def apiserver_address(self) -> Address:
        """Of the Service `kubernetes`."""
        return self.service_ranges[0][_APISERVER]

    @property
    def dns_addresses(self) -> list[Address]:
        """Of the Service that answers pods' DNS queries; the first is the one that pods are told."""
        return [subnet[_DNS] for subnet in self.service_ranges]

    @property
    def unspecified(self) -> str:
        """The address that a server listens on for all others."""
        return "0.0.0.0" if self.value[0] == 4 else "::"


def host_in_url(address: Address) -> str:
    """The address as it is written in a URL (RFC 3986, section 3.2.2)."""
    return f"[{address}]" if address.version == 6 else str(address)
