"""Which gateways are let in, which changes of them, and which may go."""

import asyncio
from typing import Any

import pytest

from coil.admission.review import Allowed, Denied, Operation
from coil.crd.address_pool import ADDRESS_POOLS
from coil.crd.builtin import NODES, SERVICE_CIDRS, SERVICES
from coil.crd.egress_gateway import EGRESS_GATEWAYS
from coil.crd.egress_gateway_policy import EGRESS_GATEWAY_POLICIES
from coil.crd.egress_tunnel import EGRESS_TUNNELS
from coil.kube.errors import ForbiddenError, UnavailableError
from coil_egress_controller.eip.admission_reader import ASK_SECONDS
from coil_egress_controller.eip.gateway_admission import GATEWAY_PATH, GatewayAdmission
from tests.coil.crd.eip_object import Document, gateway, gateway_document, placed, policy
from tests.coil.reconcile.virtual_time import run_virtual
from tests.coil_egress_controller.eip_door import AdmissionWorld, request, said

OVERLAP = "spec.ranges.ipv4[0]: '10.6.0.5' overlaps '10.6.0.1-10.6.0.9' of the gateway 'other'"


class Door:
    def __init__(self) -> None:
        self.world = AdmissionWorld()
        self.admission = GatewayAdmission(self.world.reader)
        self.world.put(EGRESS_GATEWAYS, gateway("other", ranges={"ipv4": ["10.6.0.1-10.6.0.9"]}))
        self.world.add_namespace("shop", tenant="shop")
        self.world.add_namespace("bank")

    async def create(self, document: Document) -> list[str]:
        return said(await self.admission.validate(request(Operation.CREATE, document)))

    async def update(self, old: Document, new: Document) -> list[str]:
        return said(await self.admission.validate(request(Operation.UPDATE, new, old)))

    async def delete(self, document: Document) -> list[str]:
        return said(await self.admission.validate(request(Operation.DELETE, None, document)))


@pytest.fixture
def door() -> Door:
    return Door()


def ranges(*ipv4: str, **spec: Any) -> Document:
    return gateway_document(ranges={"ipv4": list(ipv4)}, **spec)


async def test_a_good_gateway_is_let_in(door: Door) -> None:
    assert set(door.admission.handlers) == {GATEWAY_PATH}
    assert await door.create(ranges("10.6.1.1-10.6.1.9")) == []


async def test_a_bad_gateway_is_refused_without_a_look_at_others(door: Door) -> None:
    (error,) = await door.create(ranges("nonsense"))
    assert error.startswith("spec.ranges.ipv4[0]: 'nonsense' is not an IP address")
    assert door.world.client.calls == []


async def test_an_overlap_names_the_other_gateway(door: Door) -> None:
    assert await door.create(ranges("10.6.0.5")) == [OVERLAP]


async def test_one_gateway_is_the_default_of_the_cluster(door: Door) -> None:
    other = gateway_document("eg0", ranges={"ipv4": ["10.7.0.1"]}, clusterDefault=True)
    door.world.api.put(EGRESS_GATEWAYS, other)
    new = ranges("10.6.1.1", clusterDefault=True)
    assert await door.create(new) == ["spec.clusterDefault: must be true for one gateway only, and is for 'eg0'"]
    assert await door.update(ranges("10.6.1.1"), new) == [
        "spec.clusterDefault: must be true for one gateway only, and is for 'eg0'"
    ]
    assert await door.update(other, other | {"metadata": {"name": "eg0", "labels": {"a": "b"}}}) == []


async def test_addresses_of_ippools_are_compared_like_others(door: Door) -> None:
    """With those of other gateways, and with what policies have."""
    assert await door.create(gateway_document(ippools={"ipv4": ["10.6.0.5"]})) == [
        OVERLAP.replace("spec.ranges", "spec.ippools")
    ]


def put_cluster(door: Door) -> None:
    """A Node that has pods, a pool, and the network of Services."""
    addresses = [{"type": "InternalIP", "address": text} for text in ("192.0.2.7", "2001:db8::7")]
    node = {"metadata": {"name": "n1"}, "spec": {"podCIDRs": ["10.244.1.0/24"]}, "status": {"addresses": addresses}}
    door.world.api.put(NODES, node)
    pool = {"metadata": {"name": "default"}, "spec": {"subnets": [{"ipv4": "10.1.0.0/16", "ipv6": "fd01::/48"}]}}
    door.world.api.put(ADDRESS_POOLS, pool)
    door.world.api.put(SERVICE_CIDRS, {"metadata": {"name": "kubernetes"}, "spec": {"cidrs": ["10.96.0.0/12"]}})


@pytest.mark.parametrize("cached", [False, True])
@pytest.mark.parametrize(
    ("ipv4", "ipv6", "said"),
    [
        ("192.0.2.1-192.0.2.9", "", "'192.0.2.7' of the Node 'n1'"),
        ("192.0.2.1-192.0.2.6", "", ""),
        ("192.0.2.8/29", "", ""),
        ("", "2001:db8::7", "'2001:db8::7' of the Node 'n1'"),
        ("10.244.1.9", "", "'10.244.1.0/24' of the pods of the Node 'n1'"),
        ("10.1.255.255", "", "'10.1.0.0/16' of the AddressPool 'default'"),
        ("", "fd01::/64", "'fd01::/48' of the AddressPool 'default'"),
        ("10.240.0.0/12", "", "'10.244.1.0/24' of the pods of the Node 'n1'"),
        ("10.96.0.1", "", "'10.96.0.0/12' of the ServiceCIDR 'kubernetes'"),
        ("172.31.0.0/24", "", "'172.31.0.0/16' of the tunnels between nodes"),
        ("", "fd11::1", "'fd11::/112' of the tunnels between nodes"),
    ],
)
async def test_an_address_of_the_clusters_own_is_refused(
    door: Door, cached: bool, ipv4: str, ipv6: str, said: str
) -> None:
    put_cluster(door)
    if cached:
        door.world.show_caches()
    texts = {f"ipv{version}": [text] for version, text in ((4, ipv4), (6, ipv6)) if text}
    found = await door.create(gateway_document(ranges=texts))
    path = "spec.ranges.ipv4[0]" if ipv4 else "spec.ranges.ipv6[0]"
    assert found == ([f"{path}: {(ipv4 or ipv6)!r} overlaps {said}"] if said else [])


@pytest.mark.parametrize("cached", [False, True])
@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("10.50.0.0-10.50.0.9", "'10.50.0.0/16' of the IPPool 'pods' of Calico"),
        ("fd50::7", "'fd50::/48' of the IPPool 'pods-v6' of Calico"),
        ("10.51.7.9", "'10.51.7.0/24' of the CiliumNode 'n1'"),
        ("10.51.8.9", ""),
        ("10.52.0.0/17", "'10.52.0.0/16' of the pods and Services (the ConfigMap 'kube-system/kubeadm-config')"),
        ("fd53::/64", "'fd53::/48' of the pods (the ConfigMap 'kube-system/kube-proxy')"),
        # What administrators have added may be the nodes' own network, where a gateway's addresses are.
        ("10.54.0.7", ""),
        ("fd54::7", ""),
        ("10.55.0.7", ""),
        ("10.77.0.7", ""),
    ],
)
async def test_an_address_of_what_other_programs_give_to_pods_is_refused(
    door: Door, cached: bool, text: str, said: str
) -> None:
    door.world.put_cluster_networks()
    if cached:
        door.world.show_caches()
    family = "ipv6" if ":" in text else "ipv4"
    document = gateway_document(ranges={family: [text]})
    expected = [f"spec.ranges.{family}[0]: {text!r} overlaps {said}"] if said else []
    assert await door.create(document) == expected
    assert await door.update(document, gateway_document(ranges={family: [text]}, failPolicy="Open")) == []


async def test_a_node_cannot_take_more_than_a_node_can_need(door: Door) -> None:
    """Where nobody has set its pod CIDRs, it can do so itself."""
    spec = {"podCIDRs": ["0.0.0.0/1", "10.0.0.0/16", "::/0"]}
    door.world.api.put(NODES, {"metadata": {"name": "n1"}, "spec": spec})
    assert await door.create(gateway_document(ranges={"ipv4": ["10.6.1.1"], "ipv6": ["fd00::1"]})) == []
    assert await door.create(ranges("10.0.7.1")) == [
        "spec.ranges.ipv4[0]: '10.0.7.1' overlaps '10.0.0.0/16' of the pods of the Node 'n1'"
    ]


LINK = "the network of the Node 'n1'"


@pytest.mark.parametrize("cached", [False, True])
@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("192.0.2.0/30", f"192.0.2.0, which is the network address of 192.0.2.0/24, {LINK}"),
        ("192.0.2.248/29", f"192.0.2.255, which is the broadcast address of 192.0.2.0/24, {LINK}"),
        ("192.0.2.248-192.0.2.254", ""),
        ("2001:db8::", f"2001:db8::, which is the Subnet-Router anycast address of 2001:db8::/64, {LINK}"),
        ("2001:db8:0:0:ffff:ffff:ffff:ffff", ""),
    ],
)
async def test_a_network_or_broadcast_address_is_refused(door: Door, cached: bool, text: str, said: str) -> None:
    put_cluster(door)
    parent = {"name": "eth0", "ipv4": "192.0.2.7/24", "ipv6": "2001:db8::7/64"}
    door.world.api.put(EGRESS_TUNNELS, {"metadata": {"name": "n1"}, "status": {"tunnel": {"parent": parent}}})
    if cached:
        door.world.show_caches()
    family = "ipv6" if ":" in text else "ipv4"
    document, other = gateway_document(ranges={family: [text]}), gateway_document(ranges={"ipv4": ["10.6.1.1"]})
    expected = [f"spec.ranges.{family}[0]: {text!r} has {said}"] if said else []
    assert await door.create(document) == expected
    assert await door.update(other, document) == expected
    # What was stored before is no reason to refuse other changes.
    further = "fd99::1" if family == "ipv6" else "203.0.113.1"
    assert await door.update(document, gateway_document(ranges={family: [further, text]})) == []


async def test_who_has_such_an_address_already_may_change_everything_else(door: Door) -> None:
    """As the Node came later; and be mended step by step."""
    put_cluster(door)
    old = ranges("192.0.2.7", "10.6.1.1")
    assert await door.update(old, ranges("192.0.2.7", "10.6.1.1", failPolicy="Open")) == []
    assert await door.update(old, ranges("192.0.2.7")) == []
    assert await door.update(old, ranges("192.0.2.7", "10.96.0.1")) == [
        "spec.ranges.ipv4[1]: '10.96.0.1' overlaps '10.96.0.0/12' of the ServiceCIDR 'kubernetes'"
    ]


async def test_without_service_cidrs_the_service_of_the_api_server_tells(door: Door) -> None:
    metadata = {"namespace": "default", "name": "kubernetes"}
    door.world.api.put(SERVICES, {"metadata": metadata, "spec": {"clusterIPs": ["10.96.0.1", "None"]}})
    assert await door.create(ranges("10.96.0.1")) == [
        "spec.ranges.ipv4[0]: '10.96.0.1' overlaps '10.96.0.1' of the Service 'default/kubernetes'"
    ]


async def test_what_the_schema_should_have_refused_is_no_crash(door: Door) -> None:
    (error,) = await door.create({"metadata": {"name": "a"}, "spec": {"ranges": {"ipv4": [5]}}})
    assert error.startswith("spec: the object cannot be read")


async def test_of_an_update_only_what_is_worse_is_refused(door: Door) -> None:
    bad = ranges("10.6.0.5", "nonsense", failPolicy="Closed")
    labelled = bad | {"metadata": {"name": "eg1", "labels": {"a": "b"}}}
    assert await door.update(bad, labelled) == []
    assert door.world.client.calls == []
    assert await door.update(bad, ranges("10.6.0.5", "nonsense", failPolicy="Open")) == []
    assert await door.update(bad, ranges("nonsense")) == []
    (error,) = await door.update(bad, ranges("10.6.0.5", "nonsense", "also"))
    assert error.startswith("spec.ranges.ipv4[2]: 'also' is not")
    assert await door.update(ranges("10.6.1.1"), ranges("10.6.0.5")) == [OVERLAP]


async def test_what_could_not_be_read_before_is_validated_like_a_new_one(door: Door) -> None:
    nonsense = {"metadata": {"name": "eg1"}, "spec": {"ranges": 5}}
    assert await door.update(nonsense, ranges("10.6.1.1")) == []
    assert await door.update(nonsense, ranges("10.6.0.5")) == [OVERLAP]
    assert await door.delete(nonsense) == []


async def test_an_allocated_address_stays(door: Door) -> None:
    door.world.put(EGRESS_GATEWAY_POLICIES, policy("web", status=placed("eg1", ipv4="10.6.1.3")))
    old = ranges("10.6.1.1-10.6.1.9")
    assert await door.update(old, ranges("10.6.1.3")) == []
    assert await door.update(old, ranges("10.6.1.4-10.6.1.9")) == [
        "spec.ranges.ipv4: must keep 10.6.1.3, which the policies shop/web have: delete them first"
    ]


async def test_a_gateway_in_use_stays(door: Door) -> None:
    door.world.put(EGRESS_GATEWAY_POLICIES, policy("b", egressGatewayName="eg1"))
    door.world.put(EGRESS_GATEWAY_POLICIES, policy("a", status=placed("eg1", ipv4="10.6.1.1")))
    door.world.put(EGRESS_GATEWAY_POLICIES, policy("c", egressGatewayName="other"))
    verdict = await door.admission.validate(request(Operation.DELETE, None, ranges("10.6.1.1")))
    assert isinstance(verdict, Denied)
    assert verdict.reason == "the gateway is in use by the policies shop/a, shop/b: delete them first"


async def test_many_users_are_counted(door: Door) -> None:
    for number in range(8):
        door.world.put(EGRESS_GATEWAY_POLICIES, policy(f"p{number}", egressGatewayName="eg1"))
    (reason,) = await door.delete(gateway_document())
    assert reason == (
        "denied: the gateway is in use by the policies shop/p0, shop/p1, shop/p2, shop/p3, shop/p4 and 3 more: "
        "delete them first"
    )


@pytest.mark.parametrize(
    ("name", "labels", "allowed", "in_use"),
    [
        ("default", {}, None, True),
        ("default", {}, {"matchLabels": {"tenant": "bank"}}, False),
        ("labelled", {"egressgateway.spidernet.io/default": "labelled"}, None, True),
        ("labelled", {"egressgateway.spidernet.io/default": "other"}, None, False),
        ("eg1", {}, None, False),
    ],
)
async def test_whom_a_policy_without_a_name_keeps(
    door: Door, name: str, labels: dict[str, str], allowed: Document | None, in_use: bool
) -> None:
    door.world.add_namespace("shop", **labels)
    door.world.put(EGRESS_GATEWAY_POLICIES, policy())
    assert bool(await door.delete(gateway_document(name, allowedNamespaces=allowed))) == in_use


async def test_who_is_not_let_in_keeps_nothing(door: Door) -> None:
    """Or a tenant could hold a gateway by naming it, once its namespace is let in no more."""
    door.world.put(EGRESS_GATEWAY_POLICIES, policy(egressGatewayName="eg1"))
    closed = {"matchLabels": {"tenant": "bank"}}
    assert await door.delete(gateway_document(allowedNamespaces=closed)) == []
    door.world.put(EGRESS_GATEWAY_POLICIES, policy(egressGatewayName="eg1", status=placed("eg1")))
    assert await door.delete(gateway_document(allowedNamespaces=closed)) != []


async def test_the_caches_serve_when_the_api_server_does_not_say(door: Door) -> None:
    door.world.show_caches()
    door.world.client.refusal = UnavailableError("too busy", status=503)
    assert await door.create(ranges("10.6.0.5")) == [OVERLAP]


async def test_without_caches_nobody_can_say(door: Door) -> None:
    door.world.client.refusal = ForbiddenError("no", status=403)
    assert await door.create(ranges("10.6.0.5")) == ["unavailable: egressgateways cannot be read now: no"]
    assert await door.delete(gateway_document()) == ["unavailable: egressgatewaypolicies cannot be read now: no"]


def test_no_answer_is_not_waited_for(door: Door) -> None:
    door.world.client.silent = True

    async def ask() -> tuple[list[str], float]:
        loop = asyncio.get_running_loop()
        start = loop.time()
        return await door.create(ranges("10.6.0.5")), loop.time() - start

    assert run_virtual(ask) == (["unavailable: egressgateways cannot be read now: no answer in time"], ASK_SECONDS)


async def test_a_preference_for_a_foreign_address_is_told(door: Door) -> None:
    preferred = [{"eip": text, "node": "n1"} for text in ("10.9.0.2", "10.9.0.1", "fd00::1")]
    nodes = {"selector": {"matchLabels": {"a": "b"}}, "preferredNodes": preferred}
    document = gateway_document("eg7", ranges={"ipv4": ["10.9.0.1"]}, nodeSelector=nodes)
    assert await door.admission.validate(request(Operation.CREATE, document)) == Allowed(
        warnings=["spec.nodeSelector.preferredNodes has 10.9.0.2, which is not an address of the gateway, and 1 more"]
    )


async def test_the_finalizer_of_egressgateway_is_told(door: Door) -> None:
    """As in a manifest that was exported where egressgateway served the gateway."""
    document = gateway_document("eg7", ranges={"ipv4": ["10.9.0.1"]})
    document["metadata"]["finalizers"] = ["mine.example/kept"]
    assert await door.admission.validate(request(Operation.CREATE, document)) == Allowed(warnings=[])
    document["metadata"]["finalizers"] = ["egressgateway.spidernet.io/egressgateway"]
    assert await door.admission.validate(request(Operation.CREATE, document)) == Allowed(
        warnings=[
            "metadata.finalizers has egressgateway.spidernet.io/egressgateway, which only egressgateway removes: "
            "the gateway cannot be deleted until you remove it"
        ]
    )


async def test_a_node_policy_that_is_unknown_is_told(door: Door) -> None:
    """egressgateway accepts any text."""
    for node_policy, warnings in (
        ("doing", ["spec.nodeSelector.policy 'doing' is unknown and counts as AverageSelection"]),
        ("MinimumNodes", []),
    ):
        nodes = {"selector": {"matchLabels": {"a": "b"}}, "policy": node_policy}
        document = gateway_document("eg7", ranges={"ipv4": ["10.9.0.1"]}, nodeSelector=nodes)
        for old in (None, gateway_document("eg7", ranges={"ipv4": ["10.9.0.1"]})):
            operation = Operation.CREATE if old is None else Operation.UPDATE
            verdict = await door.admission.validate(request(operation, document, old))
            assert verdict == Allowed(warnings=warnings)
