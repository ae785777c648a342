"""All that the kernel holds in a network namespace, as lines that can be compared: what is left behind shows here.

Only what stays by itself: no neighbours, counters or life times.
"""

from collections.abc import Iterable, Mapping
from typing import Any

from integration.kernel_state import KernelState

_NAMESPACE = "namespace"


def take_inventory(kernel: KernelState) -> frozenset[str]:
    """Links with their addresses, routes of all tables, rules, and ids of other namespaces."""
    families = ("-4", "-6")
    return parse_inventory(
        links=kernel.ip("address", "show"),
        routes=[(family, route) for family in families for route in kernel.ip(family, "route", "show", "table", "all")],
        rules=[(family, rule) for family in families for rule in kernel.ip(family, "rule", "show")],
        namespaces=kernel.ip("netns", "list-id"),
    )


def parse_inventory(
    *,
    links: Iterable[Mapping[str, Any]],
    routes: Iterable[tuple[str, Mapping[str, Any]]],
    rules: Iterable[tuple[str, Mapping[str, Any]]],
    namespaces: Iterable[Mapping[str, Any]],
) -> frozenset[str]:
    """From what `ip -json` prints; routes and rules with the switch of their family. Pure."""
    lines: set[str] = set()
    for link in links:
        lines.add(f"link {link['ifname']} {link.get('ifalias', '')}".rstrip())
        lines |= {f"address {entry['local']}/{entry['prefixlen']} {link['ifname']}" for entry in link["addr_info"]}
    for family, route in routes:
        where = (route.get("type", "unicast"), route["dst"], route.get("dev", ""), route.get("table", "main"))
        lines.add(" ".join(("route", family, *map(str, where))))
    for family, rule in rules:
        lines.add(f"rule {family} {rule['priority']} {rule.get('table', '')}")
    lines |= {f"{_NAMESPACE} {namespace['nsid']}" for namespace in namespaces}
    return frozenset(lines)


def without_namespaces(inventory: frozenset[str]) -> frozenset[str]:
    """The kernel knows another namespace by an id from the first link into it on, and for as long as it lives."""
    return frozenset(line for line in inventory if not line.startswith(_NAMESPACE))


def differences(now: frozenset[str], before: frozenset[str]) -> list[str]:
    """What has been added, and what is missing."""
    return [f"left behind: {line}" for line in sorted(now - before)] + [
        f"gone: {line}" for line in sorted(before - now)
    ]
