"""Who has which address, of the objects of a small cluster."""

from datetime import timedelta
from ipaddress import IPv4Address, IPv6Address
from typing import Any

import pytest

from coil.crd.address_block import ADDRESS_BLOCKS
from coil.crd.address_pool import ADDRESS_POOLS
from coil.crd.builtin import NODES, PODS
from coil.kube.errors import NotFoundError
from coil.page.cluster_document import BlockState
from coil.page.eni_document import EniAddressDocument, EniNodeDocument, InterfaceDocument
from coil.page.node_document import (
    AddressCounts,
    AddressDocument,
    AddressState,
    FormerHolderDocument,
    NodeDocument,
    PoolDocument,
)
from coil.page.node_document import BlockDocument as PageBlock
from coil.page.node_dump import Part
from kubectl_coil.ipam.document import FormerPodDocument, IpamDocument, LedgerState
from kubectl_coil.ipam.lookup import look_up
from kubectl_coil.ipam.target import parse_target
from tests.coil.kube.memory_api import MemoryApi
from tests.kubectl_coil.memory_nodes import MemoryNodes, node_dump
from tests.kubectl_coil.memory_reader import NOW, MemoryReader


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


LEDGER = NodeDocument(
    node="n1",
    at=NOW,
    addresses=AddressCounts(),
    pools=(
        PoolDocument(
            name="default",
            addresses=AddressCounts(),
            blocks=(
                PageBlock(
                    name="default-1",
                    index=1,
                    addresses=AddressCounts(),
                    used=(
                        AddressDocument(
                            ipv4=IPv4Address("10.0.1.7"),
                            ipv6=IPv6Address("fd00::107"),
                            slot=7,
                            state=AddressState.ALLOCATED,
                            namespace="shop",
                            pod="web-0",
                            container="c7",
                            since=NOW - timedelta(hours=1),
                        ),
                        AddressDocument(ipv4=IPv4Address("10.0.1.9"), slot=9, state=AddressState.COOLING),
                        AddressDocument(
                            ipv4=IPv4Address("10.0.1.10"), slot=10, state=AddressState.ALLOCATED, container="c10"
                        ),
                    ),
                    former=tuple(
                        FormerHolderDocument(
                            ipv4=IPv4Address(f"10.0.1.{slot}"),
                            slot=slot,
                            namespace="shop",
                            pod=f"old-{slot}",
                            container="c0",
                            interface="eth0",
                            since=NOW - timedelta(hours=3),
                            until=NOW - timedelta(hours=2),
                        )
                        for slot in (7, 9, 11)
                    ),
                ),
            ),
        ),
    ),
)


@pytest.fixture
def nodes() -> MemoryNodes:
    return MemoryNodes({"n1": node_dump(LEDGER)})


async def show(reader: MemoryReader, text: str = "", nodes: MemoryNodes | None = None) -> IpamDocument:
    """Without `nodes`, none can be asked."""
    return await look_up(reader, nodes or MemoryNodes(), parse_target(text, namespace="shop") if text else None)


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
        ("192.0.2.9", [], [], "no pod has the address"),
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


async def test_since_when_a_pod_has_its_addresses_and_who_had_them(reader: MemoryReader, nodes: MemoryNodes) -> None:
    for target in ("10.0.1.7", "fd00::107", "pod/web-0"):
        document = await show(reader, target, nodes)
        assert document.ledger is not None
        [entry] = document.ledger
        assert (entry.addresses, entry.block, entry.pod) == (("10.0.1.7", "fd00::107"), "default-1", "shop/web-0")
        assert (entry.state, entry.container, entry.since) == (LedgerState.ALLOCATED, "c7", NOW - timedelta(hours=1))
        assert entry.before == FormerPodDocument(
            pod="shop/old-7", since=NOW - timedelta(hours=3), until=NOW - timedelta(hours=2)
        )
        assert (document.note, document.troubles) == ("", ())
    assert set(nodes.asked) == {("n1", frozenset({Part.INSPECTION}))}


@pytest.mark.parametrize(
    ("address", "state", "before", "note"),
    [
        ("10.0.1.9", LedgerState.COOLING, "shop/old-9", "the address is cooling down"),
        ("10.0.1.10", LedgerState.ALLOCATED, None, "its node's coild has given the address away, and no pod shows it"),
        ("10.0.1.11", LedgerState.FREE, "shop/old-11", "no pod has the address: it is free"),
    ],
)
async def test_an_address_that_no_pod_has(
    reader: MemoryReader, nodes: MemoryNodes, address: str, state: LedgerState, before: str | None, note: str
) -> None:
    document = await show(reader, address, nodes)
    assert document.ledger is not None
    [entry] = document.ledger
    assert (entry.state, entry.before.pod if entry.before else None) == (state, before)
    assert document.note.startswith(note)


async def test_an_address_that_nobody_had(reader: MemoryReader, nodes: MemoryNodes) -> None:
    document = await show(reader, "10.0.1.12", nodes)
    assert (document.ledger, document.note) == ((), "no pod has the address: it is free")


async def test_what_is_out_on_a_node(reader: MemoryReader, nodes: MemoryNodes) -> None:
    document = await show(reader, "node/n1", nodes)
    assert document.ledger is not None
    assert [entry.addresses[0] for entry in document.ledger] == ["10.0.1.7", "10.0.1.9", "10.0.1.10"]


async def test_a_node_that_cannot_be_asked_is_told_with_the_rest(reader: MemoryReader) -> None:
    for target in ("10.0.1.7", "pod/web-0", "node/n1"):
        document = await show(reader, target)
        assert document.ledger is None
        assert document.troubles == ("the node n1 could not be asked: it is silent",)
        assert "web-0" in {each.name for each in document.pods}


async def test_no_node_is_asked_about_what_no_node_has(reader: MemoryReader, nodes: MemoryNodes) -> None:
    for target in ("", "pool/default", "pod/on-host", "pod/new", "10.0.9.9", "10.0.2.1"):
        assert (await show(reader, target, nodes)).ledger is None
    assert nodes.asked == []


async def test_an_address_of_a_network_interface(reader: MemoryReader, nodes: MemoryNodes) -> None:
    """Where no pool has the address, the pod says which node to ask."""
    reader.api.put(PODS, pod("in-vpc", "172.31.0.5", node="n2"))
    use = EniAddressDocument(
        address=IPv4Address("172.31.0.5"), state=AddressState.ALLOCATED, namespace="shop", pod="in-vpc", since=NOW
    )
    interface = InterfaceDocument(
        id="eni-1",
        mac="02:00:00:00:00:01",
        device_number=1,
        subnet="subnet-1",
        primary=IPv4Address("172.31.0.4"),
        up=True,
        addresses=AddressCounts(),
        used=(use,),
    )
    page = EniNodeDocument(node="n2", at=NOW, addresses=AddressCounts(), interfaces=(interface,))
    nodes.dumps["n2"] = node_dump(page)
    document = await show(reader, "172.31.0.5", nodes)
    assert document.ledger is not None
    assert [(entry.block, entry.pod, entry.since) for entry in document.ledger] == [("eni-1", "shop/in-vpc", NOW)]
    assert document.note == ""
