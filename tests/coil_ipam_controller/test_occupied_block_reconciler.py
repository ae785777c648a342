"""Blocks with addresses of the cluster's own carry whose they are, as long as they do."""

import pytest

from coil.crd.address_block import ADDRESS_BLOCKS
from coil.crd.builtin import NODES, SERVICE_CIDRS, ServiceCidr, ServiceCidrSpec
from coil.crd.meta import ObjectMeta
from coil.kube.errors import InvalidError
from coil_ipam_controller.occupied_block_reconciler import changed_block
from tests.coil.kube.memory_api import MemoryApi, MemoryClient
from tests.coil_ipam_controller.scene import Life, add_block, add_node

THERE = "10.9.0.7 of the Node node1"


@pytest.fixture
def api() -> MemoryApi:
    """The block is 10.9.0.0/27."""
    api = MemoryApi()
    add_node(api, "node1")
    add_block(api, "default-0", 0, pool="default", node="node1")
    return api


@pytest.fixture
def life(api: MemoryApi) -> Life:
    return Life(MemoryClient(api))


def place(api: MemoryApi, *addresses: str) -> None:
    entries = [{"type": "InternalIP", "address": address} for address in addresses]
    api.patch(NODES, "node1", {"status": {"addresses": entries}}, subresource="status")


async def reconcile(life: Life) -> str:
    """What the block says then."""
    life.caches.look()
    for name in life.occupied.differing():
        await life.occupied.reconcile(name)
    return life.client.api.get(ADDRESS_BLOCKS, "default-0").occupied_by


async def test_a_node_that_comes_into_a_block_is_named_until_it_has_gone(api: MemoryApi, life: Life) -> None:
    assert await reconcile(life) == ""
    assert life.client.calls == [], "nothing to say"
    before = life.caches.nodes.get("node1")
    place(api, "10.9.0.7", "2001:db8::7")
    life.caches.look()
    after = life.caches.nodes.get("node1")
    assert list(life.occupied.of_node(before, after)) == ["default-0"]
    assert await reconcile(life) == THERE
    assert await reconcile(life) == THERE
    assert len(life.client.calls) == 1
    place(api, "10.9.0.32")
    life.caches.look()
    assert list(life.occupied.of_node(after, life.caches.nodes.get("node1"))) == ["default-0"]
    assert await reconcile(life) == ""
    assert life.client.api.get(ADDRESS_BLOCKS, "default-0").metadata.annotations == {}


async def test_what_an_admin_edits_away_returns(api: MemoryApi, life: Life) -> None:
    place(api, "10.9.0.7")
    assert await reconcile(life) == THERE
    life.caches.look()
    marked = life.caches.blocks.get("default-0")
    api.patch(ADDRESS_BLOCKS, "default-0", {"metadata": {"annotations": None}}, subresource="")
    life.caches.look()
    assert list(changed_block(marked, life.caches.blocks.get("default-0"))) == ["default-0"]
    assert await reconcile(life) == THERE


async def test_networks_of_services_are_named_as_well(api: MemoryApi, life: Life) -> None:
    spec = ServiceCidrSpec(cidrs=("10.8.0.0/15",))
    api.create(SERVICE_CIDRS, ServiceCidr(metadata=ObjectMeta(name="kubernetes"), spec=spec))
    life.caches.look()
    assert list(life.occupied.of_services(None, None)) == ["default-0"]
    assert await reconcile(life) == "10.8.0.0/15 of the ServiceCIDR kubernetes"


async def test_a_reserved_block_and_one_that_is_gone_are_left_alone(api: MemoryApi, life: Life) -> None:
    place(api, "10.9.0.7")
    labels = {"coil.cybozu.com/reserved": "true"}
    api.patch(ADDRESS_BLOCKS, "default-0", {"metadata": {"labels": labels}}, subresource="")
    assert await reconcile(life) == ""
    await life.occupied.reconcile("default-9")
    assert life.client.calls == []


async def test_a_namesake_is_not_marked_for_the_block_before(api: MemoryApi, life: Life) -> None:
    place(api, "10.9.0.7")
    life.caches.look()
    api.delete(ADDRESS_BLOCKS, "default-0")
    api.patch(ADDRESS_BLOCKS, "default-0", {"metadata": {"finalizers": []}}, subresource="")
    add_block(api, "default-0", 0, pool="default", node="node2")
    with pytest.raises(InvalidError):
        await life.occupied.reconcile("default-0")
    assert await reconcile(life) == THERE
