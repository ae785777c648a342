"""Attaching and detaching: one thing at a time per attachment, in the order that keeps addresses apart."""

import asyncio
import errno
from collections.abc import AsyncIterator, Awaitable, Callable
from dataclasses import dataclass, field, replace
from hashlib import sha256
from ipaddress import ip_address
from pathlib import Path

import pytest

from coil.crd.address_block import ADDRESS_BLOCKS
from coil.crd.names import BlockName, PoolName
from coil.ipam.occupancy import AttachmentKey, ContainerId
from coil.kernel.link import LinkGroup, LinkName, MacAddress
from coil.netlink.error import BusyError, KernelError, LinkExistsError, NamespaceError, NetlinkError, PodCheckError
from coil.netlink.host import NetnsPath
from coil.nft.netfilter import NftError
from coil.podnet.host_link import PodAlias
from coil.podnet.host_port import PortMapping, Protocol
from coild.model.attachment import (
    AddressUnavailableError,
    Attachment,
    EgressRefusedError,
    HostPortTakenError,
    NoSuchNamespaceError,
    PodName,
    UnknownAttachmentError,
)
from tests.coild.memory_network import Stage, Step, slow
from tests.coild.scene import ACQUIRE_TIMEOUT, COOLDOWN, Coild, World, addresses, advance, key, now
from tests.coild.virtual_loop import pass_turns

FIRST = ["10.1.0.0", "fd01::"]


def failing(step: Step, error: NetlinkError, *, after: int = 0) -> Callable[[Step], Awaitable[None]]:
    """A gate: the kernel refuses that step once, after letting `after` of them pass."""
    left = after

    async def gate(at: Step) -> None:
        nonlocal left
        if at is not step:
            return
        left -= 1
        if left == -1:
            raise error

    return gate


# --- ADD


async def test_an_add_makes_a_veth_and_an_add_again_gives_the_same(world: World, coild: Coild) -> None:
    first = await coild.pods.add(coild.request("c1"))
    assert addresses(first) == FIRST
    assert await coild.pods.add(coild.request("c1")) == first
    (veth,) = world.kernel.veths.values()
    assert (veth.plan, veth.stage) == (first, Stage.WHOLE)
    assert veth.plan.host.alias == "COIL:default:c1:eth0"


async def test_two_adds_of_one_attachment_at_once_make_one_veth(world: World, coild: Coild) -> None:
    coild.network.gate = slow
    world.granter.delay = lambda: 1.0
    first, second = await asyncio.gather(coild.add("c1"), coild.add("c1"))
    assert first == second == FIRST
    assert len(world.kernel.veths) == 1


async def test_attachments_do_not_wait_for_each_other(world: World, coild: Coild) -> None:
    world.granter.away = True
    waiting = coild.spawn(coild.add("c1", "lab"))
    await advance()
    world.granter.block(PoolName("default"), 0)
    await advance()
    assert await coild.add("c2") == FIRST
    assert now() == 0
    assert not waiting.done()


async def test_two_interfaces_of_a_container_are_two_attachments(world: World, coild: Coild) -> None:
    await coild.add("c1")
    request = coild.request("c1")
    plan = await coild.pods.add(type(request)(key=key("c1", "net1"), netns=request.netns, pod=request.pod))
    assert addresses(plan) == ["10.1.0.1", "fd01::1"]
    assert len(world.kernel.veths) == 2


async def test_a_caller_that_goes_away_leaves_a_whole_pod_and_the_del_frees_it(world: World, coild: Coild) -> None:
    coild.network.gate = slow
    task = coild.spawn(coild.add("c1"))
    await advance(0.015)
    task.cancel()
    await advance()
    assert task.cancelled()
    assert [veth.stage for veth in world.kernel.veths.values()] == [Stage.BARE]
    await coild.delete("c1")
    assert coild.traces == []


async def test_a_caller_that_goes_away_while_waiting_for_a_block(world: World, coild: Coild) -> None:
    world.granter.delay = lambda: 5.0
    task = coild.spawn(coild.add("c1"))
    await advance(1)
    task.cancel()
    await advance(10)
    assert world.live == set(FIRST), "it has completed"
    await coild.delete("c1")
    assert coild.traces == []


@pytest.mark.parametrize("error", [KernelError(doing="x", errno=12), BusyError("busy"), LinkExistsError("exists")])
@pytest.mark.parametrize("after", [0, 2])
async def test_a_failed_attach_leaves_nothing(world: World, coild: Coild, error: NetlinkError, after: int) -> None:
    coild.network.gate = failing(Step.ATTACH, error, after=after)
    with pytest.raises(type(error)):
        await coild.add("c1")
    assert coild.traces == []
    await coild.add("c1")


async def test_a_namespace_that_is_gone(coild: Coild) -> None:
    request = coild.request("c1")
    coild.world.kernel.remove_namespace(request.netns)
    with pytest.raises(NamespaceError):
        await coild.pods.add(request)
    assert coild.source.held() == set()


async def test_an_attachment_that_the_kernel_would_not_take_leaves_nothing(coild: Coild) -> None:
    request = coild.request("c" * 260)
    with pytest.raises(ValueError, match="alias"):
        await coild.pods.add(request)
    assert coild.source.held() == set()


async def test_no_address(world: World, coild: Coild) -> None:
    with pytest.raises(AddressUnavailableError, match="nowhere"):
        await coild.add("c1", "lost")
    with pytest.raises(NoSuchNamespaceError):
        await coild.add("c2", "no-such-namespace")
    assert coild.traces == []


async def test_a_damaged_attachment_is_made_anew_with_the_same_addresses(world: World, coild: Coild) -> None:
    await coild.add("c1")
    await coild.add("c2")
    (name, *_) = world.kernel.veths
    del world.kernel.veths[name]
    assert await coild.add("c1") == FIRST
    assert len(world.kernel.veths) == 2
    assert world.kernel.twice == []


@pytest.mark.parametrize("error", [BusyError("busy"), KernelError(doing="dump", errno=105)])
async def test_an_attachment_that_cannot_be_looked_at_is_left_alone(
    world: World, coild: Coild, error: NetlinkError
) -> None:
    await coild.add("c1")
    before = dict(world.kernel.veths)
    coild.network.gate = failing(Step.CHECK, error)
    with pytest.raises(type(error)):
        await coild.add("c1")
    assert world.kernel.veths == before
    assert await coild.add("c1") == FIRST


async def test_an_add_with_a_wrong_namespace_does_not_tear_the_pod_down(world: World, coild: Coild) -> None:
    await coild.add("c1")
    request = coild.request("c1")
    wrong = type(request)(key=request.key, netns=NetnsPath(Path("/run/netns/typo")), pod=request.pod)
    with pytest.raises(NamespaceError):
        await coild.pods.add(wrong)
    assert world.live == set(FIRST)


async def test_making_anew_may_fail_and_then_leaves_nothing(world: World, coild: Coild) -> None:
    await coild.add("c1")
    world.kernel.veths.clear()
    coild.network.gate = failing(Step.ATTACH, KernelError(doing="x", errno=12), after=1)
    with pytest.raises(KernelError):
        await coild.add("c1")
    assert coild.traces == []
    await coild.delete("c1")


# --- DEL and CHECK


async def test_no_address_is_free_before_its_veth_is_gone(world: World, coild: Coild) -> None:
    await coild.add("c1")
    seen: list[tuple[bool, bool]] = []

    async def gate(step: Step) -> None:
        if step is Step.DETACH:
            for _ in range(5):
                await asyncio.sleep(1)
                seen.append((bool(world.kernel.veths), key("c1") in coild.source.held()))

    coild.network.gate = gate
    await coild.delete("c1")
    assert seen == [(True, True)] * 5
    assert coild.traces == []


async def test_an_address_whose_veth_stays_is_not_free(world: World, coild: Coild) -> None:
    await coild.add("c1")
    coild.network.gate = failing(Step.DETACH, KernelError(doing="delete", errno=16))
    with pytest.raises(KernelError):
        await coild.delete("c1")
    assert coild.source.held() == {key("c1")}
    assert await coild.add("c2") == ["10.1.0.1", "fd01::1"]
    assert await coild.add("c3") == ["10.1.0.2", "fd01::2"]
    await coild.delete("c1")
    assert key("c1") not in coild.source.held()
    assert world.kernel.twice == []


async def test_a_del_may_be_repeated_and_may_be_of_the_unknown(world: World, coild: Coild) -> None:
    await coild.delete("c1")
    await coild.add("c1")
    await coild.delete("c1")
    await coild.delete("c1")
    assert coild.traces == []


async def test_a_del_during_an_add_waits_for_it_and_frees(world: World, coild: Coild) -> None:
    coild.network.gate = slow
    world.granter.delay = lambda: 2.0
    add, delete = await asyncio.gather(coild.add("c1"), coild.delete("c1"))
    assert (add, delete) == (FIRST, None)
    assert coild.traces == []


async def test_a_del_during_an_add_that_fails(world: World, coild: Coild) -> None:
    world.granter.away = True
    add = coild.spawn(coild.add("c1"))
    await pass_turns()
    await coild.delete("c1")
    assert now() == ACQUIRE_TIMEOUT
    assert isinstance(add.exception(), AddressUnavailableError)


async def test_an_add_after_a_del_during_an_add(world: World, coild: Coild) -> None:
    coild.network.gate = slow
    results = await asyncio.gather(coild.add("c1"), coild.delete("c1"), coild.add("c1"))
    assert len(world.kernel.veths) == 1
    assert world.live == set(results[2] or [])


async def test_check(world: World, coild: Coild) -> None:
    request = coild.request("c1")
    with pytest.raises(UnknownAttachmentError):
        await coild.pods.check(request.key, request.netns)
    await coild.pods.add(request)
    await coild.pods.check(request.key, request.netns)
    world.kernel.veths.clear()
    with pytest.raises(PodCheckError):
        await coild.pods.check(request.key, request.netns)
    await coild.delete("c1")
    with pytest.raises(UnknownAttachmentError):
        await coild.pods.check(request.key, request.netns)


async def test_wait_idle_waits_for_what_has_begun(world: World, coild: Coild) -> None:
    coild.network.gate = slow
    world.granter.delay = lambda: 3.0
    task = coild.spawn(coild.add("c1"))
    await pass_turns()
    task.cancel()
    await coild.executor.wait_idle()
    assert now() > 3
    assert world.live == set(FIRST)


# --- names that are made from the pod's: a sandbox and its successor share one


async def calico(world: World) -> Coild:
    coild = Coild(world, compat_calico=True)
    await coild.start()
    return coild


async def test_the_names_of_host_links(world: World, coild: Coild) -> None:
    await coild.add("c1")
    (name,) = world.kernel.veths
    assert len(name) == 12
    await coild.delete("c1")
    other = await calico(world)
    await other.add("c1", pod="web-0")
    # printf apps.web-0 | sha1sum
    assert list(world.kernel.veths) == ["veth4daa3abfe81"]
    await other.kill()


async def test_the_del_of_a_sandbox_that_died_does_not_take_its_successors_veth(world: World) -> None:
    coild = await calico(world)
    await coild.add("old", pod="web-0")
    world.kernel.remove_namespace(coild.request("old").netns)
    successor = await coild.add("new", pod="web-0")
    await coild.delete("old")
    assert world.live == set(successor)
    assert coild.source.held() == {key("new")}
    await coild.delete("new")
    assert coild.traces == []
    await coild.kill()


async def test_nor_does_it_while_the_successors_is_being_made(world: World) -> None:
    coild = await calico(world)
    await coild.add("old", pod="web-0")
    world.kernel.remove_namespace(coild.request("old").netns)
    coild.network.gate = slow
    successor, _ = await asyncio.gather(coild.add("new", pod="web-0"), coild.delete("old"))
    assert world.live == set(successor)
    await coild.kill()


async def test_a_successor_that_comes_too_early_fails_and_the_first_can_still_be_deleted(world: World) -> None:
    coild = await calico(world)
    await coild.add("old", pod="web-0")
    with pytest.raises(LinkExistsError):
        await coild.add("new", pod="web-0")
    assert coild.source.held() == {key("old")}
    await coild.delete("old")
    assert world.kernel.veths == {}
    await coild.add("new", pod="web-0")
    await coild.kill()


# --- collection


async def test_an_attachment_whose_veth_vanished_is_taken_back(world: World, coild: Coild) -> None:
    await coild.add("c1")
    await coild.add("c2")
    world.kernel.remove_namespace(coild.request("c1").netns)
    await coild.pods.collect()
    assert coild.source.held() == {key("c2")}
    with pytest.raises(UnknownAttachmentError):
        await coild.pods.check(key("c1"), coild.request("c1").netns)


@pytest.mark.parametrize("vanished", [1, 3])
async def test_the_kernel_is_asked_once_for_all_that_vanished(world: World, coild: Coild, vanished: int) -> None:
    for number in range(3):
        await coild.add(f"c{number}")
    for number in range(vanished):
        world.kernel.remove_namespace(coild.request(f"c{number}").netns)
    steps: list[Step] = []

    async def gate(step: Step) -> None:
        steps.append(step)

    coild.network.gate = gate
    await coild.pods.collect()
    assert steps.count(Step.READ) == 1
    assert coild.source.held() == {key(f"c{number}") for number in range(vanished, 3)}


async def test_what_is_being_made_or_waits_is_not_taken_back(world: World, coild: Coild) -> None:
    await coild.add("c0")
    coild.network.gate = slow
    adding = coild.spawn(coild.add("c1"))
    await advance(0.005)
    assert coild.source.held() == {key("c0"), key("c1")}, "it has its address, and no link yet"
    await coild.pods.collect()
    await adding
    assert coild.source.held() == {key("c0"), key("c1")}
    assert len(world.kernel.veths) == 2


async def test_what_is_made_anew_while_collecting_is_not_taken_back(world: World, coild: Coild) -> None:
    await coild.add("c1")
    world.kernel.veths.clear()
    coild.network.gate = slow
    collecting = coild.spawn(coild.pods.collect())
    await advance(0.005)
    again = coild.spawn(coild.add("c1"))
    await collecting
    assert await again == FIRST
    assert world.live == set(FIRST)
    assert coild.source.held() == {key("c1")}


async def test_the_sandbox_that_lost_its_name_is_collected_without_harm(world: World) -> None:
    coild = await calico(world)
    await coild.add("old", pod="web-0")
    world.kernel.remove_namespace(coild.request("old").netns)
    successor = await coild.add("new", pod="web-0")
    world.kernel.namespaces.discard(coild.request("old").netns)
    await coild.pods.collect()
    assert coild.source.held() == {key("new")}
    assert world.live == set(successor)
    await coild.kill()


# --- recovery


async def reborn(world: World, coild: Coild) -> Coild:
    await coild.kill()
    successor = Coild(world)
    await successor.start()
    return successor


async def test_links_that_nobody_marked_are_marked(world: World, coild: Coild) -> None:
    """An earlier coild, or the Go program, has left them so."""
    await coild.add("c1")
    (veth,) = world.kernel.veths.values()
    assert veth.group == LinkGroup.POD
    veth.group = LinkGroup.NONE
    successor = await reborn(world, coild)
    assert veth.group == LinkGroup.POD
    await successor.kill()


async def test_attachments_are_read_back_from_the_kernel(world: World, coild: Coild) -> None:
    made = {
        name: await coild.add(name, namespace) for name, namespace in (("c1", "apps"), ("c2", "lab"), ("c3", "den"))
    }
    await advance(1)
    successor = await reborn(world, coild)
    assert successor.source.held() == {key("c1"), key("c2"), key("c3")}
    assert {name: await successor.add(name) for name in made} == made, "whatever the namespace says now"
    await successor.pods.check(key("c2"), successor.request("c2").netns)
    for name in made:
        await successor.delete(name)
    await advance(30)
    assert (world.kernel.veths, world.blocks, world.exported) == ({}, [], set())
    await successor.kill()


@pytest.mark.parametrize("steps", [1, 2, 3, 4])
async def test_a_crash_in_the_middle_of_an_add(world: World, coild: Coild, steps: int) -> None:
    await coild.add("c0")
    left = steps

    async def gate(step: Step) -> None:
        nonlocal left
        if step is Step.ATTACH:
            left -= 1
            if left < 0:
                await asyncio.sleep(1000)

    coild.network.gate = gate
    coild.spawn(coild.add("c1"))
    await advance(1)
    successor = await reborn(world, coild)
    stages = sorted(veth.stage.value for veth in world.kernel.veths.values())
    # A link that has no alias yet is not known for ours; it goes with its namespace.
    assert stages == {1: ["bare", "whole"], 2: ["whole"], 3: ["routed", "whole"], 4: ["whole", "whole"]}[steps]
    await successor.delete("c1")
    world.kernel.remove_namespace(successor.request("c1").netns)
    assert successor.source.held() == {key("c0")}
    await advance(COOLDOWN)
    assert await successor.add("c1") == ["10.1.0.1", "fd01::1"]
    assert world.kernel.twice == []
    await successor.kill()


async def test_an_add_repeated_after_a_crash_completes_what_it_finds(world: World, coild: Coild) -> None:
    coild.network.gate = failing(Step.ATTACH, NetlinkError("never seen"), after=99)
    await coild.add("c1")
    (veth,) = world.kernel.veths.values()
    veth.stage = Stage.ROUTED
    successor = await reborn(world, coild)
    assert await successor.add("c1") == FIRST
    assert [veth.stage for veth in world.kernel.veths.values()] == [Stage.WHOLE]
    await successor.kill()


async def test_links_of_the_egress_only_mode_are_not_ours(world: World, coild: Coild) -> None:
    await coild.add("c1")
    (veth,) = world.kernel.veths.values()
    host = veth.plan.host
    alias = "COIL::3c9a1a6e:eth0"
    world.kernel.veths[LinkName("veth99999999")] = type(veth)(
        replace(veth.plan, host=replace(host, name=LinkName("veth99999999"), alias=alias, routes=())),
        veth.netns,
        Stage.WHOLE,
    )
    successor = await reborn(world, coild)
    await successor.pods.collect()
    assert len(world.kernel.veths) == 2
    assert successor.source.held() == {key("c1")}
    await successor.kill()


async def test_an_attachment_in_no_block_of_the_node_keeps_working_and_can_be_deleted(
    world: World, coild: Coild
) -> None:
    await coild.add("c1")
    await advance(1)
    world.api.delete(ADDRESS_BLOCKS, BlockName("default-0"))
    world.api.patch(ADDRESS_BLOCKS, "default-0", {"metadata": {"finalizers": []}}, subresource="")
    successor = await reborn(world, coild)
    request = successor.request("c1")
    await successor.pods.check(request.key, request.netns)
    assert addresses(await successor.pods.add(request)) == FIRST
    # The controller gives the same block to the same node once more.
    assert await successor.add("c2") == ["10.1.0.1", "fd01::1"]
    assert world.kernel.twice == []
    await successor.delete("c1")
    assert key("c1") not in successor.source.held()
    await successor.kill()


async def test_an_attachment_in_no_block_whose_veth_vanished_is_forgotten(world: World, coild: Coild) -> None:
    await coild.add("c1")
    await advance(1)
    world.api.delete(ADDRESS_BLOCKS, BlockName("default-0"))
    world.api.patch(ADDRESS_BLOCKS, "default-0", {"metadata": {"finalizers": []}}, subresource="")
    successor = await reborn(world, coild)
    request = successor.request("c1")
    world.kernel.remove_namespace(request.netns)
    await successor.pods.collect()
    with pytest.raises(UnknownAttachmentError):
        await successor.pods.check(request.key, request.netns)
    await successor.kill()


# --- routes that others removed


async def test_pods_whose_routes_are_gone_are_known_by_their_own_addresses(world: World, coild: Coild) -> None:
    made = {
        name: await coild.add(name, namespace) for name, namespace in (("c1", "apps"), ("c2", "lab"), ("c3", "den"))
    }
    await advance(1)
    routes = set(world.kernel.routes)
    world.kernel.flush()
    successor = await reborn(world, coild)
    assert set(world.kernel.routes) == routes
    assert successor.source.held() == {key("c1"), key("c2"), key("c3")}
    for name in made:
        await successor.pods.check(key(name), successor.request(name).netns)
    assert {name: await successor.add(name) for name in made} == made
    await successor.kill()


@pytest.mark.parametrize("family", [4, 6])
async def test_a_pod_of_which_one_route_is_left(world: World, coild: Coild, family: int) -> None:
    await coild.add("c1")
    routes = set(world.kernel.routes)
    (veth,) = world.kernel.veths.values()
    veth.lost = {route for route in veth.routes if route.destination.version == family}
    successor = await reborn(world, coild)
    assert set(world.kernel.routes) == routes
    assert await successor.add("c1") == FIRST
    await successor.kill()


async def test_what_a_pod_gave_itself_is_not_routed(world: World, coild: Coild) -> None:
    """It may claim the address of a name server, of another pod, or one that is free; with its route gone or not."""
    extra = tuple(ip_address(text) for text in ("192.0.2.53", "10.1.0.1", "10.2.0.1", "2001:db8::53", "fd01::1"))
    for container in ("c1", "c2"):
        await coild.add(container)
    await coild.add("c3", "lab")
    for veth in world.kernel.veths.values():
        veth.extra = extra
    routes = set(world.kernel.routes)
    flushed, _, single = world.kernel.veths.values()
    flushed.lost = flushed.routes
    assert not any(route.destination.version == 6 for route in single.routes)
    successor = await reborn(world, coild)
    await successor.pods.restore()
    assert set(world.kernel.routes) == routes
    assert await successor.add("c1") == FIRST
    assert await successor.add("c2") == ["10.1.0.1", "fd01::1"]
    assert await successor.add("c3") == ["10.2.0.0"]
    await successor.kill()


async def test_an_address_that_another_pods_route_holds_is_not_taken_from_it(world: World, coild: Coild) -> None:
    """The older link claims what the other has; the other's route says so, and the pod's own word does not count."""
    await coild.add("old")
    await coild.add("new")
    old, new = world.kernel.veths.values()
    old.plan = replace(old.plan, assignments=new.plan.assignments)
    old.lost = old.routes
    routes = set(world.kernel.routes)
    successor = await reborn(world, coild)
    await successor.pods.restore()
    assert set(world.kernel.routes) == routes
    assert len(world.kernel.veths) == 2
    assert successor.source.held() == {key("new")}
    await successor.delete("old")
    await successor.pods.check(key("new"), successor.request("new").netns)
    await successor.kill()


async def test_a_pod_of_which_nothing_is_known_here_stays_and_gets_no_route(world: World, coild: Coild) -> None:
    await coild.add("c1")
    await advance(1)
    world.api.delete(ADDRESS_BLOCKS, BlockName("default-0"))
    world.api.patch(ADDRESS_BLOCKS, "default-0", {"metadata": {"finalizers": []}}, subresource="")
    world.kernel.flush()
    successor = await reborn(world, coild)
    assert (world.live, world.kernel.routes, successor.source.held()) == (set(FIRST), [], frozenset())
    # Its block comes back, and with it the right to the addresses.
    world.granter.block(PoolName("default"), 0)
    await advance()
    await successor.pods.restore()
    assert {str(route.destination) for route in world.kernel.routes} == {"10.1.0.0/32", "fd01::/128"}
    await successor.kill()


async def test_a_kernel_that_does_not_tell_costs_no_pod_its_network(world: World, coild: Coild) -> None:
    await coild.add("c1")
    world.kernel.flush()
    await coild.kill()
    successor = Coild(world)
    successor.network.gate = failing(Step.READ, KernelError(doing="list", errno=105), after=2)
    with pytest.raises(KernelError):
        await successor.start()
    assert world.live == set(FIRST)
    await successor.kill()


async def test_the_sweep_puts_routes_back_from_one_look(world: World, coild: Coild) -> None:
    for number in range(4):
        await coild.add(f"c{number}")
    routes = set(world.kernel.routes)
    steps: list[Step] = []

    async def gate(step: Step) -> None:
        steps.append(step)

    coild.network.gate = gate
    await coild.pods.restore()
    look = [Step.READ]
    assert steps == 3 * look, "at routes, links and neighbours"
    world.kernel.flush()
    steps.clear()
    await coild.pods.restore()
    assert steps == look + [Step.RESTORE] * 8 + 2 * look
    assert set(world.kernel.routes) == routes


async def test_the_sweep_puts_back_the_marks_of_links(world: World, coild: Coild) -> None:
    await coild.add("c1")
    (veth,) = world.kernel.veths.values()
    veth.group = LinkGroup.NONE
    await coild.pods.restore()
    assert veth.group == LinkGroup.POD


async def test_the_sweep_puts_back_neighbours_of_our_own_pods(world: World, coild: Coild) -> None:
    for number in range(2):
        await coild.add(f"c{number}")
    ours, theirs = world.kernel.veths.values()
    theirs.plan = replace(theirs.plan, host=replace(theirs.plan.host, mac=MacAddress("02:00:00:00:00:01")))
    world.kernel.lost_neighbours = {*ours.plan.host.neighbours, *theirs.plan.host.neighbours}
    coild.network.gate = failing(Step.RESTORE, KernelError(doing="put", errno=errno.ENOMEM))
    await coild.pods.restore()
    assert len(world.kernel.lost_neighbours) == 4, "which the next sweep tries again"
    await coild.pods.restore()
    assert world.kernel.lost_neighbours == {*theirs.plan.host.neighbours}


async def test_an_attachment_that_is_deleted_meanwhile_gets_no_route(world: World, coild: Coild) -> None:
    await coild.add("c1")
    await coild.add("c2")
    world.kernel.flush()
    coild.network.gate = slow
    restoring = coild.spawn(coild.pods.restore())
    await advance(0.005)
    deleting = coild.spawn(coild.delete("c2"))
    again = coild.spawn(coild.add("c2"))
    await asyncio.gather(restoring, deleting, again)
    assert len(world.kernel.veths) == 2
    assert {str(route.destination) for route in world.kernel.routes} == {
        f"{address}/{length}" for address, length in zip((*FIRST, *again.result()), (32, 128) * 2, strict=True)
    }
    assert world.kernel.twice == []


async def test_a_place_that_somebody_has_taken_is_left_to_him(world: World, coild: Coild) -> None:
    await coild.add("c1")
    world.kernel.flush()
    (veth,) = world.kernel.veths.values()
    ipv4, ipv6 = veth.plan.host.routes
    world.kernel.foreign.append(replace(ipv4, device=None, metric=77))
    late = replace(ipv6, device=None)

    async def gate(step: Step) -> None:
        if step is Step.RESTORE:
            world.kernel.foreign.append(late)

    coild.network.gate = gate
    await coild.pods.restore()
    assert [route.device for route in world.kernel.routes] == [None, None], "seen, and met on the way"
    world.kernel.foreign.clear()
    coild.network.gate = slow
    await coild.pods.restore()
    assert len(world.kernel.routes) == 2


async def test_a_route_that_the_kernel_refuses_stands_in_nobodys_way(world: World, coild: Coild) -> None:
    await coild.add("c1")
    await coild.add("c2")
    world.kernel.flush()
    coild.network.gate = failing(Step.RESTORE, KernelError(doing="add", errno=errno.ENETDOWN))
    await coild.pods.restore()
    assert len(world.kernel.routes) == 2
    await coild.pods.restore()
    assert len(world.kernel.routes) == 4


# --- egress


@dataclass
class NotedEgress:
    """A `PodEgress` that notes whom it has."""

    attachments: dict[AttachmentKey, Attachment] = field(default_factory=dict)
    error: Exception | None = None

    async def connect(self, attachment: Attachment, *, deadline: float) -> None:
        self.attachments[attachment.key] = attachment
        await asyncio.sleep(0.01)
        if self.error is not None:
            raise self.error

    def forget(self, key: AttachmentKey) -> None:
        self.attachments.pop(key, None)


@pytest.fixture
async def egress(world: World) -> AsyncIterator[tuple[Coild, NotedEgress]]:
    noted = NotedEgress()
    coild = Coild(world, egress=noted)
    await coild.start()
    yield coild, noted
    await coild.kill()


async def test_egress_hears_of_the_pod_before_the_add_returns(egress: tuple[Coild, NotedEgress]) -> None:
    coild, noted = egress
    request = replace(coild.request("c1"), pod=PodName("apps", "p", "uid-1"))
    await coild.pods.add(request)
    (attachment,) = noted.attachments.values()
    assert attachment == Attachment(
        key=request.key,
        pod=request.pod,
        addresses=tuple(map(ip_address, FIRST)),
        alias=PodAlias("default", "c1", "eth0"),
        netns=request.netns,
        link=LinkName("veth" + sha256(b"c1/eth0").hexdigest()[:8]),
        container=ContainerId("c1"),
    )
    assert coild.pods.attachments() == [attachment]
    # An ADD that is repeated makes sure of it.
    noted.attachments.clear()
    await coild.pods.add(request)
    assert noted.attachments == {attachment.key: attachment}
    await coild.delete("c1")
    assert noted.attachments == {}


async def test_a_pod_whose_egress_was_refused_is_undone(world: World, egress: tuple[Coild, NotedEgress]) -> None:
    coild, noted = egress
    noted.error = EgressRefusedError("no FoU")
    with pytest.raises(EgressRefusedError):
        await coild.add("c1")
    assert (coild.traces, noted.attachments) == ([], {})
    # It is tried again and again, and must not use up its pool meanwhile: no container ran, so no address rests.
    for _ in range(50):
        with pytest.raises(EgressRefusedError):
            await coild.add("c1")
    noted.error = None
    await coild.add("c1")
    assert len(world.blocks) == 1
    assert world.kernel.twice == []


async def test_after_any_other_error_the_addresses_rest(world: World, egress: tuple[Coild, NotedEgress]) -> None:
    coild, noted = egress
    noted.error = RuntimeError("a defect")
    with pytest.raises(RuntimeError):
        await coild.add("c1")
    assert (coild.traces, noted.attachments) == ([], {})
    noted.error = None
    assert await coild.add("c1") != FIRST


async def test_an_attachment_that_lost_its_link_to_another_is_forgotten(world: World) -> None:
    noted = NotedEgress()
    coild = Coild(world, compat_calico=True, egress=noted)
    await coild.start()
    await coild.add("c1", pod="web-0")
    world.kernel.remove_namespace(coild.request("c1").netns)
    await coild.add("c2", pod="web-0")
    assert [*noted.attachments] == [key("c2")]
    await coild.kill()


# --- host ports


@dataclass
class NotedHostPorts:
    """A `PodHostPorts` that notes whom it has, and what the kernel had of the pod meanwhile."""

    world: World
    published: dict[AttachmentKey, tuple[PortMapping, ...]] = field(default_factory=dict)
    veths: list[int] = field(default_factory=list)
    error: Exception | None = None

    async def publish(self, attachment: Attachment, mappings: tuple[PortMapping, ...]) -> None:
        await self._work()
        self.published[attachment.key] = mappings

    async def withdraw(self, key: AttachmentKey) -> None:
        await self._work()
        self.published.pop(key, None)

    async def check(self, key: AttachmentKey) -> None:
        await self._work()

    async def _work(self) -> None:
        await asyncio.sleep(0.01)
        self.veths.append(len(self.world.kernel.veths))
        if self.error is not None:
            raise self.error


@pytest.fixture
async def host_ports(world: World) -> AsyncIterator[tuple[Coild, NotedHostPorts]]:
    noted = NotedHostPorts(world)
    coild = Coild(world, host_ports=noted)
    await coild.start()
    yield coild, noted
    await coild.kill()


PORTS = (PortMapping(protocol=Protocol.TCP, host_port=8080, container_port=80),)


async def test_host_ports_are_there_as_long_as_the_pod(host_ports: tuple[Coild, NotedHostPorts]) -> None:
    coild, noted = host_ports
    request = replace(coild.request("c1"), ports=PORTS)
    for _ in range(2):
        noted.published.clear()
        await coild.pods.add(request)
        assert noted.published == {request.key: PORTS}
    await coild.pods.check(request.key, request.netns)
    await coild.delete("c1")
    assert noted.published == {}
    # Nothing leads to a pod that is not there any more.
    assert noted.veths == [1] * 4


async def test_as_long_as_a_host_port_may_lead_to_the_pod_its_addresses_are_nobody_elses(
    world: World, host_ports: tuple[Coild, NotedHostPorts]
) -> None:
    coild, noted = host_ports
    await coild.add("c1")
    noted.error = NftError(doing="change", reason="no")
    with pytest.raises(NftError):
        await coild.delete("c1")
    noted.error = None
    assert await coild.add("c2") != FIRST
    await coild.delete("c1")
    assert len(world.kernel.veths) == 1


async def test_a_pod_whose_host_port_is_taken_does_not_use_up_its_pool(
    world: World, host_ports: tuple[Coild, NotedHostPorts]
) -> None:
    coild, noted = host_ports
    withdraw = noted.withdraw

    async def withdraw_undisturbed(key: AttachmentKey) -> None:
        noted.error = None
        await withdraw(key)

    noted.withdraw = withdraw_undisturbed  # type: ignore[method-assign]
    for _ in range(50):
        noted.error = HostPortTakenError("pod apps/other has host port 8080/TCP of this node")
        with pytest.raises(HostPortTakenError):
            await coild.add("c1")
        assert coild.traces == []
    noted.error = None
    await coild.add("c1")
    assert len(world.blocks) == 1


async def test_a_sweep_goes_on_after_a_host_port_that_could_not_be_withdrawn(
    world: World, host_ports: tuple[Coild, NotedHostPorts]
) -> None:
    coild, noted = host_ports
    await coild.add("c1")
    world.kernel.remove_namespace(coild.request("c1").netns)
    noted.error = NftError(doing="change", reason="no")
    sweeps = asyncio.create_task(coild.pods.run_sweeps(10.0))
    await asyncio.sleep(25.0)
    assert coild.pods.attachments() != []
    noted.error = None
    await asyncio.sleep(10.0)
    assert coild.pods.attachments() == []
    sweeps.cancel()
