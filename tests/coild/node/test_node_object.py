"""What the Node object tells coild, and what coild has it tell."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import suppress
from datetime import UTC, datetime
from typing import Any

import pytest

from coil.crd.builtin import NODES
from coil.crd.names import NodeName
from coil.crd.node_condition import ADDRESSES_AVAILABLE, POD_LIMIT_TOO_HIGH, TRAFFIC_DIVERTED
from coil.kube.errors import InvalidError, UnavailableError
from coild.eni.node_condition import describe_addresses, describe_diversions, describe_pod_limit
from coild.model.node_condition import NodeCondition, plan_conditions
from coild.node.node_object import LOOK_SECONDS, READ_SECONDS, NodeObject
from tests.coil.kube.memory_api import Call, MemoryApi, MemoryClient, Moment
from tests.coild.eni.node import LOG, Node, loop_time, one
from tests.coild.virtual_loop import pass_turns

NOON = datetime(2030, 1, 1, 12, tzinfo=UTC)
READY = {"type": "Ready", "status": "True"}
NAME = NodeName("node-1")


class Cluster:
    """One node, whose kubelet has reported that it may run 29 pods."""

    def __init__(self) -> None:
        self.api = MemoryApi()
        self.api.put(
            NODES,
            {
                "metadata": {"name": NAME},
                "status": {"allocatable": {"cpu": "2", "pods": "29"}, "conditions": [READY]},
            },
        )
        self.away = False
        self.diversions: tuple[str, ...] | None = None
        self.client = MemoryClient(self.api, self._gate)
        self.node = Node(None)
        self.object = NodeObject(
            self.client,
            self.wanted,
            learn=self.node.store.learn_limit,
            node=NAME,
            clock=loop_time,
            random=lambda: 0.5,
            log=LOG,
            wall=lambda: NOON,
        )

    def wanted(self) -> tuple[NodeCondition, ...]:
        found = (describe_diversions(self.diversions),) if self.diversions is not None else ()
        return (describe_addresses(self.node.store.obstacle), *found)

    async def _gate(self, call: Call, moment: Moment) -> None:
        if self.away:
            raise UnavailableError("no answer")

    @property
    def conditions(self) -> dict[str, dict[str, Any]]:
        document = self.api.find_document(NODES, NAME)
        assert document is not None
        return {each["type"]: each for each in document["status"]["conditions"]}


@pytest.fixture
async def cluster() -> Cluster:
    return Cluster()


@pytest.fixture
async def running(cluster: Cluster) -> AsyncIterator[Cluster]:
    task = asyncio.create_task(cluster.object.run())
    yield cluster
    task.cancel()
    with suppress(asyncio.CancelledError):
        await task


async def test_the_store_learns_how_many_pods_the_node_may_run(cluster: Cluster) -> None:
    limits = [cluster.node.store.pods_limit]
    cluster.node.store.changed.clear()
    await cluster.object.sync()
    limits.append(cluster.node.store.pods_limit)
    assert limits == [None, 29]
    assert cluster.node.store.changed.is_set()


async def test_a_limit_that_is_none_is_not_learnt(cluster: Cluster) -> None:
    cluster.api.put(NODES, {"metadata": {"name": NAME}, "status": {"allocatable": {"pods": "1k"}}})
    await cluster.object.sync()
    assert cluster.node.store.pods_limit is None
    assert cluster.conditions[ADDRESSES_AVAILABLE]["status"] == "False", "which is the only one now"


async def test_the_condition_follows_the_store(running: Cluster) -> None:
    await pass_turns()
    assert running.conditions[ADDRESSES_AVAILABLE]["status"] == "False"
    assert running.conditions["Ready"] == READY
    running.node.see(one("10.0.0.10/32"))
    await asyncio.sleep(2 * LOOK_SECONDS)
    assert running.conditions[ADDRESSES_AVAILABLE]["status"] == "True"
    running.node.see(one())
    running.node.store.shortage = "subnet-1 has no free address"
    await asyncio.sleep(2 * LOOK_SECONDS)
    told = running.conditions[ADDRESSES_AVAILABLE]
    assert (told["status"], told["reason"], told["message"]) == (
        "False",
        "NoAddresses",
        "subnet-1 has no free address",
    )


async def test_what_has_not_changed_is_not_written_again_and_seldom_read(running: Cluster) -> None:
    running.node.see(one("10.0.0.10/32"))
    await asyncio.sleep(2 * LOOK_SECONDS)
    running.client.calls.clear()
    await asyncio.sleep(READ_SECONDS / 2)
    assert running.client.calls == []
    await asyncio.sleep(READ_SECONDS)
    assert [call.verb for call in running.client.calls] == ["get"]


async def test_a_condition_that_somebody_removed_comes_back(running: Cluster) -> None:
    running.node.see(one("10.0.0.10/32"))
    await asyncio.sleep(LOOK_SECONDS)
    running.api.put(NODES, {"metadata": {"name": NAME}, "status": {"conditions": [READY]}})
    await asyncio.sleep(2 * READ_SECONDS)
    assert running.conditions[ADDRESSES_AVAILABLE]["status"] == "True"


async def test_an_api_server_that_is_away_is_tried_again_and_harms_nothing(running: Cluster) -> None:
    running.away = True
    running.node.see(one())
    running.node.store.shortage = "no address"
    await asyncio.sleep(LOOK_SECONDS)
    running.client.calls.clear()
    await asyncio.sleep(300)
    assert 3 <= len(running.client.calls) <= 60
    running.node.see(one("10.0.0.10/32"))
    assert await running.node.add("c1") == "10.0.0.10"
    running.away = False
    await asyncio.sleep(120)
    assert (running.conditions[ADDRESSES_AVAILABLE]["status"], running.node.store.shortage) == ("False", "no address")


async def test_a_condition_that_is_known_later_comes_beside_the_first(running: Cluster) -> None:
    await asyncio.sleep(2 * LOOK_SECONDS)
    assert TRAFFIC_DIVERTED not in running.conditions
    for diversions, status, reason in (
        ((), "False", "NoForeignRouting"),
        (("rule 100 catches",), "True", "ForeignRouting"),
    ):
        running.diversions = diversions
        await asyncio.sleep(2 * LOOK_SECONDS)
        told = running.conditions[TRAFFIC_DIVERTED]
        assert (told["status"], told["reason"]) == (status, reason)
    assert running.conditions[TRAFFIC_DIVERTED]["message"] == "rule 100 catches"
    assert running.conditions["Ready"] == READY


def test_the_time_of_the_transition_stays_while_the_status_does() -> None:
    [add] = plan_conditions((), [describe_addresses("no address")], now=NOON)
    [told] = add["value"]
    assert told["lastTransitionTime"] == "2030-01-01T12:00:00Z"
    later = datetime(2030, 1, 1, 13, tzinfo=UTC)
    _, changed = plan_conditions([READY, told], [describe_addresses("no interface")], now=later)
    assert changed["path"] == "/status/conditions/1"
    assert changed["value"]["lastTransitionTime"] == told["lastTransitionTime"]
    assert changed["value"]["message"] == "no interface"
    _, solved = plan_conditions([told], [describe_addresses(None)], now=later)
    assert solved["value"]["lastTransitionTime"] == "2030-01-01T13:00:00Z"
    assert plan_conditions([solved["value"]], [describe_addresses(None)], now=NOON) == []


async def test_of_several_conditions_those_that_differ_are_written(cluster: Cluster) -> None:
    """In one patch, wherever they are in the list."""
    for obstacle, diversions in (("no address", ()), ("no address", ("a", "b")), (None, ("a", "b")), (None, ())):
        wanted = [describe_diversions(diversions), describe_addresses(obstacle)]
        patch = plan_conditions(list(cluster.conditions.values()), wanted, now=NOON)
        assert len(patch) == 2, "two conditions, or a check and a condition"
        await cluster.client.patch(NODES, NAME, patch, subresource="status")
        told = {each: cluster.conditions[each]["status"] for each in ("Ready", ADDRESSES_AVAILABLE, TRAFFIC_DIVERTED)}
        available, diverted = str(obstacle is None), str(bool(diversions))
        assert told == {"Ready": "True", ADDRESSES_AVAILABLE: available, TRAFFIC_DIVERTED: diverted}
        assert plan_conditions(list(cluster.conditions.values()), wanted, now=NOON) == []


def test_the_limit_of_pods_and_the_addresses_are_in_the_condition() -> None:
    beyond, within = describe_pod_limit(pods_limit=110, ip_max=18), describe_pod_limit(pods_limit=18, ip_max=18)
    assert (beyond.type, beyond.status, beyond.reason) == (POD_LIMIT_TOO_HIGH, True, "PodLimitExceedsAddresses")
    assert beyond.message.startswith("the Node allows 110 pods, but at most 18 can have an address")
    assert (within.type, within.status, within.reason) == (POD_LIMIT_TOO_HIGH, False, "PodLimitWithinAddresses")
    assert within.message == "the Node allows 18 pods, and 18 can have an address"


def test_diversions_that_do_not_fit_are_counted() -> None:
    many = [f"rule {number} catches what pods of eth1 send" for number in range(100, 200)]
    message = describe_diversions(many).message
    assert len(message) <= 1024
    shown = message.split("; ")
    assert shown[:-1] == many[: len(shown) - 1]
    assert shown[-1] == f"and {len(many) - len(shown) + 1} more"
    assert describe_diversions(many[:2]).message == "; ".join(many[:2])
    assert len(describe_diversions(["x" * 2000, "y"]).message) == 1024


async def test_a_list_that_changed_meanwhile_lets_the_patch_fail(cluster: Cluster) -> None:
    [add] = plan_conditions((), [describe_addresses(None)], now=NOON)
    patch = plan_conditions([READY, add["value"][0]], [describe_addresses("no address")], now=NOON)
    with pytest.raises(InvalidError):
        await cluster.client.patch(NODES, NAME, patch, subresource="status")
