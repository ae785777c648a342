"""The node's ledger follows the AddressBlocks, and the pods come before both."""

import asyncio
from collections.abc import AsyncIterator
from ipaddress import IPv4Address, IPv4Network, IPv6Address, IPv6Network

import pytest
from prometheus_client import CollectorRegistry

from coil.crd.address_block import ADDRESS_BLOCKS, AddressBlock
from coil.crd.names import (
    ANNOTATION_OCCUPIED,
    FINALIZER,
    LABEL_NODE,
    LABEL_REQUEST,
    BlockName,
    NodeName,
    PoolName,
    RequestUid,
)
from coil.ipam.node_ledger import LedgerConflictError, Reuse
from coil.ipam.occupancy import Tally
from coil.podnet.host_link import PodAlias
from coil.reconcile.informer import Informer, InformerMetrics
from coild.addresses.block_release import ReleasableBlocks
from coild.addresses.block_store import BlockStore
from coild.addresses.journal import AddressJournal
from coild.addresses.pool_changes import PoolChanges
from coild.model.attachment import Attachment, PodName
from coild.model.journal_file import JournalFile
from tests.coild.block_granter import NODE
from tests.coild.scene import COOLDOWN, LOG, World, end, key, now
from tests.coild.virtual_loop import pass_turns
from tests.coild.watched_api import MemorySource

DEFAULT = PoolName("default")
POD = PodName("apps", "pod")
ZERO, ONE = BlockName("default-0"), BlockName("default-1")


class RecordedChanges(PoolChanges):
    """All marks, in order."""

    def __init__(self) -> None:
        super().__init__()
        self.marked: list[PoolName] = []
        self.emptied: list[BlockName] = []

    def mark(self, pool: PoolName) -> None:
        super().mark(pool)
        self.marked.append(pool)

    def mark_emptied(self, block: BlockName) -> None:
        super().mark_emptied(block)
        self.emptied.append(block)


class StoreScene:
    """A store behind a real informer, and the marks that it leaves."""

    def __init__(self, world: World) -> None:
        self.world = world
        self.changes = 0
        self.marks = RecordedChanges()
        self.emptied, self.marked = self.marks.emptied, self.marks.marked
        source = MemorySource(world.api, ADDRESS_BLOCKS, labels={LABEL_NODE: str(NODE)})
        metrics = InformerMetrics(CollectorRegistry())
        self.informer: Informer[AddressBlock] = Informer(source, log=LOG, metrics=metrics, clock=now)
        self.journal = AddressJournal(JournalFile(None, log=LOG), cooldown=COOLDOWN, wall=now, clock=now)
        self.store = BlockStore(
            self.informer,
            journal=self.journal,
            cooldown=COOLDOWN,
            changes=self.marks,
            networks_changed=self._changed,
            log=LOG,
            clock=now,
        )
        self.releasable = ReleasableBlocks(self.store, COOLDOWN, now)
        self.task = asyncio.create_task(self.informer.run())

    def _changed(self) -> None:
        self.changes += 1

    async def block(self, index: int, *, reserved: bool = False) -> AddressBlock:
        block = self.world.granter.block(DEFAULT, index, reserved=reserved)
        await pass_turns()
        return block

    async def patch(self, name: str, patch: dict[str, object]) -> None:
        self.world.api.patch(ADDRESS_BLOCKS, name, patch, subresource="")
        await pass_turns()

    async def ask_back(self, name: str) -> None:
        """What `kubectl delete` does: the finalizer keeps the object."""
        self.world.api.delete(ADDRESS_BLOCKS, name)
        await pass_turns()

    async def tear_out(self, name: str) -> None:
        """The object goes for good, and so fast that its deletion is all that the informer sees."""
        self.world.api.delete(ADDRESS_BLOCKS, name)
        await self.patch(name, {"metadata": {"finalizers": []}})


@pytest.fixture
async def scene(world: World) -> AsyncIterator[StoreScene]:
    scene = StoreScene(world)
    await scene.informer.wait_synced(1)
    yield scene
    await end([scene.task])


async def test_a_block_that_appears_gives_addresses_and_is_announced(scene: StoreScene) -> None:
    await scene.block(0)
    assert scene.changes == 1
    assert scene.store.networks() == [IPv4Network("10.1.0.0/31"), IPv6Network("fd01::/127")]
    first = scene.store.acquire(DEFAULT, key("c1"), POD)
    second = scene.store.acquire(DEFAULT, key("c2"), POD)
    assert first is not None
    assert second is not None
    assert (first.ipv4, first.ipv6) == (IPv4Address("10.1.0.0"), IPv6Address("fd01::"))
    assert (second.ipv4, second.ipv6) == (IPv4Address("10.1.0.1"), IPv6Address("fd01::1"))
    assert scene.store.acquire(DEFAULT, key("c3"), POD) is None


async def test_a_known_key_gets_the_same_answer_also_when_nothing_is_free(scene: StoreScene) -> None:
    await scene.block(0)
    first = scene.store.acquire(DEFAULT, key("c1"), POD)
    scene.store.acquire(DEFAULT, key("c2"), POD)
    assert scene.store.acquire(DEFAULT, key("c1"), POD) == first
    assert scene.store.acquire(PoolName("second"), key("c1"), POD) == first
    assert scene.store.find(key("c1")) == first


async def test_blocks_of_other_nodes_are_not_ours(scene: StoreScene) -> None:
    scene.world.granter.block(DEFAULT, 0, node=NodeName("node2"))
    await pass_turns()
    assert scene.store.networks() == []


async def test_a_block_is_known_by_the_request_that_it_answers(scene: StoreScene) -> None:
    plain = await scene.block(0)
    assert scene.store.answer_to(RequestUid("uid-x")) is None
    await scene.block(1)
    await scene.patch(ONE, {"metadata": {"labels": {LABEL_REQUEST: "uid-x"}}})
    assert scene.store.answer_to(RequestUid("uid-x")) == ONE
    assert plain.request == ""
    assert scene.releasable.begin_release(ONE) is not None
    assert scene.store.answer_to(RequestUid("uid-x")) is None, "it is on its way out"


async def test_an_address_cools_down_from_when_its_attachment_has_ended(scene: StoreScene) -> None:
    await scene.block(0)
    for container in ("c1", "c2"):
        scene.store.acquire(DEFAULT, key(container), POD)
    await asyncio.sleep(1000)
    scene.store.release(key("c1"), ended=now() + 1000)
    scene.store.release(key("c2"), ended=now() - COOLDOWN + 5)
    await asyncio.sleep(4.9)
    assert scene.store.acquire(DEFAULT, key("c3"), POD) is None
    await asyncio.sleep(0.2)
    found = scene.store.acquire(DEFAULT, key("c3"), POD)
    assert found is not None
    assert found.ipv4 == IPv4Address("10.1.0.1")
    await asyncio.sleep(COOLDOWN - 5.1)
    assert scene.store.acquire(DEFAULT, key("c4"), POD) is not None, "a time that is still to come is now"


async def test_each_change_of_what_a_pool_can_give_is_marked(scene: StoreScene) -> None:
    await scene.block(0)
    assert scene.marked == [DEFAULT]
    scene.store.acquire(DEFAULT, key("c1"), POD)
    assert scene.marked == [DEFAULT], "who takes an address knows of it"
    scene.store.release(key("c1"))
    scene.store.release(key("c1"))
    assert scene.marked == [DEFAULT] * 2
    scene.store.acquire(DEFAULT, key("c1"), POD)
    scene.store.revoke(key("c1"))
    assert scene.marked == [DEFAULT] * 3
    scene.releasable.begin_release(ZERO)
    assert scene.marked == [DEFAULT] * 4


async def test_a_reserved_block_is_announced_and_nothing_else(scene: StoreScene) -> None:
    await scene.block(0, reserved=True)
    assert scene.store.networks() == [IPv4Network("10.1.0.0/31"), IPv6Network("fd01::/127")]
    assert scene.store.acquire(DEFAULT, key("c1"), POD) is None
    scene.store.resume()
    scene.store.offer_unused()
    assert scene.emptied == []
    assert scene.releasable.cooldown_left(ZERO) is None
    assert scene.releasable.begin_release(ZERO) is None


async def test_a_block_that_a_node_has_come_into_gives_nothing_new_is_not_announced_and_goes(
    scene: StoreScene,
) -> None:
    """A route to it would take packets for that node away, and its address must be no pod's."""
    await scene.block(0)
    scene.store.acquire(DEFAULT, key("c1"), POD)
    changes = scene.changes
    occupied: dict[str, object] = {"metadata": {"annotations": {ANNOTATION_OCCUPIED: "10.1.0.1 of the Node n7"}}}
    await scene.patch(ZERO, occupied)
    assert scene.store.acquire(DEFAULT, key("c2"), POD) is None
    assert (scene.store.networks(), scene.changes) == ([], changes + 1)
    await scene.block(1)
    assert scene.store.networks() == [IPv4Network("10.1.0.2/31"), IPv6Network("fd01::2/127")]
    scene.emptied.clear()
    scene.store.release(key("c1"))
    assert scene.emptied == [ZERO]
    assert scene.releasable.cooldown_left(ZERO) == COOLDOWN
    await scene.patch(ZERO, {"metadata": {"annotations": None}})
    assert len(scene.store.networks()) == 4
    assert scene.store.acquire(DEFAULT, key("c2"), POD, reuse=Reuse.ANY) is not None
    scene.store.release(key("c2"))
    scene.emptied.clear()
    await scene.patch(ONE, occupied)
    assert scene.emptied == [ONE], "an empty one goes at once"


async def test_a_malformed_block_is_left_out_until_it_is_mended(scene: StoreScene) -> None:
    scene.world.api.create(
        ADDRESS_BLOCKS,
        {
            "metadata": {"name": "default-7", "labels": {LABEL_NODE: str(NODE), "coil.cybozu.com/pool": "default"}},
            "index": 7,
            "ipv4": "10.1.0.14/33",
        },
    )
    await pass_turns()
    assert (scene.store.networks(), scene.changes) == ([], 0)
    await scene.patch("default-7", {"ipv4": "10.1.0.14/31"})
    assert scene.store.networks() == [IPv4Network("10.1.0.14/31")]
    assert scene.changes == 1, "a block that is taken in late is announced as well"


async def test_an_overlapping_block_is_taken_in_when_the_other_has_gone(scene: StoreScene) -> None:
    await scene.block(0)
    scene.world.api.create(
        ADDRESS_BLOCKS,
        {
            "metadata": {"name": "old-0", "labels": {LABEL_NODE: str(NODE), "coil.cybozu.com/pool": "old"}},
            "index": 0,
            "ipv4": "10.1.0.0/30",
        },
    )
    await pass_turns()
    assert scene.store.acquire(PoolName("old"), key("c1"), POD) is None
    await scene.tear_out(ZERO)
    scene.store.offer_unused()
    assert scene.store.networks() == [IPv4Network("10.1.0.0/30")]
    assert scene.store.acquire(PoolName("old"), key("c1"), POD) is not None


async def test_an_emptied_block_is_offered_and_rests_as_long_as_its_addresses(scene: StoreScene) -> None:
    await scene.block(0)
    scene.store.acquire(DEFAULT, key("c1"), POD)
    scene.store.acquire(DEFAULT, key("c2"), POD)
    scene.emptied.clear()
    await asyncio.sleep(100)
    scene.store.release(key("c1"))
    assert scene.emptied == []
    assert scene.releasable.cooldown_left(ZERO) is None
    await asyncio.sleep(4)
    scene.store.release(key("c2"))
    assert scene.emptied == [ZERO]
    assert scene.releasable.cooldown_left(ZERO) == COOLDOWN
    await asyncio.sleep(COOLDOWN - 1)
    assert scene.releasable.cooldown_left(ZERO) == 1
    await asyncio.sleep(1)
    assert scene.releasable.cooldown_left(ZERO) == 0
    scene.store.release(key("c2"))
    assert scene.emptied == [ZERO], "an unknown key is nothing"


async def test_a_freed_address_rests_and_one_that_no_pod_has_had_does_not(scene: StoreScene) -> None:
    await scene.block(0)
    scene.store.acquire(DEFAULT, key("c1"), POD)
    unused = scene.store.acquire(DEFAULT, key("c2"), POD)
    scene.store.release(key("c1"))
    assert scene.store.acquire(DEFAULT, key("c3"), POD, reuse=Reuse.AFTER_COOLDOWN) is None
    scene.store.revoke(key("c2"))
    again = scene.store.acquire(DEFAULT, key("c3"), POD)
    assert unused is not None
    assert again is not None
    assert again.ipv4 == unused.ipv4
    assert scene.store.tally(DEFAULT) == Tally(blocks=1, allocated=1, cooling=1, free=0)
    assert scene.store.cooldown_left(DEFAULT) == COOLDOWN
    await asyncio.sleep(COOLDOWN)
    assert scene.store.cooldown_left(DEFAULT) is None
    assert scene.store.tallies() == {DEFAULT: Tally(blocks=1, allocated=1, cooling=0, free=1)}


async def test_a_block_that_is_given_back_unused_has_no_more_to_rest_for_than_a_new_one(scene: StoreScene) -> None:
    await scene.block(0)
    await asyncio.sleep(COOLDOWN)
    scene.store.acquire(DEFAULT, key("c1"), POD)
    scene.emptied.clear()
    scene.store.revoke(key("c1"))
    assert scene.emptied == [ZERO]
    assert scene.releasable.cooldown_left(ZERO) == COOLDOWN, "the ADD is about to be repeated"


async def test_collecting_does_not_shorten_the_rest(scene: StoreScene) -> None:
    await scene.block(0)
    await asyncio.sleep(3)
    scene.emptied.clear()
    scene.store.offer_unused()
    assert scene.emptied == [ZERO]
    assert scene.releasable.cooldown_left(ZERO) == COOLDOWN - 3


async def test_at_start_nobody_is_about_to_use_a_block(scene: StoreScene) -> None:
    await scene.block(0)
    scene.store.resume()
    assert scene.releasable.cooldown_left(ZERO) == 0


async def test_a_draining_block_gives_nothing_new_and_leaves_when_its_addresses_have_rested(scene: StoreScene) -> None:
    await scene.block(0)
    scene.store.acquire(DEFAULT, key("c1"), POD)
    await scene.ask_back(ZERO)
    assert scene.store.acquire(DEFAULT, key("c2"), POD) is None
    assert scene.store.networks()
    assert scene.releasable.begin_release(ZERO) is None, "its pod is still there"
    assert [block.name for block in scene.store.draining()] == [ZERO]
    scene.emptied.clear()
    scene.store.release(key("c1"))
    assert scene.emptied == [ZERO]
    assert scene.releasable.cooldown_left(ZERO) == COOLDOWN, "the next node would not know that it rests"
    assert scene.store.draining() == []


async def test_an_unused_block_that_is_asked_back_has_nothing_to_rest_for(scene: StoreScene) -> None:
    await scene.block(0)
    await scene.ask_back(ZERO)
    assert scene.releasable.cooldown_left(ZERO) == 0


async def test_an_empty_block_that_is_asked_back_is_offered(scene: StoreScene) -> None:
    await scene.block(0)
    scene.emptied.clear()
    await scene.ask_back(ZERO)
    assert scene.emptied == [ZERO]


async def test_a_block_that_is_being_released_is_out_of_the_ledger_and_stays_out(scene: StoreScene) -> None:
    block = await scene.block(0)
    pending = scene.releasable.begin_release(ZERO)
    assert pending is not None
    assert (pending.uid, pending.finalizers) == (block.metadata.uid, (FINALIZER,))
    assert scene.changes == 2
    assert scene.store.networks() == []
    assert scene.store.acquire(DEFAULT, key("c1"), POD) is None
    assert scene.releasable.begin_release(ZERO) == pending
    await scene.ask_back(ZERO)
    assert scene.store.networks() == []
    scene.emptied.clear()
    scene.store.offer_unused()
    assert scene.emptied == [ZERO], "what could not be finished is tried again"


async def test_a_pending_release_knows_the_present_finalizers(scene: StoreScene) -> None:
    await scene.block(0)
    await scene.patch(ZERO, {"metadata": {"finalizers": [FINALIZER, "example.com/other"]}})
    pending = scene.releasable.begin_release(ZERO)
    assert pending is not None
    assert pending.finalizers == (FINALIZER, "example.com/other")
    # To name it again would be to add a finalizer to an object on its way out, which the API server refuses for ever.
    await scene.patch(ZERO, {"metadata": {"finalizers": [FINALIZER]}})
    pending = scene.releasable.begin_release(ZERO)
    assert pending is not None
    assert pending.finalizers == (FINALIZER,)


async def test_a_new_block_of_the_name_of_one_that_was_released_is_taken_in(scene: StoreScene) -> None:
    await scene.block(0)
    scene.releasable.begin_release(ZERO)
    await scene.tear_out(ZERO)
    assert scene.releasable.begin_release(ZERO) is None
    await scene.block(0)
    assert scene.store.acquire(DEFAULT, key("c1"), POD) is not None


async def test_replaced_while_nobody_watched(scene: StoreScene) -> None:
    await scene.block(0)
    scene.releasable.begin_release(ZERO)
    scene.world.api.delete(ADDRESS_BLOCKS, ZERO)
    scene.world.api.patch(ADDRESS_BLOCKS, ZERO, {"metadata": {"finalizers": []}}, subresource="")
    await scene.block(0)
    assert scene.store.acquire(DEFAULT, key("c1"), POD) is not None


@pytest.mark.parametrize("name", [ZERO, ONE])
async def test_a_block_in_use_or_unknown_is_not_released(scene: StoreScene, name: BlockName) -> None:
    await scene.block(0)
    scene.store.acquire(DEFAULT, key("c1"), POD)
    assert scene.releasable.begin_release(name) is None
    assert scene.store.acquire(DEFAULT, key("c2"), POD) is not None


async def test_a_block_deleted_under_its_pods_stays_theirs_gives_nothing_new_and_goes_with_the_last(
    scene: StoreScene,
) -> None:
    await scene.block(0)
    held = scene.store.acquire(DEFAULT, key("c1"), POD)
    await scene.tear_out(ZERO)
    assert scene.store.find(key("c1")) == held
    assert scene.store.acquire(DEFAULT, key("c2"), POD) is None, "another node may own that address by now"
    assert scene.store.networks(), "its pods still need their route"
    scene.emptied.clear()
    scene.store.release(key("c1"))
    assert scene.emptied == [ZERO]
    assert scene.releasable.cooldown_left(ZERO) == 0, "another node may own its addresses by now"
    assert scene.releasable.begin_release(ZERO) is None, "there is no object to delete"
    assert scene.store.networks() == []


async def test_a_block_that_comes_back_under_its_pods_is_usable_again(scene: StoreScene) -> None:
    await scene.block(0)
    held = scene.store.acquire(DEFAULT, key("c1"), POD)
    await scene.tear_out(ZERO)
    assert not scene.store.is_here(ZERO), "the block that may be waited for is the new one"
    await scene.block(0)
    assert scene.store.is_here(ZERO)
    other = scene.store.acquire(DEFAULT, key("c2"), POD)
    assert held is not None
    assert other is not None
    assert other.ipv4 != held.ipv4


def held_attachment(container: str, ipv4: str) -> Attachment:
    return Attachment(
        key=key(container), pod=None, addresses=(IPv4Address(ipv4),), alias=PodAlias(DEFAULT, container, "eth0")
    )


async def test_what_the_kernel_holds_is_not_given_to_another(scene: StoreScene) -> None:
    await scene.block(0)
    scene.store.adopt(held_attachment("c1", "10.1.0.0"))
    other = scene.store.acquire(DEFAULT, key("c2"), POD)
    assert other is not None
    assert other.ipv4 == IPv4Address("10.1.0.1")
    assert scene.store.acquire(DEFAULT, key("c3"), POD) is None
    with pytest.raises(LedgerConflictError):
        scene.store.adopt(held_attachment("c4", "10.1.0.1"))


async def test_a_block_that_comes_after_its_pod_was_found_does_not_give_that_address(scene: StoreScene) -> None:
    with pytest.raises(LedgerConflictError):
        scene.store.adopt(held_attachment("c1", "10.1.0.0"))
    with pytest.raises(LedgerConflictError):
        scene.store.adopt(held_attachment("c2", "10.1.0.1"))
    scene.store.release(key("c2"))
    await scene.block(0)
    first = scene.store.acquire(DEFAULT, key("c3"), POD)
    assert first is not None
    assert first.ipv4 == IPv4Address("10.1.0.1")
    assert scene.store.acquire(DEFAULT, key("c4"), POD) is None
    assert [allocation.key for allocation in scene.store.allocations()] == [key("c1"), key("c3")]
