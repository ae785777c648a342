"""The history of pools: what is kept, and what is not."""

from datetime import timedelta

from coil.crd.address_block import ADDRESS_BLOCKS
from coil.crd.address_pool import ADDRESS_POOLS, SubnetSet
from coil_ipam_controller.inspection import POINTS, POOLS, BlockHistory
from tests.coil.kube.memory_api import MemoryApi
from tests.coil_ipam_controller.memory_caches import MemoryCaches
from tests.coil_ipam_controller.scene import NOON, add_block, add_pool


class Scene:
    def __init__(self) -> None:
        self.api = MemoryApi()
        self.caches = MemoryCaches(self.api)
        self.now = NOON
        self.history = BlockHistory(self.caches.all, span=3600.0, now=lambda: self.now)

    def sample(self) -> dict[str, tuple[int, ...]]:
        self.caches.look()
        self.history.sample()
        self.now += timedelta(seconds=30)
        return {name: tuple(counts) for name, counts in self.history.read().counts.items()}


def test_an_hour_in_steps_of_half_a_minute() -> None:
    scene = Scene()
    add_pool(scene.api, "default", SubnetSet(ipv4="10.9.0.0/16"))
    assert scene.history.read().until is None
    assert scene.sample() == {"default": (0,)}
    add_block(scene.api, "default-0", 0, pool="default", node="node1")
    assert scene.sample() == {"default": (0, 1)}
    snapshot = scene.history.read()
    assert (snapshot.interval, snapshot.until) == (30.0, NOON + timedelta(seconds=30))
    for _ in range(POINTS - 1):
        scene.sample()
    assert scene.sample() == {"default": (1,) * POINTS}, "what is older than an hour is gone"


def test_a_pool_that_is_gone_is_forgotten() -> None:
    scene = Scene()
    add_pool(scene.api, "old", SubnetSet(ipv4="10.9.0.0/16"))
    scene.sample()
    scene.api.patch(ADDRESS_POOLS, "old", {"metadata": {"finalizers": []}}, subresource="")
    scene.api.delete(ADDRESS_POOLS, "old")
    add_pool(scene.api, "new", SubnetSet(ipv4="10.10.0.0/16"))
    assert scene.sample() == {"new": (0,)}


def test_blocks_that_go_lower_the_curve() -> None:
    scene = Scene()
    add_pool(scene.api, "default", SubnetSet(ipv4="10.9.0.0/16"))
    add_block(scene.api, "default-0", 0, pool="default", node="node1")
    scene.sample()
    scene.api.patch(ADDRESS_BLOCKS, "default-0", {"metadata": {"finalizers": []}}, subresource="")
    scene.api.delete(ADDRESS_BLOCKS, "default-0")
    assert scene.sample() == {"default": (1, 0)}


def test_no_more_than_so_many_pools_are_followed_and_those_that_are_stay() -> None:
    scene = Scene()
    for number in range(POOLS):
        add_pool(scene.api, f"p{number:03}", SubnetSet(ipv4="10.9.0.0/16"))
    followed = scene.sample().keys()
    add_pool(scene.api, "aaa", SubnetSet(ipv4="10.9.0.0/16"))
    assert scene.sample().keys() == followed
