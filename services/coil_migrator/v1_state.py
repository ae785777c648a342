"""What Coil v1 keeps in etcd: from keys and values to pools, blocks and addresses. Pure; first step of a dump.

Below v1's prefix, "/coil/" unless it was told otherwise:

    pool/<name>                    {"subnets": [CIDR, …], "block_size": bits of a block}
    subnet/<network address>       empty; only keeps a network from being in two pools, and is not read
    block/<pool>/<network address> {"free": [CIDR, …], "nodes": {node: [CIDR, …]}}
    ip/<block's address>/<offset>  {"container_id": …, "namespace": …, "pod": …, "created_at": …};
                                   before v1.0.2 the container's ID alone

Sources: coil.md, section 5; v1's docs/schema.md. v1 knows IPv4 only.
"""

from collections.abc import Iterable
from dataclasses import dataclass
from ipaddress import AddressValueError, IPv4Address, IPv4Network

import msgspec

from coil.crd.cidr import parse_ipv4_cidr
from coil.crd.names import NodeName, PoolName


class V1StateError(ValueError):
    """Something in etcd is not what v1 writes. `faults` names each key."""

    def __init__(self, faults: list[str]) -> None:
        super().__init__("; ".join(faults))
        self.faults = faults


@dataclass(frozen=True, slots=True)
class V1Pool:
    """`subnets` are as v1 wrote them: whether v2 can take them is checked later."""

    name: PoolName
    block_size_bits: int
    subnets: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class V1Block:
    """A block that a node has."""

    pool: PoolName
    node: NodeName
    network: IPv4Network


@dataclass(frozen=True, slots=True)
class V1Address:
    """An address that a pod has. Namespace and pod are empty where an old v1 has not noted them."""

    address: IPv4Address
    container_id: str
    namespace: str = ""
    pod: str = ""

    def __str__(self) -> str:
        owner = f"the pod {self.namespace}/{self.pod}" if self.pod else f"the container {self.container_id}"
        return f"{self.address} of {owner}"


@dataclass(frozen=True, slots=True)
class V1State:
    """All of it, each part in the order of etcd's keys."""

    pools: tuple[V1Pool, ...]
    blocks: tuple[V1Block, ...]
    addresses: tuple[V1Address, ...]


class _Pool(msgspec.Struct, frozen=True):
    """Go writes an empty list as null, here and below."""

    block_size: int
    subnets: list[str] | None = None


class _Assignment(msgspec.Struct, frozen=True):
    nodes: dict[str, list[str] | None] | None = None


class _Holder(msgspec.Struct, frozen=True):
    container_id: str
    namespace: str = ""
    pod: str = ""


def parse_v1_state(entries: Iterable[tuple[bytes, bytes]]) -> V1State:
    """The state from keys, without v1's prefix, and values. Keys of other kinds are left out.

    Raises V1StateError with all that cannot be read: half a state would be worse than none.
    """
    pools: list[V1Pool] = []
    blocks: list[V1Block] = []
    addresses: list[V1Address] = []
    faults: list[str] = []
    for raw, value in entries:
        key = raw.decode(errors="replace")
        kind, _, rest = key.partition("/")
        try:
            if kind == "pool":
                pools.append(_parse_pool(rest, value))
            elif kind == "block":
                blocks += _parse_blocks(rest, value)
            elif kind == "ip":
                addresses.append(_parse_address(rest, value))
        except (ValueError, msgspec.MsgspecError) as error:
            faults.append(f"{key}: {error}")
    if faults:
        raise V1StateError(faults)
    return V1State(tuple(pools), tuple(blocks), tuple(addresses))


def _parse_pool(name: str, value: bytes) -> V1Pool:
    pool = msgspec.json.decode(value, type=_Pool)
    return V1Pool(PoolName(name), pool.block_size, tuple(pool.subnets or ()))


def _parse_blocks(rest: str, value: bytes) -> list[V1Block]:
    pool = PoolName(rest.partition("/")[0])
    nodes = msgspec.json.decode(value, type=_Assignment).nodes or {}
    return [
        V1Block(pool, NodeName(node), parse_ipv4_cidr(network))
        for node, networks in sorted(nodes.items())
        for network in networks or ()
    ]


def _parse_address(rest: str, value: bytes) -> V1Address:
    block, _, offset = rest.partition("/")
    if not (offset.isascii() and offset.isdigit()):
        raise ValueError("the key does not end with the number of an address in its block")
    try:
        address = IPv4Address(block) + int(offset)
    except AddressValueError as error:
        raise ValueError(f"the key has no address of a block: {error}") from error
    try:
        holder = msgspec.json.decode(value, type=_Holder)
    except (msgspec.MsgspecError, UnicodeDecodeError):
        return V1Address(address, value.decode(errors="replace"))
    return V1Address(address, holder.container_id, holder.namespace, holder.pod)
