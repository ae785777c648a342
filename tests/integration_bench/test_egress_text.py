"""The calls of the egress figures: what the agent would make of the objects that they write."""

from ipaddress import ip_network

import msgspec
import pytest

from coil.crd.builtin import Pod, Service
from coil.crd.egress import EGRESSES, Egress
from coil.crd.egress_client_slice import EgressClientSlice
from coil.egress.client_pod import EgressRef, is_client, parse_client_addresses
from coil.egress.router_pod import router_labels
from integration.bench.egress_text import (
    EGRESS_NAME,
    NODE,
    ROUTER_NAMESPACE,
    backdrop,
    create_local_pod,
    crowd_address,
    node_backdrop,
    tell_client,
    withdraw_client,
)

EGRESS = EgressRef(ROUTER_NAMESPACE, EGRESS_NAME)


def test_a_client_is_told_by_its_node() -> None:
    call = tell_client("one", crowd_address(300))
    assert (call.method, call.path) == ("POST", "/apis/coil.cybozu.com/v2/namespaces/internet/egressclientslices")
    told = msgspec.json.decode(call.body or b"", type=EgressClientSlice)
    assert (told.egress, told.node_name, told.of_node, told.pods) == (EGRESS_NAME, "one", True, 1)
    assert parse_client_addresses(told.addresses) == {crowd_address(300)}


def test_a_client_that_has_gone_is_withdrawn() -> None:
    call = withdraw_client("one")
    assert call.method == "DELETE"
    assert call.path == "/apis/coil.cybozu.com/v2/namespaces/internet/egressclientslices/one"


@pytest.mark.parametrize("number", [1, 255, 256, 999])
def test_the_crowd_has_addresses_of_its_own(number: int) -> None:
    assert crowd_address(number) not in ip_network("10.64.0.0/24")
    assert int(crowd_address(number)) - int(crowd_address(0)) == number


def test_the_egress_is_the_clients() -> None:
    documents = {document["kind"]: document for document in backdrop()}
    egress = msgspec.convert(documents["Egress"], Egress)
    assert documents["Egress"]["apiVersion"] == EGRESSES.api_version
    assert (egress.metadata.namespace, egress.metadata.name) == (EGRESS.namespace, EGRESS.name)
    (subject,) = documents["RoleBinding"]["subjects"]
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
