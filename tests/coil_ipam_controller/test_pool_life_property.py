"""Pools that come, grow, are edited and go while blocks of them are given out and come back.

Whatever is done to the pools and whenever the controller dies: no address is in two blocks, a request has one block,
and at the end everything can go. `GuardedPools` has admission, which lets a pool only grow; `UnguardedPools` has none,
as when its webhook is broken or somebody got around it.
"""

from collections import Counter
from ipaddress import IPv4Network, IPv6Network, ip_network
from itertools import combinations
from typing import ClassVar

from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from coil.crd.address_block import ADDRESS_BLOCKS, AddressBlock
from coil.crd.address_pool import ADDRESS_POOLS, AddressPool, AddressPoolSpec, SubnetSet
from coil.crd.block_request import BLOCK_REQUESTS, Granted, Pending, Refused
from coil.crd.meta import ObjectMeta
from coil.crd.names import FINALIZER
from coil.crd.pool_validation import validate_disjoint, validate_pool, validate_pool_update
from coil.ipam.layout import parse_layout
from tests.coil.kube.memory_api import MemoryApi, MemoryClient
from tests.coil_ipam_controller.scene import Life, add_node, add_request
from tests.coil_ipam_controller.stepped_worker import Worker, stop_at_every_call

NAMES = ("one", "two")
WORKERS = 3
MOST_REQUESTS = 6
ROUNDS_TO_REST = 40

# Small, and close to each other: many of those that are drawn collide with something.
SUBNETS = st.builds(
    lambda place, bits: SubnetSet(ipv4=f"10.0.0.{place << bits}/{32 - bits}"), st.integers(0, 3), st.integers(1, 4)
)
OUTLANDISH = st.sampled_from(
    [SubnetSet(ipv4="10.0.0.1/31"), SubnetSet(ipv6="fd00::/126"), SubnetSet(ipv4="10.0.0.0/32")]
)
SPECS = st.builds(
    AddressPoolSpec,
    block_size_bits=st.integers(0, 1),
    subnets=st.lists(SUBNETS, min_size=1, max_size=3, unique=True).map(tuple),
)
FIRST_SPEC = AddressPoolSpec(block_size_bits=1, subnets=(SubnetSet(ipv4="10.0.0.0/29"),))


class PoolLife(RuleBasedStateMachine):
    """One leader at a time, with several workers on shared caches of any age."""

    guarded: ClassVar[bool]

    @initialize()
    def begin(self) -> None:
        self.api = MemoryApi()
        add_node(self.api, "node1")
        self.requests: list[str] = []
        self.asked = 0
        self.deletions = 0
        self.restart()
        self._submit("one", FIRST_SPEC)

    def restart(self) -> None:
        life = Life(MemoryClient(self.api, stop_at_every_call))
        self.workers = [Worker(life) for _ in range(WORKERS)]

    @property
    def life(self) -> Life:
        return self.workers[0].life

    # --- people

    @rule(name=st.sampled_from(NAMES), spec=SPECS)
    def write_pool(self, name: str, spec: AddressPoolSpec) -> None:
        """Create the pool, or replace what it says."""
        self._submit(name, spec)

    @rule(name=st.sampled_from(NAMES), subnet=SUBNETS | OUTLANDISH)
    def append_a_subnet(self, name: str, subnet: SubnetSet) -> None:
        if (pool := self.api.find(ADDRESS_POOLS, name)) is not None:
            spec = AddressPoolSpec(block_size_bits=pool.spec.block_size_bits, subnets=(*pool.spec.subnets, subnet))
            self._submit(name, spec)

    @precondition(lambda self: self.deletions < 2)
    @rule(name=st.sampled_from(NAMES))
    def delete_pool(self, name: str) -> None:
        if self.api.find(ADDRESS_POOLS, name) is not None:
            self.deletions += 1
            self.api.delete(ADDRESS_POOLS, name)

    def _submit(self, name: str, spec: AddressPoolSpec) -> None:
        if not self.guarded:
            # Promises of this machine hold for edits at leisure: nothing is under way, and the caches have caught up.
            self.come_to_rest()
            self.life.caches.look()
        old = self.api.find(ADDRESS_POOLS, name)
        new = AddressPool(metadata=ObjectMeta(name=name, finalizers=(FINALIZER,)), spec=spec)
        if self.guarded:
            errors = validate_pool(new) + validate_disjoint(new, self.api.all(ADDRESS_POOLS))
            if errors or (old is not None and validate_pool_update(old, new)):
                return
        if old is None:
            self.api.create(ADDRESS_POOLS, new)
        else:
            subnets = [{"ipv4": entry.ipv4, "ipv6": entry.ipv6} for entry in spec.subnets]
            change = {"spec": {"blockSizeBits": spec.block_size_bits, "subnets": subnets}}
            self.api.patch(ADDRESS_POOLS, name, change, subresource="")

    # --- nodes

    @rule(pool=st.sampled_from(NAMES))
    def ask(self, pool: str) -> None:
        for name in [name for name in self.requests if isinstance(self._outcome(name), Refused)]:
            self._withdraw(name)
        if len(self.requests) < MOST_REQUESTS:
            self.asked += 1
            self.requests.append(f"req-{self.asked}")
            add_request(self.api, self.requests[-1], pool=pool)
            self.life.caches.requests.look()

    @rule(pool=st.sampled_from(NAMES), count=st.integers(1, 3))
    def ask_and_be_answered(self, pool: str, count: int) -> None:
        """With nothing in between: as it mostly is."""
        self.come_to_rest()
        self.life.caches.look()
        for _ in range(count):
            self.ask(pool)
            self.workers[0].work = self.life.requests.reconcile(self.requests[-1])
            self.come_to_rest()

    @precondition(lambda self: self.requests)
    @rule(data=st.data())
    def lose_interest(self, data: st.DataObject) -> None:
        """The pod has gone, or the node has heard the answer."""
        self._withdraw(data.draw(st.sampled_from(self.requests)))

    @precondition(lambda self: self.api.all(ADDRESS_BLOCKS))
    @rule(data=st.data())
    def give_back(self, data: st.DataObject) -> None:
        """A node is done with a block, long after it was done with its request."""
        block = data.draw(st.sampled_from(self.api.all(ADDRESS_BLOCKS)))
        for name in [name for name in self.requests if self.api.get(BLOCK_REQUESTS, name).uid == block.request]:
            self._withdraw(name)
        self._remove_block(block)

    def _withdraw(self, name: str) -> None:
        self.api.delete(BLOCK_REQUESTS, name)
        self.requests.remove(name)

    def _outcome(self, name: str) -> object:
        return self.api.get(BLOCK_REQUESTS, name).outcome()

    def _remove_block(self, block: AddressBlock) -> None:
        self.api.delete(ADDRESS_BLOCKS, block.name)
        self.api.patch(ADDRESS_BLOCKS, block.name, {"metadata": {"finalizers": []}}, subresource="")

    # --- the controller

    @rule(number=st.integers(0, WORKERS - 1), steps=st.integers(1, 12), data=st.data())
    def work(self, number: int, steps: int, data: st.DataObject) -> None:
        worker = self.workers[number]
        if worker.work is None:
            pools = [f"pool {name}" for name in NAMES]
            subject = data.draw(st.sampled_from([*self.requests, *pools]))
            if subject in pools:
                worker.work = self.life.pools.reconcile(subject.removeprefix("pool "))
            else:
                worker.work = self.life.requests.reconcile(subject)
        for _ in range(steps):
            worker.step()

    @rule()
    def crash(self) -> None:
        for worker in self.workers:
            worker.kill()
        self.restart()

    @rule(kind=st.sampled_from(["pools", "blocks", "requests"]))
    def see_news(self, kind: str) -> None:
        getattr(self.life.caches, kind).look()

    @rule()
    def let_time_pass(self) -> None:
        self.life.clock += 100

    def come_to_rest(self) -> None:
        """All that is under way comes to its end."""
        for worker in self.workers:
            while worker.work is not None:
                worker.step()

    # --- what must hold

    @invariant()
    def no_address_is_in_two_blocks(self) -> None:
        for one, two in combinations(self._blocks(), 2):
            for left in networks(one):
                for right in networks(two):
                    assert left.version != right.version or not left.overlaps(right), f"{one} and {two}"

    @invariant()
    def a_request_has_at_most_one_block(self) -> None:
        counts = Counter(block.request for block in self._blocks())
        assert all(count == 1 for count in counts.values()), counts

    @invariant()
    def a_grant_names_the_block_of_its_request(self) -> None:
        for name in getattr(self, "requests", ()):
            request = self.api.get(BLOCK_REQUESTS, name)
            if isinstance(outcome := request.outcome(), Granted):
                assert self.api.get(ADDRESS_BLOCKS, outcome.block).request == request.uid

    @invariant()
    def a_pool_stays_while_it_has_blocks_and_they_stay_where_they_are(self) -> None:
        for block in self._blocks():
            pool = self.api.get(ADDRESS_POOLS, block.pool)
            assert pool.metadata.uid == block.metadata.owner_references[0].uid
            if self.guarded:
                planned = parse_layout(pool).block_at(block.index)
                assert networks(block) == [network for network in (planned.ipv4, planned.ipv6) if network is not None]

    def _blocks(self) -> list[AddressBlock]:
        return self.api.all(ADDRESS_BLOCKS) if hasattr(self, "api") else []

    def teardown(self) -> None:
        """After all trouble a fresh leader answers what is open; and then everything can go, and goes."""
        if not hasattr(self, "api"):
            return
        self.crash()
        for _ in range(ROUNDS_TO_REST):
            for name in self.requests:
                self.workers[0].work = self.life.requests.reconcile(name)
                self.come_to_rest()
            self.life.caches.look()
        outcomes = [self.api.get(BLOCK_REQUESTS, name).outcome() for name in self.requests]
        assert not any(isinstance(outcome, Pending) for outcome in outcomes)
        assert all(outcome.message for outcome in outcomes if isinstance(outcome, Refused))
        self.no_address_is_in_two_blocks()
        self.a_request_has_at_most_one_block()
        for block in self.api.all(ADDRESS_BLOCKS):
            self._remove_block(block)
        for pool in self.api.all(ADDRESS_POOLS):
            self.api.delete(ADDRESS_POOLS, pool.name)
            self.life.caches.look()
            self.workers[0].work = self.life.pools.reconcile(pool.name)
            self.come_to_rest()
        assert self.api.all(ADDRESS_POOLS) == []


def networks(block: AddressBlock) -> list[IPv4Network | IPv6Network]:
    return [ip_network(text) for text in (block.ipv4, block.ipv6) if text is not None]


class GuardedPools(PoolLife):
    guarded = True


class UnguardedPools(PoolLife):
    guarded = False


TestGuardedPools = GuardedPools.TestCase
TestUnguardedPools = UnguardedPools.TestCase
for case in (TestGuardedPools, TestUnguardedPools):
    case.settings = settings(max_examples=100, stateful_step_count=50, deadline=None)
