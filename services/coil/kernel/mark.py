"""Packets that carry a node's mark leave through the tunnel to that node: one rule and one table for each mark.

    1699   not fwmark 0x26000000/0xff000000  ─► on to 1701
    1699   fwmark 0x26000000 (all 32 bits)   ─► on to 1701
    1700   fwmark 0x26VVVV00 (all 32 bits)   ─► table 0x26VVVV00: default via the node's tunnel address
    1701   (nothing: where 1699 leads to)

The kernel asks rules one after the other, for each packet that it routes: a thousand marks take 17 µs (measured). The
gate before them spares the packets that have no such mark, and those for which this node is itself the gateway. If one
of its rules is missing, packets take longer, no more.

The priority is below all others of Coil (1800 and up, `coil.egress.client_plan`; 2000, `coil.podnet.plan`), since a
mark is a decision already made. Whose a rule is follows from protocol and priority, whose a route is from protocol and
link: so what an earlier process left is found again in whatever table.
"""

from collections.abc import Collection, Mapping
from dataclasses import dataclass
from typing import Final

from coil.kernel.family import Family, IPAddress
from coil.kernel.link import LinkName
from coil.kernel.route import DEFAULT_NETWORKS, Route
from coil.kernel.rule import Rule, RuleClaim

NODE_MARK: Final = 0x26000000
NODE_MARK_MASK: Final = 0xFF000000
"""The bits that tell any node's mark from all other marks. `NODE_MARK` alone stands for the node itself."""

GATE_PRIORITY: Final = 1699
MARK_PRIORITY: Final = 1700
LANDING_PRIORITY: Final = 1701
MARK_PROTOCOL: Final = 30
"""What Coil's routes and rules carry everywhere."""
MARK_CLAIM: Final = RuleClaim(protocol=MARK_PROTOCOL, priorities=frozenset({MARK_PRIORITY}))


@dataclass(frozen=True, slots=True)
class MarkGate:
    """The rules of a family that lead packets without another node's mark past the rules of the marks."""

    family: Family

    def __str__(self) -> str:
        return f"gate {GATE_PRIORITY} to {LANDING_PRIORITY} ({self.family.name})"


@dataclass(frozen=True, slots=True, kw_only=True)
class MarkPlan:
    """The rules and routes of all marks, and a gate in each family that has any."""

    rules: tuple[Rule, ...]
    routes: tuple[Route, ...]

    @property
    def gates(self) -> tuple[MarkGate, ...]:
        families = {rule.family for rule in self.rules}
        return tuple(MarkGate(family) for family in Family if family in families)


def plan_marks(device: LinkName, paths: Mapping[int, Collection[IPAddress]]) -> MarkPlan:
    """For each mark the addresses, at most one of a family, that its packets are sent to over the link.

    In a family without an address the mark has no rule. Raises ValueError for what is no node's mark, and for two
    addresses of a family.
    """
    rules: list[Rule] = []
    routes: list[Route] = []
    for mark, gateways in sorted(paths.items()):
        if mark & ~0xFFFFFFFF or mark & NODE_MARK_MASK != NODE_MARK or mark == NODE_MARK:
            raise ValueError(f"{mark:#x} is no node's mark")
        families = [Family.of(gateway) for gateway in gateways]
        if len(set(families)) < len(families):
            raise ValueError(f"mark {mark:#x} leads to several addresses of one family: {sorted(map(str, gateways))}")
        for family, gateway in zip(families, gateways, strict=True):
            rules.append(Rule(family=family, priority=MARK_PRIORITY, table=mark, protocol=MARK_PROTOCOL, mark=mark))
            routes.append(
                Route(
                    destination=DEFAULT_NETWORKS[family],
                    device=device,
                    gateway=gateway,
                    table=mark,
                    protocol=MARK_PROTOCOL,
                    onlink=True,
                )
            )
    return MarkPlan(rules=tuple(rules), routes=tuple(routes))
