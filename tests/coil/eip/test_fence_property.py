"""Never two nodes answer for one address, whatever happens around them: see `fence_world`."""

import random
from collections import deque

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, rule

from coil.crd.names import NodeName
from tests.coil.eip.fence_world import HONEST, NODES, Controller, Habits, World

RATES = st.floats(0.93, 1.07)
NODE = st.sampled_from(NODES)
NUMBER = st.integers(0, 7)
CONTROLLER = st.integers(0, 1)
STEPS = st.integers(1, 4)


class Fence(RuleBasedStateMachine):
    @initialize(rates=st.tuples(RATES, RATES, RATES, RATES, RATES), seed=st.integers(0, 2**16))
    def begin(self, rates: tuple[float, ...], seed: int) -> None:
        self.world = World(rates=rates, random=random.Random(seed).random)
        for node in NODES:
            self.world.run_well(node)
        self.world.control_well(0)

    @rule(seconds=st.sampled_from([0.01, 0.1, 0.2, 0.3, 0.65, 0.8]))
    def time_passes(self, seconds: float) -> None:
        self.world.advance(seconds)

    @rule(node=NODE)
    def all_is_well_with_the_node(self, node: str) -> None:
        self.world.run_well(_node(node))

    @rule(number=CONTROLLER)
    def all_is_well_with_the_controller(self, number: int) -> None:
        self.world.control_well(number)

    @rule(node=NODE, answered=st.booleans())
    def the_agent_only_renews(self, node: str, answered: bool) -> None:
        self.world.renew_only(_node(node), answered=answered)

    @rule(node=NODE)
    def the_agent_reads_its_lease(self, node: str) -> None:
        if (agent := self.world.agents[_node(node)]).running:
            agent.read()

    @rule(node=NODE)
    def the_agent_renews(self, node: str) -> None:
        if (agent := self.world.agents[_node(node)]).running:
            agent.send()

    @rule(node=NODE, steps=STEPS)
    def the_agent_sees_more(self, node: str, steps: int) -> None:
        if (agent := self.world.agents[_node(node)]).running:
            agent.watch(steps)

    @rule(node=NODE)
    def the_agent_applies_what_it_sees(self, node: str) -> None:
        if (agent := self.world.agents[_node(node)]).running:
            agent.apply()

    @rule(node=NODE)
    def the_agent_dies(self, node: str) -> None:
        self.world.agents[_node(node)].kill()

    @rule(node=NODE)
    def the_agent_starts(self, node: str) -> None:
        self.world.agents[_node(node)].start()

    @rule(number=NUMBER)
    def a_write_arrives(self, number: int) -> None:
        self.world.commit(number)

    @rule(number=NUMBER)
    def an_answer_arrives(self, number: int) -> None:
        self.world.answer(number)

    @rule(number=NUMBER)
    def a_message_is_lost(self, number: int) -> None:
        self.world.lose(number)

    @rule(number=NUMBER)
    def a_status_arrives(self, number: int) -> None:
        self.world.commit_status(number)

    @rule(number=NUMBER)
    def a_status_is_lost(self, number: int) -> None:
        self.world.lose_status(number)

    @rule(number=CONTROLLER, node=NODE, steps=STEPS)
    def the_controller_hears_of_a_lease(self, number: int, node: str, steps: int) -> None:
        self.world.controllers[number].watch_lease(_node(node), steps)

    @rule(number=CONTROLLER, steps=STEPS)
    def the_controller_sees_more(self, number: int, steps: int) -> None:
        self.world.controllers[number].watch_gateway(steps)

    @rule(number=CONTROLLER)
    def the_controller_revokes(self, number: int) -> None:
        self.world.controllers[number].revoke()

    @rule(number=CONTROLLER)
    def the_controller_plans(self, number: int) -> None:
        self.world.controllers[number].plan()

    @rule(number=CONTROLLER)
    def the_controller_starts_anew(self, number: int) -> None:
        self.world.controllers[number].restart()

    @rule(node=NODE)
    def the_node_is_selected_or_not(self, node: str) -> None:
        self.world.selected ^= {_node(node)}

    @rule(name=st.sampled_from(["p", "q"]))
    def a_policy_comes_or_goes(self, name: str) -> None:
        self.world.wanted ^= {name}

    @rule(node=NODE)
    def somebody_deletes_the_lease(self, node: str) -> None:
        self.world.server.delete(_node(node))

    @invariant()
    def no_two_nodes_answer_for_one_address(self) -> None:
        if hasattr(self, "world"):
            self.world.check()


def _node(name: str) -> NodeName:
    return NodeName(name)


TestFence = Fence.TestCase
TestFence.settings = settings(max_examples=50, stateful_step_count=60)


class Fate:
    """What befalls a world, at random; each method once, as often as its weight in `EVENTS`."""

    def __init__(self, world: World, dice: random.Random) -> None:
        self.world, self.dice = world, dice
        self.cut: set[NodeName] = set()

    @property
    def node(self) -> NodeName:
        return self.dice.choice(NODES)

    @property
    def controller(self) -> Controller:
        return self.dice.choice(self.world.controllers)

    def step(self) -> None:
        self.world.advance(self.dice.choice([0.02, 0.1, 0.2]))

    def leap(self) -> None:
        self.world.advance(self.dice.choice([0.3, 0.5, 0.7, 0.9]))

    def nodes_work(self) -> None:
        for node in NODES:
            if node not in self.cut:
                self.world.run_well(node)

    def controller_works(self) -> None:
        self.world.control_well(self.dice.randrange(2))

    def cut_off(self) -> None:
        self.cut ^= {self.node}

    def renew(self) -> None:
        self.world.renew_only(self.node, answered=self.dice.random() < 0.5)

    def renew_slowly(self) -> None:
        self.world.renew_only(self.node, answered=False)
        self.world.advance(self.dice.choice([0.1, 0.3, 0.5]))
        self.world.answer(-1)

    def send(self) -> None:
        if (agent := self.world.agents[self.node]).running:
            agent.send()

    def see(self) -> None:
        if (agent := self.world.agents[self.node]).running:
            agent.watch(self.dice.randrange(1, 3))
            agent.apply()

    def kill(self) -> None:
        self.world.agents[self.node].kill()

    def start(self) -> None:
        self.world.agents[self.node].start()

    def message(self) -> None:
        number = self.dice.randrange(8)
        self.dice.choice([self.world.commit, self.world.answer, self.world.lose])(number)

    def status(self) -> None:
        self.dice.choice([self.world.commit_status, self.world.lose_status])(self.dice.randrange(8))

    def hear(self) -> None:
        controller = self.controller
        controller.watch_lease(self.node, 3)
        controller.watch_gateway(2)

    def revoke(self) -> None:
        self.controller.revoke()

    def plan(self) -> None:
        self.controller.plan()

    def select(self) -> None:
        self.world.selected ^= {self.node}

    def policy(self) -> None:
        self.world.wanted ^= {self.dice.choice(["p", "q"])}

    def forget(self) -> None:
        self.controller.restart()

    def delete(self) -> None:
        self.world.server.delete(self.node)


EVENTS = {
    **{Fate.step: 16, Fate.leap: 4, Fate.nodes_work: 12, Fate.controller_works: 12},
    **{Fate.cut_off: 4, Fate.renew: 4, Fate.renew_slowly: 4, Fate.send: 4, Fate.see: 4, Fate.kill: 2, Fate.start: 6},
    **{Fate.message: 12, Fate.status: 4, Fate.hear: 4, Fate.revoke: 4, Fate.plan: 4},
    **{Fate.select: 4, Fate.policy: 2, Fate.forget: 1, Fate.delete: 1},
}


def walk(seed: int, steps: int, habits: Habits = HONEST) -> World:
    """A long life, in which most things go well."""
    dice = random.Random(seed)
    world = World(rates=tuple(dice.uniform(0.93, 1.07) for _ in range(5)), random=dice.random, habits=habits)
    fate = Fate(world, dice)
    for event in dice.choices(list(EVENTS), list(EVENTS.values()), k=steps):
        event(fate)
        world.check()
    return world


def test_never_two_in_long_lives() -> None:
    moves = [walk(seed, 1500).moves for seed in range(20)]
    # Something has happened, too.
    assert sum(moves) > 100


HINTS = {
    "fence_from_sending": 96,
    "waiting": 47,
    "guarded": 145,
    "by_term": 21,
    "trimming": 4,
    "leaving": 4,
    "guarded_status": 40,
}
"""A life in which leaving the habit out was found to matter, to be tried first: only to save time."""


@pytest.mark.parametrize("habit", HINTS)
def test_each_habit_is_needed(habit: str) -> None:
    habits = Habits(**{habit: False})
    seeds = (*range(HINTS[habit], 400), *range(HINTS[habit]))
    with pytest.raises(AssertionError, match=" and "):
        deque((walk(seed, 1000, habits) for seed in seeds), maxlen=0)


def twice_revoked_then_deleted(habits: Habits) -> World:
    """A term whose acquisition was not answered, and of which the Lease, deleted by hand, says nothing any more."""
    world = World(rates=(1.0,) * 5, random=random.Random(0).random, habits=habits)
    node, other = NODES[:2]
    agent = world.agents[node]
    world.selected = {node}
    world.run_well(node)
    world.control_well(0)
    world.run_well(node)
    assert agent.answering
    world.control_well(0)
    world.advance(1.0)
    world.control_well(0)  # revoked, and nobody else is there
    agent.read()
    agent.send()
    world.commit(-1)
    world.lose(-1)
    world.control_well(0)  # sees the second term, and gives the address back to it
    world.advance(1.0)
    world.selected.add(other)
    world.run_well(other)
    world.control_well(0)  # revoked again, and now it goes elsewhere
    world.control_well(0)
    world.run_well(other)
    assert world.agents[other].answering
    world.server.delete(node)
    agent.read()
    agent.send()
    world.commit(-1)
    world.answer(-1)
    while agent.seen < len(world.server.gateways) - 1:
        agent.watch(1)
        agent.apply()
        world.check()
    return world


def test_a_term_that_was_only_asked_for_is_not_used_again() -> None:
    world = twice_revoked_then_deleted(HONEST)
    assert world.agents[NODES[0]].term == 3
    with pytest.raises(AssertionError, match=" and "):
        twice_revoked_then_deleted(Habits(highest=False))


def test_a_lost_node_is_replaced_and_does_not_take_back() -> None:
    world = World(rates=(1.0,) * 5, random=random.Random(0).random)
    for node in NODES:
        world.run_well(node)
    world.control_well(0)
    for node in NODES:
        world.run_well(node)
    (first,) = [node for node in NODES if world.agents[node].answering]
    held = world.agents[first].answering
    world.agents[first].kill()
    for _ in range(8):
        world.advance(0.1)
        for node in NODES:
            world.run_well(node)
        world.control_well(0)
        world.check()
    for node in NODES:
        world.run_well(node)
    (second,) = [node for node in NODES if world.agents[node].answering]
    assert second != first
    assert world.agents[second].answering == held
    world.agents[first].start()
    for _ in range(4):
        for node in NODES:
            world.run_well(node)
        world.control_well(0)
    assert world.agents[second].answering == held
    # A planned move waits for the word of the node that it leaves.
    world.selected.remove(second)
    world.control_well(0)
    world.control_well(0)
    assert {node for node in NODES if world.agents[node].answering} == {second}
    for _ in range(3):
        for node in NODES:
            world.run_well(node)
        world.control_well(0)
    (third,) = [node for node in NODES if world.agents[node].answering]
    assert third != second
    assert world.agents[third].answering == held
