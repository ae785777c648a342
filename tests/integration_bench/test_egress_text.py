"""The calls of the egress figures: what the agent would make of the objects that they write."""

from ipaddress import ip_network
from typing import Any

import msgspec
import pytest

from coil.crd.builtin import Pod, Service
from coil.crd.egress import EGRESSES, Egress
from coil.egress.client_pod import EgressRef, client_addresses, is_client
from coil.egress.router_pod import router_labels
from integration.bench.bare_client import MERGE_PATCH
from integration.bench.egress_text import (
    EGRESS_NAME,
    NODE,
    ROUTER_NAMESPACE,
    backdrop,
    create_client,
    create_local_pod,
    crowd_address,
    delete_client,
    node_backdrop,
    tell_address,
)

EGRESS = EgressRef(ROUTER_NAMESPACE, EGRESS_NAME)


def told(name: str, number: int) -> dict[str, Any]:
    """The pod after both calls."""
    document: dict[str, Any] = msgspec.json.decode(create_client(name).body or b"")
    document |= msgspec.json.decode(tell_address(name, crowd_address(number)).body or b"")
    return document


def test_a_client_has_no_address_until_it_is_told() -> None:
    call = create_client("one")
    pod = msgspec.json.decode(call.body or b"", type=Pod)
    assert (call.method, call.path) == ("POST", "/api/v1/namespaces/apps/pods")
    assert is_client(pod, EGRESS)
    assert client_addresses(pod) == frozenset()


def test_a_client_that_was_told_its_address() -> None:
    call = tell_address("one", crowd_address(300))
    assert (call.method, call.path) == ("PATCH", "/api/v1/namespaces/apps/pods/one/status")
    assert call.content_type == MERGE_PATCH
    pod = msgspec.convert(told("one", 300), Pod)
    assert is_client(pod, EGRESS)
    assert client_addresses(pod) == {crowd_address(300)}


def test_a_client_goes_at_once() -> None:
    call = delete_client("one")
    assert (call.method, call.path) == ("DELETE", "/api/v1/namespaces/apps/pods/one")
    assert msgspec.json.decode(call.body or b"") == {"gracePeriodSeconds": 0}


@pytest.mark.parametrize("number", [1, 255, 256, 999])
def test_the_crowd_has_addresses_of_its_own(number: int) -> None:
    assert crowd_address(number) not in ip_network("10.64.0.0/24")
    assert int(crowd_address(number)) - int(crowd_address(0)) == number


def test_the_egress_is_the_clients() -> None:
    documents = {document["kind"]: document for document in backdrop()}
    egress = msgspec.convert(documents["Egress"], Egress)
    assert documents["Egress"]["apiVersion"] == EGRESSES.api_version
    assert (egress.metadata.namespace, egress.metadata.name) == (EGRESS.namespace, EGRESS.name)
    (subject,) = documents["ClusterRoleBinding"]["subjects"]
    accounts = [each["metadata"] for each in backdrop() if each["kind"] == "ServiceAccount"]
    assert {"name": subject["name"], "namespace": subject["namespace"]} in accounts


@pytest.mark.parametrize("named", [True, False])
def test_a_pod_of_the_measured_node(named: bool) -> None:
    pod = msgspec.json.decode(create_local_pod("one", is_client=named).body or b"", type=Pod)
    assert pod.spec.node_name == NODE
    assert is_client(pod, EGRESS) is named


def test_the_service_is_the_egresses() -> None:
    documents = {document["kind"]: document for document in node_backdrop()}
    service = msgspec.convert(documents["Service"], Service)
    assert (service.metadata.namespace, service.metadata.name) == (EGRESS.namespace, EGRESS.name)
    assert service.metadata.labels == router_labels(EGRESS_NAME)
    assert documents["Node"]["metadata"]["name"] == NODE
