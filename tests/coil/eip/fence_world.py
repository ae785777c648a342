"""A cluster in miniature for the fence: an API server, agents on nodes, controllers, clocks, and messages in between.

The decisions are the real ones: `lease_renewal`, which the node's agent runs on, `gateway_lease`, `placement` and
`gateway_status`. All else is the worst that can happen around them: clocks run at different speeds, requests come late
or never, answers get lost, caches lag, processes die and restart, and two controllers believe to be the leader at once.

`Habits` are the rules of the protocol, each of which can be left out, to see that the world notices.
"""

from collections.abc import Callable
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime

import msgspec

from coil.crd.egress_gateway import EgressGateway, EgressGatewaySpec, EgressGatewayStatus, PolicyRef, Ranges
from coil.crd.egress_gateway_policy import EgressGatewayPolicy
from coil.crd.meta import ObjectMeta
from coil.crd.names import NodeName
from coil.eip.claim import Candidate, Claim, parse_rules
from coil.eip.gateway_lease import (
    FENCE,
    MARGIN,
    GatewayLease,
    Lapse,
    LeaseExpiry,
    lease_name,
    parse_gateway_lease,
    render_annotations,
)
from coil.eip.gateway_status import NodeFacts, as_listed, former_of, plan_policy_status, plan_status
from coil.eip.lease_renewal import LeaseRenewal, held_entries, known_term
from coil.eip.placement import Placement, place

NODES = (NodeName("a"), NodeName("b"), NodeName("c"))
UID = "5b0c"
NOW = datetime(2026, 1, 1, tzinfo=UTC)
GATEWAY = EgressGateway(
    metadata=ObjectMeta(name="eg", uid=UID),
    spec=EgressGatewaySpec(ranges=Ranges(ipv4=("192.0.2.1-192.0.2.2",), ipv6=("2001:db8::1-2001:db8::2",))),
)


@dataclass(frozen=True, kw_only=True)
class Habits:
    """What keeps two nodes from holding one address."""

    fence_from_sending: bool = True
    """The agent counts from when it sent a renewal, not from its acknowledgement."""
    waiting: bool = True
    """The controller waits for the fence to pass."""
    guarded: bool = True
    """Leases are written only over the version that was read."""
    by_term: bool = True
    """The agent takes only what is for its term."""
    trimming: bool = True
    """The agent takes off what is not granted before it makes the kernel's fence good again."""
    leaving: bool = True
    """The controller waits for the agent's word before it places elsewhere what leaves."""
    guarded_status: bool = True
    """The gateway's status is written only over the version that it was planned from."""
    highest: bool = True
    """The agent remembers the highest term that it has ever asked for."""


HONEST = Habits()


@dataclass(kw_only=True)
class Request:
    """A write on its way. `base` None: it creates. `answer` is called with the result where the answer arrives."""

    node: NodeName
    base: str | None
    lease: GatewayLease
    answer: Callable[[GatewayLease | None], None]
    committed: bool = False
    result: GatewayLease | None = None


@dataclass(kw_only=True)
class StatusRequest:
    base: EgressGateway
    status: EgressGatewayStatus
    policies: dict[str, EgressGatewayPolicy]


@dataclass
class Clock:
    rate: float = 1.0
    offset: float = 0.0

    def at(self, now: float) -> float:
        return self.offset + self.rate * now


@dataclass
class Server:
    """Objects and their histories, by which caches lag."""

    guarded: bool
    counter: int = 0
    leases: dict[NodeName, GatewayLease] = field(default_factory=dict)
    events: dict[NodeName, list[GatewayLease | None]] = field(default_factory=lambda: {node: [] for node in NODES})
    gateways: list[EgressGateway] = field(default_factory=lambda: [GATEWAY])

    @property
    def gateway(self) -> EgressGateway:
        return self.gateways[-1]

    def write(self, request: Request) -> GatewayLease | None:
        """The Lease as it is stored; None is a conflict."""
        stored = self.leases.get(request.node)
        if self.guarded and (None if stored is None else stored.version) != request.base:
            return None
        self.counter += 1
        written = request.lease
        # Once through the texts that a Lease has.
        lease = parse_gateway_lease(
            name=lease_name(request.node),
            version=str(self.counter),
            holder=written.holder,
            transitions=written.term,
            annotations=render_annotations(fence=written.fence, applied=written.applied),
        )
        assert lease is not None
        self.leases[request.node] = lease
        self.events[request.node].append(lease)
        return lease

    def delete(self, node: NodeName) -> None:
        if self.leases.pop(node, None) is not None:
            self.events[node].append(None)

    def write_status(self, request: StatusRequest, *, guarded: bool) -> bool:
        if guarded and request.base is not self.gateway:
            return False
        self.gateways.append(msgspec.structs.replace(self.gateway, status=request.status))
        return True


class Agent:
    """One node: the kernel, which outlives the process, and the process."""

    def __init__(self, world: "World", node: NodeName, clock: Clock) -> None:
        self.world, self.node, self.clock = world, node, clock
        self.kernel: frozenset[str] = frozenset()
        self.fence_until = float("-inf")
        self.life = 0
        self.running = False

    @property
    def now(self) -> float:
        return self.clock.at(self.world.now)

    @property
    def answering(self) -> frozenset[str]:
        """The addresses for which the node answers at this moment."""
        return self.kernel if self.now < self.fence_until else frozenset()

    def start(self) -> None:
        """A new process; what the old one has put into the kernel is still there."""
        self.life += 1
        self.running = True
        self.lease: GatewayLease | None = None
        self.read_once = False
        self.renewal = LeaseRenewal(self.node)
        self.held_for: int | None = None
        self.applied: dict[str, int] = {}
        self.seen = len(self.world.server.gateways) - 1  # a list that the API server's quorum has answered

    def kill(self) -> None:
        self.running = False

    @property
    def term(self) -> int | None:
        """The term that may be acted for."""
        return self.renewal.term(self.now)

    def watch(self, steps: int) -> None:
        self.seen = min(self.seen + steps, len(self.world.server.gateways) - 1)

    def read(self) -> None:
        self.lease, self.read_once = self.world.server.leases.get(self.node), True

    def send(self) -> None:
        """Renew over what was last read or acknowledged."""
        if not self.read_once:
            return
        base, self.read_once = self.lease, False
        if not self.world.habits.highest:
            self.renewal.highest_term = 0
        known = known_term([self.gateway], self.node)
        written = self.renewal.renew(base, known_term=known, applied=self.applied, gateways={UID}).lease
        assert written is not None
        life, sent = self.life, self.now

        def answer(result: GatewayLease | None) -> None:
            if self.life == life and self.running:
                self._answered(result, sent)

        self.world.requests.append(Request(node=self.node, base=written.version or None, lease=written, answer=answer))

    def _answered(self, result: GatewayLease | None, sent: float) -> None:
        if result is None:
            return
        self.lease, self.read_once = result, True
        if not self.world.habits.fence_from_sending:
            sent = self.now
        self.renewal.acknowledge(result.term, sent=sent, now=self.now)
        self._refresh()

    def apply(self) -> None:
        """Bring the kernel in line with what is seen."""
        term = self.term
        granted: set[str] = set()
        if term is not None:
            if not self.world.habits.by_term:
                listed = [entry.term for entry in self.gateway.status.node_list if entry.name == self.node]
                term = listed[0] if listed else term
            for entry in held_entries(self.gateway, self.node, term=term, applied=self.renewal.applied):
                granted |= {text for text in (entry.ipv4, entry.ipv6) if text}
        self.kernel = frozenset(granted)
        self.held_for = self.term
        self.applied[UID] = self.gateway.status.revision
        self._refresh()

    def _refresh(self) -> None:
        held_for = self.held_for if self.world.habits.trimming else self.term
        timeout = self.renewal.kernel_timeout(self.now, held_for=held_for)
        if timeout:
            self.fence_until = self.now + timeout

    @property
    def gateway(self) -> EgressGateway:
        return self.world.server.gateways[self.seen]


class Controller:
    """One that believes to lead. Its caches start fresh and then lag."""

    def __init__(self, world: "World", clock: Clock) -> None:
        self.world, self.clock = world, clock
        self.restart()

    def restart(self) -> None:
        server = self.world.server
        self.expiry = LeaseExpiry(margin=MARGIN if self.world.habits.waiting else -FENCE / 2)
        self.at = {node: len(server.events[node]) for node in NODES}
        self.seen = len(server.gateways) - 1
        for lease in server.leases.values():
            self.expiry.observe(lease, self.now)

    @property
    def now(self) -> float:
        return self.clock.at(self.world.now)

    def watch_lease(self, node: NodeName, steps: int) -> None:
        for event in self.world.server.events[node][self.at[node] : self.at[node] + steps]:
            self.at[node] += 1
            if event is not None:
                self.expiry.observe(event, self.now)
            elif (known := self.expiry.lease(node)) is not None:
                self.expiry.miss(node, term=known.term, now=self.now)

    def watch_gateway(self, steps: int) -> None:
        self.seen = min(self.seen + steps, len(self.world.server.gateways) - 1)

    def revoke(self) -> None:
        """Send a revocation for each that has lapsed."""
        for lapse in self.expiry.lapsed(self.now):
            live = self.world.server.leases.get(lapse.node)
            # A read that takes no time, also by the margin of a controller that does not wait.
            if self.expiry.confirm(lapse, live, asked=self.now + 1, answered=self.now):
                self._revoke(lapse)

    def _revoke(self, lapse: Lapse) -> None:
        if lapse.lease is None:
            base, written = None, GatewayLease(node=lapse.node, version="", holder="", term=lapse.term, fence=FENCE)
        else:
            base, written = lapse.lease.version, replace(lapse.lease, holder="")
        expiry, clock = self.expiry, self.clock

        def answer(result: GatewayLease | None) -> None:
            if result is not None:
                expiry.observe(result, clock.at(self.world.now))

        self.world.requests.append(Request(node=lapse.node, base=base, lease=written, answer=answer))

    def plan(self) -> None:
        """Plan from the caches and send the status."""
        world, gateway = self.world, self.world.server.gateways[self.seen]
        facts = [self._fact(node, gateway) for node in NODES]
        candidates = [Candidate(node=fact.name, ready=fact.held and fact.selected) for fact in facts if fact.selected]
        policies = {name: world.policies.get(name) or _policy(name) for name in world.wanted}
        placement = place(
            parse_rules(gateway.spec),
            candidates=candidates,
            claims=[Claim(policy=PolicyRef(namespace="ns", name=name)) for name in sorted(world.wanted)],
            former=former_of(gateway, policies.values()),
            limit=1000,
            random=world.random,
        )
        status = plan_status(gateway, placement, facts, now=NOW)
        if not world.habits.leaving:
            status = _at_once(status, placement, facts)
        served = {
            placed.policy.name: msgspec.structs.replace(
                policies[placed.policy.name],
                status=plan_policy_status(
                    policies[placed.policy.name], gateway.metadata.name, placed, generation=1, now=NOW
                ),
            )
            for placed in as_listed(status, placement)
        }
        if status != gateway.status:
            world.status_requests.append(StatusRequest(base=gateway, status=status, policies=served))

    def _fact(self, node: NodeName, gateway: EgressGateway) -> NodeFacts:
        lease = self.expiry.lease(node)
        listed = next((entry for entry in gateway.status.node_list if entry.name == node), None)
        if lease is None and listed is not None and any(entry.ipv4 for entry in listed.eips):
            self.expiry.miss(node, term=listed.term, now=self.now)
        if lease is None:
            term, held, applied = 0 if listed is None else listed.term, listed is not None, None
        else:
            term, held, applied = lease.term, lease.held, lease.applied.get(UID)
        return NodeFacts(
            name=node, phase="Ready", term=term, applied=applied, held=held, selected=node in self.world.selected
        )


class World:
    def __init__(self, *, rates: tuple[float, ...], random: Callable[[], float], habits: Habits = Habits()) -> None:
        self.now = 0.0
        self.random = random
        self.habits = habits
        self.server = Server(guarded=habits.guarded)
        self.requests: list[Request] = []
        self.status_requests: list[StatusRequest] = []
        self.selected = set(NODES)
        self.wanted = {"p"}
        self.policies: dict[str, EgressGatewayPolicy] = {}
        clocks = [Clock(rate=rate, offset=1000.0 * place) for place, rate in enumerate(rates)]
        self.agents = {node: Agent(self, node, clock) for node, clock in zip(NODES, clocks, strict=False)}
        self.controllers = [Controller(self, clock) for clock in clocks[len(NODES) :]]
        self.moves = 0
        self._last: dict[str, NodeName] = {}
        for agent in self.agents.values():
            agent.start()

    def advance(self, seconds: float) -> None:
        self.now += seconds

    def commit(self, number: int) -> None:
        """A write arrives at the API server."""
        if self.requests:
            request = self.requests[number % len(self.requests)]
            if not request.committed:
                request.result, request.committed = self.server.write(request), True

    def answer(self, number: int) -> None:
        """An answer arrives, if there is one."""
        if self.requests:
            request = self.requests[number % len(self.requests)]
            if request.committed:
                self.requests.remove(request)
                request.answer(request.result)

    def lose(self, number: int) -> None:
        """A write, or its answer, gets lost."""
        if self.requests:
            del self.requests[number % len(self.requests)]

    def commit_status(self, number: int) -> None:
        """A status arrives, and after it, all at once, those of the policies."""
        if self.status_requests:
            request = self.status_requests.pop(number % len(self.status_requests))
            if self.server.write_status(request, guarded=self.habits.guarded_status):
                self.policies.update(request.policies)

    def lose_status(self, number: int) -> None:
        if self.status_requests:
            del self.status_requests[number % len(self.status_requests)]

    def run_well(self, node: NodeName) -> None:
        """The node's agent does all that it has to, and nothing gets lost."""
        agent = self.agents[node]
        if agent.running:
            agent.watch(100)
            agent.apply()
            if not agent.read_once:
                agent.read()
            agent.send()
            self.commit(-1)
            self.answer(-1)
            agent.apply()

    def renew_only(self, node: NodeName, *, answered: bool) -> None:
        """The node's agent renews, and does nothing else. The answer comes now, or some time."""
        agent = self.agents[node]
        if agent.running:
            agent.read()
            agent.send()
            self.commit(-1)
            if answered:
                self.answer(-1)

    def control_well(self, number: int) -> None:
        """A controller does all that it has to, and nothing gets lost."""
        controller = self.controllers[number]
        for node in NODES:
            controller.watch_lease(node, 1000)
        before = len(self.requests)
        controller.revoke()
        for _ in range(len(self.requests) - before):
            self.commit(-1)
            self.answer(-1)
        controller.watch_gateway(1000)
        controller.plan()
        if self.status_requests:
            self.commit_status(-1)

    def check(self) -> None:
        """The promise: no two nodes answer for one address."""
        holders: dict[str, NodeName] = {}
        for node, agent in self.agents.items():
            for text in agent.answering:
                assert text not in holders, f"{text} at {holders[text]} and {node} at {self.now}"
                holders[text] = node
                if self._last.get(text, node) != node:
                    self.moves += 1
                self._last[text] = node


def _policy(name: str) -> EgressGatewayPolicy:
    return EgressGatewayPolicy(metadata=ObjectMeta(name=name, namespace="ns"))


def _at_once(status: EgressGatewayStatus, placement: Placement, facts: list[NodeFacts]) -> EgressGatewayStatus:
    """As if nothing had to leave before it comes."""
    fresh = msgspec.structs.replace(GATEWAY, status=EgressGatewayStatus())
    bare = plan_status(fresh, placement, facts, now=NOW)
    return msgspec.structs.replace(bare, revision=status.revision)
