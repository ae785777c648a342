"""Pools by address, outages, counts, footprints, the proof that an address is in two places."""

import threading
from dataclasses import replace
from random import Random

import pytest

from integration.cluster.control_plane import ControlPlane
from integration.soak.footprint import Footprint
from integration.soak.history import History, Violation
from integration.soak.observation import Kernel, Objects, Veth
from integration.soak.pool_setup import ROVING, PoolSetup, pool_of
from integration.soak.sampler import Sampler
from integration.soak.station import AbortedError, Gate, Outage
from integration.soak.tally import Operation, Outcome, Tally
from tests.integration_soak.scene import BLOCK, KERNEL, OBJECTS


@pytest.mark.parametrize(
    ("addresses", "pool"),
    [
        ({"10.91.0.1", "fd91::1"}, "default"),
        ({"10.92.0.31"}, "four"),
        ({"10.92.1.7"}, "four"),
        ({"fd93::2:1"}, "six"),
        ({"10.91.0.1"}, None),  # half of a dual pool
        ({"10.91.0.1", "10.91.0.2"}, None),
        ({"10.92.0.1", "fd93::1"}, None),
        ({"192.0.2.1"}, None),
        (set(), None),
    ],
)
def test_addresses_tell_their_pool(addresses: set[str], pool: str | None) -> None:
    assert pool_of(frozenset(addresses)) == pool


class SilentPlane(ControlPlane):
    """Takes every change."""

    def __init__(self) -> None:
        pass

    def kubectl(self, *_: object, **__: object) -> str:
        return ""


def test_a_namespace_that_was_led_to_the_dry_pool_is_not_to_be_served() -> None:
    pool_setup, rng = PoolSetup(SilentPlane()), Random(1)
    for _ in range(20):
        pool = pool_setup.switch(rng)
        assert ("sixes" in pool_setup.served(), ROVING in pool_setup.served()) == (False, pool != "six")


def test_an_outage_excuses_what_ran_in_it() -> None:
    outage = Outage()
    before = outage.mark()
    assert not outage.excuses(before)
    number = outage.begin()
    within = outage.mark()
    assert outage.excuses(before)
    outage.end(number)
    assert outage.excuses(before)
    assert outage.excuses(within)
    assert not outage.excuses(outage.mark())


def test_an_outage_is_not_over_when_another_has_begun() -> None:
    outage = Outage()
    first = outage.begin()
    second = outage.begin()
    outage.end(first)
    assert outage.mark() is None
    outage.end(second)
    assert outage.mark() == second


def test_a_gate_closes_when_all_wait() -> None:
    gate = Gate(threading.Event())
    visitors = [threading.Thread(target=gate.wait) for _ in range(3)]
    closing = threading.Thread(target=gate.close, args=[3])
    closing.start()
    while not gate.closed:
        pass
    for visitor in visitors:
        visitor.start()
    closing.join()
    gate.open()
    for visitor in visitors:
        visitor.join()


def test_nobody_waits_at_a_gate_for_those_who_have_failed() -> None:
    aborted = threading.Event()
    aborted.set()
    with pytest.raises(AbortedError):
        Gate(aborted).close(1)


def test_what_was_told_to_come_later_is_not_done() -> None:
    tally = Tally()
    tally.count(Operation.ADD, Outcome.DONE)
    tally.count(Operation.DEL, Outcome.LATER)
    assert (tally.done, tally.later) == (1, 1)
    assert tally.await_done(1, timeout=0)
    assert not tally.await_done(2, timeout=0)
    assert tally.report() == {"done": {"ADD": 1}, "told to try again": {"DEL": 1}}


def test_growth_within_the_bound_is_none() -> None:
    before = Footprint(descriptors=10, threads=5, rss=1000)
    bound = Footprint(descriptors=5, threads=5, rss=500)
    assert replace(before, descriptors=15, rss=1500).growth_faults(before, bound=bound) == []
    assert replace(before, threads=11).growth_faults(before, bound=bound) == ["threads: 5 -> 11"]


class Stage:
    """Answers each look at a node with the next of its kernels; the last one stays."""

    def __init__(self, objects: Objects, **kernels: list[Kernel]) -> None:
        self._objects = objects
        self._kernels = {name.replace("_", "-"): states for name, states in kernels.items()}

    def kernel(self, name: str) -> Kernel:
        states = self._kernels[name]
        return states.pop(0) if len(states) > 1 else states[0]

    def objects(self) -> Objects:
        return self._objects


TWIN = Kernel(veths=(Veth("veth2", "COIL:default:decade:eth0"),), pod_routes=(("10.0.0.5/32", "veth2"),))


def sampler(stage: Stage) -> Sampler:
    return Sampler(stage, ["node-0", "node-1"], history=History("5eed"), failed=lambda: None)


def test_an_address_on_two_nodes_at_once_is_a_violation() -> None:
    with pytest.raises(Violation, match=r"10\.0\.0\.5/32 leads to COIL:default:c0ffee:eth0 on node-0"):
        sampler(Stage(OBJECTS, node_0=[KERNEL], node_1=[TWIN])).look()


def test_an_address_that_moved_between_two_looks_is_none() -> None:
    moving = sampler(Stage(OBJECTS, node_0=[KERNEL, Kernel()], node_1=[TWIN]))
    moving.look()
    assert moving.looks == 1


def test_objects_that_contradict_each_other_are_a_violation() -> None:
    double = replace(OBJECTS, blocks=(BLOCK, replace(BLOCK, name="default-0")))
    with pytest.raises(Violation, match="2 blocks answer the request"):
        sampler(Stage(double, node_0=[KERNEL], node_1=[Kernel()])).look()
