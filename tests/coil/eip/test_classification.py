"""Policies of one source, flattened."""

from ipaddress import IPv4Address, ip_network

from coil.crd.egress_gateway import PolicyRef
from coil.eip.claim import Eip
from coil.eip.classification import Classification, PolicyView, classify, cluster_spans, needs_cluster
from coil.kernel.family import Family
from coil.kernel.interval import span_word

CLUSTER = cluster_spans([ip_network("10.0.0.0/8")], Family.IPV4)


def policy(name: str, *destinations: str, priority: int = 0, eip: Eip | None = None) -> PolicyView:
    return PolicyView(
        ref=PolicyRef(namespace="x", name=name),
        destinations=tuple(map(ip_network, destinations)),
        priority=priority,
        eip=eip,
    )


def explicit(found: Classification) -> list[tuple[str, str]]:
    return [(span_word(span, Family.IPV4), view.ref.name) for span, view in found.explicit]


def test_nested_prefixes_by_priority() -> None:
    wide, narrow = policy("wide", "8.0.0.0/8"), policy("narrow", "8.8.0.0/16", priority=1)
    found = classify([wide, narrow], family=Family.IPV4, cluster=CLUSTER)
    assert explicit(found) == [
        ("8.0.0.0/13", "wide"),
        ("8.8.0.0/16", "narrow"),
        ("8.9.0.0-8.255.255.255", "wide"),
    ]
    assert found.default is None


def test_the_name_decides_between_equals() -> None:
    found = classify([policy("b", "8.8.0.0/16"), policy("a", "8.0.0.0/8")], family=Family.IPV4, cluster=CLUSTER)
    assert explicit(found) == [("8.0.0.0/8", "a")]


def test_behind_one_without_destinations_only_the_cluster_is_left() -> None:
    policies = [policy("a", priority=1), policy("b", "10.1.0.0/16", "8.8.0.0/16"), policy("c")]
    found = classify(policies, family=Family.IPV4, cluster=CLUSTER)
    assert explicit(found) == [("10.1.0.0/16", "b")]
    assert found.default is policies[0]
    assert needs_cluster(policies)
    assert not needs_cluster(policies[1:])


def test_a_policy_is_about_the_families_that_it_has() -> None:
    only_ipv4 = policy("a", eip=Eip(ipv4=IPv4Address("192.0.2.1")))
    assert classify([only_ipv4], family=Family.IPV6, cluster=[]) == Classification()
    assert classify([policy("a", "8.8.0.0/16")], family=Family.IPV6, cluster=[]) == Classification()
