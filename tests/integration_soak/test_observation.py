"""Documents of the API server and of iproute2, as they come."""

from ipaddress import ip_network
from typing import Any

import pytest

from integration.soak.observation import (
    Block,
    Kernel,
    Ledger,
    Lookup,
    Pool,
    Veth,
    parse_block,
    parse_kernel,
    parse_ledger,
    parse_pool,
)

OWNER = {
    "apiVersion": "coil.cybozu.com/v2",
    "kind": "AddressPool",
    "name": "default",
    "uid": "pool-uid",
    "controller": True,
    "blockOwnerDeletion": True,
}
DOCUMENT: dict[str, Any] = {
    "metadata": {
        "name": "default-3",
        "labels": {
            "coil.cybozu.com/pool": "default",
            "coil.cybozu.com/node": "node-0",
            "coil.cybozu.com/request": "request-uid",
        },
        "finalizers": ["coil.cybozu.com"],
        "ownerReferences": [OWNER],
    },
    "index": 3,
    "ipv4": "10.0.0.12/30",
}


def test_a_block() -> None:
    assert parse_block(DOCUMENT) == Block(
        name="default-3",
        pool="default",
        node="node-0",
        request="request-uid",
        owner="pool-uid",
        networks=(ip_network("10.0.0.12/30"),),
    )


@pytest.mark.parametrize("change", [{"controller": False}, {"blockOwnerDeletion": False}, {"kind": "Node"}])
def test_a_reference_that_is_not_the_pool_as_controller_is_no_owner(change: dict[str, object]) -> None:
    metadata = {**DOCUMENT["metadata"], "ownerReferences": [{**OWNER, **change}]}
    assert parse_block({**DOCUMENT, "metadata": metadata}).owner == ""


def test_a_block_on_its_way_out() -> None:
    metadata = {"name": "default-3", "deletionTimestamp": "2026-01-01T00:00:00Z"}
    block = parse_block({"metadata": metadata, "index": 3, "ipv6": "fd00::/126"})
    assert block.leaving
    assert not block.finalized
    assert (block.pool, block.node, block.request, block.owner) == ("", "", "", "")


def test_a_pool() -> None:
    spec = {"blockSizeBits": 2, "subnets": [{"ipv4": "10.0.0.0/28", "ipv6": "fd00::/124"}]}
    pool = parse_pool({"metadata": {"name": "default", "uid": "u"}, "spec": spec})
    subnets = (ip_network("10.0.0.0/28"), ip_network("fd00::/124"))
    assert pool == Pool(name="default", uid="u", bits=2, subnets=subnets)


def test_a_kernel() -> None:
    veth = {"linkinfo": {"info_kind": "veth"}}
    kernel = parse_kernel(
        links=[
            {"ifname": "lo", "group": "default"},
            {"ifname": "eth0", "group": "default", **veth},
            {"ifname": "veth1", "ifalias": "COIL:default:c0ffee:eth0", "group": "1131374956", **veth},
            {"ifname": "veth2", "group": "1668245868", **veth},
        ],
        routes=[
            {"dst": "default", "dev": "eth0"},
            {"dst": "10.0.0.5", "dev": "veth1", "table": "116"},
            {"dst": "10.0.0.4/30", "dev": "lo", "table": "119"},
        ],
        rules={4: [{"priority": 0, "table": "local"}, {"priority": 2000, "table": "116"}], 6: []},
        uplink="eth0",
    )
    assert kernel == Kernel(
        veths=(Veth("veth1", "COIL:default:c0ffee:eth0"), Veth("veth2", "", "1668245868")),
        pod_routes=(("10.0.0.5/32", "veth1"),),
        exports=("10.0.0.4/30",),
        lookups=(Lookup(4, 0, "local"), Lookup(4, 2000, "116")),
    )


def test_a_ledger() -> None:
    used = [
        {"ipv4": "10.0.0.5", "ipv6": "fd00::5", "state": "allocated", "container": "c0ffee"},
        {"ipv4": "10.0.0.6", "ipv6": "fd00::6", "state": "cooling", "container": None},
    ]
    blocks = [{"name": "default-1", "used": used}, {"name": "default-2", "used": []}]
    ledger = parse_ledger({"node": "node-0", "pools": [{"name": "default", "blocks": blocks}]})
    assert ledger == Ledger(
        holders={"c0ffee": frozenset({"10.0.0.5", "fd00::5"})}, blocks=frozenset({"default-1", "default-2"})
    )
