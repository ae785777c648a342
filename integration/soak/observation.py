"""What can be seen of Coil from outside, at one moment: the API server's objects and the kernels of the nodes. Pure.

`integration.soak.witness` looks, `integration.soak.verdict` judges. Documents are read here by themselves and not with
the product's types: what both would misread nobody would find.
"""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from ipaddress import IPv4Network, IPv6Network, ip_network
from typing import Any, TypeAlias

GROUP = "coil.cybozu.com"
FINALIZER = GROUP
ALIAS_PREFIX = "COIL:"
IFNAME = "eth0"
POD_GROUP = str(int.from_bytes(b"Coil"))
"""The link group of the host end of a pair that is complete, as `ip` prints it."""
POD_TABLE = "116"
EXPORT_TABLE = "119"

IPNetwork: TypeAlias = IPv4Network | IPv6Network


@dataclass(frozen=True, slots=True, kw_only=True)
class Pod:
    """A sandbox whose ADD has succeeded and whose DEL has not begun; link and addresses are from the result."""

    node: str
    container_id: str
    pool: str
    host_link: str
    addresses: frozenset[str]

    @property
    def alias(self) -> str:
        """What the host end of its veth must say."""
        return f"{ALIAS_PREFIX}{self.pool}:{self.container_id}:{IFNAME}"


@dataclass(frozen=True, slots=True, kw_only=True)
class Pool:
    """`subnets` are the networks of both families, in their order; `status` is as it stands, perhaps empty."""

    name: str
    uid: str
    bits: int
    subnets: tuple[IPNetwork, ...]
    status: Mapping[str, Any] = field(default_factory=dict)


@dataclass(frozen=True, slots=True, kw_only=True)
class Block:
    """`owner` is the UID of its controlling AddressPool; labels that are missing are empty."""

    name: str
    pool: str
    node: str
    request: str
    owner: str
    networks: tuple[IPNetwork, ...]
    finalized: bool = True
    leaving: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class Objects:
    """What the API server holds."""

    pools: tuple[Pool, ...] = ()
    blocks: tuple[Block, ...] = ()
    requests: tuple[str, ...] = ()
    nodes: frozenset[str] = frozenset()


@dataclass(frozen=True, slots=True)
class Veth:
    """The host end of a pair."""

    name: str
    alias: str
    group: str = POD_GROUP


@dataclass(frozen=True, slots=True)
class Lookup:
    """A policy rule: `family` is 4 or 6."""

    family: int
    priority: int
    table: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Kernel:
    """What a node's kernel holds. Routes to pods are pairs of network and link; nothing is left out as a duplicate."""

    veths: tuple[Veth, ...] = ()
    pod_routes: tuple[tuple[str, str], ...] = ()
    exports: tuple[str, ...] = ()
    lookups: tuple[Lookup, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class Ledger:
    """What a node's coild says about itself: the addresses in use, by container, and the names of its blocks."""

    holders: Mapping[str, frozenset[str]]
    blocks: frozenset[str]


@dataclass(frozen=True, slots=True, kw_only=True)
class Observation:
    """Kernels and ledgers are by the name of the node."""

    objects: Objects
    kernels: Mapping[str, Kernel]
    ledgers: Mapping[str, Ledger] = field(default_factory=dict)


def parse_pool(document: Mapping[str, Any]) -> Pool:
    """An AddressPool."""
    metadata, spec = document["metadata"], document["spec"]
    return Pool(
        name=metadata["name"],
        uid=metadata["uid"],
        bits=spec["blockSizeBits"],
        subnets=tuple(network for subnet in spec["subnets"] for network in _networks(subnet)),
        status=document.get("status", {}),
    )


def parse_block(document: Mapping[str, Any]) -> Block:
    """An AddressBlock."""
    metadata = document["metadata"]
    labels = metadata.get("labels", {})
    owners = [
        owner["uid"]
        for owner in metadata.get("ownerReferences", [])
        if owner["kind"] == "AddressPool" and owner.get("controller") and owner.get("blockOwnerDeletion")
    ]
    return Block(
        name=metadata["name"],
        pool=labels.get(f"{GROUP}/pool", ""),
        node=labels.get(f"{GROUP}/node", ""),
        request=labels.get(f"{GROUP}/request", ""),
        owner=owners[0] if len(owners) == 1 else "",
        networks=tuple(_networks(document)),
        finalized=metadata.get("finalizers") == [FINALIZER],
        leaving="deletionTimestamp" in metadata,
    )


def parse_kernel(
    *,
    links: Iterable[Mapping[str, Any]],
    routes: Iterable[Mapping[str, Any]],
    rules: Mapping[int, Iterable[Mapping[str, Any]]],
    uplink: str,
) -> Kernel:
    """From what `ip -details -json` prints: links, the routes of all tables, and the rules by family."""
    found = list(routes)
    return Kernel(
        veths=tuple(
            Veth(link["ifname"], link.get("ifalias", ""), str(link.get("group", "default")))
            for link in links
            if link.get("linkinfo", {}).get("info_kind") == "veth" and link["ifname"] != uplink
        ),
        pod_routes=tuple(
            (str(ip_network(route["dst"])), route.get("dev", "")) for route in found if _table(route) == POD_TABLE
        ),
        exports=tuple(str(ip_network(route["dst"])) for route in found if _table(route) == EXPORT_TABLE),
        lookups=tuple(
            Lookup(family, rule["priority"], str(rule.get("table", "")))
            for family, entries in rules.items()
            for rule in entries
        ),
    )


def parse_ledger(document: Mapping[str, Any]) -> Ledger:
    """What coild's `/ip-manager` says."""
    blocks = [block for pool in document["pools"] for block in pool["blocks"]]
    used = [use for block in blocks for use in block["used"] if use["state"] == "allocated"]
    return Ledger(
        holders={
            use["container"]: frozenset(use[family] for family in ("ipv4", "ipv6") if use[family]) for use in used
        },
        blocks=frozenset(block["name"] for block in blocks),
    )


def _networks(document: Mapping[str, Any]) -> Iterable[IPNetwork]:
    return (ip_network(document[family]) for family in ("ipv4", "ipv6") if document.get(family))


def _table(route: Mapping[str, Any]) -> str:
    return str(route.get("table", "main"))
