"""Whatever sets a metric is called: a gauge without labels is exported as 0 though nothing ever sets it."""

import ast
from collections.abc import Iterator
from functools import cache
from pathlib import Path

import pytest

SERVICES = Path(__file__).resolve().parents[2] / "services"
_TYPES = {"Counter", "Gauge", "Histogram"}
_PROMETHEUS_CALLS = {"collect", "describe"}


@cache
def modules() -> dict[Path, ast.Module]:
    return {path: ast.parse(path.read_text()) for path in sorted(SERVICES.rglob("*.py"))}


def declares_metrics(node: ast.ClassDef) -> bool:
    return any(
        isinstance(call, ast.Call) and isinstance(call.func, ast.Name) and call.func.id in _TYPES
        for call in ast.walk(node)
    )


def metric_classes() -> Iterator[ast.ClassDef]:
    for tree in modules().values():
        yield from (node for node in tree.body if isinstance(node, ast.ClassDef) and declares_metrics(node))


CLASSES = list(metric_classes())


@cache
def used() -> frozenset[str]:
    """Names of the attributes that any module reads."""
    nodes = (node for tree in modules().values() for node in ast.walk(tree))
    return frozenset(node.attr for node in nodes if isinstance(node, ast.Attribute)) | _PROMETHEUS_CALLS


@pytest.mark.parametrize("declared", CLASSES, ids=lambda node: node.name)
def test_every_method_of_a_class_of_metrics_is_used(declared: ast.ClassDef) -> None:
    methods = {node.name for node in declared.body if isinstance(node, ast.FunctionDef) and node.name[0] != "_"}
    assert methods <= used()


@pytest.mark.parametrize("declared", CLASSES, ids=lambda node: node.name)
def test_every_metric_that_a_class_keeps_is_used(declared: ast.ClassDef) -> None:
    kept = {
        node.attr
        for node in ast.walk(declared)
        if isinstance(node, ast.Attribute) and isinstance(node.ctx, ast.Store) and node.attr.startswith("_")
    }
    loaded = {
        node.attr for node in ast.walk(declared) if isinstance(node, ast.Attribute) and isinstance(node.ctx, ast.Load)
    }
    assert kept <= loaded


def test_there_are_such_classes() -> None:
    assert len(CLASSES) > 5
