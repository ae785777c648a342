"""Which pool a pod's addresses come from, and what a pod is told that gets none."""

import asyncio
from ipaddress import IPv4Address, IPv6Address

import pytest

from coil.crd.builtin import NAMESPACES
from coil.crd.names import ANNOTATION_POOL, PoolName
from coil.kube.errors import UnavailableError
from coil.podnet.host_link import PodAlias
from coild.model.attachment import AddRequest, AddressUnavailableError, Attachment, NoSuchNamespaceError, PodName
from tests.coil.kube.memory_api import Call, Moment
from tests.coild.scene import ACQUIRE_TIMEOUT, Coild, World, advance, key, now


async def acquire(coild: Coild, container: str, namespace: str = "apps") -> Attachment:
    request = AddRequest(
        key=key(container), netns=coild.world.kernel.namespace(container), pod=PodName(namespace, "pod")
    )
    return await coild.source.acquire(request.key, request, timeout=ACQUIRE_TIMEOUT)


def found(container: str, pool: str, address: str) -> Attachment:
    """As the kernel has it."""
    alias = PodAlias(pool, container, "eth0")
    return Attachment(key=key(container), pod=None, addresses=(IPv4Address(address),), alias=alias)


@pytest.mark.parametrize(("namespace", "pool"), [("apps", "default"), ("lab", "second"), ("den", "tiny")])
async def test_the_annotation_of_the_namespace_chooses_the_pool(coild: Coild, namespace: str, pool: str) -> None:
    assert (await acquire(coild, "c1", namespace)).tag == pool


async def test_a_pod_of_a_pool_of_mixed_families_has_those_of_its_block(coild: Coild) -> None:
    pods = [await acquire(coild, f"c{number}", "old") for number in range(4)]
    assert [(pod.ipv4, pod.ipv6) for pod in pods] == [
        (IPv4Address("10.4.0.0"), None),
        (IPv4Address("10.4.0.1"), None),
        (None, IPv6Address("fd04::")),
        (None, IPv6Address("fd04::1")),
    ]
    with pytest.raises(AddressUnavailableError):
        await acquire(coild, "c4", "old")


async def test_an_empty_annotation_chooses_nothing(world: World, coild: Coild) -> None:
    world.api.patch(NAMESPACES, "lab", {"metadata": {"annotations": {ANNOTATION_POOL: ""}}}, subresource="")
    assert (await acquire(coild, "c1", "lab")).tag == "default"


async def test_a_known_attachment_keeps_its_addresses_when_the_annotation_changes(world: World, coild: Coild) -> None:
    first = await acquire(coild, "c1")
    annotations = {ANNOTATION_POOL: "second"}
    world.api.patch(NAMESPACES, "apps", {"metadata": {"annotations": annotations}}, subresource="")
    assert await acquire(coild, "c1") == first
    assert (await acquire(coild, "c2")).tag == "second"


async def test_many_pods_at_once_share_requests_and_get_different_addresses(world: World, coild: Coild) -> None:
    world.granter.delay = lambda: 0.2
    async with asyncio.TaskGroup() as group:
        pods = [group.create_task(acquire(coild, f"c{number}")) for number in range(9)]
    assert len({pod.result().ipv4 for pod in pods}) == 9
    assert len(world.blocks) == 5, "two addresses a block: no block more than needed"
    assert sum((call.verb, call.plural) == ("create", "blockrequests") for call in coild.client.calls) == 5


async def test_one_key_twice_at_once_has_one_address(world: World, coild: Coild) -> None:
    world.granter.delay = lambda: 1.0
    first, second = await asyncio.gather(acquire(coild, "c1"), acquire(coild, "c1"))
    assert first == second
    assert coild.source.held() == {key("c1")}


async def test_without_a_controller_a_pod_is_told_in_time_of_which_pool_there_is_nothing(
    world: World, coild: Coild
) -> None:
    world.granter.away = True
    with pytest.raises(AddressUnavailableError, match=r"pool second .*coil-ipam-controller"):
        await acquire(coild, "c1", "lab")
    assert now() == ACQUIRE_TIMEOUT
    assert coild.source.held() == set()


async def test_a_block_that_comes_after_the_deadline_serves_the_next_try_at_once(world: World, coild: Coild) -> None:
    world.granter.delay = lambda: ACQUIRE_TIMEOUT + 1
    with pytest.raises(AddressUnavailableError):
        await acquire(coild, "c1")
    await advance(2)
    before = now()
    assert (await acquire(coild, "c1")).ipv4 == IPv4Address("10.1.0.0")
    assert now() == before


async def test_a_block_that_comes_after_the_deadline_and_serves_nobody_goes_back(world: World, coild: Coild) -> None:
    world.granter.delay = lambda: ACQUIRE_TIMEOUT + 1
    with pytest.raises(AddressUnavailableError):
        await acquire(coild, "c1")
    await advance(2)
    assert (world.blocks, world.requests) == (["default-0"], [])
    await advance(20)
    assert world.blocks == []


async def test_a_caller_that_gives_up_has_nothing(world: World, coild: Coild) -> None:
    world.granter.delay = lambda: 5.0
    task = coild.spawn(acquire(coild, "c1"))
    await advance(1)
    task.cancel()
    await advance(10)
    assert task.cancelled()
    assert coild.source.held() == set()


async def test_a_namespace_that_does_not_exist(coild: Coild) -> None:
    with pytest.raises(NoSuchNamespaceError):
        await acquire(coild, "c1", "nowhere")


async def test_a_namespace_that_cannot_be_read(coild: Coild) -> None:
    coild.gate.fault = lambda call, moment: UnavailableError("away")
    with pytest.raises(UnavailableError):
        await acquire(coild, "c1")


async def test_a_namespace_that_takes_too_long_to_read_is_not_blamed_on_a_pool(coild: Coild) -> None:
    coild.gate.delay = lambda: 60.0
    with pytest.raises(AddressUnavailableError, match="namespace apps"):
        await acquire(coild, "c1")
    assert now() == ACQUIRE_TIMEOUT


async def test_recovery_keeps_what_pods_hold_and_gives_the_other_blocks_back_at_once(world: World) -> None:
    for index in range(3):
        world.granter.block(PoolName("default"), index)
    world.granter.block(PoolName("tiny"), 0, reserved=True)
    coild = Coild(world)
    coild.spawn(coild.blocks.run())
    coild.start_tasks()
    await coild.blocks.wait_synced(1)
    held = found("c1", "default", "10.1.0.3")
    stray = found("c2", "second", "10.2.0.0")
    await coild.source.recover([held, stray])
    assert coild.source.held() == {key("c1")}
    await advance()
    assert now() == 0, "no rest for blocks that nobody was about to use"
    assert world.blocks == ["default-1", "tiny-0"]
    await coild.kill()


async def test_collecting_takes_back_requests_that_nobody_waits_for(world: World, coild: Coild) -> None:
    def lose(call: Call, moment: Moment) -> UnavailableError | None:
        lost = (call.verb, call.plural, moment) == ("create", "blockrequests", Moment.AFTER)
        return UnavailableError("reset") if lost else None

    coild.gate.fault = lose
    with pytest.raises(AddressUnavailableError):
        await acquire(coild, "c1")
    await advance(1)
    assert len(world.requests) == 1
    await coild.source.collect()
    assert world.requests == []
