"""What Coil v1 leaves in etcd, written here as its own programs write it (v1's docs/schema.md; `block.go`, `pool.go`,
`ip.go` of its model), without any code of the migrator.
"""

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from ipaddress import IPv4Address, IPv4Network

Entries = list[tuple[bytes, bytes]]


@dataclass
class V1Cluster:
    """`assigned` are networks of blocks by pool, subnet and node; `addresses` container IDs by block and offset.

    Pods are in the namespace `apps`.
    """

    pools: dict[str, tuple[int, list[str]]] = field(default_factory=dict)
    assigned: dict[tuple[str, str], dict[str, list[str]]] = field(default_factory=dict)
    addresses: dict[tuple[str, int], str] = field(default_factory=dict)
    old: bool = False
    """As before v1.0.2: a container ID is all there is of a pod."""

    def add_pool(self, name: str, bits: int, *subnets: str) -> None:
        self.pools[name] = (bits, list(subnets))
        for subnet in subnets:
            self.assigned[name, subnet] = {}

    def assign(self, pool: str, node: str, block: str) -> None:
        for (owner, subnet), nodes in self.assigned.items():
            if owner == pool and IPv4Network(block).subnet_of(IPv4Network(subnet)):
                nodes.setdefault(node, []).append(block)

    def use(self, block: str, offset: int, container: str) -> None:
        self.addresses[block, offset] = container

    def entries(self) -> Entries:
        """Keys without prefix, and values, in the order of the keys."""
        found: dict[str, str] = {}
        for name, (bits, subnets) in self.pools.items():
            found[f"pool/{name}"] = json.dumps({"subnets": subnets or None, "block_size": bits})
        for (pool, subnet), nodes in self.assigned.items():
            first = subnet.partition("/")[0]
            found[f"subnet/{first}"] = ""
            found[f"block/{pool}/{first}"] = json.dumps({"free": self._free(pool, subnet, nodes), "nodes": nodes})
        for (block, offset), container in self.addresses.items():
            found[f"ip/{block.partition('/')[0]}/{offset}"] = self._holder(container)
        return [(key.encode(), value.encode()) for key, value in sorted(found.items())]

    def in_use(self) -> set[IPv4Address]:
        return {IPv4Network(block)[offset] for block, offset in self.addresses}

    def _free(self, pool: str, subnet: str, nodes: Mapping[str, Sequence[str]]) -> list[str] | None:
        taken = {block for blocks in nodes.values() for block in blocks}
        blocks = map(str, IPv4Network(subnet).subnets(new_prefix=32 - self.pools[pool][0]))
        return [block for block in blocks if block not in taken] or None  # Go's word for an empty list

    def _holder(self, container: str) -> str:
        if self.old:
            return container
        return json.dumps(
            {
                "container_id": container,
                "namespace": "apps",
                "pod": f"pod-{container}",
                "created_at": "2020-10-01T00:00:00Z",
            }
        )
