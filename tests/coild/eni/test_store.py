"""Who gets an address and when, what is noted for the provisioner, and what is told to pods that get none."""

import asyncio
from ipaddress import IPv4Address, IPv4Network

import pytest

from coil.eni.interface import InterfaceId
from coil.eni.ledger import InUseError
from coild.eni.store import NOT_KNOWN, RETRY_SECONDS, WaitOutcome
from coild.model.attachment import UNNAMED, AddressUnavailableError, PodName
from tests.coil.eni.vpc import COOLDOWN
from tests.coild.eni.node import Node, one
from tests.coild.scene import key
from tests.coild.virtual_loop import pass_turns

TWO = one("10.0.0.10/32", "10.0.0.11/32")


@pytest.fixture
async def node() -> Node:
    return Node(None)


async def test_a_free_address_is_given_without_a_wait(node: Node) -> None:
    node.see(TWO)
    assert {await node.add("c1"), await node.add("c2")} == {"10.0.0.10", "10.0.0.11"}
    assert node.waits == []


async def test_a_known_key_gets_what_it_holds_even_while_others_wait(node: Node) -> None:
    node.see(one("10.0.0.10/32"))
    first = await node.add("c1")
    waiting = asyncio.create_task(node.add("c2", within=5))
    await pass_turns()
    assert await node.add("c1") == first
    with pytest.raises(AddressUnavailableError):
        await waiting


async def test_pods_that_wait_are_served_in_their_order(node: Node) -> None:
    adds = [asyncio.create_task(node.add(container, within=10)) for container in ("c1", "c2", "c3")]
    await pass_turns()
    assert node.store.waiting(4) == 3
    assert node.store.waiting(6) == 0
    node.see(TWO)
    assert node.store.waiting(4) == 1
    assert await asyncio.gather(*adds[:2]) == ["10.0.0.10", "10.0.0.11"]
    node.see(TWO, one("10.0.1.10/32", device=1))
    assert await adds[2] == "10.0.1.10"
    assert [outcome for _, outcome in node.waits] == [WaitOutcome.SERVED] * 3


async def test_who_comes_later_does_not_overtake(node: Node) -> None:
    node.see(one("10.0.0.10/32"))
    await node.add("c1")
    first = asyncio.create_task(node.add("c2", within=60))
    await pass_turns()
    second = asyncio.create_task(node.add("c3", within=60))
    node.store.revoke(key("c1"))
    assert await first == "10.0.0.10"
    with pytest.raises(AddressUnavailableError):
        await second


async def test_what_cools_down_is_given_to_nobody_until_it_has(node: Node) -> None:
    node.see(one("10.0.0.10/32"))
    await node.add("c1")
    node.delete("c1")
    begun = asyncio.get_running_loop().time()
    with pytest.raises(AddressUnavailableError, match="held: 0, cooling down: 1, free: 0"):
        await node.add("c2", within=COOLDOWN - 1)
    assert await node.add("c3", within=2) == "10.0.0.10"
    assert asyncio.get_running_loop().time() - begun >= COOLDOWN
    assert node.waits[0][1] is WaitOutcome.TIMED_OUT


async def test_an_address_that_was_never_used_is_free_at_once(node: Node) -> None:
    node.see(one("10.0.0.10/32"))
    await node.add("c1")
    node.store.revoke(key("c1"))
    assert await node.add("c2") == "10.0.0.10"


@pytest.mark.parametrize("way", ["adopted", "asked for again"])
async def test_an_address_that_a_pod_may_have_had_cools_down_even_if_an_add_is_undone(node: Node, way: str) -> None:
    node.see(one("10.0.0.10/32"))
    if way == "adopted":
        node.store.adopt(key("c1"), IPv4Address("10.0.0.10"))
    else:
        await node.add("c1")
        await node.add("c1")
    node.store.revoke(key("c1"))
    assert node.store.cooldowns() == {IPv4Address("10.0.0.10"): COOLDOWN}


async def test_a_cancelled_wait_has_taken_nothing(node: Node) -> None:
    adding = asyncio.create_task(node.add("c1", within=10))
    await pass_turns()
    node.see(one("10.0.0.10/32"))
    assert node.store.find(key("c1")) is not None
    adding.cancel()
    with pytest.raises(asyncio.CancelledError):
        await adding
    assert node.store.held() == []
    assert node.waits[-1][1] is WaitOutcome.GIVEN_UP
    assert await node.add("c2") == "10.0.0.10"


async def test_what_has_come_back_goes_to_the_next_one_that_waits(node: Node) -> None:
    first = asyncio.create_task(node.add("c1", within=10))
    second = asyncio.create_task(node.add("c2", within=10))
    await pass_turns()
    node.see(one("10.0.0.10/32"))
    first.cancel()
    assert await second == "10.0.0.10"


async def test_a_pod_that_gets_none_is_told_why(node: Node) -> None:
    with pytest.raises(AddressUnavailableError, match=NOT_KNOWN):
        await node.add("c1")
    node.store.shortage = "EC2 does not answer"
    with pytest.raises(AddressUnavailableError, match="EC2 does not answer"):
        await node.add("c1")
    node.see(one())
    node.store.shortage = "subnet-1 has no free address"
    with pytest.raises(AddressUnavailableError, match=r"interfaces: 1, .*subnet-1 has no free address"):
        await node.add("c1", within=3)
    node.store.shortage = None
    with pytest.raises(AddressUnavailableError, match="EC2 has given no more yet"):
        await node.add("c1", within=3)


async def test_more_pods_than_addresses_are_spoken_of_where_all_are_out(node: Node) -> None:
    node.see(one("10.0.0.10/32"))
    node.store.pods_limit, node.store.ip_max = 110, 2
    assert await node.add("c1")
    with pytest.raises(AddressUnavailableError) as refused:
        await node.add("c2")
    assert "110" not in str(refused.value), "one more can be had"
    node.store.ip_max = 1
    with pytest.raises(AddressUnavailableError, match=r"the Node allows 110 pods, but at most 1 can have an address"):
        await node.add("c2")
    node.delete("c1")
    with pytest.raises(AddressUnavailableError, match=r"cooling down: 1, .*110 pods"):
        await node.add("c2")


async def test_a_pod_whose_add_has_ended_is_demand_until_it_is_served_or_does_not_come_again(node: Node) -> None:
    for container in ("c1", "c2"):  # two attempts of one pod
        with pytest.raises(AddressUnavailableError):
            await node.add(container, within=1)
    assert (node.store.waiting(4), node.store.demand(4), node.store.demand(6)) == (0, 1, 0)
    assert node.store.demand_left == pytest.approx(RETRY_SECONDS)
    adding = asyncio.create_task(node.add("c3", within=10))
    await pass_turns()
    assert (node.store.waiting(4), node.store.demand(4)) == (1, 1)
    node.see(one("10.0.0.10/32"))
    assert await adding
    assert (node.store.demand(4), node.store.demand_left) == (0, None)

    with pytest.raises(AddressUnavailableError):
        await node.add("c4", pod=PodName("apps", "other", "uid-of-other"))
    await asyncio.sleep(RETRY_SECONDS - 1)
    assert node.store.demand(4) == 1
    await asyncio.sleep(1)
    assert (node.store.demand(4), node.store.demand_left) == (0, None)


async def test_an_attempt_without_a_pods_name_is_not_expected_again(node: Node) -> None:
    with pytest.raises(AddressUnavailableError):
        await node.add("c1", pod=UNNAMED)
    assert node.store.demand(4) == 0


async def test_the_obstacle_is_the_shortage_while_nothing_is_free(node: Node) -> None:
    def obstacle() -> str | None:
        return node.store.obstacle

    assert obstacle() == NOT_KNOWN
    node.store.update([TWO], up=[])
    assert obstacle() is None, "nothing speaks against it"
    node.store.shortage = "no link"
    assert obstacle() == "no link"
    node.see(TWO)
    assert obstacle() is None


async def test_an_interface_whose_link_is_not_up_gives_nothing(node: Node) -> None:
    node.store.update([TWO], up=[])
    with pytest.raises(AddressUnavailableError):
        await node.add("c1")
    node.see(TWO)
    await node.add("c1")


async def test_every_change_is_marked_and_a_repeated_picture_is_none(node: Node) -> None:
    def is_marked() -> bool:
        marked = node.store.changed.is_set()
        node.store.changed.clear()
        return marked

    node.see(TWO)
    assert is_marked()
    node.see(TWO)
    assert not is_marked()
    await node.add("c1")
    assert is_marked()
    await node.add("c1")
    assert not is_marked()
    await node.add("c2")
    waiting = asyncio.create_task(node.add("c3", within=5))
    await pass_turns()
    assert is_marked()
    with pytest.raises(AddressUnavailableError):
        await waiting
    assert is_marked(), "nobody waits any more"
    node.delete("c1")
    assert is_marked()
    node.store.release(key("c1"))
    assert not is_marked()


async def test_the_time_until_the_next_address_has_cooled_down(node: Node) -> None:
    node.see(TWO)
    assert node.store.cooldown_left is None
    await node.add("c1")
    await node.add("c2")
    node.delete("c1")
    await asyncio.sleep(10)
    node.delete("c2")
    assert node.store.cooldown_left == pytest.approx(COOLDOWN - 10)
    assert node.store.cooldowns() == {
        IPv4Address("10.0.0.10"): pytest.approx(COOLDOWN - 10),
        IPv4Address("10.0.0.11"): pytest.approx(COOLDOWN),
    }


async def test_a_pod_whose_address_was_taken_in_ec2_is_found_once(node: Node) -> None:
    node.see(TWO)
    address = await node.add("c1")
    [lost] = node.see(one("10.0.0.11/32"))
    assert (lost.key, str(lost.address)) == (key("c1"), address)
    assert node.see(one("10.0.0.11/32")) == []
    assert node.store.lost().keys() == {key("c1")}
    with pytest.raises(AddressUnavailableError, match=r"10\.0\.0\.10 was taken from this node in EC2"):
        await node.add("c1")
    node.delete("c1")
    assert node.store.lost() == {}
    assert node.see(TWO) == []
    assert await node.add("c2") == "10.0.0.11", "the other one is cooling down"


async def test_a_lost_address_that_comes_back_may_be_lost_again(node: Node) -> None:
    node.see(TWO)
    await node.add("c1")
    assert len(node.see(one())) == 1
    node.see(TWO)
    assert await node.add("c1") == "10.0.0.10"
    assert len(node.see(one())) == 1


async def test_an_address_that_was_adopted_before_its_interface_was_known(node: Node) -> None:
    node.store.adopt(key("c1"), IPv4Address("10.0.1.10"))
    assert node.store.pods() == {IPv4Address("10.0.1.10"): ""}
    node.see(one(), one("10.0.1.10/32", device=1))
    assert node.store.pods() == {IPv4Address("10.0.1.10"): InterfaceId("eni-1")}
    node.see(one())
    assert node.store.pods() == {IPv4Address("10.0.1.10"): "eni-1"}, "its way out stays what it was"


async def test_what_is_withdrawn_is_not_given_and_what_is_in_use_not_withdrawn(node: Node) -> None:
    node.see(TWO)
    await node.add("c1")
    with pytest.raises(InUseError):
        node.store.withdraw([IPv4Network("10.0.0.10/32")])
    node.store.withdraw([IPv4Network("10.0.0.11/32")])
    waiting = asyncio.create_task(node.add("c2", within=10))
    await pass_turns()
    assert not waiting.done()
    node.store.reinstate([IPv4Network("10.0.0.11/32")])
    assert await waiting == "10.0.0.11"
