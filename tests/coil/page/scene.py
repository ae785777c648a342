"""Documents for the pages: a small node and a small cluster, and nodes whose every text is hypothesis's."""

from datetime import UTC, datetime, timedelta
from ipaddress import IPv4Network, IPv6Network
from typing import Any

from hypothesis import strategies as st

from coil.page import cluster_document as cluster
from coil.page.node_document import (
    AddressCounts,
    AddressDocument,
    AddressState,
    BlockDocument,
    BlockUse,
    NodeDocument,
    PoolDocument,
)

NOON = datetime(2030, 1, 1, 12, tzinfo=UTC)
BASE_ADDRESS = int(IPv4Network("10.1.0.0/16").network_address)


def make_use(block: tuple[IPv4Network | None, IPv6Network | None], slot: int, **fields: Any) -> AddressDocument:
    ipv4, ipv6 = block
    known: dict[str, Any] = {"state": AddressState.ALLOCATED, **fields}
    return AddressDocument(
        ipv4=None if ipv4 is None else ipv4[slot], ipv6=None if ipv6 is None else ipv6[slot], slot=slot, **known
    )


def make_block(name: str, *uses: dict[str, Any], ipv4: str = "", ipv6: str = "", use: str = "open") -> BlockDocument:
    """`uses` with the fields of an address: slot, state, pod, …"""
    networks = (IPv4Network(ipv4) if ipv4 else None, IPv6Network(ipv6) if ipv6 else None)
    used = tuple(make_use(networks, **fields) for fields in uses)
    size = max(network.num_addresses for network in networks if network is not None)
    allocated = sum(entry.state is AddressState.ALLOCATED for entry in used)
    rest = size - len(used)
    counts = AddressCounts(
        total=size,
        allocated=allocated,
        cooling=len(used) - allocated,
        free=rest if use == "open" else 0,
        withheld=0 if use == "open" else rest,
    )
    return BlockDocument(
        name=name,
        index=int(name.rpartition("-")[2]),
        ipv4=networks[0],
        ipv6=networks[1],
        use=BlockUse(use),
        addresses=counts,
        used=used,
    )


def make_node(*blocks: BlockDocument, name: str = "node1") -> NodeDocument:
    """The pools follow from the names of the blocks."""
    pools = []
    for pool in dict.fromkeys(block.name.rpartition("-")[0] for block in blocks):
        members = tuple(block for block in blocks if block.name.rpartition("-")[0] == pool)
        pools.append(PoolDocument(name=pool, addresses=add(block.addresses for block in members), blocks=members))
    return NodeDocument(node=name, at=NOON, addresses=add(pool.addresses for pool in pools), pools=tuple(pools))


def add(counts: Any) -> AddressCounts:
    return sum(counts, start=AddressCounts())


def pod(slot: int, name: str, *, namespace: str = "apps", age: int = 90) -> dict[str, Any]:
    return {
        "slot": slot,
        "pod": name,
        "namespace": namespace,
        "container": f"{slot:02x}" * 32,
        "interface": "eth0",
        "since": NOON - timedelta(seconds=age),
    }


def cooling(slot: int) -> dict[str, Any]:
    return {"slot": slot, "state": AddressState.COOLING}


def make_pool(name: str, *placed: cluster.PlacedBlock, total: int = 2048, **fields: Any) -> cluster.PoolDocument:
    counts = cluster.UseCounts(total=total, used=len(placed), free=total - len(placed))
    known: dict[str, Any] = {
        "gives_blocks": True,
        "block_size": 32,
        "subnets": (cluster.SubnetDocument(ipv4="10.1.0.0/16"),),
        "addresses": cluster.UseCounts(total=32 * total, used=32 * counts.used, free=32 * counts.free),
        "history": cluster.HistoryDocument(interval_seconds=30.0, until=NOON, used_blocks=(0, 1, len(placed))),
        **fields,
    }
    return cluster.PoolDocument(name=name, blocks=counts, placed=placed, **known)


def place(pool: str, index: int, *, node: str = "node1", state: str = "used") -> cluster.PlacedBlock:
    network = IPv4Network((BASE_ADDRESS + 32 * index, 27)) if index < 2048 else None
    return cluster.PlacedBlock(
        name=f"{pool}-{index}",
        index=index,
        node=node,
        state=cluster.BlockState(state),
        ipv4=str(network) if network else None,
    )


def make_cluster(*pools: cluster.PoolDocument, **fields: Any) -> cluster.ClusterDocument:
    names = {block.node for pool in pools for block in pool.placed}
    known: dict[str, Any] = {
        "replica": "replica-1",
        "leads": True,
        "nodes": tuple(
            cluster.NodeDocument(
                name=name,
                present=True,
                blocks={pool.name: sum(block.node == name for block in pool.placed) for pool in pools},
            )
            for name in sorted(names)
        ),
        **fields,
    }
    blocks = sum((pool.blocks for pool in pools), start=cluster.UseCounts())
    return cluster.ClusterDocument(at=NOON, blocks=blocks, pools=pools, **known)


TEXTS = st.text(max_size=40) | st.sampled_from(
    [
        "<script>alert(1)</script>",
        '"><img src=x onerror=alert(1)>',
        "' onmouseover='x",
        "</style><b>",
        "&lt;&#x3c;",
        "]]><!--",
        "\u202egnp.exe",
        "\x00\x1b[31m",
        "line\nline",
    ]
)
"""Texts as a page may get them, the nastiest among them."""


@st.composite
def foreign_nodes(draw: st.DrawFn) -> NodeDocument:
    """A node where everything that is text is anything."""
    slots = draw(st.sets(st.integers(0, 7), max_size=8))
    uses = [
        {
            "slot": slot,
            "state": draw(st.sampled_from(AddressState)),
            "pod": draw(st.none() | TEXTS),
            "namespace": draw(st.none() | TEXTS),
            "container": draw(st.none() | TEXTS),
            "interface": draw(st.none() | TEXTS),
            "since": draw(st.none() | st.just(NOON)),
        }
        for slot in sorted(slots)
    ]
    use = draw(st.sampled_from(["open", "reserved", "draining", "occupied"]))
    return make_node(make_block("pool-0", *uses, ipv4="10.0.0.0/29", ipv6="fd00::/125", use=use), name=draw(TEXTS))
