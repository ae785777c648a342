"""What `kubectl coil status` makes of what it has read: each finding, and silence where nothing is wrong."""

from collections.abc import Callable
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from typing import Any

import msgspec
import pytest

from coil.crd.address_block import ADDRESS_BLOCKS
from coil.crd.address_pool import ADDRESS_POOLS
from coil.crd.block_request import BLOCK_REQUESTS
from coil.crd.builtin import EVENTS
from coil.crd.egress import EGRESSES
from coil.crd.egress_gateway import EGRESS_GATEWAYS
from coil.crd.egress_gateway_policy import EGRESS_GATEWAY_POLICIES
from coil.crd.resource import Resource
from coil.kube.lease_lock import LEASES
from coil.page.cluster_document import UseCounts
from kubectl_coil.program import PROGRAMS
from kubectl_coil.status import document as page
from kubectl_coil.status.assessment import WARNINGS, assess
from kubectl_coil.status.document import Severity, StatusDocument, Verdict
from kubectl_coil.status.resources import DAEMON_SETS, DEPLOYMENTS, NODES
from kubectl_coil.status.snapshot import Part, Snapshot
from kubectl_coil.status.vitals import Vitals

NOW = datetime(2030, 1, 1, 12, tzinfo=UTC)
Change = Callable[[Snapshot], Snapshot]


def ago(**length: float) -> str:
    return (NOW - timedelta(**length)).isoformat()


def parts(resource: Resource[Any], *documents: dict[str, Any]) -> Part[Any]:
    return Part(resource.plural, [msgspec.convert(document, resource.type) for document in documents])


def workload(name: str, *, image: str = "coil:1.2.3", **status: int) -> dict[str, Any]:
    """As many pods as are wanted are ready, unless `status` says otherwise."""
    return {
        "metadata": {
            "name": name,
            "namespace": "coil-system",
            "generation": 2,
            "labels": {"app.kubernetes.io/component": name.removeprefix("coil-")},
        },
        "spec": {"replicas": 2, "template": {"spec": {"containers": [{"image": image}]}}},
        "status": {
            **{"observedGeneration": 2, "readyReplicas": 2, "updatedReplicas": 2},
            **{"desiredNumberScheduled": 3, "numberReady": 3, "updatedNumberScheduled": 3},
            **status,
        },
    }


def programs(*, coild: dict[str, Any] | None = None, controller: dict[str, Any] | None = None) -> Part[Any]:
    return Part(
        "programs",
        [
            msgspec.convert(controller or workload("coil-ipam-controller"), DEPLOYMENTS.type),
            msgspec.convert(coild or workload("coild"), DAEMON_SETS.type),
        ],
    )


def lease(*, holder: str = "n1_uuid", renewed: float = 1.0) -> dict[str, Any]:
    return {
        "metadata": {"name": "coil-ipam-controller"},
        "spec": {"holderIdentity": holder, "leaseDurationSeconds": 15, "renewTime": ago(seconds=renewed)},
    }


def node(name: str, **conditions: str) -> dict[str, Any]:
    told = [{"type": kind, "status": status, "message": f"why {kind}"} for kind, status in conditions.items()]
    return {"metadata": {"name": name}, "status": {"conditions": told}}


def pool(
    name: str = "default",
    *,
    ready: str = "True",
    fill: str = "HasRoom",
    occupied: str = "False",
    degraded: str = "False",
    judged: int = 1,
) -> dict[str, Any]:
    conditions = [
        {"type": "Ready", "status": ready, "message": "it overlaps others"},
        {"type": "Full", "status": str(fill == "Exhausted"), "reason": fill, "message": "9 of 10 blocks"},
        {"type": "Occupied", "status": occupied, "message": "10.0.0.7 is a Node's"},
        {"type": "Degraded", "status": degraded, "message": "its networks overlap"},
    ]
    return {
        "metadata": {"name": name, "generation": 1},
        "status": {
            "observedGeneration": judged,
            "blocks": {"total": 10, "used": 9},
            "addresses": {"total": 320, "used": 288},
            "conditions": conditions,
        },
    }


def block(name: str, *, node: str = "n1", pool: str = "default") -> dict[str, Any]:
    labels = {"coil.cybozu.com/pool": pool, "coil.cybozu.com/node": node}
    return {"metadata": {"name": name, "labels": labels}, "index": 0, "ipv4": "10.0.0.0/27"}


def gateway(*, ready: str = "True", exhausted: str = "False") -> dict[str, Any]:
    entry = {"ipv4": "203.0.113.1", "policies": [{"namespace": "a", "name": "p"}]}
    return {
        "metadata": {"name": "office"},
        "status": {
            "nodeList": [
                {"name": "n1", "status": "Ready", "eips": [entry, {"ipv4": "203.0.113.2", "leaving": 3}]},
                {"name": "n2", "status": "HeartbeatTimeout"},
            ],
            "ipUsage": {"ipv4Total": 8, "ipv4Free": 7},
            "conditions": [
                {"type": "Ready", "status": ready, "message": "no node can carry it"},
                {"type": "Exhausted", "status": exhausted, "message": "every address is in use"},
            ],
        },
    }


def policy(name: str = "p", *, ready: str = "True") -> dict[str, Any]:
    condition = {"type": "Ready", "status": ready, "message": "no node carries it now"}
    return {
        "metadata": {"namespace": "a", "name": name},
        "status": {
            "egressGatewayName": "office",
            "node": "n1" if ready == "True" else "",
            "conditions": [condition],
        },
    }


EGRESS = {"metadata": {"namespace": "internet", "name": "nat"}, "spec": {"replicas": 2}}


def router(ready: int) -> dict[str, Any]:
    labels = {"app.kubernetes.io/instance": "nat", "app.kubernetes.io/component": "egress"}
    return {"metadata": {"namespace": "internet", "name": "nat", "labels": labels}, "status": {"readyReplicas": ready}}


def vitals(component: str, name: str, *, namespace: str = "coil-system", **told: Any) -> Vitals:
    labels = {"app.kubernetes.io/component": component, "app.kubernetes.io/instance": "nat"}
    document = {
        "metadata": {"namespace": namespace, "name": name, "labels": labels},
        "spec": {"nodeName": "n1"},
    }
    return Vitals(program=msgspec.convert(document, PROGRAMS.type), **told)


def also(**told: Any) -> Change:
    """A second coild."""
    found = [*FINE.vitals.known(), vitals("coild", "d-2", **told)]
    return lambda snapshot: replace(snapshot, vitals=Part("pods", found))


FINE = Snapshot(
    at=NOW,
    programs=programs(),
    routers=parts(DEPLOYMENTS, router(2)),
    leases=parts(LEASES, lease()),
    nodes=parts(NODES, node("n1", Ready="True", CoilPodTrafficDropped="False"), node("n2")),
    pools=parts(ADDRESS_POOLS, pool()),
    blocks=parts(ADDRESS_BLOCKS, block("default-0"), block("default-1")),
    requests=parts(BLOCK_REQUESTS),
    egresses=parts(EGRESSES, EGRESS),
    gateways=parts(EGRESS_GATEWAYS, gateway()),
    policies=parts(EGRESS_GATEWAY_POLICIES, policy()),
    events=parts(EVENTS),
    vitals=Part(
        "pods",
        [
            vitals("ipam-controller", "c-1", cache_age=timedelta(seconds=8), certificate_end=NOW + timedelta(days=90)),
            vitals("ipam-controller", "c-2", cache_age=timedelta(seconds=2), certificate_end=NOW + timedelta(days=80)),
            vitals("coild", "d-1", cache_age=timedelta(seconds=3), blocked_pods=0),
            vitals("egress", "r-1", namespace="internet", client_addresses=12),
        ],
    ),
)


def test_nothing_is_found_where_nothing_is_wrong() -> None:
    document = assess(FINE)
    assert document.findings == ()
    assert document.verdict is Verdict.FINE
    assert document.components is not None
    assert [(each.name, each.kind, each.ready, each.desired, each.leader) for each in document.components] == [
        ("coil-ipam-controller", "Deployment", 2, 2, "n1_uuid"),
        ("coild", "DaemonSet", 3, 3, None),
    ]
    assert {(each.namespace, each.version) for each in document.components} == {("coil-system", "1.2.3")}
    assert document.pools == (
        page.PoolDocument(
            name="default",
            ready=True,
            fill="HasRoom",
            blocks=UseCounts(total=10, used=9, free=1),
            addresses=UseCounts(total=320, used=288, free=32),
            nodes=1,
            nodes_without=1,
        ),
    )
    assert document.egresses == (
        page.EgressDocument(namespace="internet", name="nat", desired=2, ready=2, client_addresses=12),
    )
    assert [(each.cache_age, each.certificate_end) for each in document.components] == [
        (8.0, NOW + timedelta(days=80)),
        (3.0, None),
    ]
    assert document.nodes == page.NodesDocument(total=2, asked=1, blocked_pods=0)
    assert document.gateways == (
        page.GatewayDocument(
            name="office",
            nodes=2,
            ready_nodes=1,
            eips=1,
            placed=1,
            waiting=0,
            ipv4=page.FamilyUsage(total=8, free=7),
            ipv6=page.FamilyUsage(total=0, free=0),
        ),
    )
    assert document.warnings == ()


def test_what_a_program_needs_and_nobody_serves_is_an_error() -> None:
    egress = msgspec.convert(workload("coil-egress-controller"), DEPLOYMENTS.type)
    held = {**lease(), "metadata": {"name": "coil-egress-controller"}}
    installed = Part("programs", [*FINE.programs.known(), egress])
    document = assess(
        replace(
            FINE,
            programs=installed,
            leases=parts(LEASES, lease(), held),
            pools=Part("addresspools"),
            egresses=Part("egresses"),
        )
    )
    assert document.verdict is Verdict.DEGRADED
    assert {finding.subject for finding in document.findings} == {"addresspools", "egresses"}


def test_a_cluster_without_egress_is_fine_and_says_so() -> None:
    absent = replace(FINE, egresses=Part("egresses"), gateways=Part("egressgateways"), policies=Part("policies"))
    document = assess(absent)
    assert (document.egresses, document.gateways) == (None, None)
    assert document.verdict is Verdict.FINE


def of(**changed: Any) -> Change:
    return lambda snapshot: replace(snapshot, **changed)


@pytest.mark.parametrize(
    ("change", "subject", "message"),
    [
        (of(nodes=Part("nodes", error="GET: forbidden")), "nodes", "could not be read: GET: forbidden"),
        (of(programs=Part("p", [])), "cluster", "no program of Coil is installed here"),
        (of(programs=programs(coild=workload("coild", numberReady=1))), "DaemonSet coild", "2 of 3 pods are not ready"),
        (
            of(programs=programs(controller=workload("coil-ipam-controller", readyReplicas=0))),
            *("Deployment coil-ipam-controller", "2 of 2 pods are not ready"),
        ),
        (of(leases=parts(LEASES)), "Deployment coil-ipam-controller", "no replica leads"),
        (of(leases=parts(LEASES, lease(holder=""))), "Deployment coil-ipam-controller", "no replica leads"),
        (
            of(leases=parts(LEASES, lease(renewed=40))),
            *("Deployment coil-ipam-controller", "n1_uuid leads, and last renewed its lease 40 s ago"),
        ),
        (
            of(nodes=parts(NODES, node("n1", CoilPodTrafficDropped="True"), node("n2"))),
            *("Node n1", "CoilPodTrafficDropped: why CoilPodTrafficDropped"),
        ),
        (
            of(nodes=parts(NODES, *(node(f"n{number}", CoilPodTrafficDropped="True") for number in range(1, 7)))),
            *("Nodes n1, n2, n3 and 3 more", "CoilPodTrafficDropped: why CoilPodTrafficDropped"),
        ),
        (
            also(cache_age=timedelta(seconds=361)),
            *("Pod coil-system/d-2", "one of its caches has not heard the API server for 361 s"),
        ),
        (
            also(certificate_end=NOW - timedelta(seconds=1)),
            *("Pod coil-system/d-2", "its webhook's certificate ends at 2030-01-01 11:59:59 UTC"),
        ),
        (also(blocked_pods=3), "pods with an Egress", "nobody serves it: 3 on n1"),
        (
            of(pools=parts(ADDRESS_POOLS, pool(ready="False"))),
            *("AddressPool default", "it gives no blocks: it overlaps others"),
        ),
        (
            of(pools=parts(ADDRESS_POOLS, pool(judged=0))),
            *("AddressPool default", "coil-ipam-controller has not judged it"),
        ),
        (of(pools=parts(ADDRESS_POOLS, pool(fill="Exhausted"))), "AddressPool default", "it has no block left"),
        (of(pools=parts(ADDRESS_POOLS, pool(occupied="True"))), "AddressPool default", "10.0.0.7 is a Node's"),
        (
            of(blocks=parts(ADDRESS_BLOCKS, *(block(f"gone-{number}", pool="gone") for number in range(5)))),
            *("AddressBlocks", "gone-0, gone-1, gone-2 and 2 more: there is no such pool"),
        ),
        (
            of(
                requests=parts(
                    BLOCK_REQUESTS,
                    {
                        "metadata": {"name": "r", "creationTimestamp": ago(minutes=1)},
                        "spec": {"nodeName": "n1", "poolName": "default"},
                    },
                )
            ),
            *("BlockRequests", "1 are unanswered for more than 30 s; nodes: n1"),
        ),
        (
            of(routers=parts(DEPLOYMENTS, router(1))),
            *("Egress internet/nat", "1 of 2 router pods are not ready: 1 serve its clients"),
        ),
        (
            of(routers=parts(DEPLOYMENTS)),
            *("Egress internet/nat", "2 of 2 router pods are not ready: its clients reach nothing"),
        ),
        (
            of(policies=parts(EGRESS_GATEWAY_POLICIES, policy(), policy("q", ready="False"))),
            *("EgressGatewayPolicies", "a/q: no node carries it now"),
        ),
        (
            of(gateways=parts(EGRESS_GATEWAYS, gateway(ready="False"))),
            *("EgressGateway office", "no node can carry it"),
        ),
    ],
)
def test_what_does_not_work_is_an_error(change: Change, subject: str, message: str) -> None:
    document = assess(change(FINE))
    assert document.verdict is Verdict.DEGRADED
    [finding] = document.findings
    assert (finding.severity, finding.subject, finding.message) == (Severity.ERROR, subject, message)
    assert finding.remedy


@pytest.mark.parametrize(
    ("change", "subject", "message"),
    [
        (
            of(nodes=parts(NODES, node("n1", CoilAddressesAvailable="False"))),
            *("Node n1", "CoilAddressesAvailable: why CoilAddressesAvailable"),
        ),
        (
            of(nodes=parts(NODES, node("n1", Ready="Unknown"), node("n2", Ready="True"))),
            *("nodes", "these are not Ready, and are not asked: n1"),
        ),
        (
            also(certificate_end=NOW + timedelta(hours=23)),
            *("Pod coil-system/d-2", "its webhook's certificate ends at 2030-01-02 11:00:00 UTC"),
        ),
        (also(error="it is silent"), "pods", "these could not be asked: coil-system/d-2 (it is silent)"),
        (
            of(programs=programs(coild=workload("coild", updatedNumberScheduled=1))),
            *("DaemonSet coild", "2 of 3 pods are of an older template"),
        ),
        (
            of(programs=programs(coild=workload("coild", observedGeneration=1))),
            *("DaemonSet coild", "Kubernetes has not yet acted on its last change"),
        ),
        (
            of(programs=programs(coild=workload("coild", image="mirror:5000/coil@sha256:123"))),
            *("cluster", "the programs are of different versions: 1.2.3: coil-ipam-controller; sha256:123: coild"),
        ),
        (of(pools=parts(ADDRESS_POOLS, pool(degraded="True"))), "AddressPool default", "its networks overlap"),
        (
            of(pools=parts(ADDRESS_POOLS, pool(fill="NearlyFull"))),
            *("AddressPool default", "it is nearly full: 9 of 10 blocks"),
        ),
        (
            of(blocks=parts(ADDRESS_BLOCKS, block("default-0", node="gone"))),
            *("AddressBlocks", "default-0: there is no such node"),
        ),
        (
            of(gateways=parts(EGRESS_GATEWAYS, gateway(exhausted="True"))),
            *("EgressGateway office", "every address is in use"),
        ),
    ],
)
def test_what_works_for_now_is_a_warning(change: Change, subject: str, message: str) -> None:
    document = assess(change(FINE))
    assert document.verdict is Verdict.FINE
    [finding] = document.findings
    assert (finding.severity, finding.subject, finding.message) == (Severity.WARNING, subject, message)
    assert finding.remedy


def test_a_program_without_pods_needs_no_leader() -> None:
    controller = {**workload("coil-ipam-controller", readyReplicas=0, updatedReplicas=0)}
    controller["spec"] = {**controller["spec"], "replicas": 0}
    document = assess(replace(FINE, programs=programs(controller=controller), leases=parts(LEASES)))
    assert document.findings == ()


def test_unknown_nodes_are_no_absent_nodes() -> None:
    document = assess(replace(FINE, nodes=Part("nodes", error="forbidden")))
    assert [finding.subject for finding in document.findings] == ["nodes"]
    assert document.pools is not None
    assert document.pools[0].nodes_without is None


def event(number: int, *, minutes: float) -> dict[str, Any]:
    return {
        "metadata": {"name": f"e{number}", "namespace": "a"},
        "involvedObject": {"kind": "Pod", "namespace": "a", "name": f"p{number}"},
        "reason": "EgressNotFound",
        "message": "there is no Egress",
        "reportingComponent": "coild",
        "lastTimestamp": ago(minutes=minutes),
        "count": number,
    }


def test_the_last_warnings_are_told_and_old_ones_are_not() -> None:
    events = [event(number, minutes=number) for number in range(1, WARNINGS + 5)]
    document = assess(replace(FINE, events=parts(EVENTS, event(99, minutes=70), *events)))
    assert document.warnings is not None
    assert [warning.about for warning in document.warnings] == [f"Pod a/p{number}" for number in range(1, WARNINGS + 1)]
    assert (document.warnings[2].count, document.warnings[2].component) == (3, "coild")


def test_the_document_is_what_json_says() -> None:
    document = assess(FINE)
    assert msgspec.json.decode(msgspec.json.encode(document), type=StatusDocument) == document
