"""What the upgrade's tests see: each object that a kernel has lost or got, and two holders of one thing."""

from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any, cast

import pytest

from integration.cluster.node import Node
from integration.kernel_state import KernelState, steady
from integration.upgrade.kernel_dump import differences, dump_kernel
from integration.upgrade.witness import look_around


@dataclass
class Kernel:
    """Answers as iproute2 and nft do."""

    tables: list[dict[str, Any]] = field(default_factory=list)
    routes: list[dict[str, Any]] = field(default_factory=list)

    def ip(self, *arguments: str) -> list[dict[str, Any]]:
        return self.routes if arguments[:2] == ("-4", "route") else []

    def nft(self, *_: str) -> list[dict[str, Any]]:
        return steady(self.tables)  # type: ignore[no-any-return]

    def run(self, program: str, *_: str) -> str:
        return "[]" if program == "bridge" else "ipv4/ip_forward:1\n"


def dump(kernel: Kernel) -> Any:
    return {"node": dump_kernel(cast(KernelState, kernel))}


def test_what_changes_by_itself_is_no_difference() -> None:
    def table(handle: int, expires: int, elements: list[str]) -> dict[str, Any]:
        found = [{"elem": {"val": value, "expires": expires}} for value in elements]
        return {"set": {"family": "inet", "table": "coil-eip", "name": "eips", "handle": handle, "elem": found}}

    before = dump(Kernel([table(1, 300, ["10.0.0.1", "10.0.0.2"]), {"metainfo": {"version": "1.0.6"}}]))
    assert differences(before, dump(Kernel([table(2, 100, ["10.0.0.2", "10.0.0.1"])]))) == []
    [lost, got] = differences(before, dump(Kernel([table(1, 300, ["10.0.0.1"])])))
    assert lost.startswith('node, nft - {"set"')
    assert got.startswith('node, nft + {"set"')


def test_elements_that_time_out_come_and_go() -> None:
    def alive(*elements: str, flags: list[str]) -> dict[str, Any]:
        return {"set": {"family": "inet", "table": "coil-eip", "name": "alive", "flags": flags, "elem": list(elements)}}

    renewed = [dump(Kernel([alive(*elements, flags=["timeout"])])) for elements in (("a",), ())]
    assert differences(*renewed) == []
    assert len(differences(renewed[0], dump(Kernel()))) == 1, "the set itself is to stay"
    lasting = [dump(Kernel([alive(*elements, flags=["interval"])])) for elements in (("a",), ())]
    assert len(differences(*lasting)) == 2


def test_kube_proxys_rules_are_not_ours() -> None:
    rule = {"rule": {"family": "ip", "table": "nat", "chain": "KUBE-SERVICES", "expr": []}}
    assert differences(dump(Kernel()), dump(Kernel([rule]))) == []
    ours = {"rule": {"family": "inet", "table": "nat", "chain": "out", "expr": []}}
    assert len(differences(dump(Kernel()), dump(Kernel([ours])))) == 1


def test_a_route_that_is_gone_and_one_that_is_new_are_named() -> None:
    before, after = dump(Kernel(routes=[{"dst": "10.0.0.1"}])), dump(Kernel(routes=[{"dst": "10.0.0.2"}]))
    assert differences(before, after) == [
        'node, routes - {"dst": "10.0.0.1"}',
        'node, routes + {"dst": "10.0.0.2"}',
    ]
    assert len(differences(before, {})) == 2, "a namespace that is gone has lost all"


@dataclass
class Place:
    """A node; what it says when it is asked the first time and the second."""

    name: str
    answers: Iterator[bool]


@pytest.mark.parametrize(
    ("first", "second", "holders"),
    [
        ([True, False], [False], ["one"]),
        ([False], [True], ["two"]),
        ([True, False], [True], ["two"]),
        ([True, True], [True], ["one", "two"]),
        ([False], [False], []),
    ],
    ids=["the first", "the second", "a handover between two questions", "two at once", "none"],
)
def test_two_holders_are_two_that_hold_it_at_one_time(
    first: list[bool], second: list[bool], holders: list[str]
) -> None:
    places = [Place("one", iter(first)), Place("two", iter(second))]
    found = look_around(cast(list[Node], places), lambda place: next(cast(Place, place).answers))
    assert found == holders
