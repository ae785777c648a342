"""Blocks that are not what they should be: mended where nothing can break, otherwise told of, never deleted."""

from typing import Any

import pytest

from coil.crd.address_block import ADDRESS_BLOCKS, AddressBlock
from coil.crd.address_pool import ADDRESS_POOLS, SubnetSet
from coil.crd.builtin import NODES
from coil.crd.meta import ObjectMeta, OwnerReference
from coil.crd.names import FINALIZER, LABEL_NODE, LABEL_POOL, LABEL_RESERVED
from coil.kube.errors import ConflictError
from coil.reconcile.controller import DONE, RequeueAfter
from coil_ipam_controller.block_audit_reconciler import CONFIRM_SECONDS, LATE_SECONDS, RECHECK_SECONDS
from tests.coil.kube.memory_api import Call, MemoryApi, MemoryClient, Moment
from tests.coil_ipam_controller.scene import NOON, Life, add_node, add_pool

NAME = "default-3"
RESERVED = {LABEL_RESERVED: "true"}


@pytest.fixture
def api() -> MemoryApi:
    """A pool, two nodes, and a block that is as it should be."""
    api = MemoryApi()
    pool = add_pool(api, "default", SubnetSet(ipv4="10.2.0.0/24", ipv6="fd02::/120"))
    for node in ("node1", "node2"):
        add_node(api, node)
    owner = OwnerReference(
        api_version="coil.cybozu.com/v2",
        kind="AddressPool",
        name="default",
        uid=pool.metadata.uid,
        controller=True,
        block_owner_deletion=True,
    )
    labels = {LABEL_POOL: "default", LABEL_NODE: "node1"}
    metadata = ObjectMeta(name=NAME, labels=labels, finalizers=(FINALIZER,), owner_references=(owner,))
    api.create(ADDRESS_BLOCKS, AddressBlock(metadata=metadata, index=3, ipv4="10.2.0.96/27", ipv6="fd02::60/123"))
    return api


@pytest.fixture
def life(api: MemoryApi) -> Life:
    return Life(MemoryClient(api))


def edit(life: Life, metadata: dict[str, Any] | None = None, **fields: object) -> None:
    change = {**({"metadata": metadata} if metadata else {}), **fields}
    life.client.api.patch(ADDRESS_BLOCKS, NAME, change, subresource="")
    life.caches.look()


async def audit(life: Life) -> object:
    """Both looks at the block."""
    result = await life.audit.reconcile(NAME)
    if isinstance(result, RequeueAfter) and result.seconds <= CONFIRM_SECONDS:
        life.wait(result.seconds)
        life.caches.look()
        result = await life.audit.reconcile(NAME)
    life.caches.look()
    return result


async def suspects(life: Life) -> list[str]:
    """What a resync finds."""
    return [name async for name in life.audit.all_suspects()]


async def test_a_block_that_is_as_it_should_be_costs_nothing(life: Life) -> None:
    assert await suspects(life) == []
    assert await audit(life) == DONE
    assert await life.audit.reconcile("never heard of") == DONE
    assert (life.client.calls, life.events.told) == ([], [])


@pytest.mark.parametrize("spelling", ["fd02:0::60/123", "FD02::60/123"])
async def test_networks_may_be_spelt_in_any_way(life: Life, spelling: str) -> None:
    edit(life, ipv6=spelling)
    assert await suspects(life) == []


@pytest.mark.parametrize(
    ("edited", "fault"),
    [
        ({"index": 4}, "ContradictsPool"),
        ({"ipv4": "10.2.0.128/27"}, "ContradictsPool"),
        ({"ipv4": "10.2.0.96/26"}, "ContradictsPool"),
        ({"ipv4": "nonsense"}, "ContradictsPool"),
        ({"ipv6": None}, "ContradictsPool"),
        ({"metadata": {"labels": {LABEL_NODE: None}}}, "NoNode"),
        ({"metadata": {"labels": {LABEL_POOL: None}}}, "NoPool"),
        ({"metadata": {"labels": {LABEL_POOL: "nowhere"}}}, "NoPool"),
        ({"metadata": {"labels": {LABEL_POOL: "other"}}}, "ForeignName"),
        # Also together with what could be mended: first somebody must say what is right.
        ({"index": 4, "metadata": {"finalizers": []}}, "ContradictsPool"),
    ],
)
async def test_an_edit_by_hand_is_told_once_and_changes_nothing(
    api: MemoryApi, life: Life, edited: dict[str, Any], fault: str
) -> None:
    add_pool(api, "other", SubnetSet(ipv4="10.9.0.0/24"))
    api.patch(ADDRESS_BLOCKS, NAME, edited, subresource="")
    life.caches.look()
    before = api.get(ADDRESS_BLOCKS, NAME)
    assert await suspects(life) == [NAME]
    assert await audit(life) == RequeueAfter(RECHECK_SECONDS)
    (told,) = life.events.told
    assert (told.type, told.kind, told.name, told.reason) == ("Warning", "AddressBlock", NAME, fault)
    assert life.doubtful == 1
    life.wait(RECHECK_SECONDS)
    assert await audit(life) == RequeueAfter(RECHECK_SECONDS)
    assert len(life.events.told) == 1
    assert api.get(ADDRESS_BLOCKS, NAME) == before
    assert life.client.calls == []


async def test_what_somebody_has_mended_is_forgotten(life: Life) -> None:
    edit(life, index=4)
    await audit(life)
    edit(life, index=3)
    assert await audit(life) == DONE
    assert life.doubtful == 0
    edit(life, index=4)
    await audit(life)
    assert life.events.reasons == ["ContradictsPool"] * 2


async def test_an_index_beyond_the_pool(api: MemoryApi, life: Life) -> None:
    api.patch(
        ADDRESS_POOLS, "default", {"spec": {"subnets": [{"ipv4": "10.2.0.0/26", "ipv6": "fd02::/122"}]}}, subresource=""
    )
    life.caches.look()
    await audit(life)
    (told,) = life.events.told
    assert told.message == "by its name it has the index 3, but the pool 'default' has 2 blocks"


async def test_nothing_is_said_of_blocks_of_an_invalid_pool(api: MemoryApi, life: Life) -> None:
    api.patch(ADDRESS_POOLS, "default", {"spec": {"subnets": [{"ipv4": "nonsense"}]}}, subresource="")
    life.caches.look()
    assert await suspects(life) == []


async def test_what_changes_between_the_two_looks_is_looked_at_anew(life: Life) -> None:
    edit(life, index=4)
    assert await life.audit.reconcile(NAME) == RequeueAfter(CONFIRM_SECONDS)
    life.wait(CONFIRM_SECONDS - 1)
    edit(life, index=5)
    assert await life.audit.reconcile(NAME) == RequeueAfter(CONFIRM_SECONDS)
    assert life.events.told == []


@pytest.mark.parametrize(
    "lost",
    [{"finalizers": []}, {"ownerReferences": []}, {"finalizers": ["example.com/audit"], "ownerReferences": None}],
)
async def test_lost_protection_is_given_back(api: MemoryApi, life: Life, lost: dict[str, Any]) -> None:
    before = api.get(ADDRESS_BLOCKS, NAME)
    edit(life, lost)
    assert await suspects(life) == [NAME]
    assert await audit(life) == DONE
    block = api.get(ADDRESS_BLOCKS, NAME)
    theirs = [name for name in lost.get("finalizers", ()) if name != FINALIZER]
    assert list(block.metadata.finalizers) == [*theirs, FINALIZER]
    assert block.metadata.owner_references == before.metadata.owner_references
    assert [call.verb for call in life.client.calls] == ["get", "patch"]
    assert [(told.type, told.reason) for told in life.events.told] == [("Normal", "Protected")]
    assert await suspects(life) == []


async def test_a_reference_to_an_earlier_pool_of_that_name_is_replaced(api: MemoryApi, life: Life) -> None:
    """As after a restore from a backup: Kubernetes' collector would delete the block."""
    stale = {"apiVersion": "coil.cybozu.com/v2", "kind": "AddressPool", "name": "default", "uid": "old"}
    theirs = {"apiVersion": "v1", "kind": "ConfigMap", "name": "x", "uid": "theirs", "controller": True}
    edit(life, {"ownerReferences": [stale, theirs]})
    await audit(life)
    first, second = api.get(ADDRESS_BLOCKS, NAME).metadata.owner_references
    assert (first.kind, first.uid) == ("ConfigMap", "theirs")
    assert second.uid == api.get(ADDRESS_POOLS, "default").metadata.uid
    assert not second.controller, "an object has one controller at most"


async def test_the_reference_is_to_the_pool_that_there_is(api: MemoryApi, life: Life) -> None:
    edit(life, {"ownerReferences": []})
    await life.audit.reconcile(NAME)
    life.wait(CONFIRM_SECONDS)
    api.patch(ADDRESS_POOLS, "default", {"metadata": {"finalizers": []}}, subresource="")
    api.delete(ADDRESS_POOLS, "default")
    add_pool(api, "default", SubnetSet(ipv4="10.2.0.0/24", ipv6="fd02::/120"))
    assert await life.audit.reconcile(NAME) == DONE
    assert api.get(ADDRESS_BLOCKS, NAME).metadata.owner_references == (), "the cache showed a pool that is no more"


async def test_a_block_that_has_changed_is_not_written_over(api: MemoryApi) -> None:
    async def interfere(call: Call, moment: Moment) -> None:
        if call.verb == "get":
            api.patch(ADDRESS_BLOCKS, NAME, {"metadata": {"finalizers": ["example.com/audit"]}}, subresource="")

    life = Life(MemoryClient(api, interfere))
    edit(life, {"finalizers": []})
    with pytest.raises(ConflictError):
        await audit(life)
    assert api.get(ADDRESS_BLOCKS, NAME).metadata.finalizers == ("example.com/audit",)


async def test_the_older_daemon_may_take_the_finalizer_away_before_it_deletes(api: MemoryApi, life: Life) -> None:
    edit(life, {"finalizers": []})
    assert await life.audit.reconcile(NAME) == RequeueAfter(CONFIRM_SECONDS)
    api.delete(ADDRESS_BLOCKS, NAME)
    life.caches.look()
    life.wait(CONFIRM_SECONDS)
    assert await life.audit.reconcile(NAME) == DONE
    assert (life.client.calls, life.events.told) == ([], [])


async def test_blocks_of_a_dying_pool_are_not_protected(api: MemoryApi, life: Life) -> None:
    edit(life, {"ownerReferences": []})
    api.delete(ADDRESS_POOLS, "default")
    life.caches.look()
    assert await suspects(life) == []


async def test_a_reserved_block_is_left_as_it_is(life: Life) -> None:
    edit(life, {"labels": RESERVED, "finalizers": [], "ownerReferences": []}, index=99, ipv4="192.0.2.0/24")
    assert await suspects(life) == []


async def test_a_reserved_block_of_an_absent_node_is_told_of_it_and_of_its_pool(api: MemoryApi, life: Life) -> None:
    edit(life, {"labels": RESERVED})
    node = life.caches.nodes.get("node1")
    assert list(life.audit.reserved_of(node, None)) == [NAME]
    api.delete(NODES, "node1")
    life.caches.look()
    assert await audit(life) == RequeueAfter(RECHECK_SECONDS)
    assert [(told.kind, told.name, told.reason) for told in life.events.told] == [
        ("AddressBlock", NAME, "NodeGone"),
        ("AddressPool", "default", "NodeGone"),
    ]
    assert api.find(ADDRESS_BLOCKS, NAME) is not None
    add_node(api, "node1")
    life.caches.look()
    life.wait(RECHECK_SECONDS)
    assert await audit(life) == DONE
    assert life.doubtful == 0


async def test_a_block_that_was_moved_to_another_node_is_told(api: MemoryApi, life: Life) -> None:
    await suspects(life)
    before = life.caches.blocks.get(NAME)
    edit(life, {"labels": {LABEL_NODE: "node2"}})
    after = life.caches.blocks.get(NAME)
    assert list(life.audit.suspects(before, after)) == [NAME]
    assert await audit(life) == RequeueAfter(RECHECK_SECONDS)
    (told,) = life.events.told
    assert told.reason == "NodeChanged"
    assert "from the node 'node1' to 'node2'" in told.message
    assert api.get(ADDRESS_BLOCKS, NAME).node == "node2"
    edit(life, {"labels": {LABEL_NODE: "node1"}})
    assert list(life.audit.suspects(after, life.caches.blocks.get(NAME))) == [NAME]
    assert await audit(life) == DONE
    assert life.doubtful == 0


async def test_a_block_that_does_not_go_is_told_and_one_that_goes_is_not(api: MemoryApi, life: Life) -> None:
    await suspects(life)
    life.wait(-12 * 3600)
    before = life.caches.blocks.get(NAME)
    api.delete(ADDRESS_BLOCKS, NAME)
    life.caches.look()
    going = life.caches.blocks.get(NAME)
    assert going is not None
    assert going.metadata.deletion_timestamp == NOON.replace(hour=0)
    assert list(life.audit.suspects(before, going)) == [NAME]
    assert await life.audit.reconcile(NAME) == RequeueAfter(LATE_SECONDS)
    life.wait(LATE_SECONDS)
    assert await life.audit.reconcile(NAME) == RequeueAfter(RECHECK_SECONDS)
    (told,) = life.events.told
    assert told.reason == "ReleasedLate"
    assert "'node1'" in told.message
    edit(life, {"finalizers": []})
    assert list(life.audit.suspects(going, None)) == [NAME]
    assert await life.audit.reconcile(NAME) == DONE
    assert life.doubtful == 0
