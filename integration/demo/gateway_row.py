"""What an EgressGateway's status says of its nodes, for a table. Read from the API server, nothing else."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

HEADER = ("EGRESSGATEWAY", "NODE", "TUNNEL", "IPV4", "IPV6", "POLICIES")


@dataclass(frozen=True, slots=True, kw_only=True)
class GatewayRow:
    """A node and one EIP on it, or none. `policies` are the names of those that use it."""

    node: str
    phase: str
    ipv4: str = ""
    ipv6: str = ""
    policies: tuple[str, ...] = ()


def read_gateway(document: dict[str, Any]) -> list[GatewayRow]:
    """From an EgressGateway: each node as often as it has EIPs, or once where it has none, in the status' order."""
    rows = []
    for entry in document.get("status", {}).get("nodeList", ()):
        eips: list[dict[str, Any]] = entry.get("eips") or [{}]
        for eip in eips:
            rows.append(
                GatewayRow(
                    node=entry["name"],
                    phase=entry.get("status", ""),
                    ipv4=eip.get("ipv4", ""),
                    ipv6=eip.get("ipv6", ""),
                    policies=tuple(f"{each['namespace']}/{each['name']}" for each in eip.get("policies", ())),
                )
            )
    return rows


def render_rows(name: str, rows: Sequence[GatewayRow]) -> list[tuple[str, ...]]:
    """Cells below `HEADER`; what is empty is said so."""
    return [
        (name, row.node, *(cell or "-" for cell in (row.phase, row.ipv4, row.ipv6, ", ".join(row.policies))))
        for row in rows
    ]
