"""The table of combinations of targets in docs/aws.md, each row of it against what a node decides.

Of each target, a row stands for one or two ways to set it: 81 combinations of a value, 0 and nothing are in 16 rows.
"""

from collections.abc import Callable
from dataclasses import dataclass
from itertools import product
from typing import Final

import pytest

from coil.eni.warm_pool import (
    CreateInterface,
    DeleteInterface,
    Demand,
    NodeLimits,
    WarmTargets,
    decide,
    max_addresses,
    wanted_addresses,
)
from coil.runtime.flag import parse_settings
from coild.eni.settings import read_eni_settings
from coild.settings import Settings
from integration.docs.page import read_pages
from tests.coil.eni.vpc import Vpc, key

LIMITS: Final = NodeLimits(interfaces=3, slots=10, pods=110)
"""Of an m5.large."""
PODS: Final = 11
NAMES: Final = ("WARM_ENI_TARGET", "WARM_IP_TARGET", "MINIMUM_IP_TARGET", "MAX_ENI")
WAYS: Final[dict[str, tuple[str, ...]]] = {
    "0": ("0",),
    "1, or not set": ("1", ""),
    "not set": ("",),
    "not set, or 0": ("", "0"),
    "n": ("2", "0"),
    "m": ("12",),
    "2": ("2",),
}
"""What a cell says, and the values of the variable that it stands for; the examples in the row are for the first."""
WANTED: Final[dict[str, Callable[[int, int, int, int], int]]] = {
    "u": lambda used, _interface, _spare, _least: used,
    "u + S": lambda used, interface, _spare, _least: used + interface,
    "u + n": lambda used, _interface, spare, _least: used + spare,
    "the greater of u and m": lambda used, _interface, _spare, least: max(used, least),
    "the greater of u + n and m": lambda used, _interface, spare, least: max(used + spare, least),
}
"""What a cell says, of the letters that the page explains: u, S, n and m."""


@dataclass(frozen=True, slots=True)
class Row:
    """`idle`, `busy` and `most` are the examples: addresses without pods, addresses with `PODS`, and pods at most."""

    cells: tuple[str, ...]
    wanted: str
    idle: int
    busy: int
    most: int

    @property
    def combinations(self) -> list[tuple[str, ...]]:
        """The values of the variables that the row is about, the one of the examples first."""
        return list(product(*(WAYS[cell] for cell in self.cells)))


def rows() -> list[Row]:
    [page] = [page for page in read_pages() if page.name == "aws.md"]
    _, _, section = page.prose.partition("### Combinations of the targets")
    section, _, _ = section.partition("\n#")
    lines = [line.strip("| ").split("|") for line in section.splitlines() if line.startswith("| ")]
    cells = [[cell.strip() for cell in line] for line in lines]
    assert cells[0][: len(NAMES)] == [f"`{name}`" for name in NAMES]
    return [Row(tuple(each[:4]), each[4], *map(int, each[5:])) for each in cells[1:]]


ROWS: Final = rows()
COMBINATIONS: Final = [(row, values) for row in ROWS for values in row.combinations]


def targets_of(values: tuple[str, ...]) -> WarmTargets:
    """As coild reads them from its environment; an empty one is what is not set."""
    environment = {"COIL_NODE_NAME": "node-1", **dict(zip(NAMES, values, strict=True))}
    arguments = ("--address-source=aws-eni", "--cluster-name=test")
    set_ones = {name: value for name, value in environment.items() if value}
    return read_eni_settings(parse_settings(Settings, arguments, set_ones, program="coild", about="")).targets


class WarmNode:
    """One node; pods come one by one, and each waits until it has an address or the node can fetch no more."""

    def __init__(self, targets: WarmTargets) -> None:
        self.targets = targets
        self.vpc = Vpc(LIMITS)
        self.pods = 0
        self.settle(waiting=0)

    @property
    def addresses(self) -> int:
        return sum(use.held + use.free for use in self.vpc.ledger.uses(now=0.0))

    def settle(self, *, waiting: int) -> None:
        for _ in range(100):
            uses = self.vpc.ledger.uses(now=0.0)
            step = decide(uses, self.targets, LIMITS, Demand(waiting=waiting), give_back=0)
            if step is None:
                return
            assert not isinstance(step, DeleteInterface)
            if isinstance(step, CreateInterface) and self.targets.max_interfaces is not None:
                assert len(uses) < self.targets.max_interfaces
            self.vpc.carry_out(step, now=0.0)
        raise AssertionError("no end of decisions")

    def add(self) -> bool:
        """Whether one more pod gets an address."""
        self.settle(waiting=1)
        served = self.vpc.ledger.acquire(key(self.pods), version=4, now=0.0) is not None
        self.pods += served
        self.settle(waiting=0)
        return served


def test_each_combination_is_in_one_row() -> None:
    assert len(ROWS) == 2**4
    ways = (("", "0", "1"), ("", "0", "2"), ("", "0", "12"), ("", "0", "2"))
    assert sorted(values for _, values in COMBINATIONS) == sorted(product(*ways))


@pytest.mark.parametrize("row", ROWS, ids=lambda row: "; ".join(row.cells))
def test_the_examples_of_a_row(row: Row) -> None:
    node = WarmNode(targets_of(row.combinations[0]))
    idle = node.addresses
    assert all(node.add() for _ in range(PODS))
    busy = node.addresses
    while node.add():
        pass
    assert (idle, busy, node.pods) == (row.idle, row.busy, row.most)


@pytest.mark.parametrize(("row", "values"), COMBINATIONS)
def test_the_wanted_addresses_are_what_the_row_says(row: Row, values: tuple[str, ...]) -> None:
    targets = targets_of(values)
    spare, least = (int(value or 0) for value in values[1:3])
    vpc = Vpc(LIMITS)
    for u in range(LIMITS.pods - 9):
        wanted = wanted_addresses(vpc.ledger.uses(now=0.0), targets, LIMITS, Demand(waiting=u))
        assert wanted == WANTED[row.wanted](u, LIMITS.slots - 1, spare, least)


@pytest.mark.parametrize(("row", "values"), COMBINATIONS)
def test_pods_get_every_address_that_the_node_can_have(row: Row, values: tuple[str, ...]) -> None:
    targets = targets_of(values)
    node = WarmNode(targets)
    interfaces = min(LIMITS.interfaces, targets.max_interfaces or LIMITS.interfaces)
    most = max_addresses(LIMITS.less(LIMITS.interfaces - interfaces), range_size=1)
    assert most == row.most
    for number in range(most):
        assert node.add(), f"pod {number + 1} of {most} waits for ever"
    assert not node.add()
