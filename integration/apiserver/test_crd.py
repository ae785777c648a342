"""The chart's kinds on a real API server: accepted, shown in columns, and strict about what they store."""

import json
import re
import secrets
from collections.abc import Iterator
from typing import Any

import pytest

from coil.crd.address_block import ADDRESS_BLOCKS, AddressBlock
from coil.crd.address_pool import ADDRESS_POOLS, AddressPool, AddressPoolSpec, SubnetSet
from coil.crd.block_request import BLOCK_REQUESTS, BlockRequest
from coil.crd.meta import ObjectMeta
from coil.crd.names import LABEL_NODE, LABEL_POOL
from coil.crd.resource import Resource
from coil.kube.client import KubeClient
from coil.kube.errors import InvalidError
from integration.cluster.control_plane import ControlPlane
from integration.deployment import KINDS

pytestmark = pytest.mark.apiserver

POOL_SPEC = {"subnets": [{"ipv4": "10.60.0.0/24"}]}
REQUEST_SPEC = {"nodeName": "node1", "poolName": "default"}
NOON = "2030-01-01T12:00:00.000001Z"


@pytest.fixture
def name(plane: ControlPlane) -> Iterator[str]:
    """Free for one object of each kind, which is deleted after the test."""
    name = f"crd-{secrets.token_hex(3)}"
    yield name
    for kind in KINDS:
        plane.kubectl("delete", kind, name, "--ignore-not-found")


def shown(plane: ControlPlane, kind: str, name: str) -> dict[str, str]:
    """What kubectl prints of an object, by heading: cut where the headings begin, as a cell may be empty."""
    header, line = plane.kubectl("get", kind, name).splitlines()
    headings = list(re.finditer(r"\S+(?: \S+)*", header))
    ends = [heading.start() for heading in headings[1:]] + [None]
    return {heading[0]: line[heading.start() : end].strip() for heading, end in zip(headings, ends, strict=True)}


def body(name: str, **fields: Any) -> dict[str, Any]:
    return {"metadata": {"name": name}, **fields}


def test_the_api_server_serves_the_kinds_and_finds_no_fault_in_their_schemas(plane: ControlPlane) -> None:
    for kind in KINDS:
        definition = json.loads(plane.kubectl("get", "crd", f"{kind}.coil.cybozu.com", "--output=json"))
        conditions = {item["type"]: item["status"] for item in definition["status"]["conditions"]}
        assert conditions == {"NamesAccepted": "True", "Established": "True"}, "no NonStructuralSchema among them"


async def test_the_columns_of_a_block(plane: ControlPlane, admin: KubeClient, name: str) -> None:
    labels = {LABEL_NODE: "node1", LABEL_POOL: "default"}
    block = AddressBlock(metadata=ObjectMeta(name=name, labels=labels), index=16, ipv4="10.2.2.0/27", ipv6="fd01::/123")
    await admin.create(ADDRESS_BLOCKS, block)
    columns = {"NAME": name, "NODE": "node1", "POOL": "default", "IPV4": "10.2.2.0/27", "IPV6": "fd01::/123"}
    assert shown(plane, "addressblocks", name) == columns


async def test_the_columns_of_a_pool(plane: ControlPlane, admin: KubeClient, name: str) -> None:
    await admin.create(ADDRESS_POOLS, body(name, spec=POOL_SPEC))
    columns = shown(plane, "addresspools", name)
    assert columns.pop("AGE")
    # No controller has seen it yet.
    unknown = dict.fromkeys(["BLOCKS", "USED BLOCKS", "ADDRESSES", "USED ADDRESSES", "READY", "FILL"], "")
    assert columns == {"NAME": name, "BLOCKSIZE BITS": "5", **unknown}


async def test_the_columns_of_a_request(plane: ControlPlane, admin: KubeClient, name: str) -> None:
    await admin.create(BLOCK_REQUESTS, body(name, spec=REQUEST_SPEC))
    columns = {"NAME": name, "NODE": "node1", "POOL": "default", "STATUS": "", "REASON": "", "BLOCK": ""}
    before = shown(plane, "blockrequests", name)
    assert before.pop("AGE")
    assert before == columns
    failed = {"type": "Failed", "status": "True", "reason": "out of blocks", "lastProbeTime": NOON}
    complete = {"type": "Complete", "status": "True", "lastTransitionTime": NOON}
    status = {"conditions": [failed, complete]}
    await admin.patch(BLOCK_REQUESTS, name, {"status": status}, subresource="status")
    after = shown(plane, "blockrequests", name)
    assert (after["STATUS"], after["REASON"]) == ("Failed", "out of blocks")


async def test_the_smallest_pool_is_filled_in(admin: KubeClient, name: str) -> None:
    pool = await admin.create(ADDRESS_POOLS, body(name, spec=POOL_SPEC))
    assert pool.spec == AddressPoolSpec(block_size_bits=5, subnets=(SubnetSet(ipv4="10.60.0.0/24"),))


async def test_structs_come_back_as_they_went(admin: KubeClient, name: str) -> None:
    spec = AddressPoolSpec(block_size_bits=0, subnets=(SubnetSet(ipv4="10.60.0.0/24", ipv6="fd60::/120"),))
    assert (await admin.create(ADDRESS_POOLS, AddressPool(metadata=ObjectMeta(name=name), spec=spec))).spec == spec
    block = AddressBlock(metadata=ObjectMeta(name=name), index=0, ipv6="fd60::/128")
    created = await admin.create(ADDRESS_BLOCKS, block)
    assert (created.index, created.ipv4, created.ipv6) == (0, None, "fd60::/128")
    await admin.delete(ADDRESS_BLOCKS, name)
    last = AddressBlock(metadata=ObjectMeta(name=name), index=2**63 - 1)
    assert (await admin.create(ADDRESS_BLOCKS, last)).index == 2**63 - 1


@pytest.mark.parametrize(
    ("resource", "fields", "field"),
    [
        (ADDRESS_POOLS, {}, "spec"),
        (ADDRESS_POOLS, {"spec": {}}, "spec.subnets"),
        (ADDRESS_POOLS, {"spec": {"subnets": []}}, "spec.subnets"),
        (ADDRESS_POOLS, {"spec": {"subnets": [{"ipv4": "10.2.0.0"}]}}, "spec.subnets.ipv4"),
        (ADDRESS_POOLS, {"spec": {"subnets": [{"ipv4": "fd01::/64"}]}}, "spec.subnets.ipv4"),
        (ADDRESS_POOLS, {"spec": {"subnets": [{"ipv6": "10.2.0.0/16"}]}}, "spec.subnets.ipv6"),
        (ADDRESS_POOLS, {"spec": POOL_SPEC | {"blockSizeBits": -1}}, "spec.blockSizeBits"),
        (ADDRESS_POOLS, {"spec": POOL_SPEC | {"blockSizeBits": "5"}}, "spec.blockSizeBits"),
        (ADDRESS_BLOCKS, {}, "index"),
        (ADDRESS_BLOCKS, {"index": -1}, "index"),
        (ADDRESS_BLOCKS, {"index": 0, "ipv4": "nonsense"}, "ipv4"),
        (BLOCK_REQUESTS, {}, "spec"),
        (BLOCK_REQUESTS, {"spec": {"nodeName": "node1"}}, "spec.poolName"),
        (BLOCK_REQUESTS, {"spec": REQUEST_SPEC | {"poolName": ""}}, "spec.poolName"),
        (BLOCK_REQUESTS, {"spec": REQUEST_SPEC | {"nodeName": 1}}, "spec.nodeName"),
    ],
)
async def test_nonsense_is_refused_and_the_field_named(
    admin: KubeClient, name: str, resource: Resource[Any], fields: dict[str, Any], field: str
) -> None:
    with pytest.raises(InvalidError) as refusal:
        await admin.create(resource, body(name, **fields))
    assert field in str(refusal.value).replace("[0]", "")


@pytest.mark.parametrize(
    "condition",
    [
        {"type": "Complete", "status": "yes"},
        {"type": "Ready", "status": "True"},
        {"type": "Complete"},
        {"type": "Complete", "status": "True", "lastProbeTime": "at noon"},
    ],
)
async def test_conditions_are_of_the_known_kinds(admin: KubeClient, name: str, condition: dict[str, str]) -> None:
    await admin.create(BLOCK_REQUESTS, body(name, spec=REQUEST_SPEC))
    with pytest.raises(InvalidError, match="conditions"):
        await admin.patch(BLOCK_REQUESTS, name, {"status": {"conditions": [condition]}}, subresource="status")


async def test_a_request_cannot_be_created_with_its_answer(admin: KubeClient, name: str) -> None:
    answered = body(name, spec=REQUEST_SPEC, status={"addressBlockName": "default-0"})
    created = await admin.create(BLOCK_REQUESTS, answered)
    assert created.status == BlockRequest(metadata=created.metadata, spec=created.spec).status


async def test_unknown_fields_are_not_stored(plane: ControlPlane, admin: KubeClient, name: str) -> None:
    await admin.create(ADDRESS_BLOCKS, body(name, index=0, spec={"index": 1}, colour="red"))
    stored = json.loads(plane.kubectl("get", "addressblocks", name, "--output=json"))
    assert set(stored) == {"apiVersion", "kind", "metadata", "index"}
