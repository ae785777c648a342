"""Traffic by a policy that never pauses, and what is said about its addresses meanwhile: the oracle of a failover."""

import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from functools import wraps
from typing import Final, Protocol

from integration.eip.announcement import Announcements
from integration.eip.flow import Dialogue, Flow
from integration.eip.node import StageNode
from integration.eip.solicitor import Solicitor
from integration.eip.world import Gateway, Policy, World
from integration.patience import wait_until

PATIENCE: Final = 30.0
"""Seconds until another node must serve; it takes about one."""
LABELS: Final = {"app": "failover"}
_TRIALS: Final = 3


class StalledError(AssertionError):
    """A node that the test had not touched lost its lease, so what was seen tells nothing.

    That is the product's answer to a machine that stands still for longer than a lease lasts.
    """


class Restorable(Protocol):
    """A fixture that can be used once more."""

    def restore(self) -> None: ...


def repeated_when_stalled(test: Callable[..., None]) -> Callable[..., None]:
    """Run a test whose fixtures are all Restorable once more, at most twice, after a StalledError."""

    @wraps(test)
    def run(**fixtures: Restorable) -> None:
        for _ in range(_TRIALS - 1):
            try:
                return test(**fixtures)
            except StalledError as error:
                print(f"\nrepeated: {error}")
            for fixture in fixtures.values():
                fixture.restore()
        return test(**fixtures)

    return run


@dataclass(frozen=True, slots=True)
class Watched:
    """A policy with traffic that never pauses, and everything that is said about its addresses on the link."""

    world: World
    gateway: Gateway
    policy: Policy
    heard: Announcements
    asking: Solicitor
    flows: list[Flow]
    dialogues: list[Dialogue]
    eips: list[str]
    _lapses: dict[str, int] = field(default_factory=dict)
    """How often each node that has not been struck had lost its lease when it was seen to be well."""

    @property
    def holder(self) -> StageNode:
        return self.world.node(self.policy.wait_placed())

    def lose(self, how: Callable[[StageNode], None]) -> tuple[StageNode, list[float]]:
        """Have something happen to the holder, and wait until all works again; who it was, and the flows' outages."""
        lost = self.holder
        self._expect_leases(but=lost)
        rounds = [dialogue.rounds for dialogue in self.dialogues]
        begin = time.monotonic()
        how(lost)
        others = [node.name for node in self.world.nodes if node is not lost]
        for eip in self.eips:
            self.heard.await_last(eip, *others, timeout=PATIENCE)
        for flow in self.flows:
            flow.await_answer(timeout=PATIENCE)
        for dialogue, before in zip(self.dialogues, rounds, strict=True):
            dialogue.await_rounds(10, after=before, timeout=PATIENCE)
        return lost, [flow.outage(since=begin) for flow in self.flows]

    def assert_announced_by(self, *nodes: str) -> None:
        """These have spoken for the addresses, one after the other, and none between another one's words."""
        for eip in self.eips:
            assert self.heard.ports(eip) == list(nodes), eip

    def stalled(self) -> list[str]:
        """The nodes that have lost their leases though nothing was done to them."""
        return [name for name, before in self._lapses.items() if self.world.node(name).lapses() > before]

    def _expect_leases(self, *, but: StageNode | None = None) -> None:
        """From now on every node is to keep its lease but that one."""
        for node in self.world.nodes:
            self._lapses.setdefault(node.name, node.lapses())
        if but is not None:
            del self._lapses[but.name]


@contextmanager
def watched(world: World, *nodes: str) -> Iterator[Watched]:
    """A gateway on those nodes, its policy, a pod on n3 that talks over UDP and TCP in both families."""
    with ExitStack() as stack:
        gateway = stack.enter_context(world.gateway(*nodes, number=1))
        pod = stack.enter_context(world.pod("n3", **LABELS))
        policy = stack.enter_context(world.policy(gateway, labels=LABELS))
        eips = [policy.eip(4), policy.eip(6)]
        for eip in eips:
            world.await_seen(pod, eip)
        heard = stack.enter_context(world.announcements())
        asking = stack.enter_context(Solicitor(world.server.netns, world.server.addresses, *eips))
        servers = world.server.addresses.values()
        flows = [stack.enter_context(Flow(pod, world.server, address)) for address in servers]
        dialogues = [stack.enter_context(Dialogue(pod, world.server, address)) for address in servers]
        wait_until(lambda: all(flow.answers for flow in flows), what="the flows are answered")
        for dialogue in dialogues:
            dialogue.await_rounds(3)
        for eip in eips:
            heard.await_last(eip, *nodes)
        traffic = Watched(world, gateway, policy, heard, asking, flows, dialogues, eips)
        traffic._expect_leases()
        try:
            yield traffic
        except AssertionError as error:
            if stalled := traffic.stalled():
                raise StalledError(f"{', '.join(stalled)} lost the lease, and nothing was done to it") from error
            raise
