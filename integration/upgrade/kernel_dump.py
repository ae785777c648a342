"""All that a network namespace holds, to be compared with what it holds later."""

import json
import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any, Final, TypeAlias

from integration.kernel_state import KernelState

Dump: TypeAlias = Mapping[str, frozenset[str]]
"""By topic, one line for each object."""

_FAMILIES: Final = ("-4", "-6")
_KUBE_PROXY: Final = {"kube-proxy", "filter", "nat", "mangle", "raw", "security"}
"""Its own, and those of iptables. They name the webhooks' endpoints, which are the controllers that happen to run."""
_OURS: Final = re.compile(r'[^,]+, nft: .*"table": (\{.*"name": )?"coil-')
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


@dataclass(frozen=True, slots=True)
class Differences:
    """A line for each object that one of the namespaces has lost, and for each that is new in it."""

    lost: frozenset[str]
    new: frozenset[str]

    def __bool__(self) -> bool:
        return bool(self.lost or self.new)

    @property
    def reverse(self) -> "Differences":
        """What undoes it."""
        return Differences(lost=self.new, new=self.lost)

    @property
    def foreign(self) -> frozenset[str]:
        """What is new and is neither one of Coil's nftables tables nor in one."""
        return frozenset(line for line in self.new if not _OURS.match(line))

    def describe(self) -> list[str]:
        """A sentence for each."""
        return [f"lost: {line}" for line in sorted(self.lost)] + [f"new: {line}" for line in sorted(self.new)]


def compare(before: Mapping[str, Dump], after: Mapping[str, Dump]) -> Differences:
    """Dumps of the same namespaces, by name; one that is gone has lost all."""
    was, now = _all(before), _all(after)
    return Differences(lost=was - now, new=now - was)


def _all(dumps: Mapping[str, Dump]) -> frozenset[str]:
    return frozenset(
        f"{name}, {topic}: {line}" for name, dump in dumps.items() for topic, lines in dump.items() for line in lines
    )


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
