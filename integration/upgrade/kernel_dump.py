"""All that a network namespace holds, to be compared with what it holds later."""

import json
from collections.abc import Iterable, Mapping
from typing import Any, Final, TypeAlias

from integration.kernel_state import KernelState

Dump: TypeAlias = Mapping[str, frozenset[str]]
"""By topic, one line for each object."""

_FAMILIES: Final = ("-4", "-6")
_KUBE_PROXY: Final = {"filter", "nat", "mangle", "raw", "security"}
"""Tables of iptables. They name the webhooks' endpoints, which are the controllers that happen to run."""
_SYSCTLS: Final = """
    cd /proc/sys/net
    grep -rs . ipv4/conf ipv6/conf ipv4/ip_forward netfilter/nf_conntrack_tcp_be_liberal
    true
"""


def dump_kernel(kernel: KernelState) -> Dump:
    """Links with aliases and addresses, routes of all tables, rules, neighbours that were set, nft tables, sysctls.

    Without what changes by itself: counters (`integration.kernel_state.steady`), neighbours that the kernel learned,
    and elements that time out: a gateway node's agent adds them anew with every renewal of its Lease, and while they
    are there the node answers for its floating addresses. Nor with the timers of bridges.
    """
    return {
        "links": _lines(kernel.ip("address", "show")),
        "routes": _lines(each for family in _FAMILIES for each in kernel.ip(family, "route", "show", "table", "all")),
        "rules": _lines(each for family in _FAMILIES for each in kernel.ip(family, "rule", "show")),
        "neighbours": _lines(
            each
            for family in _FAMILIES
            for kind in (("nud", "permanent"), ("proxy",))
            for each in kernel.ip(family, "neighbour", "show", *kind)
        ),
        "forwarding entries": _lines(json.loads(kernel.run("bridge", "-json", "fdb", "show") or "[]")),
        "nft": _lines(_timeless(each) for each in kernel.nft("list", "ruleset") if not _is_kube_proxys(each)),
        "sysctls": frozenset(kernel.run("sh", "-c", _SYSCTLS).splitlines()),
    }


def differences(before: Mapping[str, Dump], after: Mapping[str, Dump]) -> list[str]:
    """A line for each object that one of the namespaces has lost, and for each that is new in it."""
    return [
        f"{name}, {topic} {sign} {line}"
        for name in sorted(before.keys() | after.keys())
        for topic in sorted(before.get(name, {}).keys() | after.get(name, {}).keys())
        for sign, one, other in (("-", before, after), ("+", after, before))
        for line in sorted(
            one.get(name, {}).get(topic, frozenset[str]()) - other.get(name, {}).get(topic, frozenset[str]())
        )
    ]


def _lines(entries: Iterable[Mapping[str, Any]]) -> frozenset[str]:
    return frozenset(json.dumps(_in_order(entry), sort_keys=True) for entry in entries)


def _in_order(entry: Any) -> Any:
    """Without timers, and elements of sets in an order of their own: the kernel's is that of its hash tables."""
    if isinstance(entry, dict):
        ordered = {key: _in_order(value) for key, value in entry.items() if not key.endswith("_timer")}
        if isinstance(elements := ordered.get("elem"), list):
            ordered["elem"] = sorted(elements, key=lambda element: json.dumps(element, sort_keys=True))
        return ordered
    return [_in_order(each) for each in entry] if isinstance(entry, list) else entry


def _timeless(entry: Mapping[str, Any]) -> Mapping[str, Any]:
    [(kind, body)] = entry.items()
    return {kind: {**body, "elem": []}} if "timeout" in body.get("flags", ()) else entry


def _is_kube_proxys(entry: Mapping[str, Any]) -> bool:
    [(kind, body)] = entry.items()
    table = body.get("name") if kind == "table" else body.get("table")
    return kind == "metainfo" or (body.get("family") in ("ip", "ip6") and table in _KUBE_PROXY)
