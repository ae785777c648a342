"""Which policies are let in, of whom, and which changes of them."""

import asyncio
from typing import Any

import msgspec
import pytest

from coil.admission.review import Allowed, Operation, Verdict
from coil.admission.server import DEFAULT_LIMITS
from coil.crd.builtin import NODES
from coil.crd.egress_gateway import EGRESS_GATEWAYS, EgressGateway
from coil.crd.egress_gateway_policy import EGRESS_GATEWAY_POLICIES
from coil.crd.egress_policy import EGRESS_CLUSTER_POLICIES
from coil.crd.eip_limit import NamespaceLimits
from coil.kube.errors import NotFoundError, UnavailableError
from coil_egress_controller.eip.policy_admission import (
    EGRESS_CLUSTER_POLICY_PATH,
    EGRESS_POLICY_PATH,
    POLICY_PATH,
    PolicyAdmission,
)
from tests.coil.crd.eip_object import Document, gateway, placed, policy, policy_document
from tests.coil.reconcile.virtual_time import run_virtual
from tests.coil_egress_controller.eip_door import AdmissionWorld, request, said
from tests.coil_egress_controller.scene import MemoryCache

NAME = "spec.egressGatewayName"
NO_DEFAULT = "no egressGatewayName, and neither the namespace's label"
LIMITS = NamespaceLimits(policies=3, networks=8)
MOST = 5
"""Policies of a gateway."""
SUBNET = {"podSubnet": ["172.29.16.0/24"]}


class Door:
    """The gateway `shared` lets everybody in, `shop` its own tenant."""

    def __init__(self) -> None:
        self.world = AdmissionWorld()
        self.admission = PolicyAdmission(self.world.reader, limits=LIMITS, policies_per_gateway=MOST)
        self.add_gateway("shared", ranges={"ipv4": ["10.6.0.1-10.6.0.9"], "ipv6": ["fd00::1-fd00::9"]})
        self.add_gateway("shop", allowedNamespaces={"matchLabels": {"tenant": "shop"}})
        self.world.add_namespace("shop", tenant="shop")
        self.world.add_namespace("bank", tenant="bank")

    def add_gateway(self, name: str, **spec: Any) -> None:
        self.world.put(EGRESS_GATEWAYS, gateway(name, **spec))

    async def create(self, document: Document, *, user: str = "jane") -> list[str]:
        return said(await self.admission.validate(request(Operation.CREATE, document, user=user)))

    async def warnings(self, document: Document) -> list[str]:
        verdict = await self.admission.validate(request(Operation.CREATE, document, user="jane"))
        assert isinstance(verdict, Allowed)
        return list(verdict.warnings)

    async def update(self, old: Document, new: Document, *, user: str = "jane") -> list[str]:
        return said(await self.admission.validate(request(Operation.UPDATE, new, old, user=user)))


@pytest.fixture
def door() -> Door:
    return Door()


def by(name: str, namespace: str = "shop", **spec: Any) -> Document:
    return policy_document(namespace=namespace, egressGatewayName=name, **spec)


async def test_a_good_policy_is_let_in(door: Door) -> None:
    assert set(door.admission.handlers) == {POLICY_PATH, EGRESS_POLICY_PATH, EGRESS_CLUSTER_POLICY_PATH}
    assert await door.create(by("shared")) == []
    assert await door.create(by("shared", egressIP={"useNodeIP": True})) == []
    assert await door.create(by("shop")) == []


async def test_a_bad_policy_is_refused_without_a_look_at_anything(door: Door) -> None:
    (error,) = await door.create(by("shared", destSubnet=["nonsense"]))
    assert error == "spec.destSubnet[0]: 'nonsense' is not a network in CIDR notation"
    assert door.world.client.calls == []


async def test_what_the_schema_should_have_refused_is_no_crash(door: Door) -> None:
    (error,) = await door.create({"metadata": {"name": "a"}, "spec": {"destSubnet": 5}})
    assert error.startswith("spec: the object cannot be read")


async def test_a_tenant_uses_only_what_lets_its_namespace_in(door: Door) -> None:
    refusal = f"{NAME}: the EgressGateway 'shop' does not allow this namespace"
    assert await door.create(by("shop", "bank")) == [refusal]


async def test_a_policy_may_come_before_its_gateway(door: Door) -> None:
    assert await door.warnings(by("nowhere")) == ["there is no EgressGateway 'nowhere'; the policy waits"]
    [warning] = await door.warnings(by(""))
    assert warning.startswith("no egressGatewayName")
    assert await door.warnings(by("shared")) == []
    (error,) = await door.create(by("nowhere", destSubnet=["nonsense"]))
    assert error.startswith("spec.destSubnet[0]")


async def test_labels_count_as_they_are_now(door: Door) -> None:
    door.world.show_caches()
    door.world.add_namespace("bank", tenant="shop")
    assert await door.create(by("shop", "bank")) == []


async def test_the_gateway_of_a_policy_that_names_none(door: Door) -> None:
    [warning] = await door.warnings(by(""))
    assert warning.startswith(NO_DEFAULT)
    door.world.add_namespace("shop", **{"egressgateway.spidernet.io/default": "shared"})
    assert await door.create(by("")) == []
    door.add_gateway("default", allowedNamespaces={"matchLabels": {"tenant": "bank"}})
    assert await door.create(by("", "bank")) == []
    door.world.add_namespace("shop", **{"egressgateway.spidernet.io/default": "nowhere"})
    [warning] = await door.warnings(by(""))
    assert warning.startswith(NO_DEFAULT)


async def test_a_gateway_that_goes_gets_no_new_policy(door: Door) -> None:
    metadata = {"name": "going", "deletionTimestamp": "2030-01-01T00:00:00Z"}
    door.world.put(EGRESS_GATEWAYS, msgspec.convert({"metadata": metadata}, EgressGateway))
    assert await door.create(by("going")) == [f"{NAME}: the gateway 'going' is being deleted"]


async def test_an_address_is_one_of_the_gateways(door: Door) -> None:
    assert await door.create(by("shared", egressIP={"ipv4": "10.6.0.9", "ipv6": "fd00::1"})) == []
    assert await door.create(by("shared", egressIP={"ipv4": "10.6.0.10"})) == [
        "spec.egressIP.ipv4: is not an address of the gateway 'shared', which has 10.6.0.1-10.6.0.9"
    ]


@pytest.mark.parametrize("cached", [False, True])
async def test_another_tenants_address_is_not_to_be_had(door: Door, cached: bool) -> None:
    door.world.put(EGRESS_GATEWAY_POLICIES, policy("vault", "bank", status=placed("shared", ipv4="10.6.0.5")))
    if cached:
        door.world.show_caches()
    refusal = "spec.egressIP.ipv4: is the address of a policy in another namespace; ask for another"
    assert await door.create(by("shared", egressIP={"ipv4": "10.6.0.5"})) == [refusal]
    assert await door.create(by("shared", "bank", egressIP={"ipv4": "10.6.0.5"})) == []
    assert (("list", "egressgatewaypolicies", "") in door.world.client.calls) is not cached


async def test_a_pair_is_not_torn(door: Door) -> None:
    bound = placed("shared", ipv4="10.6.0.5", ipv6="fd00::5")
    door.world.put(EGRESS_GATEWAY_POLICIES, policy("first", status=bound))
    (error,) = await door.create(by("shared", egressIP={"ipv4": "10.6.0.5", "ipv6": "fd00::6"}))
    assert error == "spec.egressIP.ipv4: belongs to a pair with another address, which the policy shop/first has"
    assert await door.create(by("shared", egressIP={"ipv4": "10.6.0.5", "ipv6": "fd00::5"})) == []


async def test_to_select_pods_by_address_takes_a_right(door: Door) -> None:
    (error,) = await door.create(by("shared", appliedTo=SUBNET))
    assert error == (
        "spec.appliedTo.podSubnet: selects pods of all namespaces, which takes the right to 'use' "
        "egressgatewaypolicies/podsubnet: use a podSelector, or ask an administrator"
    )
    door.world.client.rights.add(("root", "shop"))
    assert await door.create(by("shared", appliedTo=SUBNET), user="root") == []
    (error,) = await door.create(by("shared", "bank", appliedTo=SUBNET), user="root")
    assert error.startswith("spec.appliedTo.podSubnet")


async def test_who_may_not_make_such_a_policy_may_not_change_one(door: Door) -> None:
    old = by("shared", appliedTo=SUBNET)
    wider = by("shared", appliedTo=SUBNET, destSubnet=["0.0.0.0/0"])
    assert len(await door.update(old, wider)) == 1
    assert await door.update(old, by("shared")) == []
    assert await door.update(old, old | {"metadata": {**old["metadata"], "labels": {"a": "b"}}}) == []


NODE: Document = {
    "metadata": {"name": "n1"},
    "spec": {"podCIDRs": ["10.244.0.0/24", "10.244.1.0/24", "fd44::/64"]},
    "status": {"addresses": [{"type": "InternalIP", "address": "192.0.2.7"}]},
}


@pytest.mark.parametrize(
    ("destination", "owner"),
    [
        ("10.244.0.128/25", "the pods of the Node 'n1'"),
        ("10.244.0.0/23", "the pods of the Node 'n1'"),
        ("fd44::/64", "the pods of the Node 'n1'"),
        ("192.0.2.7/32", "the Node 'n1'"),
        ("172.31.0.0/16", "the tunnels between nodes"),
        ("169.254.169.254/32", "a link or a host alone"),
        ("ff00::/8", "a link or a host alone"),
    ],
)
async def test_to_name_addresses_of_the_cluster_takes_the_same_right(door: Door, destination: str, owner: str) -> None:
    door.world.api.put(NODES, NODE)
    wanted = by("shared", destSubnet=["0.0.0.0/0", destination])
    (error,) = await door.create(wanted)
    assert error == (
        f"spec.destSubnet[1]: {destination} belongs to {owner}, which takes the right to 'use' "
        "egressgatewaypolicies/podsubnet: name addresses outside, or ask an administrator"
    )
    without = by("shared", destSubnet=["0.0.0.0/0"])
    assert await door.update(without, wanted) == [error]
    assert await door.update(wanted, by("shared", destSubnet=["0.0.0.0/0", destination], priority=7)) == []
    door.world.client.rights.add(("root", "shop"))
    assert await door.create(wanted, user="root") == []


PODS_AND_SERVICES = "the pods and Services (the ConfigMap 'kube-system/kubeadm-config')"
EXTRA = "the cluster ('extra' in the ConfigMap 'kube-system/coil-cluster-networks')"


@pytest.mark.parametrize("cached", [False, True])
@pytest.mark.parametrize(
    ("destination", "owner"),
    [
        ("10.50.7.0/24", "the IPPool 'pods' of Calico"),
        ("fd50:0:0:7::/64", "the IPPool 'pods-v6' of Calico"),
        ("10.51.7.9/32", "the CiliumNode 'n1'"),
        ("fd51::7ff/128", "the CiliumNode 'n1'"),
        ("10.52.0.0/16", PODS_AND_SERVICES),
        ("fd52::/64", PODS_AND_SERVICES),
        ("10.53.0.0/17", "the pods (the ConfigMap 'kube-system/kube-proxy')"),
        ("fd53::/64", "the pods (the ConfigMap 'kube-system/kube-proxy')"),
        ("10.54.1.0/24", EXTRA),
        ("fd54::1/128", EXTRA),
        ("10.55.0.1/32", "the cluster (the EgressClusterInfo 'default')"),
        ("10.77.0.0/24", "the cluster (--cluster-cidr)"),
    ],
)
async def test_so_does_what_other_programs_and_administrators_say_of_the_cluster(
    door: Door, cached: bool, destination: str, owner: str
) -> None:
    door.world.put_cluster_networks()
    if cached:
        door.world.show_caches()
    wanted = by("shared", destSubnet=[destination])
    (error,) = await door.create(wanted)
    assert error.startswith(f"spec.destSubnet[0]: {destination} belongs to {owner}, which takes the right to 'use' ")
    assert await door.update(wanted, by("shared", destSubnet=[destination], priority=7)) == []
    assert await door.update(by("shared", destSubnet=["8.8.8.8/32"]), wanted) == [error]
    door.world.client.rights.add(("root", "shop"))
    assert await door.create(wanted, user="root") == []


@pytest.mark.parametrize("destination", ["10.50.0.0/15", "10.48.0.0/12", "8.0.0.0/6", "10.49.0.1/32", "::/0"])
async def test_to_name_more_than_these_takes_none(door: Door, destination: str) -> None:
    door.world.put_cluster_networks()
    assert await door.create(by("shared", destSubnet=[destination])) == []


@pytest.mark.parametrize(
    "name",
    ["nodes", "pools", "calico_pools", "cilium_nodes", "cilium", "kubeadm", "kube_proxy", "config_maps", "infos"],
)
async def test_as_long_as_one_cache_does_not_know_the_api_server_is_asked(door: Door, name: str) -> None:
    """And if it does not say, nobody is let in who names a destination."""
    cache = getattr(door.world.show_caches(), name)
    assert isinstance(cache, MemoryCache)
    door.world.put_cluster_networks()
    wanted = by("shared", destSubnet=["10.50.7.0/24"])
    assert await door.create(wanted) == [], "known from caches"
    cache.unserve()
    [error] = await door.create(wanted)
    assert "belongs to the IPPool 'pods' of Calico" in error
    door.world.client.refusal = UnavailableError("too busy", status=503)
    assert await door.create(wanted) == ["unavailable: the cluster's own addresses cannot be read now: too busy"]


async def test_a_kind_that_is_not_served_is_not_waited_for(door: Door) -> None:
    caches = door.world.show_caches()
    for cache in (caches.calico_pools, caches.cilium_nodes, caches.tunnels, caches.infos, caches.service_cidrs):
        assert isinstance(cache, MemoryCache)
        cache.unserve()
        cache.last_error = NotFoundError("404", status=404)
    door.world.client.refusal = UnavailableError("too busy", status=503)
    assert await door.create(by("shared", destSubnet=["10.50.7.0/24"])) == []


@pytest.mark.parametrize("destination", ["0.0.0.0/0", "10.244.0.0/22", "192.0.2.0/24", "::/0", "8.8.8.8/32"])
async def test_to_name_more_than_the_cluster_takes_none(door: Door, destination: str) -> None:
    """Of such a network the cluster is no part."""
    door.world.api.put(NODES, NODE)
    assert await door.create(by("shared", destSubnet=[destination])) == []


async def test_of_an_update_only_what_is_worse_is_refused(door: Door) -> None:
    bad = by("nowhere", destSubnet=["10.0.0.0/8", "x"])
    labelled = bad | {"metadata": {**bad["metadata"], "labels": {"a": "b"}}}
    assert await door.update(bad, labelled) == []
    assert await door.update(bad, by("nowhere", destSubnet=["x"])) == []
    (error,) = await door.update(bad, by("nowhere", destSubnet=["x", "y"]))
    assert error.startswith("spec.destSubnet[1]")
    assert door.world.client.calls == [], "the gateway was chosen when it was created"


async def test_gateway_and_address_stay(door: Door) -> None:
    assert await door.update(by("shared"), by("shop", egressIP={"ipv4": "10.6.0.1"})) == [
        f"{NAME}: is immutable; delete the policy and create another",
        "spec.egressIP: is immutable; delete the policy and create another",
    ]


async def test_what_could_not_be_read_before_is_validated_like_a_new_one(door: Door) -> None:
    nonsense = {"metadata": {"name": "policy-test", "namespace": "shop"}, "spec": 5}
    assert await door.update(nonsense, by("shared")) == []
    refusal = f"{NAME}: the EgressGateway 'shop' does not allow this namespace"
    assert await door.update(nonsense, by("shop", "bank")) == [refusal]


async def test_a_policy_can_always_go(door: Door) -> None:
    going = request(Operation.DELETE, None, by("nowhere", destSubnet=["x"]))
    assert said(await door.admission.validate(going)) == []


async def test_the_caches_serve_when_the_api_server_does_not_say(door: Door) -> None:
    door.world.show_caches()
    door.world.client.refusal = UnavailableError("too busy", status=503)
    assert await door.create(by("shop")) == []
    assert len(await door.create(by("shop", "bank"))) == 1
    # Who has which right is in no cache.
    (error,) = await door.create(by("shared", appliedTo=SUBNET))
    assert error == "unavailable: the API server does not say who has which right: too busy"


def test_caches_are_asked_before_the_time_for_the_review_is_over(door: Door) -> None:
    door.world.add_namespace("shop", **{"egressgateway.spidernet.io/default": "shared"})
    door.world.show_caches()
    door.world.client.silent = True

    async def ask() -> tuple[list[str], float]:
        loop = asyncio.get_running_loop()
        start = loop.time()
        return await door.create(by("")), loop.time() - start

    refused, seconds = run_virtual(ask)
    assert refused == []
    assert seconds < DEFAULT_LIMITS.seconds


@pytest.mark.parametrize("cached", [False, True])
async def test_a_namespace_is_held_to_its_limits(door: Door, cached: bool) -> None:
    networks = [f"203.0.113.{number}/32" for number in range(LIMITS.networks)]
    for name in ("one", "two"):
        door.world.put(EGRESS_GATEWAY_POLICIES, policy(name, "shop", destSubnet=networks[:3]))
    if cached:
        door.world.show_caches()
    old, new = by("shared", destSubnet=networks[:2]), by("shared", destSubnet=networks[:3])
    assert await door.create(old) == []
    refusal = "spec: 3 networks, beside 6 in other policies of the namespace, which may have 8 together"
    for errors in (await door.create(new), await door.update(old, new)):
        [error] = errors
        assert error.startswith(refusal)
    assert await door.create(by("shared", "bank", destSubnet=networks)) == []
    door.world.put(EGRESS_GATEWAY_POLICIES, policy("three", "shop"))
    if cached:
        door.world.show_caches()
    [error] = await door.create(old)
    assert error.startswith("metadata.namespace: the namespace has 3 EgressGatewayPolicies, and may have 3")


def cluster_wide(name: str = "web", **spec: Any) -> Document:
    return {"metadata": {"name": name}, "spec": policy_document(egressGatewayName="shared", **spec)["spec"]}


async def review(door: Door, document: Document, old: Document | None = None, *, user: str = "root") -> Verdict:
    """An EgressPolicy, or without a namespace an EgressClusterPolicy."""
    handlers = door.admission.handlers
    handle = handlers[EGRESS_POLICY_PATH if "namespace" in document["metadata"] else EGRESS_CLUSTER_POLICY_PATH]
    operation = Operation.CREATE if old is None else Operation.UPDATE
    return await handle(request(operation, document, old, user=user))


async def test_egressgateways_kinds_keep_the_rules_of_policies(door: Door) -> None:
    door.world.put(EGRESS_GATEWAY_POLICIES, policy("other", "bank", status=placed("shared", ipv4="10.6.0.4")))
    for document in (by("shared"), cluster_wide()):
        assert said(await review(door, document)) == []
        assert said(await review(door, {**document, "spec": {**document["spec"], "priority": 1}}, document)) == []
        fixed = {**document, "spec": {**document["spec"], "egressIP": {"ipv4": "10.6.0.3"}}}
        assert said(await review(door, fixed)) == []
        for verdict in (await review(door, fixed, document), await review(door, document, fixed)):
            assert said(verdict) == ["spec.egressIP: is immutable; delete the policy and create another"]
        for address, fault in (
            ("10.7.0.1", "is not an address of the gateway 'shared', which has 10.6.0.1-10.6.0.9"),
            ("10.6.0.4", "is the address of a policy in another namespace; ask for another"),
        ):
            fixed = {**document, "spec": {**document["spec"], "egressIP": {"ipv4": address}}}
            assert said(await review(door, fixed)) == [f"spec.egressIP.ipv4: {fault}"]
        neither = {**document, "spec": {**document["spec"], "appliedTo": {}}}
        (error,) = said(await review(door, neither))
        assert error.startswith("spec.appliedTo")


async def test_a_gateway_that_shares_gives_one_address_to_several_namespaces(door: Door) -> None:
    door.add_gateway("pooled", ippools={"ipv4": ["10.8.0.1-10.8.0.9"]}, ranges={})
    door.world.put(EGRESS_GATEWAY_POLICIES, policy("other", "bank", status=placed("pooled", ipv4="10.8.0.4")))
    fixed: dict[str, Any] = {"egressGatewayName": "pooled", "egressIP": {"ipv4": "10.8.0.4"}}
    assert said(await review(door, policy_document(namespace="shop", **fixed))) == []
    assert await door.create(policy_document(namespace="shop", **fixed)) == []


async def test_what_the_controller_may_not_ask_for_nobody_gets_by_these_kinds(door: Door) -> None:
    door.world.api.put(NODES, NODE)
    door.world.client.rights |= {("root", "shop"), ("root", "")}
    for document in (by("shared", destSubnet=["10.244.0.0/24"]), cluster_wide(destSubnet=["10.244.0.0/24"])):
        assert said(await review(door, document)) == [
            "spec.destSubnet[0]: 10.244.0.0/24 belongs to the pods of the Node 'n1', which takes an "
            "EgressGatewayPolicy and a right: name addresses outside, or ask an administrator"
        ]
    for document in (by("shared", appliedTo=SUBNET), cluster_wide(appliedTo=SUBNET)):
        verdict = await review(door, document)
        assert isinstance(verdict, Allowed)
        assert verdict.warnings == ["spec.appliedTo.podSubnet selects no pods in this kind; use an EgressGatewayPolicy"]


async def test_namespaces_of_a_cluster_policy(door: Door) -> None:
    """Limits and allowed namespaces are theirs; the selector has to be one."""
    wrong = {"matchExpressions": [{"key": "tenant", "operator": "In", "values": []}]}
    selector = policy_document()["spec"]["appliedTo"]
    (error,) = said(await review(door, cluster_wide(appliedTo={**selector, "namespaceSelector": wrong})))
    assert error.startswith("spec.appliedTo.namespaceSelector.matchExpressions[0]")
    to_shop = {"matchLabels": {"tenant": "shop"}}
    assert said(await review(door, cluster_wide(appliedTo={**selector, "namespaceSelector": to_shop}))) == []
    closed = cluster_wide()
    closed["spec"]["egressGatewayName"] = "shop"
    assert await review(door, closed) == Allowed(warnings=[])
    closed["spec"]["egressGatewayName"] = "nowhere"
    assert await review(door, closed) == Allowed(warnings=["there is no EgressGateway 'nowhere'; the policy waits"])
    (error,) = said(await review(door, by("shop", "bank")))
    assert "does not allow this namespace" in error


async def test_an_egress_policy_counts_once(door: Door) -> None:
    """With the EgressGatewayPolicy that stands for it."""
    for name in ("a", "b", "c"):
        door.world.put(EGRESS_GATEWAY_POLICIES, policy(name, "shop", destSubnet=["203.0.113.0/24"]))
    wider = by("shared", destSubnet=["203.0.113.0/24", "198.51.100.0/24"])
    for name, faults in (("a", 0), ("d", 1)):
        old = by("shared", destSubnet=["203.0.113.0/24"])
        named = [{**each, "metadata": {**each["metadata"], "name": name}} for each in (wider, old)]
        assert len(said(await review(door, named[0], named[1] if not faults else None))) == faults


def standing_for(source: Document, namespace: str = "shop", **changes: Any) -> Document:
    """What the controller would create for an EgressClusterPolicy that is stored, or something like it."""
    owner = {
        "apiVersion": "egressgateway.spidernet.io/v1beta1",
        "kind": "EgressClusterPolicy",
        "name": source["metadata"]["name"],
        "uid": source["metadata"]["uid"],
        "controller": True,
    }
    name = f"egcp-{source['metadata']['name']}"
    metadata = {"name": name, "namespace": namespace, "ownerReferences": [owner], **changes.pop("metadata", {})}
    return {"metadata": metadata, "spec": {**source["spec"], **changes}}


@pytest.mark.parametrize("cached", [False, True])
async def test_a_gateway_has_so_many_policies(door: Door, cached: bool) -> None:
    """Of all namespaces, by name or as their default; what waits for another gateway is none of them."""
    door.world.add_namespace("bank", **{"egressgateway.spidernet.io/default": "shared"})
    for number in range(MOST - 1):
        door.world.put(EGRESS_GATEWAY_POLICIES, policy("a", f"tenant-{number}", egressGatewayName="shared"))
    waiting = {"conditions": [{"type": "Ready", "status": "False", "reason": "GatewayNotAllowed"}]}
    door.world.put(EGRESS_GATEWAY_POLICIES, policy("b", "bank", egressGatewayName="shared", status=waiting))
    door.world.put(EGRESS_GATEWAY_POLICIES, policy("c", "bank", egressGatewayName="later"))
    if cached:
        door.world.show_caches()
    assert await door.create(by("shared")) == []
    door.world.put(EGRESS_GATEWAY_POLICIES, policy("d", "shop", status=placed("shared", ipv4="10.6.0.5")))
    if cached:
        door.world.show_caches()
    message = (
        f"the EgressGateway 'shared' has {MOST} policies, and may have {MOST}: use another, or ask an administrator"
    )
    refusal = [f"{NAME}: {message}"]
    for document in (by("shared"), by("", "bank"), by("shared", egressIP={"ipv4": "10.6.0.9"})):
        assert await door.create(document) == refusal
        assert said(await review(door, document)) == refusal
    assert await door.create(by("shop")) == [], "another gateway has room"
    assert await door.create(by("nowhere")) == [], "one that comes later is waited for"
    known = by("shared")
    known["metadata"]["name"] = "d"
    assert await door.create(known) == [], "it is one of them already"
    wider = by("shared", destSubnet=["203.0.113.0/24"])
    assert await door.update(by("shared"), wider) == []
    assert said(await review(door, cluster_wide())) == []


@pytest.mark.parametrize("crowded", ["shop", "tenant"])
async def test_limits_keep_no_cluster_policy_out_of_a_namespace(door: Door, crowded: str) -> None:
    """Neither the namespace's nor the gateway's."""
    for name in "abcde":
        namespace = "shop" if crowded == "shop" else f"{crowded}-{name}"
        door.world.put(EGRESS_GATEWAY_POLICIES, policy(name, namespace, egressGatewayName="shared"))
    document = cluster_wide("web")
    door.world.api.put(EGRESS_CLUSTER_POLICIES, document)
    source = door.world.api.objects["egressclusterpolicies", "", "web"]
    genuine = standing_for(source)
    serving = PolicyAdmission(door.world.reader, limits=LIMITS, policies_per_gateway=MOST, serves_cluster_policies=True)

    async def refused(admission: PolicyAdmission, document: Document) -> bool:
        return bool(said(await admission.validate(request(Operation.CREATE, document))))

    assert not await refused(serving, genuine)
    assert await refused(door.admission, genuine), "where none is served, none is believed"
    for forged in (
        standing_for(source, metadata={"name": "web"}),
        *([standing_for(source, egressGatewayName="shop")] if crowded == "shop" else []),
        standing_for(source, egressIP={"ipv4": "10.6.0.3"}),
        standing_for({**source, "metadata": {**source["metadata"], "uid": "another"}}),
        standing_for({**source, "metadata": {**source["metadata"], "name": "gone"}}),
    ):
        assert await refused(serving, forged), forged
    selecting = {"namespaceSelector": {"matchLabels": {"tenant": "bank"}}, **document["spec"]["appliedTo"]}
    door.world.api.put(EGRESS_CLUSTER_POLICIES, {**source, "spec": {**source["spec"], "appliedTo": selecting}})
    assert await refused(serving, genuine), "it does not select the namespace"
