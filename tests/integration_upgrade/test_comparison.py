"""What the upgrade's tests see: each object that a kernel has lost or got, and two holders of one thing."""

from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any, cast

import pytest

from integration.cluster.node import Node
from integration.kernel_state import KernelState, steady
from integration.upgrade.kernel_dump import compare, dump_kernel
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
    assert not compare(before, dump(Kernel([table(2, 100, ["10.0.0.2", "10.0.0.1"])])))
    [lost, got] = compare(before, dump(Kernel([table(1, 300, ["10.0.0.1"])]))).describe()
    assert lost.startswith('lost: node, nft: {"set"')
    assert got.startswith('new: node, nft: {"set"')


def test_elements_that_time_out_come_and_go() -> None:
    def alive(*elements: str, flags: list[str]) -> dict[str, Any]:
        return {"set": {"family": "inet", "table": "coil-eip", "name": "alive", "flags": flags, "elem": list(elements)}}

    renewed = [dump(Kernel([alive(*elements, flags=["timeout"])])) for elements in (("a",), ())]
    assert not compare(*renewed)
    assert len(compare(renewed[0], dump(Kernel())).lost) == 1, "the set itself is to stay"
    lasting = [dump(Kernel([alive(*elements, flags=["interval"])])) for elements in (("a",), ())]
    assert len(compare(*lasting).describe()) == 2


def test_kube_proxys_rules_are_not_ours() -> None:
    rules: list[dict[str, Any]] = [
        {"rule": {"family": "ip", "table": table, "chain": "services", "expr": []}} for table in ("nat", "kube-proxy")
    ]
    assert not compare(dump(Kernel()), dump(Kernel(rules)))
    ours = {"rule": {"family": "inet", "table": "nat", "chain": "out", "expr": []}}
    assert len(compare(dump(Kernel()), dump(Kernel([ours]))).new) == 1


def test_what_is_new_is_foreign_unless_it_belongs_to_a_table_of_coil() -> None:
    tables = [{"table": {"family": "inet", "name": name}} for name in ("coil-eip", "others")]
    chains = [{"chain": {"family": "inet", "table": name, "name": "onward"}} for name in ("coil-eip", "others")]
    routes = [{"dst": "10.0.0.1", "table": "coil-eip"}]
    found = compare(dump(Kernel()), dump(Kernel([*tables, *chains], routes=routes)))
    assert len(found.new) == 5
    assert found.foreign == frozenset(line for line in found.new if "routes" in line or "others" in line)


def test_a_way_back_is_the_reverse() -> None:
    before, after = dump(Kernel(routes=[{"dst": "10.0.0.1"}])), dump(Kernel(routes=[{"dst": "10.0.0.2"}]))
    assert compare(before, after).reverse == compare(after, before) != compare(before, after)


def test_a_route_that_is_gone_and_one_that_is_new_are_named() -> None:
    before, after = dump(Kernel(routes=[{"dst": "10.0.0.1"}])), dump(Kernel(routes=[{"dst": "10.0.0.2"}]))
    assert compare(before, after).describe() == [
        'lost: node, routes: {"dst": "10.0.0.1"}',
        'new: node, routes: {"dst": "10.0.0.2"}',
    ]
    assert len(compare(before, {}).lost) == 2, "a namespace that is gone has lost all"


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
