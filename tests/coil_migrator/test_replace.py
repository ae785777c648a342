from ipaddress import IPv4Address, IPv4Network

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from coil.crd.address_block import AddressBlock
from coil.crd.builtin import PODS, Pod
from coil_migrator.replace import MIRROR, describe_pod, find_tenants, plan_replacement
from tests.coil_migrator.memory_cluster import MemoryCluster


@pytest.fixture
def cluster() -> MemoryCluster:
    cluster = MemoryCluster()
    cluster.add_block("default-0-v1", "10.1.0.0/30")
    cluster.add_block("default-4-v1", "10.1.0.16/30")
    cluster.add_block("apps-0-v1", "10.2.0.0/29")
    cluster.add_block("default-1", "10.1.0.4/30", reserved=False)
    return cluster


def blocks_of(cluster: MemoryCluster) -> list[AddressBlock]:
    return [
        msgspec.convert(document, AddressBlock)
        for (plural, _, _), document in cluster.objects.items()
        if plural == "addressblocks"
    ]


def pods_of(cluster: MemoryCluster) -> list[Pod]:
    return [
        msgspec.convert(document, PODS.type) for (plural, _, _), document in cluster.objects.items() if plural == "pods"
    ]


def test_pods_with_an_address_in_a_reserved_block_go_by_node_and_name(cluster: MemoryCluster) -> None:
    cluster.add_pod("b", "10.1.0.0", node="node-2")
    cluster.add_pod("a", "10.1.0.3", node="node-2")
    cluster.add_pod("c", "10.2.0.7", node="node-1")
    plan = plan_replacement(blocks_of(cluster), pods_of(cluster))
    assert {node: [pod.metadata.name for pod in pods] for node, pods in plan.pods.items()} == {
        "node-1": ["c"],
        "node-2": ["a", "b"],
    }
    assert list(plan.pods) == ["node-1", "node-2"]
    assert (plan.count, plan.static, plan.lonely) == (3, (), ())


def test_who_is_no_pod_of_v1(cluster: MemoryCluster) -> None:
    cluster.add_pod("v2", "10.1.0.4")
    cluster.add_pod("beside", "10.1.0.20")
    cluster.add_pod("other", "fd00::1")
    cluster.add_pod("host", "10.1.0.0", spec={"hostNetwork": True})
    cluster.add_pod("done", "10.1.0.1", status={"phase": "Succeeded"})
    cluster.add_pod("failed", "10.1.0.1", status={"phase": "Failed"})
    cluster.add_pod("pending", "10.1.0.1", status={"podIPs": []})
    cluster.add_pod("unscheduled", "10.1.0.1", spec={"nodeName": ""})
    assert plan_replacement(blocks_of(cluster), pods_of(cluster)).count == 0


def test_pods_that_nothing_makes_anew_and_those_that_deletion_does_not_end(cluster: MemoryCluster) -> None:
    cluster.add_pod("alone", "10.1.0.0", metadata={"ownerReferences": []})
    node = {"apiVersion": "v1", "kind": "Node", "name": "node-1", "uid": "u", "controller": True}
    cluster.add_pod("static", "10.1.0.1", metadata={"annotations": {MIRROR: "x"}, "ownerReferences": [node]})
    plan = plan_replacement(blocks_of(cluster), pods_of(cluster))
    assert [describe_pod(pod) for pod in plan.lonely] == ["apps/alone"]
    assert [describe_pod(pod) for pod in plan.static] == ["apps/static"]
    assert plan.count == 1


def test_tenants_by_block(cluster: MemoryCluster) -> None:
    cluster.add_pod("a", "10.1.0.3")
    cluster.add_pod("both", "10.1.0.2", status={"podIPs": [{"ip": "10.1.0.2"}, {"ip": "10.2.0.1"}]})
    found = find_tenants(blocks_of(cluster), pods_of(cluster))
    assert {name: sorted(pod.metadata.name for pod in pods) for name, pods in found.items()} == {
        "default-0-v1": ["a", "both"],
        "default-4-v1": [],
        "apps-0-v1": ["both"],
    }


@given(
    blocks=st.sets(st.tuples(st.integers(0, 7), st.integers(28, 32))),
    hosts=st.lists(st.integers(0, 140), max_size=8),
)
def test_a_pod_is_a_tenant_of_exactly_the_blocks_that_hold_its_address(
    blocks: set[tuple[int, int]], hosts: list[int]
) -> None:
    cluster = MemoryCluster()
    first = IPv4Address("10.1.0.0")
    networks = {IPv4Network((int(first) + 16 * number, length)) for number, length in blocks}
    for network in networks:
        cluster.add_block(str(network), str(network))
    for number, host in enumerate(hosts):
        cluster.add_pod(f"pod-{number}", str(first + host))
    found = find_tenants(blocks_of(cluster), pods_of(cluster))
    assert {name: {pod.metadata.name for pod in pods} for name, pods in found.items()} == {
        str(network): {f"pod-{number}" for number, host in enumerate(hosts) if first + host in network}
        for network in networks
    }
    tenants = {pod.metadata.name for pods in found.values() for pod in pods}
    assert plan_replacement(blocks_of(cluster), pods_of(cluster)).count == len(tenants)
