"""Which gateway and address a policy gets, what its status says, and what people are told."""

from coil.crd.builtin import NAMESPACES, NODES
from coil.crd.egress_gateway import EGRESS_GATEWAYS
from coil.crd.egress_gateway_policy import EGRESS_GATEWAY_POLICIES
from coil.crd.meta import Condition
from coil_egress_controller.eip.endpoint_index import EIP_PODS
from tests.coil_egress_controller.eip_world import World, play


async def build(world: World, **gateway: object) -> None:
    world.add_namespace("shop")
    for name in ("n1", "n2"):
        world.add_node(name)
    world.add_gateway(**gateway)  # type: ignore[arg-type]
    world.lead()
    await world.until(lambda: world.gateway().status.conditions != () and condition_of_gateway(world) == "True")


def condition_of_gateway(world: World) -> str:
    return next(one.status for one in world.gateway().status.conditions if one.type == "Ready")


def ready(world: World, policy: str) -> Condition:
    found = world.policy(policy).status.conditions
    return next((one for one in found if one.type == "Ready"), Condition(type="Ready", status="Unknown"))


def test_a_policy_learns_its_gateway_address_and_node() -> None:
    async def script(world: World) -> None:
        await build(world)
        world.add_policy("a", egressIP={"ipv4": "203.0.113.5"})
        world.add_policy("b", egressIP={"useNodeIP": True})
        await world.until(lambda: world.all_placed("a", "b"))
        a, b = world.policy("a").status, world.policy("b").status
        assert (a.egress_gateway_name, a.eip.ipv4, ready(world, "a").status) == ("eg", "203.0.113.5", "True")
        assert (b.egress_gateway_name, b.eip.ipv4) == ("eg", "")
        assert {a.node, b.node} == {"n1", "n2"}
        with world.no_writes("egressgateways"), world.no_writes("egressgatewaypolicies"):
            await world.rest(22)

    play(script)


def test_a_status_tells_the_generation_that_it_speaks_of() -> None:
    """Also where a change of the spec leaves it as it was, or means the same."""

    async def script(world: World) -> None:
        await build(world)
        world.add_policy("a")
        world.add_policy("lost", gateway="nowhere")
        await world.until(lambda: world.all_placed("a") and ready(world, "lost").reason == "GatewayNotFound")
        for generation, change in ((2, {"priority": 7}), (3, {"destSubnet": []})):
            for name in ("a", "lost"):
                spec = world.document(EGRESS_GATEWAY_POLICIES, name, "shop")["spec"]
                assert world.policy(name).status.observed_generation == generation - 1
                world.change(EGRESS_GATEWAY_POLICIES, name, "shop", spec=spec | change)
            await world.until(
                lambda generation=generation: all(  # type: ignore[misc]
                    world.policy(name).status.observed_generation == generation for name in ("a", "lost")
                ),
                within=2,  # not by a resync
            )
        assert world.all_placed("a")
        with world.no_writes("egressgateways"), world.no_writes("egressgatewaypolicies"):
            await world.rest(22)

    play(script)


def test_a_refusal_is_a_condition_and_an_event_once() -> None:
    async def script(world: World) -> None:
        await build(world)
        world.add_policy("a", egressIP={"ipv4": "198.51.100.1"})
        await world.until(lambda: ready(world, "a").reason == "EgressIPOutOfRange")
        await world.rest(22)
        await world.depose()
        world.lead()
        await world.rest(2)
        assert world.recorder.reasons.count("EgressIPOutOfRange") == 1
        world.change(
            EGRESS_GATEWAYS,
            "eg",
            spec=world.document(EGRESS_GATEWAYS, "eg")["spec"] | {"ranges": {"ipv4": ["198.51.100.0/24"]}},
        )
        await world.until(lambda: world.all_placed("a"))

    play(script)


def test_an_address_of_a_node_is_not_given_until_the_node_is_gone() -> None:
    async def script(world: World) -> None:
        world.add_node(
            "other", agent=False, gateway=False, addresses=[{"type": "InternalIP", "address": "203.0.113.5"}]
        )
        await build(world, ipv4=("203.0.113.5",))
        world.add_policy("a")
        await world.until(lambda: ready(world, "a").reason == "NoAddress")
        world.api.delete(NODES, "other")
        await world.until(lambda: world.all_placed("a"), within=2)
        world.add_node("late", agent=False, gateway=False, addresses=[{"type": "ExternalIP", "address": "203.0.113.5"}])
        await world.until(lambda: "EgressIPOfNode" in world.recorder.reasons, within=2)
        assert world.policy("a").status.eip.ipv4 == "203.0.113.5"

    play(script)


def test_a_policy_without_a_gateway_waits_for_one() -> None:
    async def script(world: World) -> None:
        await build(world)
        world.add_policy("a", gateway="later")
        world.add_policy("b", gateway="")
        await world.until(lambda: ready(world, "a").reason == "GatewayNotFound")
        await world.until(lambda: ready(world, "b").reason == "NoDefaultGateway")
        world.change(NAMESPACES, "shop", labels={"egressgateway.spidernet.io/default": "eg"})
        await world.until(lambda: world.all_placed("b"))
        assert world.policy("b").status.egress_gateway_name == "eg"
        world.add_gateway("later", ipv4=("203.0.113.20",))
        await world.until(lambda: world.all_placed("a"))

    play(script)


def test_a_gateway_that_stops_allowing_a_namespace_takes_its_addresses_back() -> None:
    async def script(world: World) -> None:
        await build(world, allowedNamespaces={"matchLabels": {"tier": "gold"}})
        world.add_policy("a")
        await world.until(lambda: ready(world, "a").reason == "GatewayNotAllowed")
        world.change(NAMESPACES, "shop", labels={"tier": "gold"})
        await world.until(lambda: world.all_placed("a") and bool(world.holders()))
        world.change(NAMESPACES, "shop", labels={})
        await world.until(lambda: ready(world, "a").reason == "GatewayNotAllowed")
        await world.until(lambda: not world.listed() and not world.holders())

    play(script)


def test_a_namespace_that_is_heard_of_late_makes_no_refusal() -> None:
    async def script(world: World) -> None:
        await build(world, allowedNamespaces={"matchLabels": {"tier": "gold"}})
        world.add_policy("a", "late")
        await world.rest(0.05)
        world.add_namespace("late", tier="gold")
        await world.until(lambda: bool(world.policy("a", "late").status.node))
        assert "GatewayNotAllowed" not in world.recorder.reasons

    play(script)


def test_an_address_is_reclaimed_with_its_last_policy() -> None:
    async def script(world: World) -> None:
        await build(world)
        for name in ("a", "b"):
            world.add_policy(name, egressIP={"ipv4": "203.0.113.5"})
        await world.until(lambda: world.all_placed("a", "b") and bool(world.holders()))
        world.api.remove(EGRESS_GATEWAY_POLICIES, "a", "shop")
        await world.until(lambda: set(world.listed()) == {"b"})
        assert world.holders()
        world.api.remove(EGRESS_GATEWAY_POLICIES, "b", "shop")
        await world.until(lambda: not world.holders())
        await world.until(lambda: not any(node.eips for node in world.gateway().status.node_list))
        assert world.gateway().status.ip_usage.ipv4_free == world.gateway().status.ip_usage.ipv4_total

    play(script)


def test_a_burst_of_policies_is_a_few_writes_of_the_gateway() -> None:
    async def script(world: World) -> None:
        await build(world)
        before = world.writes("egressgateways")
        names = [f"p{number}" for number in range(100)]
        for name in names:
            world.add_policy(name)
        await world.until(lambda: world.all_placed(*names), within=60)
        assert world.writes("egressgateways") - before <= 3
        assert world.writes("egressgatewaypolicies") <= 110

    play(script)


def test_a_gateway_that_cannot_be_read_stays_as_it_was_and_people_are_told() -> None:
    async def script(world: World) -> None:
        await build(world)
        world.add_policy("a")
        await world.until(lambda: world.all_placed("a"))
        spec = world.document(EGRESS_GATEWAYS, "eg")["spec"]
        world.change(EGRESS_GATEWAYS, "eg", spec=spec | {"ranges": {"ipv4": ["nonsense"]}})
        await world.until(lambda: "GatewayInvalid" in world.recorder.reasons)
        assert world.listed().keys() == {"a"}

    play(script)


def test_a_status_that_somebody_has_edited_is_mended() -> None:
    async def script(world: World) -> None:
        await build(world)
        world.add_policy("a")
        await world.until(lambda: world.all_placed("a"))
        node = world.policy("a").status.node
        world.change(EGRESS_GATEWAY_POLICIES, "a", "shop", status={"node": "nowhere"})
        await world.until(lambda: world.policy("a").status.node == node)

    play(script)


def networks_known(world: World, policy: str) -> Condition | None:
    found = world.policy(policy).status.conditions
    return next((one for one in found if one.type == "PodNetworksKnown"), None)


def test_pods_in_no_known_network_are_told_of_where_it_matters() -> None:
    """To a policy with destinations, an address within the cluster is none of them."""

    async def script(world: World) -> None:
        await build(world)
        world.add_policy("everything")
        selected = {"podSelector": {"matchLabels": {"app": "everything"}}}
        world.add_policy("partners", appliedTo=selected, destSubnet=["198.51.100.0/24"])
        world.add_pod("p1", app="everything", ip="10.32.0.7")
        await world.until(lambda: networks_known(world, "everything") is not None)
        condition = networks_known(world, "everything")
        assert condition is not None
        assert (condition.status, condition.reason) == ("False", "PodNetworkUnknown")
        assert "10.32.0.7 of the pod p1" in condition.message
        assert world.recorder.reasons.count("PodNetworkUnknown") == 1
        world.add_pod("p0", app="everything", ip="10.32.0.6")
        with world.no_writes("egressgatewaypolicies"):
            await world.rest(12)
        assert networks_known(world, "partners") is None
        world.publish_networks("10.32.0.0/12")
        await world.until(lambda: networks_known(world, "everything") is None)
        assert ready(world, "everything").status == "True"
        world.publish_networks()
        await world.until(lambda: networks_known(world, "everything") is not None)
        for name in ("p0", "p1"):
            world.api.delete(EIP_PODS, name, namespace="shop")
        await world.until(lambda: networks_known(world, "everything") is None)

    play(script)


def test_the_next_leader_says_the_same_of_networks_until_it_has_looked() -> None:
    async def script(world: World) -> None:
        await build(world)
        world.add_policy("everything")
        world.add_pod("p1", app="everything", ip="10.32.0.7")
        await world.until(lambda: networks_known(world, "everything") is not None)
        await world.depose()
        world.lead()
        with world.no_writes("egressgatewaypolicies"):
            await world.rest(12)
        assert world.recorder.reasons.count("PodNetworkUnknown") == 1

    play(script)


def test_a_nodes_own_pod_cidr_is_known() -> None:
    async def script(world: World) -> None:
        await build(world)
        world.add_policy("everything")
        world.add_pod("p1", app="everything", ip="10.244.3.7")
        await world.until(lambda: networks_known(world, "everything") is not None)
        world.change(NODES, "n1", spec={"podCIDRs": ["10.244.3.0/24"]})
        await world.until(lambda: networks_known(world, "everything") is None)

    play(script)
