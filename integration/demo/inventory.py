"""What the demo found: pods, and the blocks that their addresses come from. Read from the API server, nothing else."""

from collections.abc import Sequence
from dataclasses import dataclass
from ipaddress import IPv4Address, IPv6Address, ip_address, ip_network
from typing import Any


@dataclass(frozen=True, slots=True)
class BlockRow:
    """An AddressBlock. `networks` as the object shows them, IPv4 first."""

    name: str
    pool: str
    node: str
    networks: tuple[str, ...]

    def holds(self, address: str) -> bool:
        """True if the address is of this block."""
        return any(ip_address(address) in ip_network(network) for network in self.networks)


@dataclass(frozen=True, slots=True)
class PodRow:
    """A running pod with its addresses; `block` and `pool` are empty if no block holds them."""

    namespace: str
    name: str
    node: str
    ipv4: str
    ipv6: str
    block: str
    pool: str

    @property
    def addresses(self) -> tuple[str, str]:
        return self.ipv4, self.ipv6


def read_blocks(document: dict[str, Any]) -> list[BlockRow]:
    """From the list that `kubectl get addressblocks -o json` prints, by pool and index."""
    rows = []
    for item in sorted(
        document["items"], key=lambda item: (item["metadata"]["labels"]["coil.cybozu.com/pool"], item["index"])
    ):
        labels = item["metadata"]["labels"]
        networks = tuple(item[family] for family in ("ipv4", "ipv6") if family in item)
        rows.append(
            BlockRow(
                name=item["metadata"]["name"],
                pool=labels["coil.cybozu.com/pool"],
                node=labels["coil.cybozu.com/node"],
                networks=networks,
            )
        )
    return rows


def read_pods(document: dict[str, Any], blocks: list[BlockRow]) -> list[PodRow]:
    """From the list that `kubectl get pods -o json` prints: the pods that have addresses, by node and name."""
    rows = []
    for item in document["items"]:
        addresses = [ip_address(entry["ip"]) for entry in item.get("status", {}).get("podIPs", [])]
        if not addresses:
            continue
        ipv4 = next((str(address) for address in addresses if isinstance(address, IPv4Address)), "")
        ipv6 = next((str(address) for address in addresses if isinstance(address, IPv6Address)), "")
        block = next((block for block in blocks if all(block.holds(a) for a in (ipv4, ipv6) if a)), None)
        rows.append(
            PodRow(
                namespace=item["metadata"]["namespace"],
                name=item["metadata"]["name"],
                node=item["spec"]["nodeName"],
                ipv4=ipv4,
                ipv6=ipv6,
                block=block.name if block else "",
                pool=block.pool if block else "",
            )
        )
    return sorted(rows, key=lambda row: (row.node, row.namespace, row.name))


def render_table(header: tuple[str, ...], rows: Sequence[tuple[str, ...]]) -> str:
    """Columns as wide as their widest cell."""
    widths = [max(len(row[column]) for row in [header, *rows]) for column in range(len(header))]
    lines = [header, tuple("─" * width for width in widths), *rows]
    return "\n".join(
        "  ".join(cell.ljust(width) for cell, width in zip(line, widths, strict=True)).rstrip() for line in lines
    )
