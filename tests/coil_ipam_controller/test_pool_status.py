"""The status of pools: what it says, when it is written, and whom it tells."""

from datetime import UTC, datetime, timedelta

import pytest

from coil.crd.address_block import ADDRESS_BLOCKS
from coil.crd.address_pool import ADDRESS_POOLS, MAX_COUNT, AddressPool, AddressPoolStatus, SubnetSet, Usage
from coil.crd.block_request import BLOCK_REQUESTS, Refused
from coil.crd.builtin import NODES
from coil.kube.errors import ConflictError
from coil_ipam_controller.pool_assessment import assess_pool
from coil_ipam_controller.pool_status import plan_status
from tests.coil.kube.memory_api import MemoryApi, MemoryClient
from tests.coil_ipam_controller.scene import NOON, Life, add_block, add_node, add_pool, add_request

V4 = SubnetSet(ipv4="10.2.0.0/24")


@pytest.fixture
def api() -> MemoryApi:
    api = MemoryApi()
    add_node(api, "node1")
    return api


@pytest.fixture
def life(api: MemoryApi) -> Life:
    return Life(MemoryClient(api))


async def status_of(life: Life, name: str = "default") -> AddressPoolStatus:
    """The stored status after a reconcile with caches that are up to date."""
    life.caches.look()
    await life.statuses.reconcile(name)
    life.caches.look()
    return life.client.api.get(ADDRESS_POOLS, name).status


def conditions(status: AddressPoolStatus) -> dict[str, tuple[str, str]]:
    return {condition.type: (condition.status, condition.reason) for condition in status.conditions}


def since(status: AddressPoolStatus, type_: str) -> datetime | None:
    condition = status.condition(type_)
    assert condition is not None
    return condition.last_transition_time


def fill(api: MemoryApi, *indices: int, pool: str = "default") -> None:
    for index in indices:
        add_block(api, f"{pool}-{index}", index, pool=pool, node="node1")


def empty(api: MemoryApi, *indices: int) -> None:
    for index in indices:
        api.delete(ADDRESS_BLOCKS, f"default-{index}")
        api.patch(ADDRESS_BLOCKS, f"default-{index}", {"metadata": {"finalizers": []}}, subresource="")


async def test_a_pool_is_counted_in_blocks_and_addresses(api: MemoryApi, life: Life) -> None:
    add_pool(api, "default", V4, SubnetSet(ipv4="10.3.0.0/26"))
    status = await status_of(life)
    assert (status.blocks, status.addresses) == (Usage(total=10), Usage(total=320))
    assert conditions(status) == {"Ready": ("True", "GivesBlocks"), "Full": ("False", "HasRoom")}
    assert since(status, "Ready") == NOON
    fill(api, 0, 1, 2)
    status = await status_of(life)
    assert (status.blocks, status.addresses) == (Usage(total=10, used=3), Usage(total=320, used=96))
    assert life.events.told == []


async def test_zeros_are_written_out(api: MemoryApi, life: Life) -> None:
    add_pool(api, "default", V4)
    fill(api, 0)
    await status_of(life)
    empty(api, 0)
    assert (await status_of(life)).blocks == Usage(total=8, used=0)


async def test_what_has_not_changed_is_not_written(api: MemoryApi, life: Life) -> None:
    add_pool(api, "default", V4)
    await status_of(life)
    life.wait(100)
    await status_of(life)
    await life.statuses.reconcile("never heard of")
    assert [call.verb for call in life.client.calls] == ["patch status"]


async def test_a_pool_fills_is_exhausted_and_has_room_again(api: MemoryApi, life: Life) -> None:
    add_pool(api, "default", SubnetSet(ipv4="10.2.0.0/22"))
    fill(api, *range(28))
    assert conditions(await status_of(life))["Full"] == ("False", "HasRoom"), "28 of 32 are less than 90 %"
    life.wait(60)
    fill(api, 28)
    status = await status_of(life)
    assert conditions(status)["Full"] == ("False", "NearlyFull")
    assert since(status, "Full") == NOON, "only the reason has changed"
    life.wait(60)
    fill(api, 29, 30, 31)
    status = await status_of(life)
    assert conditions(status) == {"Ready": ("True", "GivesBlocks"), "Full": ("True", "Exhausted")}
    assert since(status, "Full") == NOON + timedelta(seconds=120)
    assert since(status, "Ready") == NOON
    empty(api, *range(10))
    assert conditions(await status_of(life))["Full"] == ("False", "HasRoom")
    assert [(told.type, told.reason) for told in life.events.told] == [
        ("Warning", "PoolNearlyFull"),
        ("Warning", "PoolExhausted"),
        ("Normal", "PoolHasRoom"),
    ]
    assert {(told.kind, told.name) for told in life.events.told} == {("AddressPool", "default")}


async def test_a_refusal_is_told_in_the_same_words(api: MemoryApi, life: Life) -> None:
    add_pool(api, "default", V4)
    fill(api, *range(8))
    await status_of(life)
    for name in ("one", "two"):
        add_request(api, name)
        life.caches.look()
        await life.requests.reconcile(name)
        assert isinstance(api.get(BLOCK_REQUESTS, name).outcome(), Refused)
    assert life.events.reasons == ["PoolExhausted"] * 3
    assert len(set(life.events.told)) == 1, "one Event that counts"


@pytest.mark.parametrize(("subnet", "reason"), [(SubnetSet(ipv4="10.2.0.0/33"), "InvalidPool"), (V4, "OverlapsPool")])
async def test_a_pool_that_gives_no_blocks_says_why(api: MemoryApi, life: Life, subnet: SubnetSet, reason: str) -> None:
    add_pool(api, "default", V4)
    add_pool(api, "late", subnet)
    status = await status_of(life, "late")
    assert conditions(status)["Ready"] == ("False", reason)
    ready = status.condition("Ready")
    assert ready is not None
    assert "spec.subnets[0].ipv4" in ready.message
    (told,) = life.events.told
    assert (told.type, told.name, told.reason, told.message) == ("Warning", "late", "PoolGivesNoBlocks", ready.message)
    if reason == "InvalidPool":
        assert status.blocks == Usage()
        assert conditions(status)["Full"] == ("Unknown", "InvalidPool")
    # A request is told the same.
    add_request(api, "req", pool="late")
    life.caches.look()
    await life.requests.reconcile("req")
    assert life.events.told == [told, told]


async def test_a_pool_is_ready_again_when_the_older_one_has_gone(api: MemoryApi, life: Life) -> None:
    older = add_pool(api, "default", V4)
    add_pool(api, "late", V4)
    await status_of(life, "late")
    api.patch(ADDRESS_POOLS, "default", {"metadata": {"finalizers": []}}, subresource="")
    api.delete(ADDRESS_POOLS, "default")
    life.caches.look()
    assert list(life.statuses.affected(older, None)) == ["late"]
    assert conditions(await status_of(life, "late"))["Ready"] == ("True", "GivesBlocks")
    assert life.events.reasons == ["PoolGivesNoBlocks", "PoolReady"]


async def test_a_pool_that_shares_some_addresses_with_an_older_one(api: MemoryApi, life: Life) -> None:
    older = add_pool(api, "default", V4)
    late = add_pool(api, "late", SubnetSet(ipv4="10.2.0.0/23"))
    fill(api, 9, pool="late")
    status = await status_of(life, "late")
    assert conditions(status) == {
        "Ready": ("True", "GivesBlocks"),
        "Full": ("False", "HasRoom"),
        "Degraded": ("True", "ConflictingAddresses"),
    }
    assert status.blocks == Usage(total=8, used=1), "those of the older one do not count"
    message = (
        "spec.subnets[0].ipv4: 10.2.0.0/23 overlaps 10.2.0.0/24 of the pool 'default'; "
        "blocks with these addresses are not given"
    )
    assert [(told.reason, told.name, told.message) for told in life.events.told] == [("PoolDegraded", "late", message)]
    # One that was given all the same, before the pools were compared, is counted.
    fill(api, 3, pool="late")
    assert (await status_of(life, "late")).blocks == Usage(total=9, used=2)
    assert life.events.reasons == ["PoolDegraded"], "told once"
    fill(api, *(index for index in range(8, 16) if index != 9), pool="late")
    assert conditions(await status_of(life, "late"))["Full"] == ("True", "Exhausted")
    api.patch(ADDRESS_POOLS, "default", {"metadata": {"finalizers": []}}, subresource="")
    api.delete(ADDRESS_POOLS, "default")
    life.caches.look()
    assert list(life.statuses.affected(older, None)) == ["late"]
    status = await status_of(life, "late")
    assert conditions(status) == {
        "Ready": ("True", "GivesBlocks"),
        "Full": ("False", "HasRoom"),
        "Degraded": ("False", "KeepsRules"),
    }
    assert status.blocks == Usage(total=16, used=9)
    assert late.status.conditions == ()


async def test_a_degraded_pool_that_is_deleted_is_not_called_sound(api: MemoryApi, life: Life) -> None:
    add_pool(api, "default", V4)
    add_pool(api, "late", SubnetSet(ipv4="10.2.0.0/23"))
    fill(api, 9, pool="late")
    assert conditions(await status_of(life, "late"))["Degraded"] == ("True", "ConflictingAddresses")
    api.delete(ADDRESS_POOLS, "late")
    found = conditions(await status_of(life, "late"))
    assert found["Ready"] == ("False", "Deleting")
    assert found["Degraded"] == ("True", "ConflictingAddresses")


async def test_a_pool_of_mixed_families_with_an_unusable_network(api: MemoryApi, life: Life) -> None:
    add_pool(
        api, "default", SubnetSet(ipv4="10.9.0.0/27"), SubnetSet(ipv6="fd09::/123"), SubnetSet(ipv4="127.0.0.0/27")
    )
    degraded = (await status_of(life)).condition("Degraded")
    assert degraded is not None
    assert degraded.reason == "ConflictingAddresses"
    assert degraded.message == (
        "spec.subnets[2].ipv4: 127.0.0.0/27 has addresses that no pod can have: 127.0.0.0/8 (loopback); "
        "blocks with these addresses are not given; "
        "spec.subnets[1]: must have the same address families as the first entry; "
        "the families of a pod's addresses depend on its block"
    )
    assert conditions(await status_of(life))["Full"] == ("False", "HasRoom")


async def test_a_dying_pool_says_who_keeps_it(api: MemoryApi, life: Life) -> None:
    add_pool(api, "default", V4)
    for index in range(7):
        add_block(api, f"default-{index}", index, pool="default", node=f"node{index % 6}")
    add_block(api, "default-7-v1", 7, pool="default", reserved="true")
    api.delete(ADDRESS_POOLS, "default")
    ready = (await status_of(life)).condition("Ready")
    assert ready is not None
    assert (ready.status, ready.reason) == ("False", "Deleting")
    assert ready.message == (
        "the pool 'default' is being deleted; 8 blocks remain, 1 of them reserved: "
        "node0 (2), no node (1), node1 (1), node2 (1), node3 (1) and 2 more"
    )
    empty(api, 1)
    status = await status_of(life)
    assert status.blocks == Usage(total=8, used=7)
    ready = status.condition("Ready")
    assert ready is not None
    assert "7 blocks remain" in ready.message
    assert [(told.type, told.reason) for told in life.events.told] == [("Normal", "PoolInUse")], "once"


async def test_a_new_leader_does_not_tell_again(api: MemoryApi, life: Life) -> None:
    add_pool(api, "default", V4)
    add_pool(api, "late", V4)
    fill(api, *range(8))
    for name in ("default", "late"):
        await status_of(life, name)
    assert len(life.events.told) == 2
    successor = Life(MemoryClient(api))
    for name in ("default", "late"):
        await status_of(successor, name)
    assert successor.events.told == []
    assert successor.client.calls == []


async def test_conditions_of_others_stay(api: MemoryApi, life: Life) -> None:
    add_pool(api, "default", V4)
    theirs = {"type": "Audited", "status": "True", "reason": "Yes"}
    api.patch(ADDRESS_POOLS, "default", {"status": {"conditions": [theirs]}}, subresource="status")
    assert conditions(await status_of(life)) == {
        "Ready": ("True", "GivesBlocks"),
        "Full": ("False", "HasRoom"),
        "Audited": ("True", "Yes"),
    }


async def test_a_status_decided_on_an_old_version_is_not_written(api: MemoryApi, life: Life) -> None:
    add_pool(api, "default", V4)
    life.caches.look()
    api.patch(ADDRESS_POOLS, "default", {"metadata": {"labels": {"a": "b"}}}, subresource="")
    with pytest.raises(ConflictError):
        await life.statuses.reconcile("default")
    assert life.events.told == []


async def test_a_new_pool_gets_its_finalizer_first(api: MemoryApi, life: Life) -> None:
    add_pool(api, "default", V4)
    api.patch(ADDRESS_POOLS, "default", {"metadata": {"finalizers": []}}, subresource="")
    assert (await status_of(life)).conditions == ()
    before = life.caches.pools.get("default")
    await life.pools.reconcile("default")
    life.caches.look()
    assert list(life.statuses.affected(before, life.caches.pools.get("default"))) == ["default"]
    assert conditions(await status_of(life))["Ready"] == ("True", "GivesBlocks")


async def test_our_own_writing_concerns_no_pool(api: MemoryApi, life: Life) -> None:
    add_pool(api, "default", V4)
    life.caches.look()
    before = life.caches.pools.get("default")
    await status_of(life)
    assert list(life.statuses.affected(before, life.caches.pools.get("default"))) == []


def planned(pool: AddressPool, used: int, nearly_full: int = 90) -> AddressPoolStatus:
    now = datetime(2030, 1, 1, tzinfo=UTC)
    standing = assess_pool(pool, ())
    total = 0 if standing.layout is None else standing.layout.capacity()
    return plan_status(pool, standing, total=total, used=used, remaining=None, nearly_full=nearly_full, now=now)


@pytest.mark.parametrize(
    ("subnet", "bits", "blocks", "addresses"),
    [
        (SubnetSet(ipv4="10.0.0.0/8"), 5, 2**19, 2**24),
        (SubnetSet(ipv6="fd00::/64"), 5, 2**59, MAX_COUNT),
        (SubnetSet(ipv6="fd00::/8"), 58, 2**62, MAX_COUNT),
        (SubnetSet(ipv6="fd00::/64"), 64, 1, MAX_COUNT),
        (SubnetSet(ipv6="fd00::1/128"), 0, 1, 1),
        (SubnetSet(ipv6="2000::/3"), 125, 1, MAX_COUNT),
    ],
)
def test_large_pools_are_counted_as_far_as_numbers_go(
    subnet: SubnetSet, bits: int, blocks: int, addresses: int
) -> None:
    pool = add_pool(MemoryApi(), "default", subnet, bits=bits)
    status = planned(pool, 0)
    assert (status.blocks, status.addresses) == (Usage(total=blocks), Usage(total=addresses))
    assert planned(pool, 1).addresses.used == min(2**bits, MAX_COUNT)


@pytest.mark.parametrize("bits", [-1, 200, 2**40])
def test_a_spec_that_no_schema_has_seen(bits: int) -> None:
    pool = add_pool(MemoryApi(), "default", V4, bits=bits)
    assert planned(pool, 1).blocks == Usage(used=1)


@pytest.mark.parametrize(
    ("used", "nearly_full", "reason"),
    [
        (89, 90, "HasRoom"),
        (90, 90, "HasRoom"),
        (91, 90, "NearlyFull"),
        (99, 90, "NearlyFull"),
        (99, 100, "HasRoom"),
        (100, 100, "Exhausted"),
        (101, 90, "Exhausted"),
    ],
)
def test_the_threshold(used: int, nearly_full: int, reason: str) -> None:
    subnets = (SubnetSet(ipv4="10.0.0.0/26"), SubnetSet(ipv4="10.1.0.0/27"), SubnetSet(ipv4="10.2.0.0/30"))
    pool = add_pool(MemoryApi(), "default", *subnets, bits=0)
    status = planned(pool, used, nearly_full)
    assert status.blocks == Usage(total=100, used=used)
    assert conditions(status)["Full"][1] == reason


async def test_a_node_that_comes_into_a_pool_is_told_and_gets_no_block_over_it(api: MemoryApi, life: Life) -> None:
    add_pool(api, "default", V4)
    await status_of(life)
    status = {"addresses": [{"type": "InternalIP", "address": "10.2.0.5"}]}
    api.patch(NODES, "node1", {"status": status}, subresource="status")
    life.caches.look()
    [node] = life.caches.nodes.items()
    assert list(life.statuses.of_node(None, node)) == ["default"]
    found = await status_of(life)
    condition = found.condition("Occupied")
    assert condition is not None
    message = "blocks with addresses of the cluster's own are not given: 10.2.0.5 of the Node node1"
    assert (condition.status, condition.reason, condition.message) == ("True", "ClusterAddresses", message)
    assert [(told.reason, told.message) for told in life.events.told] == [("PoolOccupied", message)]
    add_request(api, "r1")
    life.caches.look()
    await life.requests.reconcile("r1")
    assert api.get(BLOCK_REQUESTS, "r1").status.address_block_name == "default-1"
    # It is told once, and taken back.
    await status_of(life)
    assert len(life.events.told) == 1
    api.patch(NODES, "node1", {"status": {"addresses": []}}, subresource="status")
    condition = (await status_of(life)).condition("Occupied")
    assert condition is not None
    assert (condition.status, condition.message) == ("False", "")
