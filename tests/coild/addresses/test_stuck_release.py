"""Blocks that should have gone long ago are told of, with what holds them."""

from coil.crd.address_block import ADDRESS_BLOCKS
from coil.crd.names import FINALIZER
from coil.kube.errors import UnavailableError
from coild.addresses.block_release import LATE_SECONDS
from tests.coild.scene import COOLDOWN, Coild, World, advance

BLOCK = ("AddressBlock", "default-0", "BlockReleasedLate")


def told(coild: Coild) -> list[tuple[str, str, str, str]]:
    coild.stuck.report()
    return coild.recorder.told


async def test_what_goes_in_time_is_nothing_to_tell(world: World, coild: Coild) -> None:
    await coild.add("c1")
    assert told(coild) == []
    await coild.delete("c1")
    await advance(COOLDOWN + 1)
    assert world.blocks == []
    await advance(LATE_SECONDS)
    assert told(coild) == []


async def test_a_release_that_fails_for_long(world: World, coild: Coild) -> None:
    await coild.add("c1")
    coild.gate.fault = lambda call, moment: UnavailableError("away") if call.plural == "addressblocks" else None
    await coild.delete("c1")
    await advance(COOLDOWN + 1)
    assert told(coild) == []
    await advance(LATE_SECONDS - 1)
    assert told(coild) == []
    await advance(1)
    message = "node node1 has given the block back, but its object could not be removed"
    assert told(coild) == [(*BLOCK, message)]
    coild.gate.fault = lambda call, moment: None
    await advance(LATE_SECONDS)
    assert world.blocks == []
    assert len(told(coild)) == 1, "and it went"


async def test_a_block_that_somebody_else_s_finalizer_keeps(world: World, coild: Coild) -> None:
    await coild.add("c1")
    patch = {"metadata": {"finalizers": [FINALIZER, "example.com/other"]}}
    world.api.patch(ADDRESS_BLOCKS, "default-0", patch, subresource="")
    await coild.delete("c1")
    await advance(COOLDOWN + 1)
    assert told(coild) == []
    await advance(LATE_SECONDS)
    message = "node node1 has given the block back, but it still has the finalizers example.com/other"
    assert told(coild) == [(*BLOCK, message)]


async def test_a_block_that_is_asked_back_while_pods_use_it(world: World, coild: Coild) -> None:
    await coild.add("c1")
    world.api.delete(ADDRESS_BLOCKS, "default-0")
    await advance()
    assert told(coild) == []
    await advance(LATE_SECONDS)
    message = "its deletion was asked for, but pods on node node1 still have addresses of it"
    assert told(coild) == [(*BLOCK, message)]
    await coild.delete("c1")
    await advance(COOLDOWN)
    assert len(told(coild)) == 1
