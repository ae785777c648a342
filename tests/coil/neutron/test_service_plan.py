"""From Services to load balancers: the table of docs/neutron.md, a test for each row."""

from dataclasses import replace
from ipaddress import ip_address, ip_network
from typing import Any

import msgspec
import pytest

from coil.crd.builtin import Service
from coil.crd.endpoint_slice import EndpointSlice
from coil.neutron.provider import PROVIDERS
from coil.neutron.service_plan import NOTHING, MemberPlan, ServicePlan, plan_service, wants_balancer

AMPHORA, OVN = PROVIDERS["amphora"], PROVIDERS["ovn"]
CLASS = "coil.cybozu.com/octavia"
INSIDE = (ip_network("10.0.0.0/8"), ip_network("fd00:1::/48"))
HTTP = {"name": "http", "port": 80, "protocol": "TCP"}
DNS = {"name": "dns", "port": 53, "protocol": "UDP"}


def service(**spec: Any) -> Service:
    document = {
        "metadata": {"name": "web", "namespace": "default", "uid": "1"},
        "spec": {"clusterIP": "10.96.0.5", "clusterIPs": ["10.96.0.5"], "ports": [HTTP], "type": "ClusterIP", **spec},
    }
    return msgspec.convert(document, Service)


def endpoint(address: str, **conditions: bool) -> dict[str, Any]:
    return {"addresses": [address], "conditions": conditions}


def slices(*endpoints: dict[str, Any], family: str = "IPv4", ports: Any = None, **metadata: Any) -> EndpointSlice:
    document = {
        "metadata": {"name": "web-1", "namespace": "default", **metadata},
        "addressType": family,
        "endpoints": list(endpoints),
        "ports": [{"name": "http", "port": 8080, "protocol": "TCP"}] if ports is None else ports,
    }
    return msgspec.convert(document, EndpointSlice)


def plan(subject: Service, *found: EndpointSlice, provider: Any = AMPHORA) -> ServicePlan:
    return plan_service(subject, found, provider, balancer_class=CLASS, inside=INSIDE)


def members(result: ServicePlan, port: int = 80) -> set[str]:
    return {
        f"{member.address}:{member.port}"
        for balancer in result.balancers
        for listener in balancer.listeners
        for member in listener.members
        if listener.port == port
    }


def reasons(result: ServicePlan) -> list[str]:
    return [remark.reason for remark in result.remarks]


def test_a_cluster_ip_has_a_balancer_with_a_listener_for_each_port() -> None:
    ports = [{"name": "dns", "port": 5353, "protocol": "UDP"}, {"name": "http", "port": 8080, "protocol": "TCP"}]
    result = plan(service(ports=[HTTP, DNS]), slices(endpoint("10.1.0.7"), ports=ports))
    (balancer,) = result.balancers
    assert balancer.vip == ip_address("10.96.0.5")
    assert [(each.key, each.name, set(each.members)) for each in balancer.listeners] == [
        (("TCP", 80), "tcp-80", {MemberPlan("10.1.0.7", 8080)}),
        (("UDP", 53), "udp-53", {MemberPlan("10.1.0.7", 5353)}),
    ]
    assert (result.floating, result.remarks) == (False, ())


def test_each_family_has_a_balancer_with_members_of_that_family() -> None:
    subject = service(clusterIPs=["fd00:96::5", "10.96.0.5"], clusterIP="fd00:96::5")
    result = plan(subject, slices(endpoint("10.1.0.7")), slices(endpoint("fd00:1:0:0::7"), family="IPv6"))
    assert [(str(each.vip), {member.address for member in each.listeners[0].members}) for each in result.balancers] == [
        ("fd00:96::5", {"fd00:1::7"}),
        ("10.96.0.5", {"10.1.0.7"}),
    ]


def test_a_target_port_is_what_the_slice_says_for_its_name() -> None:
    """A named targetPort may be another number for each pod; each number has a slice."""
    one = slices(endpoint("10.1.0.7"), ports=[{"name": "http", "port": 8080, "protocol": "TCP"}])
    two = slices(endpoint("10.1.0.8"), ports=[{"name": "http", "port": 9090, "protocol": "TCP"}])
    other = slices(endpoint("10.1.0.9"), ports=[{"name": "metrics", "port": 1, "protocol": "TCP"}])
    udp = slices(endpoint("10.1.0.9"), ports=[{"name": "http", "port": 1, "protocol": "UDP"}])
    assert members(plan(service(), one, two, other, udp)) == {"10.1.0.7:8080", "10.1.0.8:9090"}


def test_a_port_without_a_name() -> None:
    subject = service(ports=[{"port": 80}])
    assert members(plan(subject, slices(endpoint("10.1.0.7"), ports=[{"port": 8080}]))) == {"10.1.0.7:8080"}


@pytest.mark.parametrize(
    ("endpoints", "expected"),
    [
        ([endpoint("10.1.0.7", ready=True), endpoint("10.1.0.8", ready=False)], {"10.1.0.7:8080"}),
        ([endpoint("10.1.0.7")], {"10.1.0.7:8080"}),
        ([endpoint("10.1.0.7", ready=False, serving=True, terminating=True)], {"10.1.0.7:8080"}),
        (
            [endpoint("10.1.0.7", ready=True), endpoint("10.1.0.8", ready=False, serving=True, terminating=True)],
            {"10.1.0.7:8080"},
        ),
        ([endpoint("10.1.0.7", ready=False, serving=False)], set()),
        ([{"addresses": []}], set()),
        ([], set()),
    ],
)
def test_members_are_the_ready_ones(endpoints: list[dict[str, Any]], expected: set[str]) -> None:
    assert members(plan(service(), slices(*endpoints))) == expected


def test_a_slice_that_is_being_deleted_counts_no_more() -> None:
    gone = slices(endpoint("10.1.0.7"), deletionTimestamp="2026-01-01T00:00:00Z")
    assert members(plan(service(), gone)) == set()


def test_go_writes_null_for_an_empty_slice() -> None:
    empty = msgspec.json.decode(
        b'{"metadata":{"name":"web-1"},"addressType":"IPv4","endpoints":null,"ports":null}', type=EndpointSlice
    )
    assert members(plan(service(), empty)) == set()


@pytest.mark.parametrize(
    "spec",
    [
        {"clusterIP": "None", "clusterIPs": ["None"]},
        {"type": "ExternalName", "clusterIP": "", "clusterIPs": []},
        {"clusterIP": "", "clusterIPs": []},
    ],
    ids=["headless", "ExternalName", "without an address yet"],
)
def test_without_a_cluster_ip_there_is_nothing(spec: dict[str, Any]) -> None:
    assert not wants_balancer(service(**spec))
    assert plan(service(**spec), slices(endpoint("10.1.0.7"))) == NOTHING


def test_a_load_balancer_gets_a_floating_ip() -> None:
    assert plan(service(type="LoadBalancer")).floating
    result = plan(service(type="LoadBalancer", loadBalancerIP="192.0.2.9"))
    assert (result.floating, result.wanted) == (True, "192.0.2.9")
    assert plan(service(type="LoadBalancer", loadBalancerClass=CLASS)).floating


def test_somebody_elses_class_gets_its_cluster_ip_only() -> None:
    result = plan(service(type="LoadBalancer", loadBalancerClass="example.com/metal", loadBalancerIP="192.0.2.9"))
    assert (len(result.balancers), result.floating, result.wanted, result.remarks) == (1, False, "", ())


def test_a_node_port_answers_on_its_cluster_ip() -> None:
    result = plan(service(type="NodePort"))
    assert (len(result.balancers), result.floating, reasons(result)) == (1, False, ["NodePortIgnored"])


def test_external_ips_are_refused() -> None:
    result = plan(service(externalIPs=["192.0.2.1"]))
    assert (len(result.balancers), reasons(result)) == (1, ["ExternalIPsIgnored"])


@pytest.mark.parametrize("field", ["externalTrafficPolicy", "internalTrafficPolicy"])
def test_the_policy_local_has_no_meaning(field: str) -> None:
    assert reasons(plan(service(type="LoadBalancer", **{field: "Local"}))) == ["PolicyLocalIgnored"]


def test_session_affinity_where_the_provider_has_it() -> None:
    (balancer,) = plan(service(sessionAffinity="ClientIP")).balancers
    assert balancer.listeners[0].affinity
    result = plan(service(sessionAffinity="ClientIP"), provider=OVN)
    assert (result.balancers[0].listeners[0].affinity, reasons(result)) == (False, ["NoSessionAffinity"])


def test_a_protocol_that_the_provider_lacks_leaves_the_other_ports() -> None:
    without = replace(AMPHORA, protocols=frozenset({"TCP", "UDP"}))
    sctp = {"name": "sctp", "port": 9, "protocol": "SCTP"}
    result = plan(service(ports=[HTTP, sctp]), provider=without)
    assert [each.key for each in result.balancers[0].listeners] == [("TCP", 80)]
    assert reasons(result) == ["ProtocolNotSupported"]
    assert [each.key for each in plan(service(ports=[sctp])).balancers[0].listeners] == [("SCTP", 9)]


def test_source_ranges_admit_these_and_the_cluster() -> None:
    subject = service(
        type="LoadBalancer",
        clusterIPs=["10.96.0.5", "fd00:96::5"],
        loadBalancerSourceRanges=["198.51.100.0/24", " 2001:db8::/32"],
    )
    ipv4, ipv6 = plan(subject).balancers
    assert ipv4.listeners[0].admitted == ("10.0.0.0/8", "198.51.100.0/24")
    assert ipv6.listeners[0].admitted == ("2001:db8::/32", "fd00:1::/48")


def test_whoever_cannot_be_kept_out_is_not_let_in() -> None:
    subject = service(type="LoadBalancer", loadBalancerSourceRanges=["198.51.100.0/24"])
    result = plan(subject, provider=OVN)
    assert (result.floating, len(result.balancers), reasons(result)) == (False, 1, ["NoSourceRanges"])
    bad = plan(service(type="LoadBalancer", loadBalancerSourceRanges=["everybody"]))
    assert (bad.floating, reasons(bad)) == (False, ["InvalidSourceRanges"])


def test_source_ranges_are_about_clients_from_outside() -> None:
    (balancer,) = plan(service(loadBalancerSourceRanges=["198.51.100.0/24"])).balancers
    assert balancer.listeners[0].admitted == ()


def test_ipv6_has_no_floating_ips() -> None:
    result = plan(service(type="LoadBalancer", clusterIP="fd00:96::5", clusterIPs=["fd00:96::5"]))
    assert (len(result.balancers), result.floating, reasons(result)) == (1, False, ["NoFloatingIP"])
