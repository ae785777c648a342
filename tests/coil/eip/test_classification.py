"""What a policy is for."""

from ipaddress import IPv4Address, ip_address, ip_network

from coil.crd.egress_gateway import PolicyRef
from coil.eip.claim import Eip
from coil.eip.classification import Destinations, PolicyView, cluster_spans, find_destinations
from coil.kernel.family import Family
from coil.kernel.interval import span_word

CLUSTER = cluster_spans([ip_network("10.0.0.0/8"), ip_network("198.51.100.7/32")], Family.IPV4)


def policy(*destinations: str, eip: Eip | None = None, strict: bool = False) -> PolicyView:
    ref = PolicyRef(namespace="x", name="policy")
    return PolicyView(ref=ref, destinations=tuple(map(ip_network, destinations)), eip=eip, strict=strict)


def words(*destinations: str) -> tuple[list[str], list[str]]:
    """Beyond the cluster, and within."""
    found = find_destinations(policy(*destinations), Family.IPV4, CLUSTER)
    beyond, within = ([span_word(span, Family.IPV4) for span in spans] for spans in (found.beyond, found.within))
    return beyond, within


def has(found: Destinations, address: str) -> bool:
    number = int(ip_address(address))
    return found.has(number, in_cluster=any(first <= number <= last for first, last in CLUSTER))


def test_what_lies_within_the_cluster_is_meant_as_it_is_written() -> None:
    assert words("8.8.0.0/16", "10.1.0.0/16", "198.51.100.7/32", "8.8.8.0/24") == (
        ["8.8.0.0/16"],
        ["10.1.0.0/16", "198.51.100.7"],
    )


def test_of_what_contains_the_cluster_this_is_no_part() -> None:
    for wide in ("0.0.0.0/0", "198.51.100.0/24"):
        found = find_destinations(policy(wide), Family.IPV4, CLUSTER)
        assert has(found, "198.51.100.8")
        assert not has(found, "198.51.100.7")
        assert not has(found, "10.1.0.1")


def test_one_without_destinations_has_all_beyond_the_cluster() -> None:
    found = find_destinations(policy(), Family.IPV4, CLUSTER)
    assert found == Destinations(everywhere=True)
    assert has(found, "8.8.8.8")
    assert not has(found, "10.1.0.1")
    assert not has(found, "169.254.169.254")


def test_which_families_a_policy_is_about() -> None:
    only_ipv4 = Eip(ipv4=IPv4Address("192.0.2.1"))
    cases = [
        (policy(), True, True),
        (policy("8.8.0.0/16"), True, False),
        (policy(eip=only_ipv4), True, False),
        (policy(eip=only_ipv4, strict=True), True, True),
        (policy("2001:db8::/32", eip=only_ipv4), False, False),
        (policy("2001:db8::/32", eip=only_ipv4, strict=True), False, True),
    ]
    for view, ipv4, ipv6 in cases:
        assert (view.concerns(Family.IPV4), view.concerns(Family.IPV6)) == (ipv4, ipv6)
