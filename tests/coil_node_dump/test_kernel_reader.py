"""Dumps that others change while they are made, and the limits of a document."""

from collections.abc import Callable
from typing import Any

import pytest

from coil_node_dump.kernel_reader import ATTEMPTS, _whole
from coil_node_dump.limits import KernelReadError

TORN = {"header": {"flags": 0x12}}
FINE = {"header": {"flags": 0x02}}


def dumps(*answers: list[Any]) -> tuple[Callable[[], list[Any]], list[Any]]:
    """A request that gets one after the other, and what is left of them."""
    left = list(answers)
    return lambda: left.pop(0), left


def test_a_dump_that_was_torn_is_made_again() -> None:
    request, left = dumps([FINE, TORN], [TORN], [FINE, FINE], [])
    assert _whole(request, "routes") == [FINE, FINE]
    assert left == [[]]


def test_one_that_is_torn_each_time_is_no_dump() -> None:
    request, _ = dumps(*[[TORN]] * ATTEMPTS)
    with pytest.raises(KernelReadError, match="routes: changed each of 5 times"):
        _whole(request, "routes")
