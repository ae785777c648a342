"""The document of `kubectl coil status` for people: the verdict and what is wrong first, then what there is."""

from collections.abc import Iterator, Sequence
from datetime import datetime
from typing import TYPE_CHECKING, Final

from coil.runtime.terminal import printable
from kubectl_coil.output import make_table
from kubectl_coil.status.document import (
    ComponentDocument,
    EgressDocument,
    FamilyUsage,
    GatewayDocument,
    NodesDocument,
    PoolDocument,
    Severity,
    StatusDocument,
    Verdict,
    WarningDocument,
)

if TYPE_CHECKING:
    from rich.console import Console

_STYLES: Final = {Verdict.FINE: "green", Verdict.DEGRADED: "red", Severity.ERROR: "red", Severity.WARNING: "yellow"}


def render_status(document: StatusDocument, console: "Console") -> None:
    console.print(f"Coil is {document.verdict}", style=_STYLES[document.verdict])
    for finding in document.findings:
        console.print()
        console.print(
            f"{finding.severity.upper()}: {printable(finding.subject)}: {printable(finding.message)}",
            style=_STYLES[finding.severity],
        )
        console.print(f"  {printable(finding.remedy)}")
    for columns, rows in _sections(document):
        if rows:
            console.print()
            console.print(make_table(*columns, rows=rows))


def _sections(document: StatusDocument) -> Iterator[tuple[Sequence[str], list[Sequence[str]]]]:
    yield (
        ("component", "version", "ready", "updated", "leader", "cache age", "certificate"),
        [_component_row(each, document.at) for each in document.components or ()],
    )
    yield (
        ("pool", "ready", "fill", "blocks", "addresses", "nodes", "without"),
        [_pool_row(each) for each in document.pools or ()],
    )
    yield ("nodes", "asked", "blocked pods"), [_nodes_row(each) for each in (document.nodes,) if each is not None]
    yield ("egress", "routers", "client addresses"), [_egress_row(each) for each in document.egresses or ()]
    yield (
        ("gateway", "nodes", "eips", "policies", "waiting", "free ipv4", "free ipv6"),
        [_gateway_row(each) for each in document.gateways or ()],
    )
    yield (
        ("last warnings", "count", "of", "about", "reason", "message"),
        [_warning_row(each, document.at) for each in document.warnings or ()],
    )


def _component_row(each: ComponentDocument, now: datetime) -> Sequence[str]:
    leader = "" if each.leader is None else each.leader.partition("_")[0] or "nobody"
    age = "" if each.cache_age is None else f"{each.cache_age:.0f}s"
    left = "" if each.certificate_end is None else f"{(each.certificate_end - now).days} days"
    return each.name, each.version, f"{each.ready}/{each.desired}", str(each.updated), leader, age, left


def _nodes_row(each: NodesDocument) -> Sequence[str]:
    return str(each.total), str(each.asked), "?" if each.blocked_pods is None else str(each.blocked_pods)


def _pool_row(each: PoolDocument) -> Sequence[str]:
    without = "?" if each.nodes_without is None else str(each.nodes_without)
    blocks, addresses = (f"{counts.used}/{counts.total}" for counts in (each.blocks, each.addresses))
    return each.name, "yes" if each.ready else "no", each.fill, blocks, addresses, str(each.nodes), without


def _egress_row(each: EgressDocument) -> Sequence[str]:
    clients = "?" if each.client_addresses is None else str(each.client_addresses)
    return f"{each.namespace}/{each.name}", f"{each.ready}/{each.desired}", clients


def _gateway_row(each: GatewayDocument) -> Sequence[str]:
    free = (_free(usage) for usage in (each.ipv4, each.ipv6))
    nodes = f"{each.ready_nodes}/{each.nodes}"
    return each.name, nodes, str(each.eips), str(each.placed), str(each.waiting), *free


def _free(usage: FamilyUsage) -> str:
    return f"{usage.free}/{usage.total}" if usage.total else "-"


def _warning_row(each: WarningDocument, now: datetime) -> Sequence[str]:
    ago = "?" if each.at is None else f"{max(0, round((now - each.at).total_seconds() / 60))}m ago"
    return ago, str(each.count), each.component, each.about, each.reason, each.message
