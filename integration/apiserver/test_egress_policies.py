"""EgressPolicies and EgressClusterPolicies of egressgateway 0.6: manifests of their shape on a real API server.

The manifests have the fields and values of egressgateway's documents (docs/reference, docs/usage) and of its e2e tests.
"""

import json
import secrets
from collections.abc import Iterator
from typing import Any, Final

import pytest
import yaml

from integration.apiserver.egress_world import EgressWorld, foreign_kind
from integration.apiserver.tenant import Tenant
from integration.cluster.control_plane import ControlPlane, KubectlError
from integration.deployment import (
    CLUSTER_NETWORKS_FLAG,
    CLUSTER_NETWORKS_PATH,
    EIP_VALUES,
    apply,
    apply_cluster_networks,
    remove_webhooks,
)
from integration.helm.chart import render
from integration.patience import wait_until

pytestmark = pytest.mark.apiserver

Document = dict[str, Any]

GROUP: Final = "egressgateway.spidernet.io/v1beta1"
EDIT: Final = "coil-egressgatewaypolicy-edit"
OWN: Final = "coil-egress-cluster-policies"

GATEWAY: Final = """
apiVersion: egressgateway.spidernet.io/v1beta1
kind: EgressGateway
metadata:
  name: {gateway}
spec:
  clusterDefault: true
  ippools:
    ipv4: ["198.51.100.70-198.51.100.75", "198.51.100.80", "198.51.100.88/29"]
    ipv4DefaultEIP: 198.51.100.72
    ipv6: [""]
    ipv6DefaultEIP: ""
  nodeSelector:
    policy: doing
    selector:
      matchLabels:
        egress: "{gateway}"
"""
POLICIES: Final = """
apiVersion: egressgateway.spidernet.io/v1beta1
kind: EgressPolicy
metadata:
  name: by-default
spec:
  appliedTo:
    podSelector:
      matchLabels:
        app: mock-app
---
apiVersion: egressgateway.spidernet.io/v1beta1
kind: EgressPolicy
metadata:
  name: one-by-one
spec:
  egressGatewayName: {gateway}
  egressIP:
    ipv4: ""
    ipv6: ""
    useNodeIP: false
    allocatorPolicy: rr
  appliedTo:
    podSelector:
      matchLabels:
        app: mock-app
  destSubnet:
  - 203.0.113.92/32
  - 2001:db8:1::92/128
  priority: 100
---
apiVersion: egressgateway.spidernet.io/v1beta1
kind: EgressPolicy
metadata:
  name: fixed
spec:
  egressGatewayName: {gateway}
  egressIP:
    ipv4: 198.51.100.80
  appliedTo:
    podSelector:
      matchExpressions:
      - {{key: app, operator: In, values: [mock-app, other]}}
  destSubnet: []
---
apiVersion: egressgateway.spidernet.io/v1beta1
kind: EgressPolicy
metadata:
  name: by-node
spec:
  egressGatewayName: {gateway}
  egressIP:
    useNodeIP: true
  appliedTo:
    podSelector:
      matchLabels:
        app: mock-app
  destSubnet:
  - 203.0.113.93/32
"""
CLUSTER_POLICY: Final = """
apiVersion: egressgateway.spidernet.io/v1beta1
kind: EgressClusterPolicy
metadata:
  name: {gateway}
spec:
  priority: 100
  egressGatewayName: {gateway}
  egressIP:
    ipv4: 198.51.100.74
    ipv6: ""
    useNodeIP: false
  appliedTo:
    podSelector:
      matchLabels:
        app: mock-app
    namespaceSelector:
      matchLabels:
        site: {gateway}
"""
DUAL: Final = """
apiVersion: egressgateway.spidernet.io/v1beta1
kind: EgressGateway
metadata:
  name: {gateway}-dual
spec:
  ippools:
    ipv4: ["198.51.100.101-198.51.100.104"]
    ipv6: ["2001:db8:7::1-2001:db8:7::3", "2001:db8:7::20"]
    ipv4DefaultEIP: 198.51.100.103
    ipv6DefaultEIP: 2001:db8:7::3
  nodeSelector:
    selector:
      matchExpressions:
      - {{key: egress-zone, operator: In, values: ["{gateway}", other]}}
      - {{key: egress-off, operator: DoesNotExist}}
"""
SIX: Final = """
apiVersion: egressgateway.spidernet.io/v1beta1
kind: EgressGateway
metadata:
  name: {gateway}-six
spec:
  ippools:
    ipv6: ["2001:db8:8::/124"]
    ipv6DefaultEIP: 2001:db8:8::8
  nodeSelector:
    selector:
      matchLabels:
        egress: "{gateway}"
"""
WITHOUT_POOLS: Final = """
apiVersion: egressgateway.spidernet.io/v1beta1
kind: EgressGateway
metadata:
  name: {gateway}-none
spec:
  nodeSelector:
    selector:
      matchLabels:
        egress: "{gateway}"
---
apiVersion: egressgateway.spidernet.io/v1beta1
kind: EgressGateway
metadata:
  name: {gateway}-empty
spec:
  ippools: {{}}
  nodeSelector:
    selector:
      matchLabels:
        egress: "{gateway}"
"""
EXPORTED: Final = """
apiVersion: egressgateway.spidernet.io/v1beta1
kind: EgressGateway
metadata:
  finalizers:
  - egressgateway.spidernet.io/egressgateway
  name: {gateway}-exported
spec:
  ippools:
    ipv4:
    - 198.51.100.120-198.51.100.125
    ipv4DefaultEIP: 198.51.100.122
  nodeSelector:
    selector:
      matchLabels:
        egress: "true"
status:
  ipUsage:
    ipv4Free: 4
    ipv4Total: 6
    ipv6Free: 0
    ipv6Total: 0
  nodeList:
  - name: workstation2
    status: Ready
  - name: workstation3
    status: Ready
    eips:
    - ipv4: 198.51.100.121
      policies:
      - name: policy-1
        namespace: default
"""
"""As `kubectl get -o yaml` prints it where egressgateway serves it."""
APPLIED: Final = """
apiVersion: egressgateway.spidernet.io/v1beta1
kind: {kind}
metadata:
  name: {name}
spec:
  egressGatewayName: "{gateway}"
  egressIP: {address}
  appliedTo: {applied}
"""
PODS: Final = "{podSelector: {matchLabels: {app: mock-app}}}"


class Site:
    """A gateway that is the cluster's default, on no node, and two namespaces with the label `site`."""

    def __init__(self, plane: ControlPlane) -> None:
        self.plane = plane
        self.world = EgressWorld(plane)
        self.gateway = f"eg{secrets.token_hex(3)}"
        self.shop, self.bank = (self.world.add_namespace() for _ in range(2))
        plane.kubectl("label", "namespace", self.shop, self.bank, f"site={self.gateway}")
        version = f"{plane.version.major}.{plane.version.minor}.0"
        documents = render({"eip": EIP_VALUES}, kubernetes=version)
        self.guards = [document for document in documents if document["metadata"]["name"] == OWN]
        apply(plane, *self.guards)
        apply_cluster_networks(plane)
        self.world.start_replica("--enable-egress-policies", CLUSTER_NETWORKS_FLAG)
        self.apply(GATEWAY)

    def apply(self, manifest: str, namespace: str = "") -> None:
        """As a user does, with the API server's validation of fields."""
        place = [f"--namespace={namespace}"] if namespace else []
        arguments = ("apply", "--validate=strict", "--filename=-", *place)
        self.plane.kubectl(*arguments, stdin=manifest.format(gateway=self.gateway))

    def warning(self, manifest: str, namespace: str = "") -> str:
        """What a user is told, who applies it in pretence."""
        place = [f"--namespace={namespace}"] if namespace else []
        arguments = ("apply", "--dry-run=server", "--warnings-as-errors", "--filename=-", *place)
        with pytest.raises(KubectlError) as told:
            self.plane.kubectl(*arguments, stdin=manifest.format(gateway=self.gateway))
        return str(told.value)

    def apply_policy(
        self, name: str, gateway: str = "", *, namespace: str = "", address: str = "{}", applied: str = PODS
    ) -> None:
        """An EgressPolicy, or without a namespace an EgressClusterPolicy."""
        kind = "EgressPolicy" if namespace else "EgressClusterPolicy"
        place = [f"--namespace={namespace}"] if namespace else []
        manifest = APPLIED.format(kind=kind, name=name, gateway=gateway, address=address, applied=applied)
        self.plane.kubectl("apply", "--validate=strict", "--filename=-", *place, stdin=manifest)

    def status(self, kind: str, name: str, namespace: str = "") -> Document:
        found = self.plane.read(f"{path(kind, namespace)}/{name}")
        status: Document = found.get("status", {})
        return status

    def await_eip(self, kind: str, name: str, eip: Document, namespace: str = "") -> None:
        def has() -> bool:
            status = self.status(kind, name, namespace)
            return bool(status.get("conditions")) and status.get("eip", {}) == eip

        wait_until(has, what=f"{kind} {namespace}/{name} has {eip}")

    def mirrors(self, namespace: str) -> set[str]:
        return {item["metadata"]["name"] for item in self.plane.read(path("egressgatewaypolicies", namespace))["items"]}

    def close(self) -> None:
        self.plane.kubectl("delete", "egressclusterpolicies", "--all")
        self.plane.kubectl("delete", "egressclusterinfo", "default", "--ignore-not-found")
        for namespace in (self.shop, self.bank):
            self.plane.kubectl("delete", "egresspolicies", "--all", f"--namespace={namespace}")
            wait_until(lambda where=namespace: not self.mirrors(where), what="the policies go")  # type: ignore[misc]
        remove_webhooks(self.plane, of="coil-egress-controller")
        kinds = ("validatingadmissionpolicybinding", "validatingadmissionpolicy")
        self.plane.kubectl("delete", ",".join(kinds), OWN, "--ignore-not-found")
        self.plane.kubectl("delete", "egressgateways", "--all")
        self.world.close()


def path(kind: str, namespace: str = "") -> str:
    where = f"/namespaces/{namespace}" if namespace else ""
    return f"/apis/{GROUP}{where}/{kind}"


@pytest.fixture(scope="module")
def site(plane: ControlPlane) -> Iterator[Site]:
    site = Site(plane)
    yield site
    missing = site.world.missing_rights()
    errors = [line for line in site.world.replicas[0].lines() if line["level"] == "error"]
    site.close()
    assert (missing, errors) == ([], [])


def test_policies_of_egressgateway_are_served_as_they_are_written(site: Site) -> None:
    policies = POLICIES.split("---\n")
    site.apply("---\n".join(policy for policy in policies if "rr" not in policy), site.shop)
    site.await_eip("egresspolicies", "by-default", {"ipv4": "198.51.100.72"}, site.shop)
    site.await_eip("egresspolicies", "fixed", {"ipv4": "198.51.100.80"}, site.shop)
    site.await_eip("egresspolicies", "by-node", {}, site.shop)
    site.apply(POLICIES, site.shop)

    def is_alone() -> bool:
        found = site.status("egresspolicies", "one-by-one", site.shop).get("eip", {}).get("ipv4", "")
        return found not in {"", "198.51.100.72", "198.51.100.80"}

    wait_until(is_alone, what="an address that no policy has")
    # The default EIP is everybody's.
    site.apply(POLICIES.partition("---")[0], site.bank)
    site.await_eip("egresspolicies", "by-default", {"ipv4": "198.51.100.72"}, site.bank)
    stored = site.plane.read(f"{path('egresspolicies', site.bank)}/by-default")["spec"]
    assert stored["egressIP"]["allocatorPolicy"] == "default"
    line = site.plane.kubectl("get", "egp", "fixed", f"--namespace={site.shop}", "--no-headers").split()
    assert line[:3] == ["fixed", site.gateway, "198.51.100.80"]


def test_a_change_and_a_deletion_are_followed(site: Site) -> None:
    site.apply(POLICIES, site.shop)
    wait_until(lambda: "one-by-one" in site.mirrors(site.shop), what="the policy")
    place = f"--namespace={site.shop}"
    patch = {"spec": {"destSubnet": ["203.0.113.99/32"]}}
    site.plane.kubectl("patch", "egp", "one-by-one", place, "--type=merge", f"--patch={json.dumps(patch)}")
    mirror = f"{path('egressgatewaypolicies', site.shop)}/one-by-one"
    wait_until(lambda: site.plane.read(mirror)["spec"]["destSubnet"] == ["203.0.113.99/32"], what="the change")
    site.plane.kubectl("delete", "egp", "one-by-one", place)
    wait_until(lambda: "one-by-one" not in site.mirrors(site.shop), what="the deletion")


def test_a_cluster_policy_has_one_address_in_all_its_namespaces(site: Site) -> None:
    site.apply(CLUSTER_POLICY)
    name = f"egcp-{site.gateway}"
    for namespace in (site.shop, site.bank):
        wait_until(lambda where=namespace: name in site.mirrors(where), what="the policy")  # type: ignore[misc]
        site.await_eip("egressgatewaypolicies", name, {"ipv4": "198.51.100.74"}, namespace)
    site.await_eip("egressclusterpolicies", site.gateway, {"ipv4": "198.51.100.74"})
    site.plane.kubectl("label", "namespace", site.bank, "site-")
    wait_until(lambda: name not in site.mirrors(site.bank), what="a namespace that is not selected any more")
    site.plane.kubectl("label", "namespace", site.bank, f"site={site.gateway}")
    wait_until(lambda: name in site.mirrors(site.bank), what="the namespace again")
    line = site.plane.kubectl("get", "egcp", site.gateway, "--no-headers").split()
    assert line[:3] == [site.gateway, site.gateway, "198.51.100.74"]


def test_a_tenant_cannot_touch_what_belongs_to_a_cluster_policy(site: Site) -> None:
    if not site.guards:
        pytest.skip("this Kubernetes has no ValidatingAdmissionPolicies")
    site.apply(CLUSTER_POLICY)
    tenant = Tenant(site.plane, site.shop, EDIT)
    policies = path("egressgatewaypolicies", site.shop)
    mirror = f"{policies}/egcp-{site.gateway}"
    wait_until(lambda: f"egcp-{site.gateway}" in site.mirrors(site.shop), what="the policy")
    found = site.plane.read(mirror)
    del found["metadata"]["managedFields"]
    said = "it belongs to an EgressClusterPolicy"

    def refused(method: str, where: str, body: Document | None = None) -> bool:
        status, answer = tenant.request(method, where, body)
        return status == 403 and said in answer["message"]

    wait_until(lambda: refused("DELETE", f"{mirror}?dryRun=All"), what="the API server enforces the policy")
    elsewhere = {**found, "spec": {**found["spec"], "destSubnet": ["203.0.113.1/32"]}}
    assert refused("PUT", mirror, elsewhere)
    orphan = {**found, "metadata": {**found["metadata"], "ownerReferences": []}}
    assert refused("PUT", mirror, orphan)
    metadata = {"name": "forged", "ownerReferences": found["metadata"]["ownerReferences"]}
    forged = {"apiVersion": GROUP, "kind": "EgressGatewayPolicy", "metadata": metadata, "spec": found["spec"]}
    assert refused("POST", policies, forged)
    own = {**forged, "metadata": {"name": "own"}, "spec": {"appliedTo": found["spec"]["appliedTo"]}}
    assert tenant.request("POST", policies, own)[0] == 201
    assert tenant.request("DELETE", f"{policies}/own")[0] == 200
    status, _ = tenant.request("GET", path("egressclusterpolicies"))
    assert status == 403


def test_a_tenant_may_write_egress_policies_within_its_rights(site: Site) -> None:
    tenant = Tenant(site.plane, site.bank, EDIT)
    policy = next(yaml.safe_load_all(POLICIES.format(gateway=site.gateway)))
    policies = path("egresspolicies", site.bank)
    mine = {**policy, "metadata": {"name": "mine"}}
    assert tenant.request("POST", policies, mine)[0] == 201
    wait_until(lambda: "mine" in site.mirrors(site.bank), what="the policy")
    assert tenant.request("DELETE", f"{policies}/mine")[0] == 200
    inside = {**mine, "spec": {**mine["spec"], "destSubnet": ["169.254.169.254/32"]}}
    status, answer = tenant.request("POST", policies, inside)
    assert status == 422
    assert "takes an EgressGatewayPolicy and a right" in answer["message"]


def test_what_admission_refuses_is_refused(site: Site) -> None:
    for spec, said in (
        ({"appliedTo": {}}, "spec.appliedTo"),
        ({"egressIP": {"useNodeIP": True, "ipv4": "198.51.100.80"}}, "spec.egressIP"),
        ({"egressIP": {"ipv4": "2001:db8::1"}}, "spec.egressIP.ipv4"),
        ({"egressGatewayName": site.gateway, "egressIP": {"ipv4": "192.0.2.1"}}, "is not an address of the gateway"),
    ):
        for kind, namespace in (("EgressPolicy", site.shop), ("EgressClusterPolicy", "")):
            body = {
                "apiVersion": GROUP,
                "kind": kind,
                "metadata": {"name": "refused", **({"namespace": namespace} if namespace else {})},
                "spec": {"appliedTo": {"podSelector": {"matchLabels": {"app": "mock-app"}}}, **spec},
            }
            with pytest.raises(KubectlError, match=said):
                site.plane.kubectl("create", "--filename=-", stdin=json.dumps(body))


CLUSTER_INFO: Final = """
apiVersion: egressgateway.spidernet.io/v1beta1
kind: EgressClusterInfo
metadata:
  name: default
spec:
  autoDetect:
    clusterIP: true
    nodeIP: true
    podCidrMode: auto
  extraCidr:
  - 10.10.10.1
  - 10.11.0.0/16
"""


def test_the_cluster_info_adds_networks_and_says_which_were_found(site: Site) -> None:
    def published() -> list[str]:
        text: str = site.plane.read(CLUSTER_NETWORKS_PATH).get("data", {}).get("pod-and-service-networks", "")
        return text.split()

    def adds() -> bool:
        return {"10.10.10.1/32", "10.11.0.0/16"} <= set(published())

    site.apply(CLUSTER_INFO)
    wait_until(adds, what="the networks are told to agents")
    wait_until(lambda: site.status("egressclusterinfos", "default").get("clusterIP", {}).get("ipv4"), what="a status")
    assert site.status("egressclusterinfos", "default")["extraCidr"] == ["10.10.10.1", "10.11.0.0/16"]
    site.plane.kubectl("delete", "egci", "default")
    wait_until(lambda: not adds(), what="the networks are not the cluster's any more")


def test_the_cluster_info_follows_the_pools_of_calico(site: Site) -> None:
    """Whose kind comes after the controller, and goes before it."""
    kind = foreign_kind("crd.projectcalico.org", "v1", "IPPool")
    crd = f"crd/{kind['metadata']['name']}"

    def make(name: str, cidr: str) -> Document:
        spec = {"cidr": cidr, "blockSize": 26, "ipipMode": "Always", "nodeSelector": "all()"}
        return {"apiVersion": "crd.projectcalico.org/v1", "kind": "IPPool", "metadata": {"name": name}, "spec": spec}

    def becomes(wanted: Document, what: str) -> None:
        wait_until(lambda: site.status("egressclusterinfos", "default").get("podCIDR", {}) == wanted, what=what)

    site.apply(CLUSTER_INFO)
    wait_until(lambda: site.status("egressclusterinfos", "default"), what="a status")
    own = site.status("egressclusterinfos", "default").get("podCIDR", {})
    apply(site.plane, kind)
    try:
        site.plane.kubectl("wait", "--for=condition=Established", "--timeout=180s", crd)
        apply(site.plane, make("default-ipv4-ippool", "10.50.0.0/16"), make("default-ipv6-ippool", "fd50::/48"))
        six: Document = {"ipv6": ["fd50::/48"]}
        becomes(
            {**own, "default-ipv4-ippool": {"ipv4": ["10.50.0.0/16"]}, "default-ipv6-ippool": six},
            what="the pools of both families",
        )
        apply(site.plane, make("default-ipv4-ippool", "10.51.0.0/16"))
        becomes(
            {**own, "default-ipv4-ippool": {"ipv4": ["10.51.0.0/16"]}, "default-ipv6-ippool": six},
            what="the network that was changed",
        )
        site.plane.kubectl("delete", "ippools.crd.projectcalico.org", "default-ipv4-ippool")
        becomes({**own, "default-ipv6-ippool": six}, what="the pool is gone")
    finally:
        site.plane.kubectl("delete", crd)
    becomes(own, what="Calico is gone")
    site.plane.kubectl("delete", "egci", "default")


def test_a_mirror_that_somebody_deleted_is_made_anew(site: Site) -> None:
    """By an administrator, who may."""
    site.apply(POLICIES, site.shop)
    mirror = f"{path('egressgatewaypolicies', site.shop)}/fixed"
    wait_until(lambda: "fixed" in site.mirrors(site.shop), what="the policy")
    uid = site.plane.read(mirror)["metadata"]["uid"]
    site.plane.kubectl("delete", "egressgatewaypolicy", "fixed", f"--namespace={site.shop}")

    def is_new() -> bool:
        return "fixed" in site.mirrors(site.shop) and site.plane.read(mirror)["metadata"]["uid"] != uid

    wait_until(is_new, what="another policy")


# Further shapes of manifests.


def test_a_gateway_of_both_families_has_a_default_of_each(site: Site) -> None:
    site.apply(DUAL)
    gateway = f"{site.gateway}-dual"
    site.apply_policy("of-both", gateway, namespace=site.shop)
    both = {"ipv4": "198.51.100.103", "ipv6": "2001:db8:7::3"}
    site.await_eip("egresspolicies", "of-both", both, site.shop)
    site.apply_policy("of-both", gateway, namespace=site.bank, address="{ipv6: '2001:db8:7::20'}")
    pair = {"ipv4": "198.51.100.104", "ipv6": "2001:db8:7::20"}
    site.await_eip("egresspolicies", "of-both", pair, site.bank)


def test_a_gateway_may_have_ipv6_addresses_only(site: Site) -> None:
    site.apply(SIX)
    site.apply_policy("of-six", f"{site.gateway}-six", namespace=site.shop)
    site.await_eip("egresspolicies", "of-six", {"ipv6": "2001:db8:8::8"}, site.shop)
    site.apply_policy("of-six", f"{site.gateway}-six", address="{allocatorPolicy: rr}")

    def is_alone() -> bool:
        eip = site.status("egressclusterpolicies", "of-six").get("eip", {})
        return set(eip) == {"ipv6"} and eip["ipv6"] != "2001:db8:8::8"

    wait_until(is_alone, what="an address that no policy has")


@pytest.mark.parametrize("name", ["none", "empty"])
def test_a_gateway_without_addresses_serves_with_those_of_its_nodes(site: Site, name: str) -> None:
    site.apply(WITHOUT_POOLS)
    site.apply_policy(name, f"{site.gateway}-{name}", namespace=site.shop, address="{useNodeIP: true}")
    site.apply_policy(name, f"{site.gateway}-{name}", address="{useNodeIP: true}")
    site.await_eip("egresspolicies", name, {}, site.shop)
    site.await_eip("egressclusterpolicies", name, {})
    for mirror in (name, f"egcp-{name}"):

        def waits(mirror: str = mirror) -> bool:
            status = site.status("egressgatewaypolicies", mirror, site.shop)
            conditions = {each["type"]: each["reason"] for each in status.get("conditions", [])}
            return conditions.get("Ready") == "NoNode" and status["egressGatewayName"] == f"{site.gateway}-{name}"

        wait_until(waits, what=f"{mirror} waits for a node of its gateway")
        found = site.plane.read(f"{path('egressgatewaypolicies', site.shop)}/{mirror}")
        assert found["spec"]["egressIP"]["useNodeIP"] is True


def test_a_gateway_as_it_was_exported_is_taken_without_its_status(site: Site) -> None:
    assert "which only egressgateway removes" in site.warning(EXPORTED)
    site.apply(EXPORTED)
    name = f"{site.gateway}-exported"
    site.apply_policy("exported", name, namespace=site.shop)
    site.await_eip("egresspolicies", "exported", {"ipv4": "198.51.100.122"}, site.shop)
    assert "workstation" not in json.dumps(site.status("egressgateways", name).get("nodeList", []))
    # What the warning says.
    site.plane.kubectl("delete", "egp", "exported", f"--namespace={site.shop}")
    wait_until(lambda: "exported" not in site.mirrors(site.shop), what="the policy goes")
    site.plane.kubectl("delete", "egressgateway", name, "--wait=false")
    assert "deletionTimestamp" in site.plane.read(f"{path('egressgateways')}/{name}")["metadata"]
    site.plane.kubectl("patch", "egressgateway", name, "--type=merge", '--patch={"metadata": {"finalizers": []}}')
    site.plane.kubectl("wait", "--for=delete", f"egressgateway/{name}", "--timeout=30s")


def test_expressions_select_nodes_and_namespaces(site: Site) -> None:
    site.apply(DUAL)
    nodes = {name: f"{site.gateway}-{name}" for name in ("in", "off", "out")}
    labels = {
        "in": f"egress-zone={site.gateway}",
        "off": f"egress-zone={site.gateway} egress-off=",
        "out": "egress-zone=z",
    }
    for name, node in nodes.items():
        site.plane.kubectl(
            "create", "--filename=-", stdin=json.dumps({"apiVersion": "v1", "kind": "Node", "metadata": {"name": node}})
        )
        site.plane.kubectl("label", "node", node, *labels[name].split())

    def chosen() -> list[str]:
        return [each["name"] for each in site.status("egressgateways", f"{site.gateway}-dual").get("nodeList", [])]

    wait_until(lambda: chosen() == [nodes["in"]], what="the one node that the expressions select")
    expressions = f"[{{key: site, operator: In, values: [{site.gateway}]}}, {{key: closed, operator: DoesNotExist}}]"
    applied = (
        "{podSelector: {matchExpressions: [{key: app, operator: Exists}]}, "
        f"namespaceSelector: {{matchExpressions: {expressions}}}}}"
    )
    site.plane.kubectl("label", "namespace", site.bank, "closed=")
    site.apply_policy("chosen", site.gateway, applied=applied)
    wait_until(lambda: "egcp-chosen" in site.mirrors(site.shop), what="the policy in a namespace that is selected")
    assert "egcp-chosen" not in site.mirrors(site.bank)
    site.plane.kubectl("label", "namespace", site.bank, "closed-")
    wait_until(lambda: "egcp-chosen" in site.mirrors(site.bank), what="the policy in the other one")
    site.plane.kubectl("delete", "node", *nodes.values())


def test_the_label_of_a_namespace_names_its_gateway(site: Site) -> None:
    """The cluster's default is that of the other one."""
    site.apply(DUAL)
    label = "spidernet.io/egressgateway-default"
    site.plane.kubectl("label", "namespace", site.bank, f"{label}={site.gateway}-dual")
    site.apply_policy("labelled")
    for namespace in (site.shop, site.bank):
        site.apply_policy("labelled", namespace=namespace)
    dual = {"ipv4": "198.51.100.103", "ipv6": "2001:db8:7::3"}
    for kind, name in (("egresspolicies", "labelled"), ("egressgatewaypolicies", "egcp-labelled")):
        site.await_eip(kind, name, {"ipv4": "198.51.100.72"}, site.shop)
        site.await_eip(kind, name, dual, site.bank)
    site.plane.kubectl("label", "namespace", site.bank, f"{label}-")
    site.await_eip("egresspolicies", "labelled", {"ipv4": "198.51.100.72"}, site.bank)


@pytest.mark.parametrize("kind", ["egresspolicies", "egressclusterpolicies"])
def test_subnets_of_pods_are_taken_with_a_warning_and_select_nothing(site: Site, kind: str) -> None:
    namespace = site.shop if kind == "egresspolicies" else ""
    subnets = "podSubnet: [172.29.16.0/24, 'fd00:1::/126']"
    site.apply_policy("subnet", site.gateway, namespace=namespace, applied=f"{{{subnets}}}")

    def is_told() -> bool:
        [condition] = site.status(kind, "subnet", namespace).get("conditions") or [{}]
        return condition.get("reason") == "PolicyRefused" and "spec.appliedTo.podSubnet" in condition["message"]

    wait_until(is_told, what="the status says why")
    assert not {"subnet", "egcp-subnet"} & site.mirrors(site.shop)
    kinds = {"egresspolicies": "EgressPolicy", "egressclusterpolicies": "EgressClusterPolicy"}
    applied = f"{{{{{subnets}}}}}"  # formatted twice
    manifest = APPLIED.format(kind=kinds[kind], name="other", gateway=site.gateway, address="{{}}", applied=applied)
    assert "selects no pods in this kind" in site.warning(manifest, namespace)
    with pytest.raises(KubectlError, match="must have either a podSelector or a podSubnet"):
        site.apply_policy("both", namespace=namespace, applied=f"{{podSelector: {{}}, {subnets}}}")
