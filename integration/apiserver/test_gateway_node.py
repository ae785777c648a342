"""What the egress-controller writes for gateway nodes and their policies: nodes without agents, on a real API server.

What agents make of it is in `integration/eip`.
"""

import json
import secrets
from collections.abc import Iterator
from ipaddress import ip_address, ip_network
from typing import Any

import pytest

from coil.crd.names import NodeName
from coil.eip.gateway_lease import LEASE_LABELS, lease_name, render_annotations
from coil.runtime.settings import EIP_LEASE_NAMESPACE
from integration.apiserver.egress_world import EgressWorld
from integration.cluster.control_plane import ControlPlane, KubectlError
from integration.deployment import CLUSTER_NETWORKS_FLAG, apply, apply_cluster_networks
from integration.helm.chart import NAMESPACE
from integration.patience import wait_until

pytestmark = pytest.mark.apiserver

Document = dict[str, Any]

GROUP = "egressgateway.spidernet.io/v1beta1"
TUNNELS = f"/apis/{GROUP}/egresstunnels"
GATEWAYS = f"/apis/{GROUP}/egressgateways"
LEASES = f"/apis/coordination.k8s.io/v1/namespaces/{EIP_LEASE_NAMESPACE}/leases"
TERM = 3
LABELS = {"app": "shop"}
POLICY = "shop"
ADDRESS_RANGE = "198.51.100.0/28"


class Site:
    """A node that is nothing but objects, a namespace of pods, and a controller once it is started."""

    def __init__(self, plane: ControlPlane) -> None:
        self.plane = plane
        self.world = EgressWorld(plane)
        self.node = NodeName(f"node-{secrets.token_hex(3)}")
        self.namespace = self.world.add_namespace()
        # No controller-manager makes it, and no pod is admitted without.
        account = {"name": "default", "namespace": self.namespace}
        apply(plane, {"apiVersion": "v1", "kind": "ServiceAccount", "metadata": account})
        self.add_node()

    def start(self, *flags: str) -> None:
        """Return when the controller is ready."""
        self.world.start_replica(*flags)

    def find(self, path: str) -> Document | None:
        status, body = self.plane.request("GET", path)
        assert status in {200, 404}, body
        return json.loads(body) if status == 200 else None

    def status(self, path: str) -> Document:
        """Of an object that may be absent."""
        found: Document = (self.find(path) or {}).get("status", {})
        return found

    def lease(self) -> tuple[str, int] | None:
        """Who holds the node's lease, and its term; None if there is none."""
        found = self.find(f"{LEASES}/{lease_name(self.node)}")
        return None if found is None else (found["spec"].get("holderIdentity", ""), found["spec"]["leaseTransitions"])

    def add_node(self) -> None:
        metadata = {"name": self.node, "labels": {"gateway": self.node}}
        apply(self.plane, {"apiVersion": "v1", "kind": "Node", "metadata": metadata})

    def add_gateway(self) -> str:
        """One that selects the node; its name is the node's."""
        selector = {"selector": {"matchLabels": {"gateway": self.node}}}
        spec = {"nodeSelector": selector, "ranges": {"ipv4": [ADDRESS_RANGE]}}
        apply(self.plane, {"apiVersion": GROUP, "kind": "EgressGateway", "metadata": {"name": self.node}, "spec": spec})
        return self.node

    def add_policy(self, gateway: str) -> str:
        """Of the pods that `add_pod` makes; its name."""
        apply(self.plane, self.policy_document(gateway))
        return POLICY

    def policy_document(self, gateway: str) -> Document:
        """It names no destinations."""
        spec = {"egressGatewayName": gateway, "appliedTo": {"podSelector": {"matchLabels": LABELS}}}
        metadata = {"name": POLICY, "namespace": self.namespace}
        return {"apiVersion": GROUP, "kind": "EgressGatewayPolicy", "metadata": metadata, "spec": spec}

    def policy_status(self) -> Document:
        return self.status(f"/apis/{GROUP}/namespaces/{self.namespace}/egressgatewaypolicies/{POLICY}")

    def condition(self, kind: str) -> tuple[str, str, str] | None:
        """Status, reason and message of a condition of the policy; None if it has none of that type."""
        found = (each for each in self.policy_status().get("conditions", ()) if each["type"] == kind)
        return next(((each["status"], each["reason"], each["message"]) for each in found), None)

    def told(self) -> dict[str, str]:
        """Messages of the Events on the policy, by reason."""
        selector = f"involvedObject.name={POLICY},involvedObject.kind=EgressGatewayPolicy"
        items = self.plane.read(f"/api/v1/namespaces/{self.namespace}/events?fieldSelector={selector}")["items"]
        return {item["reason"]: item["message"] for item in items}

    def add_pod(self, name: str, address: str) -> None:
        """A pod of the policy that runs on the node."""
        spec = {
            "nodeName": self.node,
            "containers": [{"name": "main", "image": "none"}],
            "automountServiceAccountToken": False,
        }
        metadata = {"name": name, "namespace": self.namespace, "labels": LABELS}
        apply(self.plane, {"apiVersion": "v1", "kind": "Pod", "metadata": metadata, "spec": spec})
        status = json.dumps({"status": {"phase": "Running", "podIP": address, "podIPs": [{"ip": address}]}})
        self.world.kubectl(
            self.namespace, "patch", "pod", name, "--subresource=status", "--type=merge", f"--patch={status}"
        )

    def remove_pod(self, name: str) -> None:
        self.world.kubectl(self.namespace, "delete", "pod", name, "--force", "--grace-period=0")

    def set_extra_networks(self, text: str | None) -> None:
        """What an administrator adds to the cluster's networks."""
        patch = json.dumps({"data": {"extra": text}})
        self.world.kubectl(NAMESPACE, "patch", "configmap", "coil-cluster-networks", "--type=merge", f"--patch={patch}")

    def endpoints(self) -> list[list[str]]:
        """The pods in each slice of the namespace."""
        path = f"/apis/{GROUP}/namespaces/{self.namespace}/egressendpointslices"
        slices = self.plane.read(path)["items"]
        return [sorted(endpoint["podName"] for endpoint in each["endpoints"]) for each in slices]

    def close(self) -> None:
        self.world.kubectl(self.namespace, "delete", "egressgatewaypolicies", "--all")
        self.plane.kubectl("delete", "egressgateway", self.node, "--ignore-not-found")
        self.plane.kubectl("delete", "node", self.node, "--ignore-not-found")
        self.world.close()


@pytest.fixture
def site(plane: ControlPlane) -> Iterator[Site]:
    site = Site(plane)
    yield site
    missing = site.world.missing_rights()
    site.close()
    assert missing == []


def test_a_tunnel_comes_and_goes_with_its_node(site: Site) -> None:
    site.start()
    path = f"{TUNNELS}/{site.node}"
    wait_until(lambda: site.status(path).get("tunnel", {}).get("mac"), what="the tunnel's end")
    site.plane.kubectl("delete", "node", site.node)
    wait_until(lambda: site.find(path) is None, what="the tunnel goes")


def test_the_lease_of_a_silent_node_is_revoked(site: Site) -> None:
    name = lease_name(site.node)
    metadata = {
        "name": name,
        "namespace": EIP_LEASE_NAMESPACE,
        "labels": dict(LEASE_LABELS),
        "annotations": render_annotations(fence=0.2, applied={}),
    }
    spec = {"holderIdentity": site.node, "leaseTransitions": TERM}
    apply(site.plane, {"apiVersion": "coordination.k8s.io/v1", "kind": "Lease", "metadata": metadata, "spec": spec})
    site.start()
    wait_until(lambda: site.lease() == ("", TERM), what="the revocation")


def test_a_lease_that_is_missing_is_made_so_that_its_term_is_over(site: Site) -> None:
    gateway = site.add_gateway()
    policy = {"name": site.add_policy(gateway), "namespace": site.namespace}
    # As an earlier leader has left it.
    entry = {"ipv4": "198.51.100.1", "policies": [policy]}
    status = {"revision": 1, "nodeList": [{"name": site.node, "status": "Ready", "eips": [entry], "term": TERM}]}
    patch = json.dumps({"status": status})
    site.plane.kubectl("patch", "egressgateway", gateway, "--subresource=status", "--type=merge", f"--patch={patch}")
    site.start()
    wait_until(lambda: site.lease() == ("", TERM), what="the Lease, in nobody's hands")


def test_a_policys_address_and_pods_are_written_down(site: Site) -> None:
    site.start()
    gateway = site.add_gateway()
    site.add_policy(gateway)
    wait_until(lambda: site.policy_status().get("conditions"), what="the policy's status")
    wait_until(lambda: site.status(f"{GATEWAYS}/{gateway}").get("conditions"), what="the gateway's status")
    site.add_pod("one", "10.99.0.1")
    wait_until(lambda: site.endpoints() == [["one"]], what="a slice with the first pod")
    site.add_pod("two", "10.99.0.2")
    wait_until(lambda: site.endpoints() == [["one", "two"]], what="the second pod in the same slice")
    for name in ("one", "two"):
        site.remove_pod(name)
    wait_until(lambda: site.endpoints() == [], what="no slice")


def test_a_policy_may_come_before_its_gateway(site: Site) -> None:
    site.start()
    gateway = site.node
    text = f"there is no EgressGateway '{gateway}'"
    with pytest.raises(KubectlError, match=f"Warning: {text}; the policy waits"):
        site.plane.kubectl(
            *("apply", "--dry-run=server", "--warnings-as-errors", "--filename=-"),
            stdin=json.dumps(site.policy_document(gateway)),
        )
    site.add_policy(gateway)
    wait_until(lambda: site.condition("Ready") == ("False", "GatewayNotFound", text), what="the policy's condition")
    wait_until(lambda: site.told().get("GatewayNotFound") == text, what="the Event")
    assert site.policy_status().get("eip", {}) == {}

    site.add_gateway()
    wait_until(lambda: site.policy_status().get("eip", {}).get("ipv4"), what="the policy has an address")
    status = site.policy_status()
    assert status["egressGatewayName"] == gateway
    assert ip_address(status["eip"]["ipv4"]) in ip_network(ADDRESS_RANGE)
    # A node without an agent carries nothing.
    wait_until(lambda: (site.condition("Ready") or ())[1:2] == ("NoNode",), what="only a node is missing now")


def test_a_pod_in_no_known_network_is_told_until_the_network_is_known(site: Site) -> None:
    """As with a plugin whose networks are written down nowhere."""
    apply_cluster_networks(site.plane)
    site.start(CLUSTER_NETWORKS_FLAG)
    site.add_policy(site.add_gateway())
    site.add_pod("one", "10.99.0.1")

    def is_told() -> bool:
        return (site.condition("PodNetworksKnown") or ())[:2] == ("False", "PodNetworkUnknown")

    wait_until(is_told, what="the condition")
    (_, _, text) = site.condition("PodNetworksKnown") or ("", "", "")
    assert text.startswith("10.99.0.1 of the pod one is in no known network of the cluster")
    wait_until(lambda: site.told().get("PodNetworkUnknown") == text, what="the Event")
    # What the message says is to be done.
    assert "add the network to the key extra of the ConfigMap coil-cluster-networks" in text
    site.set_extra_networks("10.99.0.0/16")
    try:
        wait_until(lambda: site.condition("PodNetworksKnown") is None, what="the condition goes")
        site.add_pod("two", "10.98.0.1")
        wait_until(is_told, what="the condition about another network")
        assert (site.condition("PodNetworksKnown") or ("", "", ""))[2].startswith("10.98.0.1 of the pod two ")
    finally:
        site.set_extra_networks(None)
