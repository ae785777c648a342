"""What the Node object tells coild, and what coild has it tell."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import suppress
from datetime import UTC, datetime
from typing import Any

import pytest

from coil.crd.builtin import NODES
from coil.crd.names import NodeName
from coil.kube.errors import InvalidError, UnavailableError
from coild.eni.node_object import CONDITION, LOOK_SECONDS, READ_SECONDS, NodeObject, plan_condition
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
        self.client = MemoryClient(self.api, self._gate)
        self.node = Node(None)
        self.object = NodeObject(
            self.client,
            self.node.store,
            node=NAME,
            clock=loop_time,
            random=lambda: 0.5,
            log=LOG,
            wall=lambda: NOON,
        )

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
    assert cluster.conditions[CONDITION]["status"] == "False", "which is the only one now"


async def test_the_condition_follows_the_store(running: Cluster) -> None:
    await pass_turns()
    assert running.conditions[CONDITION]["status"] == "False"
    assert running.conditions["Ready"] == READY
    running.node.see(one("10.0.0.10/32"))
    await asyncio.sleep(2 * LOOK_SECONDS)
    assert running.conditions[CONDITION]["status"] == "True"
    running.node.see(one())
    running.node.store.shortage = "subnet-1 has no free address"
    await asyncio.sleep(2 * LOOK_SECONDS)
    told = running.conditions[CONDITION]
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
    assert running.conditions[CONDITION]["status"] == "True"


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
    assert (running.conditions[CONDITION]["status"], running.node.store.shortage) == ("False", "no address")


def test_the_time_of_the_transition_stays_while_the_status_does() -> None:
    [add] = plan_condition((), "no address", now=NOON)
    [told] = add["value"]
    assert told["lastTransitionTime"] == "2030-01-01T12:00:00Z"
    later = datetime(2030, 1, 1, 13, tzinfo=UTC)
    _, changed = plan_condition([READY, told], "no interface", now=later)
    assert changed["path"] == "/status/conditions/1"
    assert changed["value"]["lastTransitionTime"] == told["lastTransitionTime"]
    assert changed["value"]["message"] == "no interface"
    _, solved = plan_condition([told], None, now=later)
    assert solved["value"]["lastTransitionTime"] == "2030-01-01T13:00:00Z"
    assert plan_condition([solved["value"]], None, now=NOON) == []


async def test_a_list_that_changed_meanwhile_lets_the_patch_fail(cluster: Cluster) -> None:
    [add] = plan_condition((), None, now=NOON)
    patch = plan_condition([READY, add["value"][0]], "no address", now=NOON)
    with pytest.raises(InvalidError):
        await cluster.client.patch(NODES, NAME, patch, subresource="status")
