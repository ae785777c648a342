"""Each right that the chart grants has its test, which exists, or a reason why no call can show it."""

import ast
from pathlib import Path

import pytest

from integration.access.exemption import UNSEEN
from integration.access.forcing_tests import FORCING_TESTS, FORCING_TESTS_ON_INSTANCES
from integration.access.right import POOL_VALUES, Right, chart_rights
from integration.helm.chart import render

REPOSITORY = Path(__file__).resolve().parents[2]
TESTS = sorted({*FORCING_TESTS.values(), *FORCING_TESTS_ON_INSTANCES.values()})


@pytest.fixture(scope="module")
def profile() -> list[Right]:
    return chart_rights(render(None, "aws-eni"))


@pytest.fixture(scope="module")
def rights(profile: list[Right]) -> list[Right]:
    return [
        *chart_rights(render(POOL_VALUES)),
        *profile,
    ]


def test_each_right_has_a_test_or_a_reason_and_nothing_else_has(rights: list[Right]) -> None:
    granted = {right.key for right in rights}
    assert granted - (FORCING_TESTS.keys() | UNSEEN.keys()) == set()
    assert (FORCING_TESTS.keys() | UNSEEN.keys()) - granted == set()


def test_so_has_each_right_of_coild_on_instances(profile: list[Right]) -> None:
    assert FORCING_TESTS_ON_INSTANCES.keys() == {right.key for right in profile if right.account == "coild"}


@pytest.mark.parametrize("test", TESTS)
def test_it_exists(test: str) -> None:
    file, _, name = test.partition("::")
    functions = [
        node
        for node in ast.parse((REPOSITORY / file).read_text()).body
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef)
    ]
    assert name.partition("[")[0] in {function.name for function in functions}
    assert name.startswith("test_")


@pytest.mark.parametrize("test", sorted({test.partition("[")[0] for test in TESTS if test.endswith("]")}))
def test_a_case_is_one_of_its_parameters(test: str) -> None:
    """Those that are named are written out beside the test."""
    file, _, name = test.partition("::")
    cases = {named.partition("[")[2].removesuffix("]") for named in TESTS if named.startswith(f"{test}[")}
    [function] = [
        node
        for node in ast.parse((REPOSITORY / file).read_text()).body
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef) and node.name == name
    ]
    written = {
        node.value for mark in function.decorator_list for node in ast.walk(mark) if isinstance(node, ast.Constant)
    }
    assert cases <= written
