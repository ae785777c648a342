"""Nodes that are dead, exist and hold blocks are reported, once and in time."""

from datetime import timedelta

import pytest
from prometheus_client import CollectorRegistry

from coil.crd.address_block import ADDRESS_BLOCKS
from coil.crd.address_pool import SubnetSet
from coil.crd.builtin import NODES, Node
from coil.reconcile.controller import DONE, RequeueAfter
from coil_ipam_controller.dead_node import DeadNodeCollector
from tests.coil.kube.memory_api import MemoryApi, MemoryClient
from tests.coil_ipam_controller.scene import NOON, Life, add_block, add_node, add_pool

LIMIT = 600


@pytest.fixture
def api() -> MemoryApi:
    api = MemoryApi()
    add_pool(api, "default", SubnetSet(ipv4="10.2.0.0/24"))
    add_pool(api, "other", SubnetSet(ipv4="10.3.0.0/24"))
    add_node(api, "node1")
    add_block(api, "default-0", 0, pool="default", node="node1")
    add_block(api, "default-1", 1, pool="default", node="node1")
    add_block(api, "other-0", 0, pool="other", node="node1")
    return api


@pytest.fixture
def life(api: MemoryApi) -> Life:
    return Life(MemoryClient(api))


def set_ready(life: Life, status: str, *, since: float = 0.0, heartbeat: float = 0.0) -> tuple[Node, Node]:
    """As the node controller of Kubernetes writes it; returns what the cache showed before and shows now."""
    before = life.caches.nodes.get("node1")
    ready = {
        "type": "Ready",
        "status": status,
        "lastTransitionTime": (NOON + timedelta(seconds=since)).isoformat(),
        "lastHeartbeatTime": (NOON + timedelta(seconds=heartbeat)).isoformat(),
    }
    pressure = {"type": "DiskPressure", "status": "True", "lastTransitionTime": NOON.isoformat()}
    change = {"status": {"conditions": [pressure, ready]}}
    life.client.api.patch(NODES, "node1", change, subresource="status")
    life.caches.look()
    after = life.caches.nodes.get("node1")
    assert before is not None
    assert after is not None
    return before, after


@pytest.mark.parametrize("status", ["False", "Unknown"])
async def test_a_dead_node_is_reported_when_it_is_time_and_once(life: Life, status: str) -> None:
    set_ready(life, status)
    life.wait(100)
    assert await life.dead_nodes.reconcile("node1") == RequeueAfter(LIMIT - 100)
    life.wait(LIMIT - 100)
    assert await life.dead_nodes.reconcile("node1") == DONE
    (told,) = life.events.told
    assert (told.type, told.kind, told.name, told.reason) == ("Warning", "Node", "node1", "HoldsBlocks")
    assert told.message == (
        "not ready since 2030-01-01 12:00:00 UTC, and holds blocks that no other node can use, of the pools "
        "default (2), other (1). If it does not come back, delete the Node object to get them back"
    )
    life.wait(3600)
    add_block(life.client.api, "other-1", 1, pool="other", node="node1")
    life.caches.look()
    assert await life.dead_nodes.reconcile("node1") == DONE
    assert len(life.events.told) == 1
    assert life.client.calls == []


async def test_one_that_came_back_and_died_again_is_reported_again(life: Life) -> None:
    set_ready(life, "Unknown")
    life.wait(LIMIT)
    await life.dead_nodes.reconcile("node1")
    set_ready(life, "True", since=LIMIT)
    assert await life.dead_nodes.reconcile("node1") == DONE
    life.wait(100)
    set_ready(life, "Unknown", since=LIMIT + 100)
    assert await life.dead_nodes.reconcile("node1") == RequeueAfter(LIMIT)
    life.wait(LIMIT)
    await life.dead_nodes.reconcile("node1")
    assert life.events.reasons == ["HoldsBlocks"] * 2


async def test_who_is_not_reported(api: MemoryApi, life: Life) -> None:
    life.wait(10 * LIMIT)
    assert await life.dead_nodes.reconcile("node1") == DONE, "never said anything of itself"
    set_ready(life, "True")
    assert await life.dead_nodes.reconcile("node1") == DONE
    assert await life.dead_nodes.reconcile("never heard of") == DONE
    set_ready(life, "Unknown")
    for block in api.all(ADDRESS_BLOCKS):
        api.patch(
            ADDRESS_BLOCKS, block.name, {"metadata": {"labels": {"coil.cybozu.com/reserved": "true"}}}, subresource=""
        )
    life.caches.look()
    assert await life.dead_nodes.reconcile("node1") == DONE, "holds nothing that would go with it"
    assert life.events.told == []


async def test_only_what_begins_or_ends_is_work(life: Life) -> None:
    changed = life.dead_nodes.changed_nodes
    assert list(changed(*set_ready(life, "True"))) == []
    assert list(changed(*set_ready(life, "True", heartbeat=300))) == []
    assert list(changed(*set_ready(life, "Unknown", since=340))) == ["node1"]
    before, after = set_ready(life, "Unknown", since=340, heartbeat=600)
    assert before.metadata.resource_version != after.metadata.resource_version
    assert list(changed(before, after)) == []
    assert list(changed(after, None)) == ["node1"]
    assert life.dead_nodes.unready_nodes() == ["node1"]


async def test_a_block_for_a_node_that_is_not_ready_is_work(life: Life) -> None:
    block = life.caches.blocks.get("default-0")
    assert list(life.dead_nodes.holders(None, block)) == []
    set_ready(life, "Unknown")
    assert list(life.dead_nodes.holders(None, block)) == ["node1"]
    assert list(life.dead_nodes.holders(block, block)) == []
    assert list(life.dead_nodes.holders(block, None)) == ["node1"]


async def test_the_metrics_follow_the_clock_and_the_cache(life: Life) -> None:
    registry = CollectorRegistry(auto_describe=True)
    now = NOON
    DeadNodeCollector(life.caches.all, registry, after=LIMIT, now=lambda: now)

    def values() -> tuple[float | None, float | None, float | None]:
        return (
            registry.get_sample_value("coil_controller_dead_nodes"),
            registry.get_sample_value("coil_controller_dead_node_blocks", {"pool": "default"}),
            registry.get_sample_value("coil_controller_dead_node_blocks", {"pool": "other"}),
        )

    set_ready(life, "Unknown")
    assert values() == (0, 0, 0)
    now += timedelta(seconds=LIMIT)
    assert values() == (1, 2, 1)
    set_ready(life, "True")
    assert values() == (0, 0, 0)
