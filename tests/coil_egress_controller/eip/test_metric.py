"""What is told of gateways is what they have, and what a leader has done is counted."""

from typing import Any

import pytest

from coil.crd.builtin import NODES
from coil.crd.egress_gateway import EipEntry, GatewayNode
from coil.crd.egress_gateway_policy import EGRESS_GATEWAY_POLICIES
from coil.eip.gateway_lease import FENCE, MARGIN
from coil_egress_controller.eip.metric import NodeState, node_state
from tests.coil_egress_controller.eip_world import POLICIES_PER_GATEWAY, World, play
from tests.coil_egress_controller.test_eip_failover import POLICIES, build
from tests.coil_egress_controller.test_eip_slice import add_pods, endpoints


def figure(world: World, name: str, **labels: str) -> float | None:
    return world.registry.get_sample_value(f"coil_egress_{name}", labels)


def by_state(world: World, name: str, *states: str, **labels: str) -> list[float | None]:
    world.look()
    return [figure(world, name, state=state, **labels) for state in states]


def addresses(world: World, family: str = "ipv4") -> list[float | None]:
    return by_state(world, "gateway_addresses", "assigned", "free", gateway="eg", family=family)


def nodes(world: World) -> list[float | None]:
    return by_state(world, "gateway_nodes", *NodeState, gateway="eg")


def policies(world: World, gateway: str = "eg") -> list[float | None]:
    return by_state(world, "gateway_policies", "placed", "unplaced", gateway=gateway)


def size(world: World) -> int:
    return world.gateway().status.ip_usage.ipv4_total


def test_what_a_gateway_has() -> None:
    async def script(world: World) -> None:
        await build(world)
        await world.until(lambda: policies(world) == [6, 0])
        assert addresses(world) == [6, size(world) - 6]
        assert addresses(world, "ipv6") == [None, None], "it has none"
        assert nodes(world) == [3, 0, 0]
        world.api.remove(EGRESS_GATEWAY_POLICIES, POLICIES[0], "shop")
        await world.until(lambda: addresses(world) == [5, size(world) - 5])
        assert policies(world) == [5, 0]

    play(script)


def test_a_policy_that_no_node_carries_keeps_its_address() -> None:
    async def script(world: World) -> None:
        await build(world, "n1")
        await world.agents["n1"].kill()
        await world.until(lambda: policies(world) == [0, 6])
        assert addresses(world) == [6, size(world) - 6]
        assert nodes(world) == [0, 0, 1]

    play(script)


def test_a_node_without_addresses_is_idle() -> None:
    async def script(world: World) -> None:
        await build(world)
        world.add_node("n4")
        await world.until(lambda: nodes(world) == [3, 1, 0])
        world.change(NODES, "n4", labels={})
        await world.until(lambda: nodes(world) == [3, 0, 0])

    play(script)


def test_the_limit_of_a_gateway_is_told_with_what_it_has() -> None:
    async def script(world: World) -> None:
        await build(world)
        assert figure(world, "gateway_policy_limit", gateway="eg") == POLICIES_PER_GATEWAY

    play(script)


def test_policies_of_no_gateway() -> None:
    async def script(world: World) -> None:
        await build(world)
        assert policies(world, "(none)") == [0, 0]
        world.add_policy("stray", gateway="nowhere")
        await world.until(lambda: policies(world, "(none)") == [0, 1])
        assert policies(world) == [6, 0]

    play(script)


def test_a_lost_node_is_counted_with_the_time_it_took_to_notice() -> None:
    async def script(world: World) -> None:
        await build(world)
        assert (figure(world, "gateway_revocations_total"), figure(world, "gateway_detection_seconds_count")) == (0, 0)
        await world.agents["n1"].kill()
        await world.until(lambda: figure(world, "gateway_revocations_total") == 1)
        seconds = figure(world, "gateway_detection_seconds_sum") or 0.0
        assert FENCE + MARGIN <= seconds < FENCE + MARGIN + 0.1
        # Nothing else is lost.
        await world.rest(10)
        assert figure(world, "gateway_revocations_total") == figure(world, "gateway_detection_seconds_count") == 1

    play(script)


def test_writes_of_slices_are_counted() -> None:
    async def script(world: World) -> None:
        def writes() -> list[float | None]:
            every = ("create", "update", "delete")
            return [figure(world, "endpoint_slice_writes_total", operation=operation) for operation in every]

        world.add_policy("web")
        world.lead()
        assert writes() == [0, 0, 0]
        add_pods(world, 1, 2)
        await world.until(lambda: len(endpoints(world)) == 2)
        assert writes() == [1, 0, 0]
        add_pods(world, 3)
        await world.until(lambda: len(endpoints(world)) == 3)
        assert writes() == [1, 1, 0]
        world.api.remove(EGRESS_GATEWAY_POLICIES, "web", "shop")
        await world.until(lambda: not endpoints(world))
        assert writes() == [1, 1, 1]

    play(script)


@pytest.mark.parametrize(
    ("listed", "state"),
    [
        ({"status": "Ready"}, NodeState.IDLE),
        ({"status": "HeartbeatTimeout"}, NodeState.UNREADY),
        ({}, NodeState.UNREADY),
        ({"status": "Ready", "eips": (EipEntry(ipv4="192.0.2.1"),)}, NodeState.CARRYING),
        ({"status": "Init", "eips": (EipEntry(ipv4="192.0.2.1", leaving=3),)}, NodeState.CARRYING),
        ({"status": "Ready", "eips": (EipEntry(),)}, NodeState.CARRYING),
    ],
)
def test_states_of_a_node(listed: dict[str, Any], state: NodeState) -> None:
    assert node_state(GatewayNode(name="n1", **listed)) is state
