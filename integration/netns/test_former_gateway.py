"""What egressgateway left on a node goes, and nothing else does, however often it is interrupted."""

import asyncio
from collections.abc import AsyncIterator, Callable
from dataclasses import dataclass
from typing import Any, Final

import pytest

from coil.kernel.family import Family
from coil.nft import iptables_removal, legacy_iptables
from coil.nft.netfilter import NetfilterSocket, NftError
from coil_egress_agent.eip.egressgateway_state import STEPS, EgressgatewayState, Step
from integration.netns.egressgateway_node import (
    NODE,
    POLICIES,
    Installation,
    add_others,
    has_legacy,
    leave_state,
    run,
    snapshot,
)
from integration.netns.eip_world import LOCAL_POD, POD, SERVER, EipWorld, view
from integration.netns.netns import Netns
from integration.netns.test_eip_traffic import lost, seen
from tests.coil_egress_agent.eip.former_state_contract import SET, FormerStateContract

pytestmark = pytest.mark.kernel

INSTALLATIONS: Final = {
    "gateway": Installation(gateway=True),
    "other-node": Installation(),
    "configured": Installation(gateway=True, link="vx.egw", vni=5, port=4790, base=0x31000000),
    "before-0.6": Installation(replies=True),
    "legacy-gateway": Installation(gateway=True, backend="legacy"),
    "legacy-other-node": Installation(backend="legacy"),
}


@dataclass(frozen=True, slots=True)
class Node:
    host: Netns
    state: EgressgatewayState
    backends: tuple[str, ...]

    def snapshot(self) -> dict[str, Any]:
        return snapshot(self.host, self.backends)


@pytest.fixture
async def node(host: Netns) -> AsyncIterator[Node]:
    backends = ("nft", "legacy") if has_legacy(host) else ("nft",)
    add_others(host, backends)
    async with EgressgatewayState(NODE, netns=host.path) as state:
        yield Node(host, state, backends)


@pytest.fixture(params=INSTALLATIONS)
def installation(request: pytest.FixtureRequest, node: Node) -> Installation:
    found = INSTALLATIONS[request.param]
    if found.backend not in node.backends:
        pytest.skip("this kernel has no iptables-legacy")
    return found


async def test_a_node_without_it_stays_as_it_is(node: Node) -> None:
    before = node.snapshot()
    assert await node.state.find() == []
    assert await node.state.remove() == []
    assert node.snapshot() == before


async def test_its_state_goes_and_nothing_else(node: Node, installation: Installation) -> None:
    before = node.snapshot()
    leave_state(node.host.path, installation)
    built = node.snapshot()
    found = await node.state.find()
    assert node.snapshot() == built, "to look changes nothing"
    for expected in (f"link {installation.link}", f"IP set egress-src-v6-{POLICIES[0].hash}"):
        assert expected in found
    assert await node.state.remove() == []
    assert node.snapshot() == before
    assert await node.state.find() == []
    assert await node.state.remove() == []
    assert node.snapshot() == before


async def test_a_removal_that_is_killed_after_a_step_is_finished_by_the_next(
    node: Node, installation: Installation
) -> None:
    before = node.snapshot()
    for done in range(1, len(STEPS) + 1):
        leave_state(node.host.path, installation)
        for step in STEPS[:done]:
            await asyncio.to_thread(node.host.call, lambda step=step: step(NODE))
        # As long as anything is left, the next start finds something.
        assert bool(await node.state.find()) is (node.snapshot() != before)
        assert await node.state.remove() == []
        assert node.snapshot() == before, STEPS[done - 1]


async def test_a_removal_that_is_killed_between_two_tables_of_iptables_legacy(
    node: Node, monkeypatch: pytest.MonkeyPatch
) -> None:
    if "legacy" not in node.backends:
        pytest.skip("this kernel has no iptables-legacy")
    before = node.snapshot()
    for done in range(6):
        leave_state(node.host.path, Installation(gateway=True, backend="legacy"))
        with monkeypatch.context() as patch:
            patch.setattr(iptables_removal, "restore_legacy", failing_after(done))
            with pytest.raises(NftError, match="killed"):
                await node.state.remove()
        assert node.snapshot() != before
        assert await node.state.remove() == []
        assert node.snapshot() == before


def failing_after(times: int) -> Callable[[Family, str], None]:
    left = times

    def restore(family: Family, changes: str) -> None:
        nonlocal left
        if not left:
            raise NftError(doing="run it", reason="killed")
        left -= 1
        legacy_iptables.restore_legacy(family, changes)

    return restore


async def test_where_the_programs_of_iptables_legacy_are_missing_it_is_told_with_the_command(
    node: Node, monkeypatch: pytest.MonkeyPatch
) -> None:
    if "legacy" not in node.backends:
        pytest.skip("this kernel has no iptables-legacy")
    before = node.snapshot()
    leave_state(node.host.path, Installation(backend="legacy"))
    built = node.snapshot()
    with monkeypatch.context() as patch:
        patch.setenv("PATH", "/nonexistent")
        assert f"link {Installation().link}" in await node.state.find()
        with pytest.raises(NftError, match="iptables-legacy-save") as refused:
            await node.state.remove()
    assert node.snapshot() == built, "what asks the sets and leads to the link is still there, and so are these"
    command = str(refused.value).split("`")[1]
    for program in ("iptables", "ip6tables"):
        run(node.host.path, "sh", "-c", command.replace("ip6tables", "iptables").replace("iptables", program))
    assert await node.state.remove() == []
    # The command is not as careful as the program: a rule of others that bears a comment of egressgateway went as well.
    assert {**node.snapshot(), **legacy(before)} == before


def legacy(found: dict[str, Any]) -> dict[str, Any]:
    return {key: value for key, value in found.items() if key.endswith("legacy")}


class KernelStage:
    def __init__(self, node: Node) -> None:
        self.state = node.state
        self._host = node.host

    async def leave(self) -> None:
        await asyncio.to_thread(leave_state, self._host.path, Installation())

    async def use_set(self, *, used: bool) -> None:
        command = "-A" if used else "-D"
        await asyncio.to_thread(
            run_words, self._host, f"iptables-nft {command} INPUT -m set --match-set {SET} src -j RETURN"
        )


class TestKernelFormerState(FormerStateContract):
    @pytest.fixture
    def stage(self, node: Node) -> KernelStage:
        return KernelStage(node)


async def test_a_rule_of_others_that_leads_to_a_chain_keeps_all_of_them(node: Node) -> None:
    leave_state(node.host.path, Installation())
    run_words(node.host, "iptables-nft -t mangle -A INPUT -j EGRESSGATEWAY-MARK-REQUEST")
    built = node.snapshot()
    with pytest.raises(NftError, match="rules of egressgateway from iptables-nft: Device or resource busy"):
        await node.state.remove()
    assert node.snapshot() == built


async def test_a_table_for_replies_that_others_use_keeps_its_rule(node: Node) -> None:
    leave_state(node.host.path, Installation(replies=True))
    node.host.ip("route", "add", "203.0.113.9/32", "dev", "up0", "table", "600")
    await node.state.remove()
    assert {"fwmark": "0x27", "table": "600"}.items() <= max(
        (rule for rule in node.host.read("rule") if rule.get("table") == "600"), key=len
    ).items()


async def test_rules_that_come_meanwhile_are_not_taken_for_its(node: Node, monkeypatch: pytest.MonkeyPatch) -> None:
    """Others insert rules above and delete one of its rules between the look and the transaction."""
    before = node.snapshot()
    leave_state(node.host.path, Installation(gateway=True))
    transact = NetfilterSocket.transact
    meanwhile = [
        "iptables-nft -t nat -D POSTROUTING 1",
        "iptables-nft -t mangle -I PREROUTING -s 10.77.0.0/16 -j ACCEPT",
    ]

    def late(*arguments: Any, **options: Any) -> None:
        while meanwhile:
            run_words(node.host, meanwhile.pop())
        transact(*arguments, **options)

    monkeypatch.setattr(NetfilterSocket, "transact", late)
    assert await node.state.remove() == []
    run_words(node.host, "iptables-nft -t mangle -D PREROUTING -s 10.77.0.0/16 -j ACCEPT")
    assert not meanwhile
    assert node.snapshot() == before


@pytest.fixture
def world(new_netns: Callable[[], Netns]) -> EipWorld:
    """Two nodes as egressgateway leaves them, with a pod each that its policies select; Coil has no mesh yet."""
    world = EipWorld(new_netns)
    for host, installation in (
        (world.source, Installation(parent="eth0", pods=POD)),
        (world.gateway, Installation(parent="eth1", pods=LOCAL_POD, gateway=True)),
    ):
        host.ip("link", "delete", "egress.vxlan")
        leave_state(host.path, installation)
    return world


async def take(step: Step, world: EipWorld) -> None:
    for host in (world.source, world.gateway):
        await asyncio.to_thread(host.call, lambda host=host: step(NODE))


@pytest.mark.parametrize("version", [4, 6])
async def test_nothing_that_policies_are_about_leaves_a_node_at_any_step(world: EipWorld, version: int) -> None:
    world.tell([view(node=None)])
    world.load()
    for number in range(len(STEPS) + 1):
        for step in STEPS[number - 1 : number]:
            await take(step, world)
        lost(world, version, "dropped_closed", at=world.source)
        lost(world, version, "dropped_closed", at=world.gateway, pod=world.local_pod)
    world.tell([])
    world.change()
    assert seen(world, SERVER[version]) == POD[version], "nothing of it is left in the way"
    assert seen(world, SERVER[version], world.local_pod) == LOCAL_POD[version]


@pytest.mark.parametrize("version", [4, 6])
async def test_why_the_tables_have_to_be_loaded_before(world: EipWorld, version: int) -> None:
    """Without them, the first step lets out what was captured."""
    await take(STEPS[0], world)
    assert seen(world, SERVER[version]) == POD[version]


def run_words(host: Netns, command: str) -> None:
    """A command whose words have no spaces."""
    run(host.path, *command.split())
