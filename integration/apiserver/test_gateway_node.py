"""What the egress-controller writes for gateway nodes and their policies: nodes without agents, on a real API server.

What agents make of it is in `integration/eip`.
"""

import json
import secrets
from collections.abc import Iterator
from typing import Any

import pytest

from coil.crd.names import NodeName
from coil.eip.gateway_lease import LEASE_LABELS, lease_name, render_annotations
from coil.runtime.settings import EIP_LEASE_NAMESPACE
from integration.apiserver.egress_world import EgressWorld
from integration.cluster.control_plane import ControlPlane
from integration.deployment import apply
from integration.patience import wait_until

pytestmark = pytest.mark.apiserver

Document = dict[str, Any]

GROUP = "egressgateway.spidernet.io/v1beta1"
TUNNELS = f"/apis/{GROUP}/egresstunnels"
GATEWAYS = f"/apis/{GROUP}/egressgateways"
LEASES = f"/apis/coordination.k8s.io/v1/namespaces/{EIP_LEASE_NAMESPACE}/leases"
TERM = 3
LABELS = {"app": "shop"}


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

    def start(self) -> None:
        """Return when the controller is ready."""
        self.world.start_replica()

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
        spec = {"nodeSelector": selector, "ranges": {"ipv4": ["198.51.100.0/28"]}}
        apply(self.plane, {"apiVersion": GROUP, "kind": "EgressGateway", "metadata": {"name": self.node}, "spec": spec})
        return self.node

    def add_policy(self, gateway: str) -> str:
        """Of the pods that `add_pod` makes; its name."""
        spec = {"egressGatewayName": gateway, "appliedTo": {"podSelector": {"matchLabels": LABELS}}}
        metadata = {"name": "shop", "namespace": self.namespace}
        apply(self.plane, {"apiVersion": GROUP, "kind": "EgressGatewayPolicy", "metadata": metadata, "spec": spec})
        return "shop"

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
    policy = site.add_policy(gateway)
    path = f"/apis/{GROUP}/namespaces/{site.namespace}/egressgatewaypolicies/{policy}"
    wait_until(lambda: site.status(path).get("conditions"), what="the policy's status")
    wait_until(lambda: site.status(f"{GATEWAYS}/{gateway}").get("conditions"), what="the gateway's status")
    site.add_pod("one", "10.99.0.1")
    wait_until(lambda: site.endpoints() == [["one"]], what="a slice with the first pod")
    site.add_pod("two", "10.99.0.2")
    wait_until(lambda: site.endpoints() == [["one", "two"]], what="the second pod in the same slice")
    for name in ("one", "two"):
        site.remove_pod(name)
    wait_until(lambda: site.endpoints() == [], what="no slice")
