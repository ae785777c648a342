"""The book of who has which address, and the history that a violation is explained with."""

from dataclasses import replace

import pytest

from integration.soak.allocations import Allocations, Return
from integration.soak.history import History, Violation
from tests.integration_soak.scene import POD


class Clock:
    """Stands still unless it is set."""

    def __init__(self) -> None:
        self.time = 0.0

    def __call__(self) -> float:
        return self.time


def test_an_address_that_two_pods_are_given_is_a_violation_that_tells_its_history() -> None:
    history = History("5eed")
    allocations = Allocations(history)
    history.note("node-0/1", "the first is up", {"c0ffee"})
    history.note("node-0/2", "somebody else", {"beef"})
    history.note("fault", "kill -9 coild")
    allocations.enter(POD)
    with pytest.raises(Violation) as raised:
        allocations.enter(replace(POD, node="node-1", container_id="decade", addresses=frozenset({"fd00::5"})))
    told = str(raised.value)
    assert told.startswith("COIL_SEED=5eed: fd00::5 is c0ffee on node-0's and was given to decade on node-1")
    assert "the first is up" in told
    assert "kill -9 coild" in told
    assert "somebody else" not in told
    assert history.violations() == [raised.value]


def test_a_pod_that_leaves_gives_its_addresses_back() -> None:
    allocations = Allocations(History("5eed"))
    allocations.enter(POD)
    assert allocations.pods() == [POD]
    allocations.leave(POD)
    assert allocations.pods() == []
    allocations.enter(replace(POD, container_id="decade"))
    assert allocations.reused == 2


def test_an_address_that_comes_back_too_soon_is_remembered() -> None:
    clock = Clock()
    allocations = Allocations(History("5eed", clock=clock))
    pod = replace(POD, addresses=frozenset({"10.0.0.5"}))
    allocations.enter(pod)
    clock.time = 10.0
    allocations.leave(pod)
    clock.time = 10.5
    allocations.enter(replace(pod, container_id="decade"))
    early = Return("10.0.0.5", "decade", "default", "node-0", at=10.5, rest=0.5)
    assert allocations.returns(within=0.6) == [early]
    assert allocations.returns(within=0.5) == []


def test_on_another_node_an_address_need_not_have_rested() -> None:
    allocations = Allocations(History("5eed"))
    allocations.enter(POD)
    allocations.leave(POD)
    allocations.enter(replace(POD, node="node-1", container_id="decade"))
    assert allocations.returns(within=9.9) == []


def test_the_same_pod_may_be_entered_again() -> None:
    allocations = Allocations(History("5eed"))
    allocations.enter(POD)
    allocations.enter(POD)
    assert allocations.pods() == [POD]


def test_a_violation_says_what_repeats_itself_once() -> None:
    history = History("5eed")
    for _ in range(500):
        history.note("node-0/1", "later", {"c0ffee"})
    history.note("node-0/1", "at last", {"c0ffee"})
    told = str(history.violation("here", {"c0ffee"}))
    assert told.count("later") == 1
    assert "at last" in told
