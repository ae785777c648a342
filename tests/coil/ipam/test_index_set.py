"""Which indices are taken, between what the cache shows and what is under way."""

import dataclasses

import pytest

from coil.crd.address_block import AddressBlock
from coil.crd.address_pool import AddressPool, AddressPoolSpec, SubnetSet
from coil.crd.meta import ObjectMeta
from coil.crd.names import PoolName, RequestUid
from coil.ipam.index_set import IndexSet
from coil.ipam.layout import PoolLayout, parse_layout

POOL = PoolName("pool")
A, B, C = RequestUid("a"), RequestUid("b"), RequestUid("c")


class Scene:
    def __init__(self, blocks: int = 4) -> None:
        self.now = 0.0
        self.indices = IndexSet(lambda: self.now, lifetime=60)
        self.layout = layout(blocks)

    def reserve(self, request: RequestUid) -> int | None:
        planned = self.indices.reserve(self.layout, request)
        return None if planned is None else planned.index


def layout(blocks: int) -> PoolLayout:
    subnets = tuple(SubnetSet(ipv4=f"10.0.{number}.0/32") for number in range(blocks))
    spec = AddressPoolSpec(block_size_bits=0, subnets=subnets)
    return parse_layout(AddressPool(metadata=ObjectMeta(name=POOL), spec=spec))


def large_layout() -> PoolLayout:
    spec = AddressPoolSpec(subnets=(SubnetSet(ipv6="fd00::/64"),))
    return parse_layout(AddressPool(metadata=ObjectMeta(name=POOL), spec=spec))


def block(index: int, name: str = "") -> AddressBlock:
    labels = {"coil.cybozu.com/pool": str(POOL)}
    return AddressBlock(metadata=ObjectMeta(name=name or f"pool-{index}", labels=labels), index=index)


@pytest.fixture
def scene() -> Scene:
    return Scene()


def test_requests_get_different_indices(scene: Scene) -> None:
    assert [scene.reserve(request) for request in (A, B, C)] == [0, 1, 2]


def test_a_request_gets_its_index_again(scene: Scene) -> None:
    assert [scene.reserve(request) for request in (A, B, A, B)] == [0, 1, 0, 1]


def test_what_the_cache_shows_is_taken(scene: Scene) -> None:
    for index in (0, 2):
        scene.indices.observe(None, block(index))
    assert [scene.reserve(request) for request in (A, B, C)] == [1, 3, None]
    scene.indices.observe(block(2), None)
    assert scene.reserve(C) == 2


def test_what_the_layout_withholds_is_not_given_and_counts_if_it_exists() -> None:
    scene = Scene(5)
    scene.layout = dataclasses.replace(scene.layout, withheld=((0, 1), (3, 3)))
    assert scene.indices.capacity(scene.layout) == 2
    scene.indices.observe(None, block(1))
    assert scene.indices.capacity(scene.layout) == 3
    assert [scene.reserve(request) for request in (A, B, C)] == [2, 4, None]


def test_a_large_part_that_is_withheld_costs_nothing() -> None:
    scene = Scene()
    scene.layout = dataclasses.replace(large_layout(), withheld=((0, 2**58 - 1),))
    assert scene.reserve(A) == 2**58


def test_two_blocks_of_one_index_count_as_two(scene: Scene) -> None:
    scene.indices.observe(None, block(0))
    scene.indices.observe(None, block(0, "pool-0-v1"))
    scene.indices.observe(block(0), None)
    assert scene.reserve(A) == 1


def test_it_knows_how_many_indices_are_taken(scene: Scene) -> None:
    assert scene.indices.used(POOL) == 0
    reserved = block(0, "pool-0-v1")
    for shown in (block(0), reserved, block(2)):
        scene.indices.observe(None, shown)
    assert scene.indices.used(POOL) == 2, "two blocks of one index take one"
    scene.indices.observe(reserved, None)
    assert scene.indices.used(POOL) == 2
    scene.indices.observe(block(2), None)
    assert scene.indices.used(POOL) == 1


def test_a_change_of_a_block_changes_nothing(scene: Scene) -> None:
    scene.indices.observe(None, block(0))
    scene.indices.observe(block(0), block(0))
    assert scene.reserve(A) == 1
    scene.indices.observe(block(0), None)
    assert scene.reserve(B) == 0


def test_a_released_index_is_free_at_once(scene: Scene) -> None:
    scene.reserve(A)
    scene.indices.release(scene.layout.block_at(0), A)
    assert scene.reserve(B) == 0


def test_a_created_index_is_taken_until_shown_and_gone(scene: Scene) -> None:
    scene.reserve(A)
    scene.indices.mark_created(scene.layout.block_at(0), A)
    assert scene.reserve(B) == 1
    scene.indices.observe(None, block(0))
    scene.now = 1000
    assert scene.reserve(C) == 2
    scene.indices.observe(block(0), None)
    assert scene.reserve(RequestUid("d")) == 0


def test_an_index_that_was_shown_and_went_is_free_though_nobody_asked_meanwhile(scene: Scene) -> None:
    planned = scene.indices.reserve(scene.layout, A)
    assert planned is not None
    scene.indices.mark_created(planned, A)
    scene.indices.observe(None, block(0))
    scene.indices.observe(block(0), None)
    assert scene.reserve(B) == 0


def test_a_block_that_is_shown_before_its_creation_is_answered_leaves_no_reservation(scene: Scene) -> None:
    planned = scene.indices.reserve(scene.layout, A)
    assert planned is not None
    scene.indices.observe(None, block(0))
    scene.indices.mark_created(planned, A)
    scene.indices.observe(block(0), None)
    assert scene.reserve(B) == 0


def test_a_created_index_that_is_never_shown_is_forgotten_in_time(scene: Scene) -> None:
    scene.reserve(A)
    scene.indices.mark_created(scene.layout.block_at(0), A)
    scene.now = 59.9
    assert scene.reserve(B) == 1
    scene.now = 60
    assert scene.reserve(C) == 0


def test_a_creation_under_way_is_never_forgotten(scene: Scene) -> None:
    scene.reserve(A)
    scene.now = 1e9
    assert scene.reserve(B) == 1
    assert scene.indices.creating(POOL)
    scene.indices.mark_created(scene.layout.block_at(0), A)
    scene.indices.release(scene.layout.block_at(1), B)
    assert not scene.indices.creating(POOL)
    assert not scene.indices.creating(PoolName("never heard of"))


def test_a_foreign_index_is_somebody_elses(scene: Scene) -> None:
    scene.reserve(A)
    scene.indices.mark_created(scene.layout.block_at(0), A)
    scene.indices.mark_foreign(scene.layout.block_at(0), A)
    assert [scene.reserve(A), scene.reserve(B)] == [1, 2]


def test_two_requests_may_have_been_promised_one_index(scene: Scene) -> None:
    promised = scene.layout.block_at(0)
    scene.indices.take(promised, A)
    scene.indices.take(promised, B)
    scene.indices.mark_created(promised, A)
    assert scene.indices.creating(POOL), "the other one still is"
    scene.indices.mark_foreign(promised, B)
    assert [scene.reserve(B), scene.reserve(C)] == [1, 2]


def test_a_reservation_outside_a_pool_that_is_smaller_by_now_counts_for_nothing(scene: Scene) -> None:
    scene.indices.take(scene.layout.block_at(3), A)
    scene.layout = layout(2)
    assert scene.reserve(A) == 0


def test_an_index_whose_addresses_another_block_has_is_passed_over_and_told_of() -> None:
    told: list[tuple[int, str]] = []
    indices = IndexSet(lambda: 0.0, passed_over=lambda planned, holder: told.append((planned.index, holder)))
    labels = {"coil.cybozu.com/pool": "other"}
    foreign = AddressBlock(metadata=ObjectMeta(name="other-0", labels=labels), index=0, ipv4="10.0.0.0/23")
    indices.observe(None, foreign)
    planned = indices.reserve(layout(4), A)
    assert planned is not None
    assert (planned.index, told) == (2, [(0, "other-0"), (1, "other-0")])
    indices.observe(foreign, None)
    planned = indices.reserve(layout(4), B)
    assert planned is not None
    assert planned.index == 0


def test_a_pool_whose_free_addresses_are_all_another_blocks_is_exhausted() -> None:
    indices = IndexSet(lambda: 0.0)
    indices.observe(None, AddressBlock(metadata=ObjectMeta(name="hand-made"), index=0, ipv4="10.0.0.0/16"))
    assert indices.reserve(layout(4), A) is None
