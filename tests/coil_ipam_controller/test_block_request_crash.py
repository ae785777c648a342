"""One block per request, however the controllers that answer it die, overlap and lag behind."""

from collections import Counter

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from coil.crd.address_block import ADDRESS_BLOCKS
from coil.crd.address_pool import SubnetSet
from coil.crd.block_request import BLOCK_REQUESTS, Granted, Pending
from coil.kube.errors import UnavailableError
from tests.coil.kube.memory_api import Call, MemoryApi, MemoryClient, Moment
from tests.coil_ipam_controller.scene import Life, add_block, add_node, add_pool, add_request, granted
from tests.coil_ipam_controller.stepped_worker import Worker, stop_at_every_call


class Killed(BaseException):
    """The process is gone at this instruction."""


@pytest.mark.parametrize("moment", list(Moment))
@pytest.mark.parametrize("error", [Killed, UnavailableError])
@pytest.mark.parametrize("number", range(4))
async def test_death_or_a_lost_answer_at_any_call(
    number: int, moment: Moment, error: type[Killed] | type[UnavailableError]
) -> None:
    api = MemoryApi()
    add_node(api, "node1")
    add_pool(api, "default", SubnetSet(ipv4="10.2.0.0/24"))
    add_request(api, "req")

    async def fail(call: Call, at: Moment) -> None:
        if len(first.client.calls) == number + 1 and at is moment:
            raise error("here")

    first = Life(MemoryClient(api, fail))
    if number < 3:
        with pytest.raises(error):
            await first.requests.reconcile("req")
    else:
        await first.requests.reconcile("req")
    second = Life(MemoryClient(api))
    await second.requests.reconcile("req")
    assert api.get(BLOCK_REQUESTS, "req").outcome() == granted("default-0")
    assert [block.name for block in api.all(ADDRESS_BLOCKS)] == ["default-0"]


def test_a_promise_binds_a_leader_whose_cache_shows_its_index_as_taken() -> None:
    """The first leader is about to create what it promised, while the second has read the promise."""
    api = MemoryApi()
    add_node(api, "node1")
    add_pool(api, "default", SubnetSet(ipv4="10.2.0.0/24"))
    add_block(api, "default-0", 0, pool="default", node="node2", request="stranger")
    second = Worker(Life(MemoryClient(api, stop_at_every_call)))
    api.patch(ADDRESS_BLOCKS, "default-0", {"metadata": {"finalizers": []}}, subresource="")
    api.delete(ADDRESS_BLOCKS, "default-0")
    add_request(api, "req")
    first = Worker(Life(MemoryClient(api, stop_at_every_call)))
    first.work = first.life.requests.reconcile("req")
    while not any(call.verb == "create" for call in first.life.client.calls):
        first.step()
    assert api.all(ADDRESS_BLOCKS) == []
    second.life.caches.requests.look()
    second.work = second.life.requests.reconcile("req")
    for leader in (second, first):
        for _ in range(20):
            leader.step()
    assert [block.name for block in api.all(ADDRESS_BLOCKS)] == ["default-0"]
    assert api.get(BLOCK_REQUESTS, "req").outcome() == granted("default-0")


LEADERS = st.integers(0, 1)
AUDIENCE = st.sets(LEADERS)


class OverlappingLeaders(RuleBasedStateMachine):
    """Two leaders at once, which the election forbids, stopped and killed at any call, on caches of any age."""

    @initialize()
    def begin(self) -> None:
        self.api = MemoryApi()
        add_node(self.api, "node1")
        add_pool(self.api, "default", SubnetSet(ipv4="10.2.0.0/25"))  # four blocks
        # A block that both leaders know of. Once it has gone, a late cache still shows its index as taken.
        add_block(self.api, "default-0", 0, pool="default", node="node1", request="stranger")
        self.requests: list[str] = []
        self.asked = 0
        self.leaders = [self._new_leader(), self._new_leader()]

    def _new_leader(self) -> Worker:
        return Worker(Life(MemoryClient(self.api, stop_at_every_call)))

    @precondition(lambda self: len(self.requests) < 6)
    @rule(told=AUDIENCE)
    def ask(self, told: set[int]) -> None:
        self.asked += 1
        self.requests.append(f"req-{self.asked}")
        add_request(self.api, self.requests[-1])
        for number in told:
            self.leaders[number].life.caches.requests.look()

    @precondition(lambda self: self.stranger_is_there())
    @rule(told=AUDIENCE)
    def lose_the_stranger(self, told: set[int]) -> None:
        self._remove_block("default-0")
        for number in told:
            self.leaders[number].life.caches.blocks.look()

    @precondition(lambda self: self.requests)
    @rule(number=LEADERS, steps=st.integers(1, 12), data=st.data())
    def work_on(self, number: int, steps: int, data: st.DataObject) -> None:
        leader = self.leaders[number]
        if leader.work is None:
            name = data.draw(st.sampled_from(self.requests))
            leader.work = leader.life.requests.reconcile(name)
        for _ in range(steps):
            leader.step()

    @rule(number=LEADERS)
    def replace(self, number: int) -> None:
        self.leaders[number].kill()
        self.leaders[number] = self._new_leader()

    @rule(number=LEADERS, kind=st.sampled_from(["blocks", "requests"]))
    def see_news(self, number: int, kind: str) -> None:
        getattr(self.leaders[number].life.caches, kind).look()

    @rule(number=LEADERS)
    def let_time_pass(self, number: int) -> None:
        self.leaders[number].life.clock += 100

    @rule(data=st.data())
    def give_back(self, data: st.DataObject) -> None:
        """A node is done with its block, and so with its request."""
        answered = [name for name in self.requests if isinstance(self._outcome(name), Granted)]
        if not answered:
            return
        name = data.draw(st.sampled_from(answered))
        outcome = self._outcome(name)
        assert isinstance(outcome, Granted)
        self.api.delete(BLOCK_REQUESTS, name)
        self.requests.remove(name)
        self._remove_block(outcome.block)

    def _remove_block(self, name: str) -> None:
        self.api.delete(ADDRESS_BLOCKS, name)
        self.api.patch(ADDRESS_BLOCKS, name, {"metadata": {"finalizers": []}}, subresource="")

    def stranger_is_there(self) -> bool:
        block = self.api.find(ADDRESS_BLOCKS, "default-0")
        return block is not None and block.request == "stranger"

    def _outcome(self, name: str) -> object:
        return self.api.get(BLOCK_REQUESTS, name).outcome()

    @invariant()
    def no_request_has_two_blocks(self) -> None:
        if hasattr(self, "api"):
            blocks = self.api.all(ADDRESS_BLOCKS)
            counts = Counter(block.request for block in blocks)
            assert all(count == 1 for count in counts.values()), counts
            assert len({block.index for block in blocks}) == len(blocks)

    @invariant()
    def a_grant_names_the_block_of_its_request(self) -> None:
        for name in getattr(self, "requests", ()):
            outcome = self._outcome(name)
            if isinstance(outcome, Granted):
                request = self.api.get(BLOCK_REQUESTS, name)
                assert self.api.get(ADDRESS_BLOCKS, outcome.block).request == request.uid

    def teardown(self) -> None:
        """After all trouble a leader with fresh caches answers whatever is still open."""
        if not hasattr(self, "api"):
            return
        for leader in self.leaders:
            leader.kill()
        for name in self.requests:
            last = self._new_leader()
            last.work = last.life.requests.reconcile(name)
            for _ in range(100):
                last.step()
            assert not isinstance(self._outcome(name), Pending)
        self.no_request_has_two_blocks()
        self.a_grant_names_the_block_of_its_request()


OverlappingLeaders.TestCase.settings = settings(max_examples=150, stateful_step_count=60, deadline=None)
TestOverlappingLeaders = OverlappingLeaders.TestCase
