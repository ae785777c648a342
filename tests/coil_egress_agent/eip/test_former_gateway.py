"""A node is taken over from egressgateway when its agent is gone, and in an order that lets nothing out."""

import asyncio
from ipaddress import ip_address

import pytest
import structlog

from coil.crd.egress_tunnel import TunnelPhase
from coil.eip.eip_set import CLOSED
from coil.kube.errors import UnavailableError
from coil_egress_agent.eip.former_gateway import HELD, LOOK_SECONDS, REMOVAL_BACKOFF, FormerGateway
from tests.coil.eip.packet_oracle import fate_by_sets
from tests.coil_egress_agent.eip.former_state_contract import SET, FormerStateContract
from tests.coil_egress_agent.eip.memory_node import Journal, MemoryFormerState
from tests.coil_egress_agent.eip.node_scene import Scene, eip, endpoints, gateway, listed, policy, running, until

POD = "10.244.1.5"
LEFT = ("chain EGRESSGATEWAY-SNAT-EIP in ip nat", "link egress.vxlan", f"IP set {SET}")


class MemoryStage:
    def __init__(self) -> None:
        self.state = MemoryFormerState(Journal())

    async def leave(self) -> None:
        self.state.found = list(LEFT)

    async def use_set(self, *, used: bool) -> None:
        self.state.used = {SET} if used else set()


class TestMemoryFormerState(FormerStateContract):
    @pytest.fixture
    def stage(self) -> MemoryStage:
        return MemoryStage()


@pytest.fixture
async def scene() -> Scene:
    scene = Scene()
    scene.cluster.gateways.put(gateway(listed("n2", eip())))
    scene.cluster.policies.put(policy())
    scene.cluster.slices.put(endpoints((POD, "n1")))
    return scene


def calls(scene: Scene, *names: str) -> list[str]:
    return [call for call in scene.journal.calls() if call in names]


async def test_tables_then_removal_then_the_mesh(scene: Scene) -> None:
    scene.agent.former_state.found = list(LEFT)
    async with running(scene):
        await until(lambda: scene.agent.applier.missing() is None)
    order = calls(scene, "sync", "remove former state", "tunnel", "peers", "marks")
    assert order[:3] == ["sync", "remove former state", "tunnel"]
    assert {"peers", "marks"} <= set(order[3:])
    assert scene.agent.former_state.found == []


async def test_a_node_without_it_is_not_held_up(scene: Scene) -> None:
    async with running(scene):
        await until(lambda: scene.agent.applier.missing() is None)
    assert "remove former state" not in scene.journal.calls()


async def test_what_cannot_be_removed_keeps_the_mesh_away_and_is_told(scene: Scene) -> None:
    scene.agent.former_state.found = list(LEFT)
    scene.journal.refuse = {"remove former state"}
    async with running(scene):
        await until(lambda: "cannot be removed: remove former state: no" in (scene.agent.applier.missing() or ""))
        await asyncio.sleep(REMOVAL_BACKOFF.cap)
        assert "tunnel" not in scene.journal.calls()
        fate = fate_by_sets(scene.agent.tables.elements, ip_address(POD), ip_address("8.8.8.8"))
        assert fate.mark == CLOSED, "its pods' packets are dropped meanwhile"
        [own] = [each for each in scene.cluster.tunnels.items() if each.metadata.name == "n1"]
        assert own.status.phase != TunnelPhase.READY
        scene.journal.refuse = set()
        await until(lambda: scene.agent.applier.missing() is None, seconds=2 * REMOVAL_BACKOFF.cap)
    assert "tunnel" in scene.journal.calls()


async def test_an_agent_that_stops_meanwhile_goes_on_at_its_next_start(scene: Scene) -> None:
    scene.agent.former_state.found = list(LEFT)
    scene.journal.stall["remove former state"] = 3600.0
    async with running(scene):
        await until(lambda: "sync" in scene.journal.calls())
        await asyncio.sleep(10)
        assert scene.agent.former.hold == HELD
    assert "tunnel" not in scene.journal.calls()
    del scene.journal.stall["remove former state"]
    left = scene.agent.former_state.found
    again = Scene()
    again.cluster = scene.cluster
    again.agent.former_state.found = left
    async with running(again):
        await until(lambda: again.agent.former_state.found == [])


async def test_nothing_is_done_beside_its_agent(scene: Scene) -> None:
    scene.agent.former_state.found = list(LEFT)
    scene.agent.former_agents = ["kube-system/egressgateway-agent-x2x7f"]
    async with running(scene):
        await until(lambda: "kube-system/egressgateway-agent-x2x7f" in (scene.agent.former.missing() or ""))
        await asyncio.sleep(5 * LOOK_SECONDS)
        assert set(scene.journal.calls()) == {"find former state"}
        scene.agent.former_agents = []
        await until(lambda: scene.agent.applier.missing() is None)
    assert scene.agent.former.missing() is None


async def test_what_cannot_be_told_is_no_permission() -> None:
    journal = Journal()
    state = MemoryFormerState(journal, *LEFT)
    answers: list[Exception | None] = [UnavailableError("no route to the API server"), None]
    lines = structlog.testing.LogCapture()

    async def list_agents() -> list[str]:
        if error := answers.pop(0):
            raise error
        return []

    former = FormerGateway(state, list_agents, log=structlog.wrap_logger(None, processors=[lines]))
    assert former.missing() is not None
    journal.refuse = {"find former state"}
    waiting = asyncio.create_task(former.wait_until_free())
    await until(lambda: "find former state: no" in (former.missing() or ""))
    journal.refuse = set()
    await until(lambda: "no route to the API server" in (former.missing() or ""))
    await waiting
    assert former.missing() is None
    assert former.hold == HELD
    assert [line["event"] for line in lines.entries] == ["not working on this node"] * 2 + [
        "egressgateway was on this node"
    ]


async def test_sets_that_others_use_are_no_reason_to_wait(scene: Scene) -> None:
    scene.agent.former_state.found = list(LEFT)
    scene.agent.former_state.used = {SET}
    async with running(scene):
        await until(lambda: scene.agent.applier.missing() is None)
    [line] = [line for line in scene.agent.logged.entries if "sets" in line]
    assert (line["log_level"], line["sets"]) == ("warning", [SET])
