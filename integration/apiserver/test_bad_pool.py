"""Pools, requests and blocks that nobody should have written, met by the ipam-controller with nobody at the door.

There is no admission webhook here, and there are no rules: whatever the schema lets in, the controller must judge. Each
fault is refused or passed over and told of, and whatever is right beside it works on.
"""

from collections.abc import AsyncIterator, Iterator
from dataclasses import dataclass
from functools import partial
from ipaddress import ip_network
from itertools import combinations

import pytest

from coil.crd.address_block import ADDRESS_BLOCKS, AddressBlock
from coil.crd.address_pool import ADDRESS_POOLS, PoolConditionType
from coil.crd.block_request import BLOCK_REQUESTS, Granted, RefusalReason, Refused
from coil.crd.meta import ObjectMeta
from coil.crd.names import FINALIZER, LABEL_NODE, LABEL_POOL, NodeName, PoolName
from coil.kube.client import KubeClient
from coil.kube.errors import InvalidError
from integration.apiserver.ipam_world import IpamWorld, Replica, until
from integration.apiserver.without_rules import without_rules
from integration.cluster.control_plane import ControlPlane

pytestmark = pytest.mark.apiserver

PASSED_OVER = "index passed over: its addresses are another block's"


@dataclass(frozen=True, slots=True)
class Scene:
    """A controller at work, and a node without a coild."""

    world: IpamWorld
    controller: Replica
    node: NodeName

    async def answers(self, requests: dict[str, PoolName]) -> dict[str, Granted | Refused]:
        """What requests of these names for blocks of these pools are answered."""
        names = {key: await self.world.ask(key, node=self.node, pool=pool) for key, pool in requests.items()}
        await until(self.world.all_answered, what="answers")
        outcomes = {key: (await self.world.request(name)).outcome() for key, name in names.items()}
        return {key: outcome for key, outcome in outcomes.items() if isinstance(outcome, Granted | Refused)}

    async def block(self, answer: Granted | Refused) -> AddressBlock:
        assert isinstance(answer, Granted), answer
        return await self.world.client.get(ADDRESS_BLOCKS, answer.block)

    def passed_over(self) -> set[tuple[object, object]]:
        """Each index that was free while its addresses were not, and who had them."""
        return {(line["index"], line["holder"]) for line in self.controller.lines() if line["event"] == PASSED_OVER}


@pytest.fixture(scope="module", autouse=True)
def _without_rules(plane: ControlPlane) -> Iterator[None]:
    with without_rules(plane):
        yield


@pytest.fixture
async def scene(plane: ControlPlane, admin: KubeClient) -> AsyncIterator[Scene]:
    world = IpamWorld(plane, admin)
    controller = await world.start_ready()
    await world.remove_webhooks()
    yield Scene(world, controller, await world.add_node("node1"))
    unexpected = [line for line in world.replicas[0].lines() if "orbidden" in str(line) or line["event"] == "panic"]
    await world.close()
    assert unexpected == []


BROKEN: dict[str, tuple[str, list[dict[str, str]], int]] = {
    "nonsense": (r"spec\.subnets\[0\]\.ipv4: '10\.50\.0\.999/24' is not a network", [{"ipv4": "10.50.0.999/24"}], 5),
    "too-long": (r"'10\.50\.0\.0/33' is not a network", [{"ipv4": "10.50.0.0/33"}], 0),
    "empty-entry": (r"spec\.subnets\[0\]: must have an ipv4 or an ipv6", [{}], 5),
    "unequal": (r"must hold equally many", [{"ipv4": "10.50.0.0/24", "ipv6": "fd50::/112"}], 5),
    "too-small": (r"smaller than a block of 2\^9", [{"ipv4": "10.50.0.0/24"}], 9),
    "absurd-bits": (r"smaller than a block of 2\^128", [{"ipv6": "fd50::/64"}], 128),
    "countless": (r"more blocks than an index", [{"ipv6": "fd50::/32"}], 5),
    "loopback": (r"addresses that no pod can have: 127\.0\.0\.0/8", [{"ipv4": "127.0.1.0/24"}], 5),
    "multicast": (r"addresses that no pod can have: ff00::/8", [{"ipv6": "ff05::/112"}], 5),
    "gateway": (r"addresses that no pod can have: 169\.254\.0\.0/16", [{"ipv4": "169.254.1.0/27"}], 0),
    "same": (r"10\.50\.0\.0/24 overlaps 10\.50\.0\.0/24 of the pool", [{"ipv4": "10.50.0.0/24"}], 5),
}
"""What is wrong, the subnets, and the block size bits."""


async def test_a_pool_that_breaks_a_rule_gives_no_block_and_its_field_is_named(scene: Scene) -> None:
    # Of pools of one second, the first by name counts as the oldest.
    requests = {"sound": await scene.world.add_pool("a-sound", {"ipv4": "10.50.0.0/24"})}
    at_the_door: dict[str, str] = {}
    for name, (_, subnets, bits) in BROKEN.items():
        try:
            requests[name] = await scene.world.add_pool(name, *subnets, bits=bits)
        except InvalidError as error:
            at_the_door[name] = str(error)
    answers = await scene.answers(requests)
    assert (await scene.block(answers.pop("sound"))).ipv4 == "10.50.0.0/27"
    for name, answer in answers.items():
        assert isinstance(answer, Refused), name
        assert answer.reason == RefusalReason.INVALID_POOL
        assert_said(BROKEN[name][0], answer.message)
    for name, message in at_the_door.items():
        assert "spec" in message, f"{name}: {message}"
    assert answers.keys() | at_the_door.keys() == BROKEN.keys()
    assert len(await scene.world.blocks()) == 1


LENIENT: dict[str, tuple[list[dict[str, str]], int, list[tuple[str | None, str | None]], str]] = {
    "host-bits": (
        [{"ipv4": "10.61.0.7/26", "ipv6": "fd61::7/122"}],
        5,
        [("10.61.0.0/27", "fd61::/123"), ("10.61.0.32/27", "fd61::20/123")],
        "",
    ),
    "mixed": (
        [{"ipv4": "10.61.1.0/27"}, {"ipv6": "fd61::1:0/123"}],
        5,
        [("10.61.1.0/27", None), (None, "fd61::1:0/123")],
        "spec.subnets[1]: must have the same address families as the first entry; "
        "the families of a pod's addresses depend on its block",
    ),
    "overlap": (
        [{"ipv4": "10.61.2.32/27"}, {"ipv4": "10.61.2.0/25"}],
        5,
        [("10.61.2.32/27", None), ("10.61.2.0/27", None), ("10.61.2.64/27", None), ("10.61.2.96/27", None)],
        "spec.subnets[1].ipv4: 10.61.2.0/25 overlaps 10.61.2.32/27 at spec.subnets[0].ipv4; "
        "blocks with these addresses are not given",
    ),
    "older-pool": (
        [{"ipv4": "10.61.3.0/25"}],
        5,
        [("10.61.3.0/27", None), ("10.61.3.32/27", None)],
        "spec.subnets[0].ipv4: 10.61.3.0/25 overlaps 10.61.3.64/26 of the pool",
    ),
    "unusable": (
        [{"ipv4": "255.255.255.128/25"}],
        5,
        [("255.255.255.128/27", None), ("255.255.255.160/27", None), ("255.255.255.192/27", None)],
        "spec.subnets[0].ipv4: 255.255.255.128/25 has addresses that no pod can have: 255.255.255.255/32 (broadcast)",
    ),
}
"""The subnets, the block size bits, all of the blocks, and how the message of the condition Degraded begins."""


async def test_a_pool_that_coil_v2_let_in_serves_what_no_other_pod_has(scene: Scene) -> None:
    await scene.world.add_pool("a-older", {"ipv4": "10.61.3.64/26"})
    pools = {
        name: await scene.world.add_pool(name, *subnets, bits=bits) for name, (subnets, bits, _, _) in LENIENT.items()
    }
    answers = await scene.answers(
        {f"{name}-{number}": pools[name] for name in pools for number in range(len(LENIENT[name][2]))}
    )
    refused = await scene.answers({f"{name}-more": pool for name, pool in pools.items()})
    assert_disjoint(await scene.world.blocks())
    for name, (_, _, blocks, degraded) in LENIENT.items():
        given = [await scene.block(answers[f"{name}-{number}"]) for number in range(len(blocks))]
        assert {(block.ipv4, block.ipv6) for block in given} == set(blocks), name
        more = refused[f"{name}-more"]
        assert isinstance(more, Refused)
        assert (more.reason, more.message) == (
            RefusalReason.OUT_OF_BLOCKS,
            f"all {len(blocks)} blocks of the pool {pools[name]!r} are in use",
        )
        await until(partial(says, scene.world, pools[name], degraded), what=f"the status of {name}")


async def says(world: IpamWorld, pool: PoolName, degraded: str) -> bool:
    """Whether the pool is in use up to its last block, and its status says that of it; "": that nothing is wrong."""
    found = await world.pool(pool)
    assert found is not None
    told, full = (found.status.condition(kind) for kind in (PoolConditionType.DEGRADED, PoolConditionType.FULL))
    if full is None or full.status != "True":
        return False
    return told is None if not degraded else told is not None and told.message.startswith(degraded)


def assert_said(pattern: str, message: str) -> None:
    with pytest.raises(InvalidError, match=pattern):
        raise InvalidError(message, status=422)


EXTREME: dict[str, tuple[dict[str, str], int, tuple[str | None, str | None]]] = {
    "one-4": ({"ipv4": "203.0.113.7/32"}, 0, ("203.0.113.7/32", None)),
    "one-6": ({"ipv6": "fd51::7/128"}, 0, (None, "fd51::7/128")),
    "one-dual": ({"ipv4": "203.0.113.8/32", "ipv6": "fd51::8/128"}, 0, ("203.0.113.8/32", "fd51::8/128")),
    "one-block": ({"ipv4": "10.51.0.0/16"}, 16, ("10.51.0.0/16", None)),
    "most-blocks": ({"ipv6": "fd52::/58"}, 8, (None, "fd52::/120")),
    "largest-block": ({"ipv6": "fd53::/16"}, 112, (None, "fd53::/16")),
    "widest-4": ({"ipv4": "64.0.0.0/3"}, 0, ("64.0.0.0/32", None)),
}
"""The subnet, the block size bits, and the first block."""


async def test_the_smallest_and_the_largest_pools_work(scene: Scene) -> None:
    requests = {
        name: await scene.world.add_pool(name, subnet, bits=bits) for name, (subnet, bits, _) in EXTREME.items()
    }
    # A name of as many characters as a label takes; one more does not fit into it.
    longest = await scene.world.add_pool("n" * (62 - len(scene.world.name)), {"ipv4": "10.54.0.0/27"})
    too_long = await scene.world.add_pool("n" * (63 - len(scene.world.name)), {"ipv4": "10.54.1.0/27"})
    assert (len(longest), len(too_long)) == (63, 64)
    answers = await scene.answers({**requests, "longest": longest, "too-long": too_long})
    refused = answers.pop("too-long")
    assert isinstance(refused, Refused)
    assert "metadata.name: must be no more than 63 characters" in refused.message
    assert (await scene.block(answers.pop("longest"))).pool == longest
    blocks = {name: await scene.block(answer) for name, answer in answers.items()}
    assert {name: (block.ipv4, block.ipv6) for name, block in blocks.items()} == {
        name: block for name, (_, _, block) in EXTREME.items()
    }
    again = await scene.answers({f"{name}-again": pool for name, pool in requests.items() if "one" in name})
    assert {answer.reason for answer in again.values() if isinstance(answer, Refused)} == {RefusalReason.OUT_OF_BLOCKS}
    assert len(again) == 4


async def test_of_pools_that_overlap_the_older_one_gives_until_it_has_gone(scene: Scene) -> None:
    older = await scene.world.add_pool("a-older", {"ipv4": "10.55.0.0/26"})
    younger = await scene.world.add_pool("younger", {"ipv4": "10.55.0.32/27"})
    first = await scene.answers({"one": older, "two": younger, "three": older, "four": older})
    assert [type(answer) for answer in first.values()] == [Granted, Refused, Granted, Refused]
    refused = first["two"]
    assert isinstance(refused, Refused)
    assert f"10.55.0.32/27 overlaps 10.55.0.0/26 of the pool '{older}'" in refused.message

    await scene.world.client.delete(ADDRESS_POOLS, older)
    for block in await scene.world.blocks():
        await scene.world.give_back(block)

    async def gone() -> bool:
        return await scene.world.pool(older) is None

    await until(gone, what="the older pool's end")
    assert (await scene.block((await scene.answers({"five": younger}))["five"])).ipv4 == "10.55.0.32/27"


async def test_a_pool_that_was_grown_into_another_gives_no_address_of_its_blocks(scene: Scene) -> None:
    world = scene.world
    grown = await world.add_pool("a-grown", {"ipv4": "10.56.0.0/27"})
    other = await world.add_pool("other", {"ipv4": "10.56.1.0/26"})
    before = await scene.answers({"grown-0": grown, "other-0": other})
    subnets = [{"ipv4": "10.56.0.0/27"}, {"ipv4": "10.56.1.0/26"}]
    await world.client.patch(ADDRESS_POOLS, grown, {"spec": {"subnets": subnets}})
    after = await scene.answers({"grown-1": grown, "other-1": other, "grown-2": grown})

    # The older one is the judge's choice; the address that the other has given out stays out.
    assert (await scene.block(after["grown-1"])).ipv4 == "10.56.1.32/27"
    assert [type(after[key]) for key in ("other-1", "grown-2")] == [Refused, Refused]
    assert (await scene.block(before["other-0"])).ipv4 == "10.56.1.0/27"
    assert scene.passed_over() == {(f"{grown}-1", f"{other}-0")}
    assert_disjoint(await world.blocks())


async def test_a_pool_that_was_edited_in_the_middle_gives_no_address_twice(scene: Scene) -> None:
    world = scene.world
    edited = await world.add_pool("edited", {"ipv4": "10.57.0.0/26"}, {"ipv4": "10.57.1.0/27"})
    await scene.answers({"one": edited, "two": edited})
    backwards = [{"ipv4": "10.57.1.0/27"}, {"ipv4": "10.57.0.0/26"}]
    await world.client.patch(ADDRESS_POOLS, edited, {"spec": {"subnets": backwards}})
    answers = await scene.answers({"three": edited, "four": edited})

    assert len(await world.blocks()) in (2, 3)
    assert_disjoint(await world.blocks())
    assert scene.passed_over() == {(f"{edited}-2", f"{edited}-1")}
    assert {type(answer) for answer in answers.values()} == {Refused}
    # Mended, it gives what is left.
    await world.client.patch(ADDRESS_POOLS, edited, {"spec": {"subnets": backwards[::-1]}})
    assert (await scene.block((await scene.answers({"five": edited}))["five"])).ipv4 == "10.57.1.0/27"


async def test_blocks_made_or_edited_by_hand_are_not_given_again(scene: Scene) -> None:
    world = scene.world
    pool = await world.add_pool("pool", {"ipv4": "10.58.0.0/25"})  # four blocks
    given = await scene.block((await scene.answers({"first": pool}))["first"])
    bare = AddressBlock(metadata=ObjectMeta(name=f"{pool}-bare"), index=0, ipv4="10.58.0.32/28")
    misnamed = AddressBlock(
        metadata=ObjectMeta(name=f"{pool}-x", labels={LABEL_POOL: pool, LABEL_NODE: scene.node}),
        index=2,
        ipv4="10.58.0.64/27",
    )
    for block in (bare, misnamed):
        await world.client.create(ADDRESS_BLOCKS, block)
    # The one that was given is from now on one of another pool, for another node, with the addresses that it has.
    labels = {LABEL_POOL: f"{pool}-elsewhere", LABEL_NODE: "elsewhere"}
    await world.client.patch(ADDRESS_BLOCKS, given.name, {"metadata": {"labels": labels}})
    answers = await scene.answers({"second": pool, "third": pool})

    assert (await scene.block(answers["second"])).ipv4 == "10.58.0.96/27"
    exhausted = answers["third"]
    assert isinstance(exhausted, Refused)
    assert exhausted.reason == RefusalReason.OUT_OF_BLOCKS
    assert (f"{pool}-1", f"{pool}-bare") in scene.passed_over()
    assert_disjoint(await world.blocks())


@pytest.mark.parametrize("finalizers", [[], ["example.com/audit"]])
async def test_a_finalizer_that_was_taken_from_a_pool_comes_back(scene: Scene, finalizers: list[str]) -> None:
    world = scene.world
    pool = await world.add_pool("pool", {"ipv4": "10.59.0.0/24"})

    async def protected() -> bool:
        found = await world.pool(pool)
        return found is not None and found.metadata.finalizers == (*finalizers, FINALIZER)

    await until(lambda: has_finalizer(world, pool), what="the finalizer")
    await world.client.patch(ADDRESS_POOLS, pool, {"metadata": {"finalizers": finalizers}})
    await until(protected, what="the finalizer again")


async def has_finalizer(world: IpamWorld, pool: PoolName) -> bool:
    found = await world.pool(pool)
    return found is not None and FINALIZER in found.metadata.finalizers


async def test_requests_written_by_hand_are_answered_for_whom_they_name(scene: Scene) -> None:
    world = scene.world
    pool = await world.add_pool("pool", {"ipv4": "10.60.0.0/24"})
    other = await world.add_node("other")
    requests = {
        "other-node": (other, pool),
        "long-node": ("n" * 253, pool),
        "path-node": ("../../x", pool),
        "unicode-node": ("knöten", pool),
        "long-pool": (scene.node, "p" * 253),
        "path-pool": (scene.node, "../addressblocks"),
        "unicode-pool": (scene.node, "täglich"),
    }
    for name, (node, wanted) in requests.items():
        metadata = {"name": f"{world.name}-{name}"}
        await world.client.create(
            BLOCK_REQUESTS, {"metadata": metadata, "spec": {"nodeName": node, "poolName": wanted}}
        )
    # Requests of nodes that are not there are collected as well as answered; only the others are waited for.
    lasting = ["other-node", "long-pool", "path-pool", "unicode-pool"]

    async def answered() -> bool:
        requests = [await world.request(f"{world.name}-{name}") for name in lasting]
        return all(isinstance(request.outcome(), Granted | Refused) for request in requests)

    await until(answered, what="answers")
    outcomes = {name: (await world.request(f"{world.name}-{name}")).outcome() for name in lasting}
    block = await scene.world.client.get(ADDRESS_BLOCKS, f"{pool}-0")
    assert outcomes.pop("other-node") == Granted(block.name)
    assert block.node == other
    for outcome in outcomes.values():
        assert isinstance(outcome, Refused)
        assert (outcome.reason, outcome.message[:24]) == (RefusalReason.NO_SUCH_POOL, "there is no address pool")
    assert [block.name for block in await world.blocks()] == [f"{pool}-0"]


def assert_disjoint(blocks: list[AddressBlock]) -> None:
    networks = [(block.name, ip_network(text)) for block in blocks for text in (block.ipv4, block.ipv6) if text]
    for (one, left), (two, right) in combinations(networks, 2):
        assert left.version != right.version or not left.overlaps(right), f"{one} and {two}"
