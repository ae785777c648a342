"""What follows from a cluster's IP families: addresses in their order, flags, and how a URL has an address."""

from ipaddress import IPv4Address, IPv6Address

import pytest

from integration.cluster.bird import Speaker, render_bird
from integration.cluster.family import ClusterFamilies, host_in_url

IPV4, IPV6 = IPv4Address("192.0.2.1"), IPv6Address("2001:db8::1")


@pytest.mark.parametrize(
    ("families", "addresses", "ranges", "dns", "unspecified"),
    [
        (ClusterFamilies.IPV4_FIRST, [IPV4, IPV6], "198.19.0.0/16,fd5f:c011::/112", "198.19.0.10", "0.0.0.0"),
        (ClusterFamilies.IPV6_FIRST, [IPV6, IPV4], "fd5f:c011::/112,198.19.0.0/16", "fd5f:c011::a", "::"),
        (ClusterFamilies.IPV4_ONLY, [IPV4], "198.19.0.0/16", "198.19.0.10", "0.0.0.0"),
        (ClusterFamilies.IPV6_ONLY, [IPV6], "fd5f:c011::/112", "fd5f:c011::a", "::"),
    ],
)
def test_the_first_family_decides(
    families: ClusterFamilies, addresses: list[object], ranges: str, dns: str, unspecified: str
) -> None:
    assert families.pick(IPV4, IPV6) == addresses
    assert families.service_range_flag == f"--service-cluster-ip-range={ranges}"
    assert str(families.dns_addresses[0]) == dns
    assert families.unspecified == unspecified
    assert families.apiserver_address in families.service_ranges[0]


def test_an_ipv6_address_has_brackets_in_a_url() -> None:
    assert host_in_url(IPV4) == "192.0.2.1"
    assert host_in_url(IPV6) == "[2001:db8::1]"


def test_a_routing_daemon_speaks_of_the_clusters_families_only() -> None:
    own, other = Speaker("node-1", IPV4, IPV6), Speaker("node-2", IPV4 + 1, IPV6 + 1)
    assert "2001:db8::2" in render_bird(own, [other])
    assert "2001:db8" not in render_bird(own, [other], (4,))
    only_six = render_bird(own, [other], (6,))
    assert "neighbor 192.0.2.2" not in only_six
    # A router's name looks like an IPv4 address everywhere.
    assert "router id 192.0.2.1;" in only_six
