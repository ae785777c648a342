"""Floating egress addresses and their tenants: real users before a real kube-apiserver that calls a real controller.

Nobody but RBAC, the schemas and the webhooks stands between a tenant and the addresses of another one.
"""

import json
import re
import secrets
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import pytest

from integration.apiserver.egress_world import NAME, EgressWorld, foreign_kind
from integration.apiserver.tenant import Tenant
from integration.cluster.control_plane import ControlPlane
from integration.deployment import CLUSTER_NETWORKS_FLAG, apply, apply_cluster_networks, remove_webhooks
from integration.patience import wait_until

pytestmark = pytest.mark.apiserver

Document = dict[str, Any]
Fields = dict[str, Any]

GROUP = "egressgateway.spidernet.io/v1beta1"
GATEWAYS = f"/apis/{GROUP}/egressgateways"
TUNNELS = f"/apis/{GROUP}/egresstunnels"
EDIT = "coil-egressgatewaypolicy-edit"
NODES = {"selector": {"matchLabels": {"egress": "nowhere"}}}
MOST_POLICIES, MOST_NETWORKS, MOST_OF_A_GATEWAY = 12, 24, 20
CLUSTER_CIDRS = ["10.98.0.0/16", "fd98::/48"]
PODS = {"podSelector": {"matchLabels": {"app": "shopping"}}}


class Town:
    """Two tenants, `shop` and `bank`; gateways `shared` and `closed`, which lets only `shop` in, of names of their own.

    `old` are a gateway and a policy from before there was a controller, with nonsense in them.
    """

    def __init__(self, plane: ControlPlane) -> None:
        self.plane = plane
        self.world = EgressWorld(plane)
        self.prefix = f"eg{secrets.token_hex(3)}"
        self.shared, self.closed, self.old = (f"{self.prefix}-{name}" for name in ("shared", "closed", "old"))
        self.shop = Tenant(plane, self.world.add_namespace(), EDIT)
        self.bank = Tenant(plane, self.world.add_namespace(), EDIT)
        plane.kubectl("label", "namespace", self.shop.namespace, f"tenant={self.prefix}")
        allowed = {"matchLabels": {"tenant": self.prefix}}
        apply(
            plane,
            gateway(self.shared, ranges={"ipv4": ["198.51.100.1-198.51.100.9"], "ipv6": ["2001:db8::1-2001:db8::9"]}),
            gateway(self.closed, allowedNamespaces=allowed),
            gateway(self.old, ranges={"ipv4": ["198.51.100.300"]}),
            policy(self.shop.namespace, "old", destSubnet=["10.0.0.0/99"]),
        )
        apply_cluster_networks(plane)
        self.world.start_replica(
            f"--policies-per-namespace={MOST_POLICIES}",
            f"--networks-per-namespace={MOST_NETWORKS}",
            f"--policies-per-gateway={MOST_OF_A_GATEWAY}",
            CLUSTER_NETWORKS_FLAG,
            f"--eip-cluster-cidr={','.join(CLUSTER_CIDRS)}",
        )

    def admin(self, method: str, path: str, body: Document | None = None) -> tuple[int, Document]:
        status, answer = self.plane.request(method, path, None if body is None else json.dumps(body).encode())
        return status, json.loads(answer)

    def create(self, tenant: Tenant, name: str = "pretended", **spec: Any) -> tuple[int, Document]:
        """A policy of the tenant's in its namespace; by default only in pretence."""
        dry = "?dryRun=All" if name == "pretended" else ""
        path = f"{policies(tenant.namespace)}{dry}"
        return tenant.request("POST", path, policy(tenant.namespace, name, **spec))

    def create_gateway(self, name: str = "pretended", **spec: Any) -> tuple[int, Document]:
        """The administrator's, in pretence."""
        return self.admin("POST", f"{GATEWAYS}?dryRun=All", gateway(f"{self.prefix}-{name}", **spec))

    def await_address(self, tenant: Tenant, name: str, address: str) -> None:
        """Until the controller has said that the policy has it."""
        wait_until(
            lambda: self.status(tenant, name).get("eip", {}).get("ipv4") == address, what=f"{name} has {address}"
        )

    def await_gateway(self, tenant: Tenant, name: str, gateway: str) -> None:
        """Until the controller has said that the policy has it; "" for none."""

        def said() -> bool:
            status = self.status(tenant, name)
            return bool(status) and status.get("egressGatewayName", "") == gateway

        wait_until(said, what=f"{name} has the gateway {gateway!r}")

    def status(self, tenant: Tenant, name: str) -> Document:
        _, found = self.admin("GET", f"{policies(tenant.namespace)}/{name}")
        status: Document = found.get("status", {})
        return status

    def close(self) -> None:
        for tenant in (self.shop, self.bank):
            self.plane.kubectl("delete", "egressgatewaypolicies", "--all", f"--namespace={tenant.namespace}")
        remove_webhooks(self.plane, of=NAME)
        self.plane.kubectl("delete", "egressgateway", self.shared, self.closed, self.old, "--ignore-not-found")
        self.world.close()


@pytest.fixture(scope="module")
def town(plane: ControlPlane) -> Iterator[Town]:
    town = Town(plane)
    yield town
    assert town.world.missing_rights() == []
    assert [line for line in town.world.replicas[0].lines() if line["level"] == "error"] == []
    town.close()


def gateway(name: str, **spec: Any) -> Document:
    return {
        "apiVersion": GROUP,
        "kind": "EgressGateway",
        "metadata": {"name": name},
        "spec": {"nodeSelector": NODES, **spec},
    }


def policy(namespace: str, name: str, **spec: Any) -> Document:
    return {
        "apiVersion": GROUP,
        "kind": "EgressGatewayPolicy",
        "metadata": {"name": name, "namespace": namespace},
        "spec": {"appliedTo": PODS, **spec},
    }


def policies(namespace: str) -> str:
    return f"/apis/{GROUP}/namespaces/{namespace}/egressgatewaypolicies"


def slices(namespace: str) -> str:
    return f"/apis/{GROUP}/namespaces/{namespace}/egressendpointslices"


def causes(answer: Document) -> dict[str, str]:
    return {cause["field"]: cause["message"] for cause in answer["details"]["causes"]}


def test_the_api_server_finds_no_fault_in_the_schemas(town: Town) -> None:
    found = json.loads(town.plane.kubectl("get", "crd", "--output=json"))["items"]
    mine = [crd for crd in found if crd["spec"]["group"] == "egressgateway.spidernet.io"]
    assert len(mine) == 7
    for crd in mine:
        conditions = {item["type"]: item["status"] for item in crd["status"]["conditions"]}
        assert conditions == {"NamesAccepted": "True", "Established": "True"}, crd["metadata"]["name"]


def test_a_tenant_uses_only_gateways_that_let_its_namespace_in(town: Town) -> None:
    assert town.create(town.shop, egressGatewayName=town.closed)[0] == 201
    status, answer = town.create(town.bank, egressGatewayName=town.closed)
    assert status == 422
    assert causes(answer) == {
        "spec.egressGatewayName": f"the EgressGateway '{town.closed}' does not allow this namespace"
    }
    assert town.create(town.bank, egressGatewayName=town.shared)[0] == 201
    # Without the right to read them from the API server, the caches would have answered instead.
    fallbacks = town.world.replicas[0].logged("admission falls back to the cache")
    assert [line for line in fallbacks if "forbidden" in line["error"]] == []


def test_a_tenant_cannot_let_itself_in(town: Town) -> None:
    """Who may label namespaces says who is let in; an editor of one may not."""
    label = {"metadata": {"labels": {"tenant": town.prefix}}}
    path = f"/api/v1/namespaces/{town.bank.namespace}"
    _, namespace = town.admin("GET", path)
    assert town.bank.request("PUT", path, namespace | label)[0] == 403
    assert town.bank.request("PUT", f"{GATEWAYS}/{town.closed}", gateway(town.closed))[0] == 403
    assert town.bank.request("GET", f"{GATEWAYS}/{town.closed}")[0] == 403


def test_the_default_gateway_of_a_namespace_is_its_label(town: Town) -> None:
    """Without any, a policy waits for one."""
    assert town.create(town.bank, "early")[0] == 201
    town.await_gateway(town.bank, "early", "")
    (condition,) = town.status(town.bank, "early")["conditions"]
    assert condition["reason"] == "NoDefaultGateway"
    label = "egressgateway.spidernet.io/default"
    town.plane.kubectl("label", "namespace", town.bank.namespace, f"{label}={town.shared}")
    town.await_gateway(town.bank, "early", town.shared)
    town.plane.kubectl("label", "--overwrite", "namespace", town.bank.namespace, f"{label}={town.closed}")
    town.await_gateway(town.bank, "early", "")
    town.plane.kubectl("label", "namespace", town.bank.namespace, f"{label}-")


def test_another_tenants_address_is_not_to_be_had(town: Town) -> None:
    pair = {"ipv4": "198.51.100.5", "ipv6": "2001:db8::5"}
    status, answer = town.create(town.bank, "vault", egressGatewayName=town.shared, egressIP=pair)
    assert status == 201, answer
    town.await_address(town.bank, "vault", "198.51.100.5")
    for field, address in pair.items():
        status, answer = town.create(town.shop, egressGatewayName=town.shared, egressIP={field: address})
        assert status == 422
        assert causes(answer) == {
            f"spec.egressIP.{field}": "is the address of a policy in another namespace; ask for another"
        }
        assert "vault" not in json.dumps(answer)
    assert town.create(town.shop, egressGatewayName=town.shared, egressIP={"ipv4": "198.51.100.6"})[0] == 201
    # Inside its own namespace it may be shared, but the pair stays one.
    assert town.create(town.bank, egressGatewayName=town.shared, egressIP=pair)[0] == 201
    torn = pair | {"ipv6": "2001:db8::6"}
    status, answer = town.create(town.bank, egressGatewayName=town.shared, egressIP=torn)
    assert (status, list(causes(answer))) == (422, ["spec.egressIP.ipv4"])


def test_an_address_is_one_of_the_gateways(town: Town) -> None:
    status, answer = town.create(town.shop, egressGatewayName=town.shared, egressIP={"ipv4": "198.51.100.10"})
    assert status == 422
    assert causes(answer)["spec.egressIP.ipv4"].startswith(f"is not an address of the gateway '{town.shared}'")


def test_a_gateway_has_no_address_of_the_clusters_own(town: Town) -> None:
    name, addresses = f"{town.prefix}-node", {"ipv4": "198.51.100.77", "ipv6": "2001:db8::77"}
    apply(town.plane, {"apiVersion": "v1", "kind": "Node", "metadata": {"name": name}})
    told = [{"type": "InternalIP", "address": address} for address in addresses.values()]
    patch = json.dumps({"status": {"addresses": told}})
    town.plane.kubectl("patch", "node", name, "--subresource=status", "--type=merge", f"--patch={patch}")

    def refused(**ranges: list[str]) -> dict[str, str]:
        status, answer = town.create_gateway(ranges=ranges)
        return causes(answer) if status == 422 else {}

    try:
        for family, address in addresses.items():
            # The controller hears of the Node by a watch.
            wait_until(lambda family=family, address=address: refused(**{family: [address]}), what="it is refused")  # type: ignore[misc]
            [message] = refused(**{family: [address]}).values()
            assert message == f"{address!r} overlaps {address!r} of the Node {name!r}"
        [field] = refused(ipv4=["198.51.100.78", "198.51.100.70-198.51.100.79"])
        assert field == "spec.ranges.ipv4[1]"
        assert refused(ipv4=["198.51.100.78"]) == {}
    finally:
        town.plane.kubectl("delete", "node", name)


def test_a_gateway_has_no_network_or_broadcast_address(town: Town) -> None:
    """Of the networks that nodes are in, which each tells in its EgressTunnel, for its own address."""
    name, addresses = f"{town.prefix}-link", {"ipv4": "198.51.100.130", "ipv6": "2001:db8:77::9"}
    apply(town.plane, {"apiVersion": "v1", "kind": "Node", "metadata": {"name": name}})
    told = [{"type": "InternalIP", "address": address} for address in addresses.values()]

    def patch_status(kind: str, status: Document) -> None:
        patch = json.dumps({"status": status})
        town.plane.kubectl("patch", kind, name, "--subresource=status", "--type=merge", f"--patch={patch}")

    def patch_parent(ipv4: str, ipv6: str) -> None:
        patch_status("egresstunnel", {"tunnel": {"parent": {"name": "eth0", "ipv4": ipv4, "ipv6": ipv6}}})

    def refused(text: str) -> str:
        status, answer = town.create_gateway(ranges={"ipv6" if ":" in text else "ipv4": [text]})
        return next(iter(causes(answer).values())) if status == 422 else ""

    ends = {
        "198.51.100.120-198.51.100.129": ("198.51.100.128", "network address", "198.51.100.128/25"),
        "198.51.100.240/28": ("198.51.100.255", "broadcast address", "198.51.100.128/25"),
        "2001:db8:77::/125": ("2001:db8:77::", "Subnet-Router anycast address", "2001:db8:77::/64"),
    }
    try:
        patch_status("node", {"addresses": told})
        wait_until(lambda: town.admin("GET", f"{TUNNELS}/{name}")[0] == 200, what="the Node's EgressTunnel")
        patch_parent("198.51.100.130/25", "2001:db8:77::9/64")
        for text, (address, kind, network) in ends.items():
            # The controller hears of both by a watch.
            wait_until(lambda text=text: refused(text), what=f"{text} is refused")  # type: ignore[misc]
            assert refused(text) == (
                f"{text!r} has {address}, which is the {kind} of {network}, the network of the Node {name!r}"
            )
        assert refused("198.51.100.131-198.51.100.254") == ""
        assert refused("2001:db8:77:0:ffff:ffff:ffff:ffff") == "", "IPv6 has no broadcast"
        patch_parent("198.51.100.66/25", "2001:db8:77::8/64")
        for text in ends:
            wait_until(lambda text=text: refused(text) == "", what="its word is of no address of the Node's")  # type: ignore[misc]
    finally:
        town.plane.kubectl("delete", "node", name)


def test_a_tenant_writes_no_status_no_slice_and_no_tunnel(town: Town) -> None:
    assert town.create(town.shop, "web", egressGatewayName=town.shared)[0] == 201
    path = f"{policies(town.shop.namespace)}/web"

    def forged() -> Document:
        status, found = town.shop.request("GET", path)
        assert status == 200
        return found | {"status": {"egressGatewayName": town.shared, "eip": {"ipv4": "198.51.100.5"}, "node": "node1"}}

    assert town.shop.request("PUT", f"{path}/status", forged())[0] == 403

    def stored() -> bool:
        status, _ = town.shop.request("PUT", path, forged())
        assert status in {200, 409}, "the controller may have written meanwhile"
        return status == 200

    wait_until(stored, what="a tenant changes its policy")
    # By the main door the status is left as it is.
    _, found = town.shop.request("GET", path)
    assert found.get("status", {}).get("node") != "node1"
    slice_ = {
        "apiVersion": GROUP,
        "kind": "EgressEndpointSlice",
        "metadata": {"name": "forged", "labels": {"egressgateway.spidernet.io/egressgatewaypolicy": "web"}},
        "endpoints": [{"podName": "stolen", "ipv4List": ["10.1.2.3"], "nodeName": "node1"}],
    }
    assert town.shop.request("POST", slices(town.shop.namespace), slice_)[0] == 403
    assert town.shop.request("GET", slices(town.shop.namespace))[0] == 200
    tunnel = {"apiVersion": GROUP, "kind": "EgressTunnel", "metadata": {"name": "node1"}}
    assert town.shop.request("POST", TUNNELS, tunnel)[0] == 403
    assert town.shop.request("POST", GATEWAYS, gateway(f"{town.prefix}-own"))[0] == 403


def test_a_tenant_neither_sees_nor_makes_anything_in_another_namespace(town: Town) -> None:
    foreign = policies(town.bank.namespace)
    assert town.shop.request("GET", foreign)[0] == 403
    assert town.shop.request("POST", foreign, policy(town.bank.namespace, "mine"))[0] == 403
    assert town.shop.request("GET", slices(town.bank.namespace))[0] == 403


def test_to_select_pods_by_address_takes_a_right(town: Town) -> None:
    spec: Fields = {"egressGatewayName": town.shared, "appliedTo": {"podSubnet": ["0.0.0.0/0"]}}
    status, answer = town.create(town.shop, **spec)
    assert (status, list(causes(answer))) == (422, ["spec.appliedTo.podSubnet"])
    path = f"{policies(town.shop.namespace)}?dryRun=All"
    assert town.admin("POST", path, policy(town.shop.namespace, "admins", **spec))[0] == 201
    trusted = Tenant(town.plane, town.world.add_namespace(), EDIT, "coil-egressgatewaypolicy-podsubnet")
    # The API server hears of a new binding by a watch.
    wait_until(lambda: town.create(trusted, **spec)[0] == 201, what="the right is granted")
    assert town.create(town.shop, **spec)[0] == 422


def test_to_name_addresses_of_the_cluster_takes_the_same_right(town: Town) -> None:
    """Its pods would be reached with an address that no NetworkPolicy of theirs knows."""
    name, networks = f"{town.prefix}-pods", ["10.244.77.0/24", "fd44:77::/64"]
    spec = {"podCIDR": networks[0], "podCIDRs": networks}
    apply(town.plane, {"apiVersion": "v1", "kind": "Node", "metadata": {"name": name}, "spec": spec})

    def refused(tenant: Tenant, network: str) -> list[str]:
        status, answer = town.create(tenant, egressGatewayName=town.shared, destSubnet=["203.0.113.7/32", network])
        return list(causes(answer).values()) if status == 422 else []

    trusted = Tenant(town.plane, town.world.add_namespace(), EDIT, "coil-egressgatewaypolicy-podsubnet")
    try:
        for network in networks:
            # The controller hears of the Node by a watch, and the API server of the binding.
            wait_until(lambda network=network: refused(town.shop, network), what="it is refused")  # type: ignore[misc]
            [message] = refused(town.shop, network)
            assert message.startswith(f"{network} belongs to the pods of the Node {name!r}, which takes the right to")
            wanted: Fields = {"egressGatewayName": town.shared, "destSubnet": [network]}
            wait_until(lambda wanted=wanted: town.create(trusted, **wanted)[0] == 201, what="the right is granted")  # type: ignore[misc]
            assert refused(town.shop, network) == [message]
    finally:
        town.plane.kubectl("delete", "node", name)
    wait_until(lambda: refused(town.shop, networks[0]) == [], what="it is an address as any other")


@contextmanager
def found_networks(plane: ControlPlane) -> Iterator[dict[str, tuple[str, str]]]:
    """Networks with their owners and what becomes of a gateway there: those of Calico's IPPools, and those that an
    administrator has added, the flag's last.
    """
    kind = foreign_kind("crd.projectcalico.org", "v1", "IPPool")
    crd = f"crd/{kind['metadata']['name']}"
    patch_extra = ("patch", "configmap", "coil-cluster-networks", "--namespace=kube-system", "--type=merge")
    pools, extra = {"ipv4": "10.50.0.0/16", "ipv6": "fd50::/48"}, ["10.54.0.0/16", "fd54::/48"]
    apply(plane, kind)
    try:
        plane.kubectl("wait", "--for=condition=Established", "--timeout=180s", crd)
        for name, cidr in pools.items():
            apply(
                plane,
                {
                    "apiVersion": "crd.projectcalico.org/v1",
                    "kind": "IPPool",
                    "metadata": {"name": name},
                    "spec": {"cidr": cidr},
                },
            )
        plane.kubectl(*patch_extra, f"--patch={json.dumps({'data': {'extra': ' '.join(extra)}})}")
        by_hand = "the cluster ('extra' in the ConfigMap 'kube-system/coil-cluster-networks')"
        yield {
            **{cidr: (f"the IPPool {name!r} of Calico", "refused") for name, cidr in pools.items()},
            **dict.fromkeys(extra, (by_hand, "accepted")),
            **dict.fromkeys(CLUSTER_CIDRS, ("the cluster (--eip-cluster-cidr)", "accepted")),
        }
    finally:
        plane.kubectl(*patch_extra, f"--patch={json.dumps({'data': {'extra': None}})}")
        plane.kubectl("delete", crd)


def test_so_does_what_other_programs_and_administrators_say_of_the_cluster(town: Town) -> None:
    """Behind Calico, a tenant would reach its pods as the floating address. What is found, no gateway may have."""
    trusted = Tenant(town.plane, town.world.add_namespace(), EDIT, "coil-egressgatewaypolicy-podsubnet")

    def refused(network: str) -> str:
        status, answer = town.create(town.shop, egressGatewayName=town.shared, destSubnet=["203.0.113.7/32", network])
        return causes(answer).get("spec.destSubnet[1]", "") if status == 422 else ""

    texts = []
    with found_networks(town.plane) as found:
        for network, (owner, of_gateways) in found.items():
            text = network.replace("/16", "/24").replace("/48", "/64")
            texts.append(text)
            # The controller hears of all of them by a watch, and the API server of the binding.
            wait_until(lambda text=text: refused(text), what=f"{text} is refused")  # type: ignore[misc]
            assert refused(text).startswith(f"{text} belongs to {owner}, which takes the right to")
            wanted: Fields = {"egressGatewayName": town.shared, "destSubnet": [text]}
            wait_until(lambda wanted=wanted: town.create(trusted, **wanted)[0] == 201, what="the right is granted")  # type: ignore[misc]
            status, answer = town.create_gateway(ranges={"ipv6" if ":" in text else "ipv4": [text]})
            assert {201: "accepted", 422: "refused"}[status] == of_gateways, answer
            if status == 422:
                assert list(causes(answer).values()) == [f"{text!r} overlaps {network!r} of {owner}"]
            wider = network.replace("/16", "/15").replace("/48", "/47")
            assert refused(wider) == "", "of such a network the cluster is no part"
    for text in texts[: -len(CLUSTER_CIDRS)]:
        wait_until(lambda text=text: refused(text) == "", what=f"{text} is an address as any other")  # type: ignore[misc]


def test_a_namespace_has_its_share_and_no_more(town: Town) -> None:
    """What is refused names the limit and the value in use; the next tenant's share is its own."""
    greedy = Tenant(town.plane, town.world.add_namespace(), EDIT)
    networks = [f"203.0.113.{number}/32" for number in range(MOST_NETWORKS)]

    def asked(name: str = "pretended", *, count: int) -> tuple[int, dict[str, str]]:
        status, answer = town.create(greedy, name, egressGatewayName=town.shared, destSubnet=networks[:count])
        return status, causes(answer) if status == 422 else {}

    # The right to create is heard of by a watch, and so is each policy by the controller.
    wait_until(lambda: asked(count=0) == (201, {}), what="the tenant may create policies")
    assert asked(count=MOST_NETWORKS) == (201, {})
    assert asked("wide", count=MOST_NETWORKS - 1) == (201, {})
    message = (
        f"2 networks, beside {MOST_NETWORKS - 1} in other policies of the namespace, which may have {MOST_NETWORKS}"
    )
    refused = (422, {"spec": f"{message} together: join some, or ask an administrator"})
    wait_until(lambda: asked(count=2) == refused, what="the networks are refused")
    assert asked(count=1) == (201, {})
    for number in range(1, MOST_POLICIES):
        assert asked(f"p{number}", count=0) == (201, {})
    message = f"the namespace has {MOST_POLICIES} EgressGatewayPolicies, and may have {MOST_POLICIES}"
    refused = (422, {"metadata.namespace": f"{message}: delete some, or ask an administrator"})
    wait_until(lambda: asked(count=0) == refused, what="the policies are refused")
    assert town.create(town.bank, egressGatewayName=town.shared, destSubnet=networks[:1])[0] == 201
    town.plane.kubectl("delete", "egressgatewaypolicies", "--all", f"--namespace={greedy.namespace}")
    wait_until(lambda: asked(count=MOST_NETWORKS) == (201, {}), what="there is room again")


def test_a_gateway_has_so_many_policies_and_no_more(town: Town) -> None:
    """Of all tenants, one that came before the gateway among them; changes of those that are there go on."""
    name, tenants = f"{town.prefix}-full", [Tenant(town.plane, town.world.add_namespace(), EDIT) for _ in range(2)]

    def asked(tenant: Tenant, name_: str = "pretended") -> tuple[int, dict[str, str]]:
        status, answer = town.create(tenant, name_, egressGatewayName=name)
        return status, causes(answer) if status == 422 else {}

    for tenant in tenants:
        # The right to create is heard of by a watch.
        wait_until(lambda tenant=tenant: asked(tenant)[0] == 201, what="the tenant may create policies")  # type: ignore[misc]
    assert asked(tenants[0], "p0") == (201, {})
    assert town.admin("POST", GATEWAYS, gateway(name, ranges={"ipv4": ["198.51.100.100"]}))[0] == 201
    try:
        for number in range(1, MOST_OF_A_GATEWAY):
            assert asked(tenants[number % 2], f"p{number}") == (201, {})
        message = f"the EgressGateway {name!r} has {MOST_OF_A_GATEWAY} policies, and may have {MOST_OF_A_GATEWAY}"
        refused = (422, {"spec.egressGatewayName": f"{message}: use another, or ask an administrator"})
        for tenant in tenants:
            # The controller hears of each policy by a watch.
            wait_until(lambda tenant=tenant: asked(tenant) == refused, what="the policy is refused")  # type: ignore[misc]
        assert town.create(tenants[0], egressGatewayName=town.shared)[0] == 201
        place = f"--namespace={tenants[0].namespace}"
        town.plane.kubectl(
            "patch", "egressgatewaypolicy", "p0", place, "--type=merge", '--patch={"spec":{"priority":7}}'
        )
        town.plane.kubectl("delete", "egressgatewaypolicy", "p0", place)
        wait_until(lambda: asked(tenants[1]) == (201, {}), what="there is room again")
    finally:
        for tenant in tenants:
            town.plane.kubectl("delete", "egressgatewaypolicies", "--all", f"--namespace={tenant.namespace}")
        wait_until(lambda: town.admin("DELETE", f"{GATEWAYS}/{name}")[0] == 200, what="the gateway goes")


def test_gateway_and_address_of_a_policy_stay(town: Town) -> None:
    spec: Fields = {"egressGatewayName": town.shared, "egressIP": {"ipv4": "198.51.100.7"}}
    assert town.create(town.shop, "fixed", **spec)[0] == 201

    def change(**changes: Any) -> tuple[int, Document]:
        path = f"{policies(town.shop.namespace)}/fixed"
        while True:
            _, found = town.shop.request("GET", path)
            answer = town.shop.request("PUT", path, found | {"spec": {**found["spec"], **changes}})
            if answer[0] != 409:  # the controller writes its status meanwhile
                return answer

    for changes, field in (
        ({"egressGatewayName": town.closed}, "spec.egressGatewayName"),
        ({"egressIP": {"ipv4": "198.51.100.8"}}, "spec.egressIP"),
        ({"egressIP": {"useNodeIP": True}}, "spec.egressIP"),
    ):
        status, answer = change(**changes)
        assert (status, list(causes(answer))) == (422, [field])
        assert "immutable" in answer["message"]
    assert change(destSubnet=["203.0.113.0/24"], priority=7)[0] == 200


def test_gateways_share_no_address(town: Town) -> None:
    status, answer = town.create_gateway(ranges={"ipv4": ["198.51.100.0/28"]})
    assert status == 422
    assert causes(answer) == {
        "spec.ranges.ipv4[0]": f"'198.51.100.0/28' overlaps '198.51.100.1-198.51.100.9' of the gateway '{town.shared}'"
    }
    assert town.create_gateway(ranges={"ipv4": ["198.51.100.16/28"]})[0] == 201


def test_a_gateway_keeps_what_policies_have_and_stays_while_they_use_it(town: Town) -> None:
    spec: Fields = {"egressGatewayName": town.shared, "egressIP": {"ipv4": "198.51.100.9"}}
    assert town.create(town.shop, "last", **spec)[0] == 201
    town.await_address(town.shop, "last", "198.51.100.9")
    shrunk = {"ranges": {"ipv4": ["198.51.100.1-198.51.100.8"], "ipv6": ["2001:db8::1-2001:db8::8"]}}
    patch = json.dumps({"spec": shrunk})
    # Any other policy of the namespace may have drawn the address, too.
    kept = re.compile(rf"must keep 198\.51\.100\.9, which the policies [^:]*\b{town.shop.namespace}/last\b")

    def patched() -> object:
        return town.plane.kubectl("patch", "egressgateway", town.shared, "--type=merge", f"--patch={patch}")

    # That the last one has an address is heard by a watch.
    wait_until(lambda: kept.search(refusal(patched)), what=f"a refusal says: {kept.pattern}")
    status, answer = town.admin("DELETE", f"{GATEWAYS}/{town.shared}")
    assert (status, answer["reason"]) == (403, "Forbidden")
    assert "the gateway is in use by the policies" in answer["message"]
    assert f"{town.shop.namespace}/last" in answer["message"]


def test_an_unused_gateway_goes(town: Town) -> None:
    name = f"{town.prefix}-short"
    assert town.admin("POST", GATEWAYS, gateway(name))[0] == 201
    assert town.admin("DELETE", f"{GATEWAYS}/{name}")[0] == 200


def refusal(action: Callable[[], object]) -> str:
    with pytest.raises(Exception, match="exit code 1") as error:
        action()
    return str(error.value)


def test_what_is_from_before_can_be_labelled_mended_and_deleted_but_not_made_worse(town: Town) -> None:
    kubectl, place = town.plane.kubectl, f"--namespace={town.shop.namespace}"
    kubectl("label", "egressgateway", town.old, "team=network")
    kubectl("label", "egressgatewaypolicy", "old", "team=network", place)
    worse = json.dumps({"spec": {"ranges": {"ipv4": ["198.51.100.300", "198.51.100.301"]}}})
    said = refusal(lambda: kubectl("patch", "egressgateway", town.old, "--type=merge", f"--patch={worse}"))
    assert "198.51.100.301" in said
    assert "198.51.100.300" not in said.partition("is invalid")[2]
    mended = json.dumps({"spec": {"ranges": {"ipv4": ["198.51.100.30"]}}})
    kubectl("patch", "egressgateway", town.old, "--type=merge", f"--patch={mended}")
    kubectl("patch", "egressgatewaypolicy", "old", "--type=merge", '--patch={"spec":{"priority":1}}', place)
    kubectl("delete", "egressgatewaypolicy", "old", place, "--timeout=180s")
    kubectl("delete", "egressgateway", town.old, "--timeout=180s")


def test_the_manifests_of_the_proposal_are_taken(town: Town) -> None:
    """Fields are those of the proposal, and so is the spelling.

    Not its empty texts, which the schema's own test covers: the validator of so old an API server, compiled by so new a
    Go, takes every empty text for null (its go-openapi compares reflect.Values).
    """
    status, answer = town.create_gateway(
        ranges={"policy": "Random"},
        nodeSelector={"selector": {"matchLabels": {"egress": "true"}}, "policy": "AverageSelecton"},
    )
    assert status == 201, answer
    status, answer = town.create(
        town.shop,
        egressGatewayName=town.shared,
        egressIP={"useNodeIP": False},
        destSubnet=["10.6.1.92/32", "fd00::92/128"],
    )
    assert status == 201, answer
    tunnel = {
        "apiVersion": GROUP,
        "kind": "EgressTunnel",
        "metadata": {"name": f"{town.prefix}-node"},
        "status": {"phase": "Ready", "mark": "0x26000000"},
    }
    assert town.admin("POST", f"{TUNNELS}?dryRun=All", tunnel)[0] == 201


def test_the_smallest_objects_are_filled_in(town: Town) -> None:
    _, answer = town.create_gateway(ranges={})
    assert answer["spec"] == {
        "nodeSelector": {**NODES, "policy": "AverageSelection", "limit": 5},
        "ranges": {"policy": "Random", "limit": 5},
        "failPolicy": "Closed",
    }
    _, answer = town.create(town.shop, egressGatewayName=town.shared)
    assert answer["spec"] == {
        "appliedTo": PODS,
        "egressGatewayName": town.shared,
        "priority": 0,
    }


SCHEMA_REFUSES: list[tuple[str, Fields, str]] = [
    ("gateway", {"nodeSelector": {}}, "spec.nodeSelector.selector"),
    ("gateway", {"nodeSelector": {**NODES, "policy": "a" * 64}}, "spec.nodeSelector.policy"),
    ("gateway", {"nodeSelector": {**NODES, "limit": 0}}, "spec.nodeSelector.limit"),
    ("gateway", {"failPolicy": "Ajar"}, "spec.failPolicy"),
    ("gateway", {"ranges": {"ipv4": ["2001:db8::1"]}}, "spec.ranges.ipv4"),
    ("gateway", {"ranges": {"ipv4": ["198.51.100.77"] * 2}}, "spec.ranges.ipv4"),
    ("gateway", {"ranges": {"ipv4": [f"10.8.{i // 250}.{i % 250}" for i in range(1025)]}}, "spec.ranges.ipv4"),
    ("policy", {"appliedTo": None}, "spec.appliedTo"),
    ("policy", {"egressIP": {"ipv4": "198.51.100.0/24"}}, "spec.egressIP.ipv4"),
    ("policy", {"egressIP": {"useNodeIP": "yes"}}, "spec.egressIP.useNodeIP"),
    ("policy", {"appliedTo": {"podSubnet": ["10.0.0.0"]}}, "spec.appliedTo.podSubnet"),
    ("policy", {"destSubnet": ["example.com"]}, "spec.destSubnet"),
]
RULES_REFUSE: list[tuple[str, Fields, str]] = [
    ("gateway", {"nodeSelector": {"selector": {}}}, "spec.nodeSelector.selector"),
    ("policy", {"appliedTo": {}}, "spec.appliedTo"),
    ("policy", {"appliedTo": {**PODS, "podSubnet": ["10.0.0.0/8"]}}, "spec.appliedTo"),
    ("policy", {"egressIP": {"useNodeIP": True, "ipv4": "198.51.100.1"}}, "spec.egressIP"),
]


def test_without_webhooks_the_api_server_refuses_by_itself_what_it_can(town: Town) -> None:
    def post(kind: str, fields: Fields) -> tuple[int, Document]:
        return town.create_gateway(**fields) if kind == "gateway" else town.create(town.shop, **fields)

    remove_webhooks(town.plane, of=NAME)
    try:
        # A gateway that lets the namespace not in passes once the API server calls nobody any more.
        wait_until(lambda: town.create(town.bank, egressGatewayName=town.closed)[0] == 201, what="no webhook")
        for kind, fields, field in (*SCHEMA_REFUSES, *RULES_REFUSE):
            status, answer = post(kind, fields)
            assert status == 422, (fields, answer)
            assert field in answer["message"], answer["message"]
    finally:
        town.world.replicas[0].restore()
        wait_until(lambda: town.create(town.bank, egressGatewayName=town.closed)[0] == 422, what="the webhooks")


def test_the_columns(town: Town) -> None:
    header, line, *_ = town.plane.kubectl("get", "egressgateways", town.shared).splitlines()
    headings = ["NAME", "NODES", "IPV4", "TOTAL", "IPV4", "FREE", "IPV6", "TOTAL", "IPV6", "FREE", "READY", "AGE"]
    assert header.split() == headings
    assert line.split()[:2] == [town.shared, "AverageSelection"]
    assert town.create(town.shop, "shown", egressGatewayName=town.shared, egressIP={"ipv4": "198.51.100.4"})[0] == 201
    town.await_address(town.shop, "shown", "198.51.100.4")
    place = f"--namespace={town.shop.namespace}"
    header, line = town.plane.kubectl("get", "egressgatewaypolicies", "shown", place).splitlines()
    assert header.split() == ["NAME", "GATEWAY", "IPV4", "IPV6", "NODE", "READY", "AGE"]
    assert line.split()[:3] == ["shown", town.shared, "198.51.100.4"]
