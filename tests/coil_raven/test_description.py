"""The document of coil-raven, from snapshots: load balancers in each state, and calls."""

from ipaddress import ip_address

import pytest

from coil.crd.builtin import Service, ServiceSpec
from coil.crd.meta import ObjectMeta
from coil.neutron.balancer import LoadBalancer, LoadBalancerId
from coil.neutron.service_plan import BalancerPlan, ListenerPlan, MemberPlan
from coil.openstack.recent_calls import CallError, CallsSnapshot, CallTotals
from coil.page import neutron_document as page
from coil_raven.balancers import BalancerReport
from coil_raven.description import MEMBERS, RavenSnapshot, ServicesSnapshot, TermSnapshot, describe_raven
from tests.coil.kube.memory_api import BIRTH

NO_CALLS = CallsSnapshot(span=300.0, calls={}, errors=())


def describe(services: ServicesSnapshot | None = None, calls: CallsSnapshot = NO_CALLS) -> page.NeutronDocument:
    term = TermSnapshot(namespaces=(), pods=(), networks={}, ports={}, idle=(), taken=(), services=services)
    return describe_raven(
        RavenSnapshot(
            replica="one",
            leads=True,
            leader="one",
            at=BIRTH,
            cluster="stage",
            supernets=(),
            term=term,
            calls=calls,
            paused=0.0,
            events=(),
        )
    )


def service(uid: str, *, cluster_ip: str = "10.96.0.5", deleting: bool = False) -> Service:
    metadata = ObjectMeta(name=uid, namespace="default", uid=uid, deletion_timestamp=BIRTH if deleting else None)
    return Service(metadata=metadata, spec=ServiceSpec(cluster_ip=cluster_ip, cluster_ips=(cluster_ip,)))


def report(uid: str, status: str = "ACTIVE", *, as_planned: bool = False, vip: str = "10.96.0.5") -> BalancerReport:
    balancer = LoadBalancer(
        id=LoadBalancerId(f"lb-{uid}-{vip}"),
        name=f"coil:stage:lb4:{uid}",
        description=f"Service default/{uid}",
        vip_address=vip,
        provisioning_status=status,
    )
    return BalancerReport(uid=uid, balancer=balancer, plan=None, as_planned=as_planned)


@pytest.mark.parametrize(
    ("reports", "deleting", "expected"),
    [
        ([], False, page.ServiceState.WAITING),
        ([report("web", "PENDING_CREATE")], False, page.ServiceState.CHANGING),
        ([report("web")], False, page.ServiceState.CHANGING),
        ([report("web", as_planned=True)], False, page.ServiceState.AS_PLANNED),
        ([report("web", as_planned=True), report("web", vip="fd00::5")], False, page.ServiceState.CHANGING),
        ([report("web", "ERROR"), report("web", as_planned=True)], False, page.ServiceState.FAILED),
        ([report("web", "PENDING_DELETE")], True, page.ServiceState.LEAVING),
    ],
)
def test_states_of_a_service(reports: list[BalancerReport], deleting: bool, expected: page.ServiceState) -> None:
    services = [service("web", deleting=deleting)]
    (found,) = describe(ServicesSnapshot(services=services, reports=reports, floating_ips={})).services or ()
    assert found.state is expected
    assert len(found.load_balancers) == len(reports)


def test_a_service_that_ceased_to_want_a_load_balancer_is_listed_until_it_is_gone() -> None:
    headless = [service("web", cluster_ip="None")]
    assert describe(ServicesSnapshot(services=headless, reports=[], floating_ips={})).services == ()
    left = ServicesSnapshot(services=headless, reports=[report("web")], floating_ips={})
    assert [each.state for each in describe(left).services or ()] == [page.ServiceState.LEAVING]


def test_a_load_balancer_without_a_service_is_listed_by_its_description() -> None:
    left = ServicesSnapshot(services=[], reports=[report("old")], floating_ips={"old": "192.0.2.9"})
    (found,) = describe(left).services or ()
    assert (found.namespace, found.name, found.state) == (None, "Service default/old", page.ServiceState.LEAVING)
    assert found.floating_ip == "192.0.2.9"


def test_members_are_cut_and_counted() -> None:
    members = frozenset(MemberPlan(f"10.0.{number >> 8}.{number & 255}", 80) for number in range(MEMBERS + 6))
    plan = BalancerPlan(
        vip=ip_address("10.96.0.5"), listeners=(ListenerPlan(protocol="TCP", port=80, members=members),)
    )
    known = BalancerReport(uid="web", balancer=report("web").balancer, plan=plan, as_planned=True)
    (found,) = describe(ServicesSnapshot(services=[service("web")], reports=[known], floating_ips={})).services or ()
    (listener,) = found.load_balancers[0].listeners
    assert (listener.member_count, len(listener.members)) == (MEMBERS + 6, MEMBERS)


def test_those_that_are_not_as_they_should_be_come_first() -> None:
    services = [service(name) for name in ("a", "b", "c")]
    reports = [report("a", as_planned=True), report("b", "ERROR"), report("c", "PENDING_UPDATE")]
    found = describe(ServicesSnapshot(services=services, reports=reports, floating_ips={})).services or ()
    assert [each.name for each in found] == ["b", "c", "a"]


def test_calls() -> None:
    calls = CallsSnapshot(
        span=300.0,
        calls={
            "list ports": CallTotals(count=10, errors=0, seconds=5.0),
            "create port": CallTotals(count=20, errors=2, seconds=4.0),
        },
        errors=(CallError(at=BIRTH, call="create port", code="OverQuota", message="no more"),),
    )
    found = describe(calls=calls).calls
    assert (found.count, found.errors, found.per_second) == (30, 2, 0.1)
    assert [(each.call, each.count, each.errors, each.mean_seconds) for each in found.by_call] == [
        ("create port", 20, 2, 0.2),
        ("list ports", 10, 0, 0.5),
    ]
    assert [each.code for each in found.last_errors] == ["OverQuota"]
