"""How large the blocks of a pool are, found out before it matters."""

from coil.crd.address_pool import ADDRESS_POOLS
from coil.crd.builtin import Namespace
from coil.crd.meta import ObjectMeta
from coil.crd.names import ANNOTATION_POOL, PoolName
from coil.kube.errors import UnavailableError
from coild.addresses.block_size import FORESEEN_POOLS, RETRY_SECONDS, BlockSizes
from coild.addresses.pool_changes import PoolChanges
from tests.coil.kube.memory_api import MemoryClient
from tests.coild.block_granter import pool
from tests.coild.scene import LOG, Coild, World, advance, now
from tests.coild.watched_api import WatchedApi

DEFAULT, SECOND, LATER = PoolName("default"), PoolName("second"), PoolName("later")


def reads(client: MemoryClient) -> list[str]:
    return [call.name for call in client.calls if call.plural == "addresspools"]


async def test_what_namespaces_name_is_read_once_each_and_one_after_the_other(world: World, coild: Coild) -> None:
    coild.gate.delay = lambda: 0.5
    for name, annotation in (("apps", ""), ("web", ""), ("lab", "second"), ("lost", "nowhere"), ("lab", "second")):
        annotations = {ANNOTATION_POOL: annotation} if annotation else {}
        coild.source.foresee(None, Namespace(metadata=ObjectMeta(name=name, annotations=annotations)))
    coild.source.foresee(Namespace(metadata=ObjectMeta(name="gone")), None)
    await advance(1.5)
    assert reads(coild.client) == ["default", "second"]
    await advance(10)
    assert reads(coild.client) == ["default", "second", "nowhere"]
    sizes = coild.sizes
    assert (sizes.of(DEFAULT), sizes.of(SECOND), sizes.of(PoolName("nowhere"))) == (2, 2, None)
    sizes.foresee(LATER)
    await advance(1)
    assert reads(coild.client)[3:] == ["later"], "the reading begins again"


async def test_a_pool_that_was_not_there_at_first_is_asked_for_when_it_matters(world: World, coild: Coild) -> None:
    sizes = coild.sizes
    sizes.foresee(LATER)
    await advance()
    world.api.create(ADDRESS_POOLS, pool("later", bits=4))
    sizes.ask(LATER)
    await advance()
    assert sizes.of(LATER) == 16


async def test_a_pool_that_cannot_be_read_is_not_asked_for_again_and_again(world: World, coild: Coild) -> None:
    coild.gate.fault = lambda call, moment: UnavailableError("away")
    sizes = coild.sizes
    for _ in range(10):
        sizes.ask(DEFAULT)
        await advance(1)
    assert reads(coild.client) == ["default"]
    coild.gate.fault = lambda call, moment: None
    await advance(RETRY_SECONDS)
    sizes.ask(DEFAULT)
    sizes.ask(DEFAULT)
    await advance()
    assert reads(coild.client) == ["default"] * 2
    assert sizes.of(DEFAULT) == 2


async def test_what_is_stored_may_be_nonsense() -> None:
    api = WatchedApi()
    api.create(ADDRESS_POOLS, pool("odd", bits=500))
    sizes = BlockSizes(MemoryClient(api), PoolChanges(), LOG, now)
    sizes.ask(PoolName("odd"))
    await advance()
    assert sizes.of(PoolName("odd")) is None


async def test_namespaces_cannot_make_it_read_for_ever() -> None:
    client = MemoryClient(WatchedApi())
    sizes = BlockSizes(client, PoolChanges(), LOG, now)
    for number in range(2 * FORESEEN_POOLS):
        sizes.foresee(PoolName(f"pool-{number}"))
    await advance(1)
    await advance(1)
    while len(reads(client)) < FORESEEN_POOLS:
        await advance(1)
    await advance(1)
    assert len(reads(client)) == FORESEEN_POOLS
    await sizes.close()


async def test_a_pool_made_anew_with_other_blocks_corrects_it(coild: Coild) -> None:
    sizes = coild.sizes
    sizes.teach(DEFAULT, 32)
    await coild.add("c1")
    assert sizes.of(DEFAULT) == 2
