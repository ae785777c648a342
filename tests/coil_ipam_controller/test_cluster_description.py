"""The cluster as a document: every block has its place, every pool its judgement."""

from datetime import timedelta
from typing import Any

from coil.crd.address_block import ADDRESS_BLOCKS
from coil.crd.address_pool import ADDRESS_POOLS, SubnetSet
from coil.crd.block_request import BLOCK_REQUESTS
from coil.crd.builtin import NODES
from coil.page import cluster_document as page
from coil_ipam_controller.cluster_description import ClusterSnapshot, HistorySnapshot, describe_cluster
from tests.coil.kube.memory_api import MemoryApi
from tests.coil_ipam_controller.memory_caches import MemoryCaches
from tests.coil_ipam_controller.scene import NOON, add_block, add_node, add_pool, add_request


def describe(api: MemoryApi, **history: tuple[int, ...]) -> page.ClusterDocument:
    caches = MemoryCaches(api)
    caches.look()
    counts: Any = history
    return describe_cluster(
        ClusterSnapshot(
            replica="replica-1",
            leads=False,
            at=NOON,
            pools=caches.pools.items(),
            blocks=caches.blocks.items(),
            nodes=caches.nodes.items(),
            requests=caches.requests.items(),
            history=HistorySnapshot(30.0, NOON, counts),
        )
    )


def test_an_empty_cluster() -> None:
    document = describe(MemoryApi())
    assert document == page.ClusterDocument(
        replica="replica-1", leads=False, at=NOON, blocks=page.UseCounts(), pools=(), nodes=(), requests=()
    )


def test_pools_blocks_and_nodes() -> None:
    api = MemoryApi()
    add_pool(api, "default", SubnetSet(ipv4="10.9.0.0/16", ipv6="fd09::/112"))
    add_pool(api, "lab", SubnetSet(ipv6="fd10::/64"))
    add_node(api, "node1")
    add_node(api, "node2")
    add_block(api, "default-3", 3, pool="default", node="node1")
    add_block(api, "default-0", 0, pool="default", node="node1")
    add_block(api, "default-1", 1, pool="default", node="away")
    add_block(api, "default-2", 2, pool="default", node="node1", reserved="true")
    document = describe(api, default=(1, 4))
    default, lab = document.pools
    assert [(block.index, block.node, block.state.value) for block in default.placed] == [
        (0, "node1", "used"),
        (1, "away", "orphaned"),
        (2, "node1", "reserved"),
        (3, "node1", "used"),
    ]
    assert (default.gives_blocks, default.reason, default.block_size) == (True, "", 32)
    assert default.blocks == page.UseCounts(total=2048, used=4, free=2044)
    assert default.addresses == page.UseCounts(total=65536, used=128, free=65408)
    assert default.subnets == (page.SubnetDocument(ipv4="10.9.0.0/16", ipv6="fd09::/112"),)
    assert default.history == page.HistoryDocument(interval_seconds=30.0, until=NOON, used_blocks=(1, 4))
    assert (lab.blocks.total, lab.history.used_blocks) == (2**59, ())
    assert document.blocks.used == 4
    assert [(node.name, node.present, node.blocks) for node in document.nodes] == [
        ("away", False, {"default": 1}),
        ("node1", True, {"default": 3}),
        ("node2", True, {}),
    ]


def test_a_node_that_is_not_ready() -> None:
    api = MemoryApi()
    add_node(api, "node1")
    since = NOON - timedelta(minutes=20)
    condition = {"type": "Ready", "status": "Unknown", "lastTransitionTime": since.isoformat()}
    api.patch(NODES, "node1", {"status": {"conditions": [condition]}}, subresource="status")
    (node,) = describe(api).nodes
    assert (node.present, node.unready_since) == (True, since)


def test_a_block_on_its_way_out() -> None:
    api = MemoryApi()
    add_pool(api, "default", SubnetSet(ipv4="10.9.0.0/16"))
    block = add_block(api, "default-0", 0, pool="default", node="node1")
    assert block.metadata.finalizers, "so that a deletion only marks it"
    api.delete(ADDRESS_BLOCKS, "default-0")
    assert describe(api).pools[0].placed[0].state is page.BlockState.LEAVING


def test_pools_that_give_no_blocks_say_why() -> None:
    api = MemoryApi()
    add_pool(api, "broken", SubnetSet(ipv4="nonsense"))
    add_pool(api, "leaving", SubnetSet(ipv4="10.9.0.0/16"))
    api.delete(ADDRESS_POOLS, "leaving")
    broken, leaving = describe(api).pools
    assert not broken.gives_blocks
    assert "nonsense" in broken.reason
    assert (broken.block_size, broken.blocks.total) == (0, 0)
    assert not leaving.gives_blocks
    assert "is being deleted" in leaving.reason
    assert leaving.blocks.total == 2048


def test_blocks_of_no_pool_are_seen() -> None:
    api = MemoryApi()
    add_block(api, "ghost-0", 0, pool="ghost", node="node1")
    add_block(api, "nameless", 7)
    nameless, ghost = describe(api).pools
    assert (nameless.name, nameless.reason) == ("", "these blocks name no pool")
    assert (ghost.name, ghost.reason, ghost.blocks.used) == ("ghost", "there is no such pool", 1)


def test_conditions_are_passed_on() -> None:
    api = MemoryApi()
    add_pool(api, "default", SubnetSet(ipv4="10.9.0.0/16"))
    condition = {"type": "Full", "status": "False", "reason": "HasRoom", "message": "2048 blocks are left"}
    api.patch(ADDRESS_POOLS, "default", {"status": {"conditions": [condition]}}, subresource="status")
    assert describe(api).pools[0].conditions == (
        page.ConditionDocument(type="Full", status="False", reason="HasRoom", message="2048 blocks are left"),
    )


def test_requests_until_they_have_a_block() -> None:
    api = MemoryApi()
    add_request(api, "waiting", pool="lab")
    for name, kind in (("refused", "Failed"), ("granted", "Complete")):
        add_request(api, name)
        condition = {"type": kind, "status": "True", "reason": "out of blocks", "message": "all taken"}
        status = {"conditions": [condition], "addressBlockName": "default-0"}
        api.patch(BLOCK_REQUESTS, name, {"status": status}, subresource="status")
    listed = {request.name: request for request in describe(api).requests}
    assert listed.keys() == {"waiting", "refused"}
    assert (listed["waiting"].state, listed["waiting"].pool) == (page.RequestState.PENDING, "lab")
    assert listed["refused"].reason == "out of blocks: all taken"


def test_counts_never_contradict_each_other() -> None:
    api = MemoryApi()
    add_pool(api, "small", SubnetSet(ipv4="10.9.0.0/27"))
    for index in range(3):
        add_block(api, f"small-{index}", index, pool="small", node="node1")
    assert describe(api).pools[0].blocks == page.UseCounts(total=3, used=3, free=0)
    assert timedelta(seconds=describe(api).pools[0].history.interval_seconds) == timedelta(seconds=30)
