"""Who has which address, of the objects of a small cluster."""

from typing import Any

import pytest

from coil.crd.address_block import ADDRESS_BLOCKS
from coil.crd.address_pool import ADDRESS_POOLS
from coil.crd.builtin import NODES, PODS
from coil.kube.errors import NotFoundError
from coil.page.cluster_document import BlockState
from kubectl_coil.ipam.document import IpamDocument
from kubectl_coil.ipam.lookup import look_up
from kubectl_coil.ipam.target import parse_target
from tests.coil.kube.memory_api import MemoryApi
from tests.kubectl_coil.memory_reader import MemoryReader


def block(name: str, *, node: str, number: int, pool: str = "default", **labels: str) -> dict[str, Any]:
    return {
        "metadata": {
            "name": name,
            "labels": {"coil.cybozu.com/pool": pool, "coil.cybozu.com/node": node, **labels},
        },
        "index": number,
        "ipv4": f"10.0.{number}.0/24",
        "ipv6": f"fd00::{number}00/120",
    }


def pod(name: str, *addresses: str, node: str = "n1", **status: Any) -> dict[str, Any]:
    return {
        "metadata": {"name": name, "namespace": "shop"},
        "spec": {"nodeName": node},
        "status": {"phase": "Running", "podIPs": [{"ip": address} for address in addresses], **status},
    }


@pytest.fixture
def reader() -> MemoryReader:
    api = MemoryApi()
    subnets = [{"ipv4": "10.0.0.0/16", "ipv6": "fd00::/112"}]
    used = {"blocks": {"total": 256, "used": 3}, "addresses": {"total": 65536, "used": 768}}
    api.put(ADDRESS_POOLS, {"metadata": {"name": "default"}, "spec": {"subnets": subnets}, "status": used})
    for node in ("n1", "n2"):
        api.put(NODES, {"metadata": {"name": node}})
    api.put(ADDRESS_BLOCKS, block("default-1", node="n1", number=1))
    api.put(ADDRESS_BLOCKS, block("default-0", node="n1", number=0))
    api.put(ADDRESS_BLOCKS, block("default-2", node="gone", number=2))
    api.put(PODS, pod("web-0", "10.0.1.7", "fd00::107"))
    api.put(PODS, pod("done", "10.0.1.7", phase="Succeeded"))
    api.put(PODS, pod("elsewhere", "10.0.1.8", node="n2"))
    api.put(PODS, pod("odd", "not an address"))
    api.put(PODS, pod("new"))
    host = pod("on-host", "192.0.2.1")
    host["spec"]["hostNetwork"] = True
    api.put(PODS, host)
    return MemoryReader(api)


async def show(reader: MemoryReader, text: str = "") -> IpamDocument:
    return await look_up(reader, parse_target(text, namespace="shop") if text else None)


async def test_everything(reader: MemoryReader) -> None:
    document = await show(reader)
    [pool] = document.pools
    assert (pool.name, pool.nodes, pool.blocks.free) == ("default", 2, 253)
    assert pool.subnets == ("10.0.0.0/16", "fd00::/112")
    assert [(each.name, each.state) for each in document.blocks] == [
        ("default-0", BlockState.USED),
        ("default-1", BlockState.USED),
        ("default-2", BlockState.ORPHANED),
    ]
    assert document.note == ""


async def test_a_pool(reader: MemoryReader) -> None:
    document = await show(reader, "pool/default")
    assert document.asked == "pool/default"
    assert len(document.blocks) == 3


async def test_a_node_with_its_pods(reader: MemoryReader) -> None:
    document = await show(reader, "node/n1")
    assert [(each.name, each.pods) for each in document.blocks] == [("default-0", 0), ("default-1", 1)]
    assert [(each.name, each.addresses, each.block) for each in document.pods] == [
        ("odd", (), ""),
        ("web-0", ("10.0.1.7", "fd00::107"), "default-1"),
    ]


async def test_a_node_without_blocks(reader: MemoryReader) -> None:
    document = await show(reader, "node/n2")
    assert (document.blocks, document.note) == ((), "the node has no block: no pod on it has asked for an address")


@pytest.mark.parametrize(
    ("name", "blocks", "note"),
    [
        ("web-0", ["default-1"], ""),
        ("on-host", [], "the pod is on its node's network, and has the node's addresses"),
        ("new", [], "the pod has no address yet: see its Events"),
        ("elsewhere", [], "no block of its node has the pod's addresses"),
    ],
)
async def test_a_pod(reader: MemoryReader, name: str, blocks: list[str], note: str) -> None:
    document = await show(reader, f"pod/{name}")
    assert ([each.name for each in document.blocks], document.note) == (blocks, note)
    assert [each.name for each in document.pods] == [name]


@pytest.mark.parametrize(
    ("address", "blocks", "pods", "note"),
    [
        ("10.0.1.7", ["default-1"], ["web-0"], ""),
        ("fd00::107", ["default-1"], ["web-0"], ""),
        (
            *("10.0.1.9", ["default-1"], []),
            "no pod has the address: it is free or cooling down, which the node's coild knows",
        ),
        ("10.0.9.9", [], [], "no node has a block with the address: it is free"),
        ("192.0.2.1", [], [], "no pool has the address"),
    ],
)
async def test_an_address(reader: MemoryReader, address: str, blocks: list[str], pods: list[str], note: str) -> None:
    document = await show(reader, address)
    assert [each.name for each in document.blocks] == blocks
    assert [each.name for each in document.pods] == pods
    assert document.note == note


@pytest.mark.parametrize("text", ["pool/none", "node/none", "pod/none"])
async def test_what_does_not_exist_is_told(reader: MemoryReader, text: str) -> None:
    with pytest.raises(NotFoundError):
        await show(reader, text)
