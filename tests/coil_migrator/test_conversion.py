from collections.abc import Collection
from ipaddress import IPv4Address, IPv4Network

import pytest
from hypothesis import given
from hypothesis import strategies as st

from coil.crd.names import NodeName
from coil.ipam.layout import parse_layout
from coil_migrator.conversion import Conversion, ConversionError, convert
from coil_migrator.v1_state import parse_v1_state
from tests.coil_migrator.v1_cluster import V1Cluster

NODES = ("node-1", "node-2")


def converted(cluster: V1Cluster, nodes: Collection[str] = NODES) -> Conversion:
    return convert(parse_v1_state(cluster.entries()), [NodeName(node) for node in nodes])


def faults_of(cluster: V1Cluster) -> list[str]:
    with pytest.raises(ConversionError) as refusal:
        converted(cluster)
    return refusal.value.faults


@pytest.fixture
def cluster() -> V1Cluster:
    cluster = V1Cluster()
    cluster.add_pool("default", 2, "10.1.0.0/28", "10.2.0.0/29")
    cluster.add_pool("apps", 0, "10.3.0.0/30")
    return cluster


def test_pools_keep_their_names_block_sizes_and_the_order_of_their_subnets(cluster: V1Cluster) -> None:
    pools = converted(cluster).pools
    assert [(pool.name, pool.spec.block_size_bits) for pool in pools] == [("apps", 0), ("default", 2)]
    assert [subnet.ipv4 for subnet in pools[1].spec.subnets] == ["10.1.0.0/28", "10.2.0.0/29"]


@pytest.mark.parametrize(
    ("block", "index"), [("10.1.0.0/30", 0), ("10.1.0.12/30", 3), ("10.2.0.0/30", 4), ("10.2.0.4/30", 5)]
)
def test_a_block_is_reserved_for_its_node_under_the_index_that_v2_has_for_it(
    cluster: V1Cluster, block: str, index: int
) -> None:
    cluster.assign("default", "node-1", block)
    [found] = converted(cluster).blocks
    assert (found.name, found.index, found.ipv4, found.ipv6) == (f"default-{index}-v1", index, block, None)
    assert (found.pool, found.node, found.reserved, found.request) == ("default", "node-1", True, "")
    assert (found.metadata.finalizers, found.metadata.owner_references) == ((), ())


def test_blocks_come_by_pool_and_index(cluster: V1Cluster) -> None:
    for node, block in (("node-2", "10.2.0.0/30"), ("node-1", "10.1.0.8/30"), ("node-1", "10.1.0.0/30")):
        cluster.assign("default", node, block)
    cluster.assign("apps", "node-1", "10.3.0.2/32")
    names = [block.name for block in converted(cluster).blocks]
    assert names == ["apps-2-v1", "default-0-v1", "default-2-v1", "default-4-v1"]


def test_blocks_of_nodes_and_pools_that_are_no_more_are_left_out_and_told_of(cluster: V1Cluster) -> None:
    cluster.assign("default", "gone", "10.1.0.0/30")
    cluster.use("10.1.0.0/30", 0, "c1")
    cluster.add_pool("dropped", 2, "10.9.0.0/28")
    cluster.assign("dropped", "node-1", "10.9.0.0/30")
    cluster.use("10.9.0.0/30", 0, "c2")
    del cluster.pools["dropped"]
    entries = [entry for entry in _with_pool(cluster, "dropped", 2) if entry[0] != b"pool/dropped"]
    conversion = convert(parse_v1_state(entries), [NodeName(node) for node in NODES])
    assert conversion.blocks == ()
    assert sorted(note.rpartition(": ")[2] for note in conversion.notes) == [
        "there is no such node",
        "there is no such pool",
    ]


def _with_pool(cluster: V1Cluster, name: str, bits: int) -> list[tuple[bytes, bytes]]:
    cluster.pools[name] = (bits, [])
    try:
        return cluster.entries()
    finally:
        del cluster.pools[name]


@pytest.mark.parametrize(
    ("name", "bits", "subnets", "fault"),
    [
        ("small", 5, ["10.4.0.0/28"], "the pool 'small' is not valid in v2: .*smaller than a block"),
        ("odd", 2, ["10.4.0.0/33"], "is not a network"),
        ("none", 2, [], "at least one entry"),
        ("local", 2, ["169.254.0.0/24"], "no pod can have"),
        ("overlap", 2, ["10.1.0.0/29"], "overlaps 10.1.0.0/28 of the pool 'default'"),
        ("Big_Name", 2, ["10.4.0.0/28"], "no object of Kubernetes"),
    ],
)
def test_a_pool_that_v2_would_not_take(
    cluster: V1Cluster, name: str, bits: int, subnets: list[str], fault: str
) -> None:
    cluster.pools[name] = (bits, subnets)
    found = faults_of(cluster)
    with pytest.raises(ConversionError, match=fault):
        raise ConversionError(found)


@pytest.mark.parametrize("block", ["10.1.0.0/29", "10.1.0.1/32"])
def test_a_block_of_another_size_than_its_pools(cluster: V1Cluster, block: str) -> None:
    cluster.assigned["default", "10.1.0.0/28"]["node-1"] = [block]
    assert [f"the block {block}" in fault for fault in faults_of(cluster)] == [True]


def test_a_block_outside_of_its_pool(cluster: V1Cluster) -> None:
    cluster.assigned["default", "10.1.0.0/28"]["node-1"] = ["10.8.0.0/30"]
    assert ["is not a block of that pool" in fault for fault in faults_of(cluster)] == [True]


def test_a_block_of_two_nodes(cluster: V1Cluster) -> None:
    cluster.assign("default", "node-1", "10.1.0.0/30")
    cluster.assign("default", "node-2", "10.1.0.0/30")
    assert ["is the node node-1's as well" in fault for fault in faults_of(cluster)] == [True]


def test_a_block_that_stands_twice_is_one(cluster: V1Cluster) -> None:
    cluster.assign("default", "node-1", "10.1.0.0/30")
    cluster.assign("default", "node-1", "10.1.0.0/30")
    assert [block.name for block in converted(cluster).blocks] == ["default-0-v1"]


def test_a_node_whose_name_is_no_label(cluster: V1Cluster) -> None:
    cluster.assign("default", "n" * 64, "10.1.0.0/30")
    assert ["longer than 63" in fault for fault in faults_of(cluster)] == [True]


def test_an_address_in_use_in_a_block_that_is_said_to_be_free(cluster: V1Cluster) -> None:
    cluster.assign("default", "node-1", "10.1.0.0/30")
    cluster.use("10.1.0.4/30", 1, "c1")
    [fault] = faults_of(cluster)
    assert "10.1.0.5 of the pod apps/pod-c1 is in use" in fault
    assert "`coilctl address free 10.1.0.5`" in fault


def test_an_address_of_no_pool_is_no_obstacle(cluster: V1Cluster) -> None:
    cluster.use("10.200.0.0/30", 0, "c1")
    assert converted(cluster).blocks == ()


@st.composite
def v1_clusters(draw: st.DrawFn) -> V1Cluster:
    """Pools of one or two subnets, blocks with a node or none, addresses in those with a node."""
    cluster = V1Cluster(old=draw(st.booleans()))
    for number in range(draw(st.integers(1, 3))):
        bits = draw(st.integers(0, 2))
        sizes = draw(st.lists(st.integers(0, 2), min_size=1, max_size=2))
        subnets = [f"10.{number}.{at}.0/{32 - bits - size}" for at, size in enumerate(sizes)]
        cluster.add_pool(f"pool-{number}", bits, *subnets)
        for block in [block for subnet in subnets for block in IPv4Network(subnet).subnets(new_prefix=32 - bits)]:
            node = draw(st.sampled_from(["", "", *NODES]))
            if node:
                cluster.assign(f"pool-{number}", node, str(block))
                for offset in draw(st.sets(st.integers(0, 2**bits - 1), max_size=3)):
                    cluster.use(str(block), offset, f"c-{block}-{offset}")
    return cluster


@given(v1_clusters())
def test_each_address_in_use_is_in_exactly_one_reserved_block_and_nothing_else_is_reserved(cluster: V1Cluster) -> None:
    conversion = converted(cluster)
    reserved = [(block.pool, block.node, IPv4Network(block.ipv4 or "")) for block in conversion.blocks]
    assigned = {
        (pool, node, IPv4Network(block))
        for (pool, _), nodes in cluster.assigned.items()
        for node, blocks in nodes.items()
        for block in blocks
    }
    assert len(reserved) == len(assigned)
    assert set(reserved) == assigned
    for address in cluster.in_use():
        assert sum(address in network for _, _, network in reserved) == 1


@given(v1_clusters())
def test_v2_would_carve_the_very_same_networks(cluster: V1Cluster) -> None:
    conversion = converted(cluster)
    layouts = {pool.name: parse_layout(pool) for pool in conversion.pools}
    names = set()
    for block in conversion.blocks:
        planned = layouts[block.pool].block_at(block.index)
        assert str(planned.ipv4) == block.ipv4
        names.add(block.name)
        assert block.name == f"{planned.name}-v1"
    assert len(names) == len(conversion.blocks)
    assert {pool.name for pool in conversion.pools} == set(cluster.pools)


@given(v1_clusters(), st.data())
def test_a_lost_assignment_is_never_passed_over(cluster: V1Cluster, data: st.DataObject) -> None:
    holders = sorted({block for block, _ in cluster.addresses})
    if not holders:
        return
    lost = data.draw(st.sampled_from(holders))
    for nodes in cluster.assigned.values():
        for blocks in nodes.values():
            if lost in blocks:
                blocks.remove(lost)
    affected = {str(address) for address in cluster.in_use() if address in IPv4Network(lost)}
    assert {str(IPv4Address(fault.split()[0])) for fault in faults_of(cluster)} == affected
