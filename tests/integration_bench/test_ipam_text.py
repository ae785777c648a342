"""The calls that fill the store: what the API server would decode from them is what the figures speak of."""

import msgspec
import pytest

from coil.crd.address_block import ADDRESS_BLOCKS, AddressBlock
from coil.crd.address_pool import AddressPool
from coil.crd.block_request import BlockRequest, BlockRequestStatus, Granted
from coil.crd.builtin import Node
from coil.crd.meta import Condition, ObjectMeta
from coil.crd.names import PoolName
from coil.ipam.layout import parse_layout
from integration.bench.bare_client import MERGE_PATCH, Call
from integration.bench.ipam_text import (
    answer_request,
    create_node,
    create_old_block,
    create_pool,
    create_request,
    node_name,
)

POOL = PoolName("pool")


def decoded_pool() -> AddressPool:
    return msgspec.json.decode(create_pool(POOL, "10.0.0.0/16").body or b"", type=AddressPool)


def decoded_request() -> BlockRequest:
    node = msgspec.json.decode(create_node(7).body or b"", type=Node)
    return msgspec.json.decode(create_request(node, POOL).body or b"", type=BlockRequest)


def test_a_node_is_as_big_as_a_real_one() -> None:
    call = create_node(7)
    assert call.path == "/api/v1/nodes"
    assert 8_000 < len(call.body or b"") < 16_000
    node = msgspec.json.decode(call.body or b"", type=Node)
    assert node.metadata.name == node_name(7)
    assert len({node_name(number) for number in range(2000)}) == 2000


def test_a_pool_has_a_block_for_each_node() -> None:
    assert parse_layout(decoded_pool()).size == 2048


def test_a_request_is_its_nodes() -> None:
    request = decoded_request()
    assert (request.spec.node_name, request.spec.pool_name) == (node_name(7), POOL)
    assert [owner.name for owner in request.metadata.owner_references] == [node_name(7)]


def test_the_three_writes_of_an_answer() -> None:
    pool = decoded_pool()
    request = msgspec.structs.replace(
        decoded_request(), metadata=ObjectMeta(name="req", uid="request-uid", resource_version="12")
    )
    planned = parse_layout(pool).block_at(3)
    promise, creation, grant = answer_request(request, planned, pool=pool)
    assert promise == Call(
        "PATCH",
        "/apis/coil.cybozu.com/v2/blockrequests/req/status",
        b'{"metadata":{"resourceVersion":"12"},"status":{"addressBlockName":"pool-3"}}',
        MERGE_PATCH,
    )
    block = msgspec.json.decode(creation.body or b"", type=AddressBlock)
    assert (creation.method, creation.path) == ("POST", ADDRESS_BLOCKS.path())
    assert (block.name, block.index, block.ipv4, block.request) == ("pool-3", 3, "10.0.0.96/27", "request-uid")
    status = msgspec.json.decode(grant.body or b"")["status"]
    answered = msgspec.structs.replace(request, status=msgspec.convert(status, BlockRequestStatus))
    assert answered.outcome() == Granted(planned.name)
    assert all(isinstance(condition, Condition) for condition in answered.status.conditions)


@pytest.mark.parametrize("index", [0, 2047])
def test_old_blocks_belong_to_their_node(index: int) -> None:
    pool = decoded_pool()
    call = create_old_block(parse_layout(pool).block_at(index), pool=pool, number=11)
    block = msgspec.json.decode(call.body or b"", type=AddressBlock)
    assert (block.index, block.node, block.pool) == (index, node_name(11), POOL)
