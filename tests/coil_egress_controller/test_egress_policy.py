"""EgressPolicies and EgressClusterPolicies of egressgateway 0.6: who serves them, and what their status says."""

from typing import Any

import pytest

from coil.crd.builtin import NAMESPACES
from coil.crd.egress_gateway import EGRESS_GATEWAYS
from coil.crd.egress_gateway_policy import EGRESS_GATEWAY_POLICIES
from coil.crd.egress_policy import EGRESS_CLUSTER_POLICIES, EGRESS_POLICIES
from coil.crd.meta import Condition
from coil.kube.errors import ForbiddenError, UnavailableError
from tests.coil_egress_controller import eip_world
from tests.coil_egress_controller.eip_world import World, play

POOLS = {
    "ipv4": ["203.0.113.1-203.0.113.6"],
    "ipv4DefaultEIP": "203.0.113.4",
}


async def build(world: World) -> None:
    for name in ("shop", "bank"):
        world.add_namespace(name, tenant=name)
    for name in ("n1", "n2"):
        world.add_node(name)
    world.add_gateway(ipv4=(), ippools=POOLS, clusterDefault=True)
    world.lead()
    await world.until(lambda: any(one.status == "True" for one in world.gateway().status.conditions))


def add(world: World, name: str, namespace: str = "", **spec: Any) -> None:
    """An EgressPolicy, or without a namespace an EgressClusterPolicy, with the default that the API server fills in."""
    applied = {"podSelector": {"matchLabels": {"app": "web"}}}
    body = {"egressIP": {"allocatorPolicy": "default"}, "appliedTo": applied, **spec}
    resource = EGRESS_POLICIES if namespace else EGRESS_CLUSTER_POLICIES
    metadata = {"name": name, "namespace": namespace} if namespace else {"name": name}
    world.api.put(resource, {"metadata": metadata, "spec": body})


def status(world: World, name: str, namespace: str = "") -> dict[str, Any]:
    resource = EGRESS_POLICIES if namespace else EGRESS_CLUSTER_POLICIES
    found: dict[str, Any] = world.document(resource, name, namespace).get("status", {})
    return found


def ready(world: World, name: str, namespace: str = "") -> Condition:
    for found in status(world, name, namespace).get("conditions", []):
        if found["type"] == "Ready":
            return Condition(type="Ready", status=found["status"], reason=found["reason"], message=found["message"])
    return Condition(type="Ready", status="Unknown")


def mirrors(world: World) -> set[str]:
    return {f"{each.metadata.namespace}/{each.metadata.name}" for each in world.api.all(EGRESS_GATEWAY_POLICIES)}


def test_an_egress_policy_is_served_by_a_policy_of_its_name() -> None:
    async def script(world: World) -> None:
        await build(world)
        add(world, "a", "shop")
        add(world, "b", "bank", egressIP={"allocatorPolicy": "rr"}, destSubnet=["198.51.100.0/24"])
        add(world, "c", "bank", egressIP={"useNodeIP": True, "allocatorPolicy": "default"})
        await world.until(
            lambda: all(ready(world, *each).status == "True" for each in (("a", "shop"), ("b", "bank"), ("c", "bank")))
        )
        assert mirrors(world) == {"shop/a", "bank/b", "bank/c"}
        assert status(world, "a", "shop")["eip"] == {"ipv4": "203.0.113.4"}
        assert status(world, "b", "bank")["eip"]["ipv4"] != "203.0.113.4"
        assert not status(world, "c", "bank").get("eip")
        assert {status(world, *each)["node"] for each in (("a", "shop"), ("b", "bank"), ("c", "bank"))} <= {"n1", "n2"}
        assert world.policy("b", "bank").spec.dest_subnet == ("198.51.100.0/24",)
        with world.no_writes("egressgatewaypolicies"), world.no_writes("egresspolicies"):
            await world.rest(22)
        world.change(EGRESS_POLICIES, "b", "bank", spec={**_spec(world, "b", "bank"), "destSubnet": []})
        await world.until(lambda: world.policy("b", "bank").spec.dest_subnet == ())
        world.api.delete(EGRESS_POLICIES, "a", namespace="shop")
        await world.until(lambda: mirrors(world) == {"bank/b", "bank/c"})

    play(script)


def _spec(world: World, name: str, namespace: str = "") -> dict[str, Any]:
    resource = EGRESS_POLICIES if namespace else EGRESS_CLUSTER_POLICIES
    found: dict[str, Any] = world.document(resource, name, namespace)["spec"]
    return found


def test_the_default_eip_is_shared_by_namespaces() -> None:
    async def script(world: World) -> None:
        await build(world)
        add(world, "a", "shop")
        add(world, "a", "bank")
        await world.until(lambda: {ready(world, "a", each).status for each in ("shop", "bank")} == {"True"})
        assert {status(world, "a", each)["eip"]["ipv4"] for each in ("shop", "bank")} == {"203.0.113.4"}
        assert len({status(world, "a", each)["node"] for each in ("shop", "bank")}) == 1

    play(script)


def test_a_cluster_policy_is_in_each_namespace_that_it_selects() -> None:
    async def script(world: World) -> None:
        await build(world)
        applied = {"podSelector": {"matchLabels": {"app": "web"}}}
        add(world, "all")
        add(world, "some", appliedTo=applied | {"namespaceSelector": {"matchLabels": {"tenant": "bank"}}})
        add(world, "none", appliedTo=applied | {"namespaceSelector": {"matchLabels": {"tenant": "x"}}})
        await world.until(lambda: {ready(world, each).status for each in ("all", "some")} == {"True"})
        assert mirrors(world) == {"shop/egcp-all", "bank/egcp-all", "bank/egcp-some"}
        assert status(world, "all")["eip"] == {"ipv4": "203.0.113.4"}
        assert ready(world, "none").reason == "NoNamespace"
        # At once, and not only when everything is compared.
        world.add_namespace("new", tenant="x")
        await world.until(lambda: ready(world, "none").status == "True", within=5)
        assert {"new/egcp-all", "new/egcp-none"} <= mirrors(world)
        world.add_namespace("new", tenant="y")
        await world.until(lambda: "new/egcp-none" not in mirrors(world), within=5)
        # What a namespace has stays while it ends, as its pods may still send; nothing is created there any more.
        ending = world.document(NAMESPACES, "new")["metadata"] | {"deletionTimestamp": "2026-01-01T00:00:00Z"}
        world.change(NAMESPACES, "new", metadata=ending)
        add(world, "late")
        await world.until(lambda: ready(world, "late").status == "True")
        assert {each for each in mirrors(world) if each.startswith("new/")} == {"new/egcp-all"}
        world.api.delete(EGRESS_CLUSTER_POLICIES, "late")
        world.api.delete(EGRESS_CLUSTER_POLICIES, "all")
        await world.until(lambda: mirrors(world) == {"bank/egcp-some"})

    play(script)


def test_a_mirror_that_somebody_changes_or_deletes_comes_back() -> None:
    async def script(world: World) -> None:
        await build(world)
        add(world, "a", "shop")
        await world.until(lambda: ready(world, "a", "shop").status == "True")
        spec = world.document(EGRESS_GATEWAY_POLICIES, "a", "shop")["spec"]
        world.change(EGRESS_GATEWAY_POLICIES, "a", "shop", spec=spec | {"destSubnet": ["192.0.2.0/24"]})
        await world.until(lambda: world.policy("a").spec.dest_subnet == (), within=5)
        world.api.delete(EGRESS_GATEWAY_POLICIES, "a", namespace="shop")
        await world.until(lambda: "shop/a" in mirrors(world), within=5)
        await world.until(lambda: ready(world, "a", "shop").status == "True")

    play(script)


def test_a_policy_of_somebody_elses_is_left_alone_and_told_of() -> None:
    async def script(world: World) -> None:
        await build(world)
        world.add_policy("a")
        add(world, "a", "shop")
        await world.until(lambda: ready(world, "a", "shop").reason == "PolicyRefused")
        assert "there is an EgressGatewayPolicy of this name" in ready(world, "a", "shop").message
        assert not world.policy("a").metadata.owner_references
        assert world.recorder.reasons.count("PolicyRefused") == 1
        world.api.delete(EGRESS_GATEWAY_POLICIES, "a", namespace="shop")
        await world.until(lambda: ready(world, "a", "shop").status == "True", within=70)

    play(script)


def test_what_admission_refuses_is_said_and_tried_again(monkeypatch: pytest.MonkeyPatch) -> None:
    """Also where the next comparison of everything is far away."""
    monkeypatch.setattr(eip_world, "RESYNC", 3600.0)

    async def script(world: World) -> None:
        await build(world)
        error = ForbiddenError("the namespace has as many policies as it may", status=403)
        world.leader.client.refusals["create", "egressgatewaypolicies"] = error
        add(world, "a", "shop")
        await world.until(lambda: ready(world, "a", "shop").reason == "PolicyRefused")
        assert "as many policies as it may" in ready(world, "a", "shop").message
        await world.rest(5)
        world.leader.client.refusals.clear()
        await world.until(lambda: ready(world, "a", "shop").status == "True", within=70)

    play(script)


def give(world: World, node: str, eips: list[dict[str, Any]]) -> None:
    """Write into the gateway what egressgateway would."""
    status = {"nodeList": [{"name": node, "status": "Ready", "eips": eips}]}
    world.api.patch(EGRESS_GATEWAYS, "eg", {"status": status}, subresource="status")


def test_addresses_that_egressgateway_has_given_stay() -> None:
    """By its status of the gateway, in which policies of the cluster have no namespace; whichever comes first."""

    async def script(world: World) -> None:
        world.add_namespace("shop")
        world.add_namespace("bank")
        for name in ("n1", "n2"):
            world.add_node(name)
        given = [
            {"ipv4": "203.0.113.6", "policies": [{"name": "one", "namespace": "shop"}]},
            {"ipv4": "203.0.113.2", "policies": [{"name": "all"}]},
            {"ipv4": "203.0.113.5", "policies": [{"name": "deleted", "namespace": "bank"}]},
        ]
        world.add_gateway(ipv4=(), ippools=POOLS, clusterDefault=True)
        give(world, "n2", given)
        for name, namespace in (("one", "shop"), ("all", "")):
            add(world, name, namespace, egressIP={"allocatorPolicy": "rr"})
        world.lead()
        world.leader.client.refusals["create", "egressgatewaypolicies"] = UnavailableError("503", status=503)
        await world.rest(2)
        world.leader.client.refusals.clear()
        # No longer than it takes to create them.
        await world.until(lambda: ready(world, "one", "shop").status == ready(world, "all").status == "True", within=6)
        assert status(world, "one", "shop")["eip"] == {"ipv4": "203.0.113.6"}
        assert status(world, "all")["eip"] == {"ipv4": "203.0.113.2"}
        for namespace in ("shop", "bank"):
            assert world.policy("egcp-all", namespace).status.eip.ipv4 == "203.0.113.2"

    play(script)


def test_a_gateway_does_not_wait_for_ever_for_a_policy_that_is_refused() -> None:
    async def script(world: World) -> None:
        world.add_namespace("shop")
        world.add_node("n1")
        given = [{"ipv4": "203.0.113.6", "policies": [{"name": "one", "namespace": "shop"}]}]
        world.add_gateway(ipv4=(), ippools=POOLS, clusterDefault=True)
        give(world, "n1", given)
        add(world, "one", "shop")
        world.lead()
        error = ForbiddenError("the namespace has as many policies as it may", status=403)
        world.leader.client.refusals["create", "egressgatewaypolicies"] = error
        await world.until(lambda: ready(world, "one", "shop").reason == "PolicyRefused")
        await world.until(lambda: any(one.status == "True" for one in world.gateway().status.conditions))

    play(script)


def test_a_gateway_that_was_decided_on_waits_for_nobody() -> None:
    """A tenant deletes what stands for its policy again and again; others' failover must not wait for it."""

    async def script(world: World) -> None:
        await build(world)
        add(world, "a", "shop", egressIP={"allocatorPolicy": "rr"})
        await world.until(lambda: ready(world, "a", "shop").status == "True")
        world.leader.client.refusals["create", "egressgatewaypolicies"] = UnavailableError("503", status=503)
        world.api.delete(EGRESS_GATEWAY_POLICIES, "a", namespace="shop")
        listed = world.gateway().status.node_list
        await world.until(lambda: world.gateway().status.node_list != listed, within=2)
        assert not [entry for node in world.gateway().status.node_list for entry in node.eips if entry.policies]

    play(script)


def test_a_policy_with_an_owner_of_another_group_is_left_alone() -> None:
    async def script(world: World) -> None:
        await build(world)
        for kind in ("EgressPolicy", "EgressClusterPolicy"):
            owner = {"apiVersion": "example.com/v1", "kind": kind, "name": "a", "uid": "u", "controller": True}
            metadata = {"name": f"of-{kind.lower()}", "namespace": "shop", "ownerReferences": [owner]}
            spec = {"appliedTo": {"podSelector": {"matchLabels": {"app": "web"}}}}
            world.api.put(EGRESS_GATEWAY_POLICIES, {"metadata": metadata, "spec": spec})
        add(world, "a", "shop")
        await world.until(lambda: ready(world, "a", "shop").status == "True")
        await world.rest(22)
        assert mirrors(world) == {"shop/a", "shop/of-egresspolicy", "shop/of-egressclusterpolicy"}

    play(script)


def test_nobody_gets_the_address_of_a_cluster_policy_by_saying_that_it_is_one() -> None:
    """Even before the controller deletes what nobody has asked for."""

    async def script(world: World) -> None:
        await build(world)
        world.change(EGRESS_GATEWAYS, "eg", spec={**_gateway_spec(world), "sharing": "Namespace"})
        applied = {"podSelector": {"matchLabels": {"app": "web"}}}
        to_bank = {"namespaceSelector": {"matchLabels": {"tenant": "bank"}}}
        add(world, "x", egressIP={"allocatorPolicy": "rr"}, appliedTo=applied | to_bank)
        await world.until(lambda: ready(world, "x").status == "True")
        (address,) = status(world, "x")["eip"].values()
        world.leader.client.refusals["delete", "egressgatewaypolicies"] = UnavailableError("503", status=503)
        genuine = world.document(EGRESS_GATEWAY_POLICIES, "egcp-x", "bank")
        metadata = {"name": "egcp-x", "namespace": "shop", "ownerReferences": genuine["metadata"]["ownerReferences"]}
        for asked in ({"allocatorPolicy": "rr"}, {"ipv4": address}):
            world.api.put(
                EGRESS_GATEWAY_POLICIES, {"metadata": metadata, "spec": {**genuine["spec"], "egressIP": asked}}
            )
            await world.rest(3)
            assert world.policy("egcp-x", "shop").status.eip.ipv4 != address
            world.api.delete(EGRESS_GATEWAY_POLICIES, "egcp-x", namespace="shop")
            await world.rest(1)

    play(script)


def _gateway_spec(world: World) -> dict[str, Any]:
    found: dict[str, Any] = world.document(EGRESS_GATEWAYS, "eg")["spec"]
    return found
