from ipaddress import IPv4Address, IPv4Network

import pytest

from coil.crd.names import NodeName, PoolName
from coil_migrator.v1_state import V1Address, V1Block, V1Pool, V1State, V1StateError, parse_v1_state
from tests.coil_migrator.v1_cluster import V1Cluster


@pytest.fixture
def cluster() -> V1Cluster:
    cluster = V1Cluster()
    cluster.add_pool("default", 2, "10.1.0.0/28", "10.2.0.0/28")
    cluster.assign("default", "node-1", "10.1.0.0/30")
    cluster.assign("default", "node-2", "10.2.0.4/30")
    cluster.use("10.1.0.0/30", 3, "c1")
    return cluster


def test_what_v1_writes(cluster: V1Cluster) -> None:
    pool = PoolName("default")
    assert parse_v1_state(cluster.entries()) == V1State(
        pools=(V1Pool(pool, 2, ("10.1.0.0/28", "10.2.0.0/28")),),
        blocks=(
            V1Block(pool, NodeName("node-1"), IPv4Network("10.1.0.0/30")),
            V1Block(pool, NodeName("node-2"), IPv4Network("10.2.0.4/30")),
        ),
        addresses=(V1Address(IPv4Address("10.1.0.3"), "c1", "apps", "pod-c1"),),
    )


def test_before_1_0_2_an_address_has_a_container_and_nothing_else(cluster: V1Cluster) -> None:
    cluster.old = True
    assert parse_v1_state(cluster.entries()).addresses == (V1Address(IPv4Address("10.1.0.3"), "c1"),)


@pytest.mark.parametrize("container", ["1234", '"quoted"', "[]", "{}", "null", "\xff"])
def test_a_container_id_that_looks_like_json_is_one(container: str) -> None:
    [address] = parse_v1_state([(b"ip/10.1.0.0/0", container.encode("latin-1"))]).addresses
    assert address.address == IPv4Address("10.1.0.0")
    assert address.pod == ""


def test_nothing_and_what_v1_does_not_know() -> None:
    assert parse_v1_state([]) == V1State((), (), ())
    assert parse_v1_state([(b"bootstrapped", b"true"), (b"subnet/10.1.0.0", b"")]) == V1State((), (), ())


@pytest.mark.parametrize("value", [b'{"free": null, "nodes": null}', b'{"nodes": {"n": null}}', b"{}"])
def test_go_writes_what_is_empty_as_null(value: bytes) -> None:
    assert parse_v1_state([(b"block/default/10.1.0.0", value)]).blocks == ()


@pytest.mark.parametrize(
    ("key", "value", "fault"),
    [
        (b"pool/p", b"{", "pool/p: Input data was truncated"),
        (b"pool/p", b'{"subnets": []}', "missing required field `block_size`"),
        (b"pool/p", b'{"block_size": "5"}', "Expected `int`"),
        (b"block/p/10.1.0.0", b'{"nodes": {"n": ["10.1.0.1/30"]}}', "host bits"),
        (b"block/p/10.1.0.0", b'{"nodes": {"n": ["fd00::/124"]}}', "not IPv4"),
        (b"block/p/10.1.0.0", b"\xff", "block/p/10.1.0.0: "),
        (b"ip/10.1.0.0/x", b"c", "does not end with the number"),
        (b"ip/10.1.0.0", b"c", "does not end with the number"),
        (b"ip/10.1.0/0", b"c", "no address of a block"),
        (b"ip/255.255.255.255/9", b"c", "no address of a block"),
    ],
)
def test_what_v1_never_wrote(key: bytes, value: bytes, fault: str) -> None:
    with pytest.raises(V1StateError, match=fault.replace("(", r"\(")) as refusal:
        parse_v1_state([(key, value), (b"pool/fine", b'{"block_size": 5}')])
    assert len(refusal.value.faults) == 1


def test_all_faults_are_told_at_once() -> None:
    with pytest.raises(V1StateError) as refusal:
        parse_v1_state([(b"pool/a", b""), (b"pool/b", b"")])
    assert [fault.partition(":")[0] for fault in refusal.value.faults] == ["pool/a", "pool/b"]
