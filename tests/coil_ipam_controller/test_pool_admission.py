"""What is let in, what is refused, and what is none of our business."""

import asyncio
import json
from typing import Any

import pytest
import structlog

from coil.admission.review import (
    AdmissionRequest,
    Allowed,
    Denied,
    Invalid,
    Operation,
    ReviewError,
    Unavailable,
    Verdict,
    decode_review,
)
from coil.crd.address_pool import ADDRESS_POOLS, AddressPool
from coil.crd.builtin import Node, NodeAddress, NodeStatus
from coil.crd.meta import ObjectMeta
from coil.crd.names import FINALIZER
from coil.ipam.cluster_network import ClusterNetworks
from coil.kube.errors import UnavailableError
from coil_ipam_controller.pool_admission import LIST_SECONDS, MUTATE_PATH, VALIDATE_PATH, PoolAdmission
from integration.deployment import webhook_documents
from tests.coil.kube.memory_api import Call, MemoryApi, MemoryClient, Moment
from tests.coil.reconcile.virtual_time import run_virtual

Spec = dict[str, Any]


def pool(*subnets: dict[str, Any], bits: Any = 5, name: str = "pool", **metadata: Any) -> Spec:
    return {"metadata": {"name": name, **metadata}, "spec": {"blockSizeBits": bits, "subnets": list(subnets)}}


def request(operation: Operation, new: Any, old: Any = None) -> AdmissionRequest:
    body = {
        "uid": "uid-1",
        "kind": {"group": "coil.cybozu.com", "version": "v2", "kind": "AddressPool"},
        "operation": operation.value,
        "name": "pool",
        "object": new,
        "oldObject": old,
    }
    review = {"apiVersion": "admission.k8s.io/v1", "kind": "AdmissionReview", "request": body}
    return decode_review(json.dumps(review).encode())


class World:
    """An API server with pools in it, and a cache that knows what it is told."""

    def __init__(self) -> None:
        self.api = MemoryApi()
        self.client = MemoryClient(self.api)
        self.cache: list[AddressPool] | None = None
        self.networks: ClusterNetworks | None = ClusterNetworks()
        self.admission = PoolAdmission(
            client=self.client,
            known_pools=lambda: self.cache,
            networks=lambda: self.networks,
            log=structlog.get_logger(),
        )

    def store(self, document: Spec) -> None:
        self.api.create(ADDRESS_POOLS, document)

    async def create(self, new: Any) -> list[str]:
        """What is refused of it, as text; nothing if it is let in."""
        return said(await self.admission.validate(request(Operation.CREATE, new)))

    async def update(self, old: Any, new: Any) -> list[str]:
        return said(await self.admission.validate(request(Operation.UPDATE, new, old)))


def said(verdict: Verdict) -> list[str]:
    match verdict:
        case Allowed():
            return []
        case Invalid(errors):
            return [str(error) for error in errors]
        case Denied(reason) | Unavailable(reason):
            return [reason]


@pytest.fixture
def world() -> World:
    return World()


async def mutation(world: World, document: Spec, operation: Operation = Operation.CREATE) -> Any:
    verdict = await world.admission.mutate(request(operation, document))
    assert isinstance(verdict, Allowed)
    return verdict.patch


async def test_a_new_pool_gets_the_finalizer(world: World) -> None:
    added = [{"op": "add", "path": "/metadata/finalizers", "value": [FINALIZER]}]
    assert await mutation(world, pool({"ipv4": "10.0.0.0/24"})) == added


async def test_finalizers_of_others_stay_and_ours_is_there_once(world: World) -> None:
    (operation,) = await mutation(world, pool(finalizers=["theirs"]))
    assert operation["value"] == ["theirs", FINALIZER]
    assert await mutation(world, pool(finalizers=[FINALIZER])) == []


async def test_an_update_is_not_mutated(world: World) -> None:
    assert await mutation(world, pool(), Operation.UPDATE) == ()


async def test_mutation_comes_before_the_schema_and_minds_no_nonsense(world: World) -> None:
    assert len(await mutation(world, pool(bits="five"))) == 1
    assert len(await mutation(world, {"metadata": {"name": "pool"}, "spec": "none"})) == 1
    with pytest.raises(ReviewError):
        await world.admission.mutate(request(Operation.CREATE, {"metadata": 5}))


async def test_a_good_pool_is_let_in_and_the_pools_were_looked_up(world: World) -> None:
    assert await world.create(pool({"ipv4": "10.0.0.0/24"})) == []
    assert [call.verb for call in world.client.calls] == ["list"]


async def test_a_bad_pool_is_refused_without_a_look_at_others(world: World) -> None:
    errors = await world.create(pool({"ipv4": "10.0.0.0/33"}, {}))
    assert [error.partition(": ")[0] for error in errors] == ["spec.subnets[0].ipv4", "spec.subnets[1]"]
    assert world.client.calls == []


async def test_what_the_schema_should_have_refused_is_no_crash(world: World) -> None:
    for document in (pool(bits="five"), pool({"ipv4": 5}), {"metadata": {"name": "p"}, "spec": None}):
        (error,) = await world.create(document)
        assert error.startswith("spec: the object cannot be read")


async def test_an_overlap_names_the_other_pool(world: World) -> None:
    world.store(pool({"ipv4": "10.0.0.0/8"}, name="wide"))
    assert await world.create(pool({"ipv4": "10.1.0.0/24"})) == [
        "spec.subnets[0].ipv4: 10.1.0.0/24 overlaps 10.0.0.0/8 of the pool 'wide'"
    ]


async def test_a_pool_that_is_going_still_has_its_addresses(world: World) -> None:
    world.store(pool({"ipv4": "10.0.0.0/8"}, name="going", finalizers=[FINALIZER]))
    world.api.delete(ADDRESS_POOLS, "going")
    assert len(await world.create(pool({"ipv4": "10.1.0.0/24"}))) == 1


GOOD = pool({"ipv4": "10.0.0.0/24"})


@pytest.mark.parametrize(
    ("new", "fields"),
    [
        (pool({"ipv4": "10.0.0.0/24"}, {"ipv4": "10.0.1.0/24"}), []),
        (pool({"ipv4": "10.0.0.0/24"}, {"ipv4": "10.0.1.0/33"}), ["spec.subnets[1].ipv4"]),
        (pool({"ipv4": "10.0.0.0/24"}, {"ipv4": "10.0.0.0/25"}), ["spec.subnets[1].ipv4"]),
        (pool({"ipv4": "10.0.0.0/24"}, {"ipv4": "10.9.0.0/24"}), ["spec.subnets[1].ipv4"]),
        (pool({"ipv4": "10.0.0.0/24"}, {"ipv6": "fd00::/120"}), ["spec.subnets[1]"]),
        (pool({"ipv4": "10.0.1.0/24"}), ["spec.subnets[0]"]),
        (pool(), ["spec.subnets[0]", "spec.subnets"]),
        (pool({"ipv4": "10.0.0.0/24"}, bits=6), ["spec.blockSizeBits"]),
        (pool({"ipv4": "10.0.0.0/24"}, bits=9), ["spec.blockSizeBits", "spec.subnets[0].ipv4"]),
    ],
)
async def test_a_pool_may_grow_at_its_end(world: World, new: Spec, fields: list[str]) -> None:
    world.store(GOOD)
    world.store(pool({"ipv4": "10.9.0.0/16"}, name="other"))
    errors = await world.update(GOOD, new)
    assert sorted(error.partition(": ")[0] for error in errors) == sorted(fields)


BAD = [
    pool({"ipv4": "10.0.0.0/33"}),
    pool({"ipv4": "10.9.1.0/24"}),
    pool({"ipv4": "10.0.0.0/24"}, {"ipv6": "fd00::/120"}),
    pool({"ipv4": "10.0.0.0/30"}),
    pool(),
    pool({"ipv4": 5}),
    {"metadata": {"name": "pool"}, "spec": "none"},
    {"metadata": {"name": "pool"}},
]


@pytest.mark.parametrize("old", BAD)
async def test_a_bad_old_pool_can_be_labelled_let_go_and_deleted(world: World, old: Spec) -> None:
    world.store(pool({"ipv4": "10.9.0.0/16"}, name="other"))
    changes: list[dict[str, Any]] = [
        {"labels": {"team": "network"}},
        {"finalizers": []},
        {"finalizers": [FINALIZER]},
        {"deletionTimestamp": "2030-01-01T00:00:00Z"},
    ]
    for change in changes:
        assert await world.update(old, {**old, "metadata": {**old["metadata"], **change}}) == []
        assert await world.update(old, {**old, "status": {"blocks": {"total": 5}}}) == []
    assert world.client.calls == [], "not even a look at other pools is needed, which might fail"


async def test_a_bad_old_pool_may_grow_and_only_what_is_new_is_validated(world: World) -> None:
    world.store(pool({"ipv4": "10.9.0.0/16"}, name="other"))
    old = pool({"ipv4": "10.9.1.0/24"}, {"ipv4": "10.0.0.0/33"})
    grown = pool({"ipv4": "10.9.1.0/24"}, {"ipv4": "10.0.0.0/33"}, {"ipv4": "10.7.0.0/24"})
    assert await world.update(old, grown) == []
    worse = pool({"ipv4": "10.9.1.0/24"}, {"ipv4": "10.0.0.0/33"}, {"ipv4": "10.9.2.0/24"})
    assert await world.update(old, worse) == [
        "spec.subnets[2].ipv4: 10.9.2.0/24 overlaps 10.9.0.0/16 of the pool 'other'"
    ]


async def test_an_old_pool_that_cannot_be_read_must_become_a_good_one(world: World) -> None:
    old = pool({"ipv4": 5})
    assert await world.update(old, GOOD) == []
    assert len(await world.update(old, pool({"ipv4": "10.0.0.0/33"}))) == 1


async def test_deletions_and_what_else_there_may_be_are_let_in(world: World) -> None:
    for operation in (Operation.DELETE, Operation.CONNECT):
        assert said(await world.admission.validate(request(operation, None, GOOD))) == []
        assert said(await world.admission.mutate(request(operation, None, GOOD))) == []


def fail(world: World) -> None:
    async def gate(_call: Call, _moment: Moment) -> None:
        raise UnavailableError("the API server is busy")

    world.client.gate = gate


async def test_when_the_api_server_does_not_say_the_cache_decides(world: World) -> None:
    world.store(pool({"ipv4": "10.0.0.0/8"}, name="wide"))
    world.cache = world.api.all(ADDRESS_POOLS)
    fail(world)
    assert len(await world.create(pool({"ipv4": "10.1.0.0/24"}))) == 1
    assert await world.create(pool({"ipv4": "11.1.0.0/24"})) == []


async def test_when_nobody_knows_the_pools_nothing_is_let_in_for_now(world: World) -> None:
    fail(world)
    verdict = await world.admission.validate(request(Operation.CREATE, GOOD))
    assert isinstance(verdict, Unavailable)
    assert "cannot be listed now" in verdict.reason


def test_a_slow_list_is_not_waited_for() -> None:
    async def ask() -> float:
        world = World()
        world.cache = []

        async def gate(_call: Call, _moment: Moment) -> None:
            await loop.create_future()

        loop = asyncio.get_running_loop()
        world.client.gate = gate
        assert await world.create(GOOD) == []
        return loop.time()

    assert run_virtual(ask) == LIST_SECONDS


def test_the_chart_calls_the_paths_that_are_served_and_lets_nothing_past() -> None:
    documents = webhook_documents()
    webhooks = {document["kind"]: document["webhooks"] for document in documents}
    paths = {
        kind: [webhook["clientConfig"]["service"]["path"] for webhook in found] for kind, found in webhooks.items()
    }
    assert paths == {
        "MutatingWebhookConfiguration": [MUTATE_PATH],
        "ValidatingWebhookConfiguration": [VALIDATE_PATH],
    }
    for webhook in (webhook for found in webhooks.values() for webhook in found):
        assert (webhook["failurePolicy"], webhook["sideEffects"]) == ("Fail", "None")
        assert webhook["timeoutSeconds"] > LIST_SECONDS
        assert "caBundle" not in webhook["clientConfig"], "applying the chart again would take it away"


def node_of(address: str) -> Node:
    entry = NodeAddress(type="InternalIP", address=address)
    return Node(metadata=ObjectMeta(name="n1"), status=NodeStatus(addresses=(entry,)))


async def test_a_pool_over_the_nodes_is_refused(world: World) -> None:
    assert world.networks is not None
    world.networks.observe_node(None, node_of("192.168.1.11"))
    assert await world.create(pool({"ipv4": "192.168.0.0/16"})) == [
        "spec.subnets[0].ipv4: 192.168.0.0/16 has addresses of the cluster's own: 192.168.1.11 of the Node n1"
    ]
    assert await world.create(pool({"ipv4": "192.168.2.0/24"})) == []


async def test_one_that_is_there_already_may_change_otherwise(world: World) -> None:
    assert world.networks is not None
    world.networks.observe_node(None, node_of("10.0.0.11"))
    former = pool({"ipv4": "10.0.0.0/24"})
    assert await world.update(former, pool({"ipv4": "10.0.0.0/24"}, {"ipv4": "10.0.1.0/24"})) == []
    world.networks.observe_node(None, node_of("10.0.2.11"))
    errors = await world.update(former, pool({"ipv4": "10.0.0.0/24"}, {"ipv4": "10.0.2.0/24"}))
    assert [error.partition(": ")[0] for error in errors] == ["spec.subnets[1].ipv4"]


async def test_before_the_nodes_are_known_nobody_can_say(world: World) -> None:
    world.networks = None
    (reason,) = await world.create(pool({"ipv4": "10.0.0.0/24"}))
    assert reason.startswith("the Nodes are not known yet")
