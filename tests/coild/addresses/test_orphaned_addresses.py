"""Blocks that were edited under their pods while coild was away are not given back before the pods have gone."""

import asyncio
from collections.abc import AsyncIterator
from ipaddress import IPv4Address, IPv4Network
from typing import Any

import pytest

from coil.crd.address_block import ADDRESS_BLOCKS
from coil.crd.names import LABEL_POOL, BlockName, PoolName
from coil.ipam.node_ledger import LedgerConflictError
from coild.addresses.block_release import LATE_SECONDS
from coild.model.attachment import AddressUnavailableError, Attachment
from tests.coild.addresses.test_block_store import DEFAULT, ONE, POD, ZERO, StoreScene, held_attachment, scene
from tests.coild.scene import ACQUIRE_TIMEOUT, COOLDOWN, Coild, World, addresses, advance, key, now
from tests.coild.virtual_loop import pass_turns

__all__ = ["scene"]

ELSEWHERE = {"ipv4": "10.99.0.0/31", "ipv6": "fd99::/127"}
EDITS: dict[str, dict[str, Any]] = {
    "addresses": ELSEWHERE,
    "half": {"ipv4": "10.1.0.1/32", "ipv6": "fd01::1/128"},
    "pool": {"metadata": {"labels": {LABEL_POOL: "second"}}},
}


async def edited(world: World, coild: Coild, change: dict[str, Any]) -> Coild:
    """The next life, after the block of a pod c1 was changed."""
    await coild.add("c1")
    await advance(1)
    await coild.kill()
    world.api.patch(ADDRESS_BLOCKS, "default-0", change, subresource="")
    successor = Coild(world)
    await successor.start()
    await advance()
    return successor


@pytest.mark.parametrize("edit", EDITS)
async def test_an_edited_block_stays_until_its_pods_have_gone(world: World, coild: Coild, edit: str) -> None:
    successor = await edited(world, coild, EDITS[edit])
    uid = world.api.get(ADDRESS_BLOCKS, "default-0").metadata.uid
    await advance(100 * COOLDOWN)
    await successor.pods.collect()
    await advance(100 * COOLDOWN)
    assert world.blocks == ["default-0"]
    assert uid == world.api.get(ADDRESS_BLOCKS, "default-0").metadata.uid
    request = successor.request("c1")
    assert addresses(await successor.pods.add(request)) == ["10.1.0.0", "fd01::"]
    await successor.delete("c1")
    await advance()
    assert world.blocks == [], "it has gone with the last of them, and had nothing to rest for"
    await successor.kill()


async def test_a_suspect_gives_nothing_and_blocks_that_came_later_come_and_go(world: World, coild: Coild) -> None:
    successor = await edited(world, coild, ELSEWHERE)
    assert await successor.add("c2") == ["10.1.0.2", "fd01::2"], "from another block"
    await successor.delete("c2")
    await advance(COOLDOWN)
    assert world.blocks == ["default-0"]
    await successor.delete("c1")
    await successor.kill()


async def test_a_suspect_that_is_asked_back_stays_as_well(world: World, coild: Coild) -> None:
    successor = await edited(world, coild, ELSEWHERE)
    world.api.delete(ADDRESS_BLOCKS, "default-0")
    await advance(COOLDOWN)
    assert world.blocks == ["default-0"]
    await successor.delete("c1")
    await advance(COOLDOWN)
    assert world.blocks == []
    await successor.kill()


async def test_a_block_that_is_mended_has_its_pods_back(world: World, coild: Coild) -> None:
    successor = await edited(world, coild, ELSEWHERE)
    assert "10.99.0.0/31" in world.exported
    world.api.patch(ADDRESS_BLOCKS, "default-0", {"ipv4": "10.1.0.0/31", "ipv6": "fd01::/127"}, subresource="")
    await advance()
    assert successor.source.held() == {key("c1")}
    assert world.exported == {"10.1.0.0/31", "fd01::/127"}
    assert await successor.add("c2") == ["10.1.0.1", "fd01::1"], "and it gives again"
    for container in ("c1", "c2"):
        await successor.delete(container)
    await advance(COOLDOWN)
    assert world.blocks == []
    await successor.kill()


async def test_it_is_told_of(world: World, coild: Coild) -> None:
    successor = await edited(world, coild, ELSEWHERE)
    successor.stuck.report()
    await advance(LATE_SECONDS)
    successor.stuck.report()
    message = (
        "pods on node node1 have addresses that are in none of its blocks: 10.1.0.0, fd01::; "
        "in case they were this block's, it is kept until they have gone"
    )
    assert successor.recorder.told == [("AddressBlock", "default-0", "BlockReleasedLate", message)]
    await successor.delete("c1")
    await advance()
    assert successor.store.kept() == []
    await successor.kill()


async def test_a_block_with_pods_is_a_suspect_too_and_gives_what_it_has(scene: StoreScene) -> None:
    """It was halved: one of its pods is in it still."""
    await scene.block(0)
    await scene.block(1)
    scene.store.adopt(held_attachment("c1", "10.1.0.0"))
    with pytest.raises(LedgerConflictError):
        scene.store.adopt(held_attachment("c2", "10.1.9.9"))
    scene.store.resume()
    given = scene.store.acquire(DEFAULT, key("c3"), POD)
    assert given is not None
    assert given.ipv4 == IPv4Address("10.1.0.1")
    assert scene.store.acquire(DEFAULT, key("c4"), POD) is None
    scene.store.release(key("c1"))
    scene.store.release(key("c3"))
    assert (scene.releasable.cooldown_left(ZERO), scene.releasable.begin_release(ZERO)) == (None, None)
    assert [document.name for document, _ in scene.store.kept()] == [ZERO, ONE]
    scene.emptied.clear()
    scene.store.release(key("c2"))
    assert scene.emptied == [ZERO, ONE]
    assert scene.releasable.cooldown_left(ZERO) == COOLDOWN
    assert scene.releasable.begin_release(ONE) is not None


async def test_blocks_of_other_pools_are_none_of_it(scene: StoreScene) -> None:
    await scene.block(0)
    scene.world.granter.block(PoolName("second"), 0)
    await pass_turns()
    with pytest.raises(LedgerConflictError):
        scene.store.adopt(held_attachment("c2", "10.1.9.9"))
    scene.store.resume()
    assert scene.releasable.begin_release(BlockName("second-0")) is not None
    assert scene.releasable.begin_release(ZERO) is None


async def test_a_suspect_whose_object_goes_leaves_the_ledger(scene: StoreScene) -> None:
    await scene.block(0)
    with pytest.raises(LedgerConflictError):
        scene.store.adopt(held_attachment("c2", "10.1.9.9"))
    scene.store.resume()
    await scene.tear_out(ZERO)
    assert (scene.store.networks(), scene.store.kept()) == ([], [])
    await scene.block(0)
    assert scene.store.networks()[0] == IPv4Network("10.1.0.0/31")
    assert scene.store.acquire(DEFAULT, key("c1"), POD) is not None, "a new one is no suspect"


async def test_two_that_claim_one_address_are_no_reason_to_keep_a_block(scene: StoreScene) -> None:
    await scene.block(0)
    await scene.block(1)
    scene.store.adopt(held_attachment("c1", "10.1.0.0"))
    with pytest.raises(LedgerConflictError):
        scene.store.adopt(held_attachment("c2", "10.1.0.0"))
    scene.store.resume()
    assert scene.releasable.begin_release(ONE) is not None
    assert scene.releasable.cooldown_left(ZERO) is None
    scene.store.release(key("c2"))
    scene.store.release(key("c1"))
    assert scene.releasable.begin_release(ZERO) is not None


async def test_who_claims_the_slot_that_comes_free_has_it(scene: StoreScene) -> None:
    await scene.block(0)
    scene.store.adopt(held_attachment("stranger", "10.1.0.0"))
    with pytest.raises(LedgerConflictError):
        scene.store.adopt(held_attachment("pod", "10.1.0.0"))
    scene.store.resume()
    scene.emptied.clear()
    scene.store.release(key("stranger"))
    held = scene.store.find(key("pod"))
    assert held is not None
    assert held.ipv4 == IPv4Address("10.1.0.0")
    assert scene.emptied == []
    scene.store.release(key("pod"))
    assert scene.emptied == [ZERO]


class TestWaitsAgain:
    """The pod's sandbox is made anew: it is to get another address, and the block that it was suspected of is free."""

    @pytest.fixture
    async def successor(self, world: World, coild: Coild) -> AsyncIterator[Coild]:
        """Of the next life, in which the addresses of a pod c1 are in none of its blocks."""
        successor = await edited(world, coild, ELSEWHERE)
        world.granter.away = True
        yield successor
        await successor.kill()

    def acquire(self, coild: Coild, container: str) -> asyncio.Task[Attachment]:
        request = coild.request(container)
        return coild.spawn(coild.source.acquire(request.key, request, timeout=ACQUIRE_TIMEOUT))

    async def test_and_a_block_arrives(self, world: World, successor: Coild) -> None:
        waiting = self.acquire(successor, "c1")
        await advance(1)
        world.granter.block(DEFAULT, 1)
        await advance()
        assert successor.ended == [], "the informer goes on"
        assert str(waiting.result().ipv4) == "10.1.0.2"
        assert successor.source.held() == {key("c1")}

    @pytest.mark.parametrize("others", [0, 1, 3])
    async def test_with_others_and_a_block_arrives(self, world: World, successor: Coild, others: int) -> None:
        calls = [self.acquire(successor, container) for container in ("c1", *(f"d{n}" for n in range(others)))]
        await advance(1)
        world.granter.block(DEFAULT, 1)
        await advance()
        assert successor.ended == []
        served = [call.result() for call in calls[:4] if call.done()]
        # Two of the new block, and two of the one that is suspected no more.
        assert len(served) == len({addresses.ipv4 for addresses in served}) == 1 + others
        begin = now()
        if others < 3:
            await self.acquire(successor, "e1")
        assert now() == begin, "nobody waits any longer, so whoever comes next finds no queue"

    async def test_and_is_given_an_address_that_rests_as_nobody_answers(self, world: World, successor: Coild) -> None:
        world.granter.block(DEFAULT, 1)
        await advance()
        for container in ("d0", "d1"):
            await self.acquire(successor, container)
        with pytest.raises(AddressUnavailableError):
            await self.acquire(successor, "d2")
        successor.source.release(key("d0"))
        begin = now()
        assert str((await self.acquire(successor, "c1")).ipv4) == "10.1.0.2"
        assert now() == begin
        assert successor.source.held() == {key("c1"), key("d1")}
        assert (await self.acquire(successor, "d3")).ipv4 == IPv4Address("10.99.0.0"), "of the block that it was"
        assert now() == begin, "nobody stands in the queue any more"
