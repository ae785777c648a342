"""What `kubectl coil trace` tells of packets is what the server sees of them, in arrangements of the stage that a seed
makes: always the same ones in `make test`, any in `make test-all`.

A failure names the seed of its arrangement, `COIL_TRACE_SEED`, which makes it again.
"""

import os
import random
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass

import pytest

from integration.eip.description import Description
from integration.eip.pod import Pod
from integration.eip.world import Policy, World
from integration.patience import wait_until, wait_until_clean
from integration.stage_trace import Question, StageReader, describe, trace_packets
from kubectl_coil.trace.document import TraceDocument, Verdict

pytestmark = [pytest.mark.kernel, pytest.mark.apiserver]

NODES = ("n1", "n2", "n3")
APPS = ("red", "green", "blue")
PORT = 9
USUAL = (1197, 108, 1292)
"""Of these, pods have addresses of this node and of others, or a node's own, by destination and for all; gateways are
without a node, Open and Closed; one family; two policies; and none.
"""


@dataclass(frozen=True, slots=True)
class Arrangement:
    """Pods, and the policies that may concern them."""

    pods: Sequence[Pod]
    policies: Sequence[Policy]


@contextmanager
def arranged(world: World, dice: random.Random) -> Iterator[Arrangement]:
    """One or two gateways, some on no node that is there; up to three policies for any destinations; three pods."""
    with ExitStack() as stack:
        gateways = [
            stack.enter_context(
                world.gateway(
                    *dice.sample([*NODES, "of-nobody"], dice.randint(1, 2)),
                    number=2,
                    families=dice.choice([(4, 6), (4, 6), (4,), (6,)]),
                    failPolicy=dice.choice(["Open", "Closed"]),
                )
            )
            for _ in range(dice.randint(1, 2))
        ]
        pods = [stack.enter_context(world.pod(dice.choice(NODES), app=dice.choice(APPS))) for _ in range(3)]
        elsewhere = ["192.0.2.0/24", "2001:db8:99::/48"]
        servers = [f"{address}/{32 if version == 4 else 128}" for version, address in world.server.addresses.items()]
        policies = [
            stack.enter_context(
                world.policy(
                    dice.choice(gateways),
                    labels={"app": dice.choice(APPS)},
                    destSubnet=dice.choice([[], [], servers, elsewhere, servers + elsewhere]),
                    egressIP={"useNodeIP": True} if dice.random() < 0.2 else {},
                )
            )
            for _ in range(dice.randint(1, 3))
        ]
        yield Arrangement(pods, policies)


def await_settled(world: World, policies: Sequence[Policy]) -> None:
    """The controllers have decided, and the nodes' kernels hold what follows from it, twice in a row."""
    wait_until(
        lambda: all("status" in world.api.get(each.path) for each in policies), what="all policies have a status"
    )
    last: list[object] = []

    def is_same() -> bool:
        before, found = list(last), [world.states(), [each.status() for each in policies]]
        last[:] = found
        return before == found

    wait_until(is_same, what="nothing changes any more", pause=1.5)


def agrees(document: TraceDocument, seen: str | None, *, node: str) -> bool:
    """The plain CNI of the stage masquerades, which is told as a doubt."""
    if document.verdict is not Verdict.DELIVERED:
        return document.verdict is Verdict.STOPPED and seen is None
    return seen == document.source_seen or (bool(document.doubts) and seen == node)


def compare(world: World, description: Description, arrangement: Arrangement) -> list[str]:
    """Where they do not agree."""
    reader = StageReader(
        lambda node: world.node(node).namespaces.entrance,
        lambda node: [pod.sandbox.netns for pod in arrangement.pods if pod.node == node],
    )
    asked = [(pod, address) for pod in arrangement.pods for address in world.server.addresses.values()]
    questions = [Question(pod.sandbox.pod, address, PORT) for pod, address in asked]
    differences = []
    for (pod, address), question, document in zip(
        asked, questions, trace_packets(description, reader, questions), strict=True
    ):
        seen = world.seen(pod, address)
        if not agrees(document, seen, node=world.node(pod.node).addresses[6 if ":" in address else 4]):
            differences.append(describe(question, document, seen))
    return differences


def check(world: World, description: Description, seed: int) -> None:
    """They agree once all is settled; on a machine that stands still for a moment, an answer may come too late."""
    with arranged(world, random.Random(seed)) as arrangement:

        def find_differences() -> list[str]:
            await_settled(world, arrangement.policies)
            return compare(world, description, arrangement)

        wait_until_clean(find_differences, after=f"COIL_TRACE_SEED={seed}")


def seeds(*usual: int) -> Sequence[int]:
    given = os.environ.get("COIL_TRACE_SEED")
    return usual if given is None else [int(given)]


def test_what_is_told_is_what_the_server_sees(
    world: World, control: tuple[Description, object], subtests: pytest.Subtests
) -> None:
    for seed in seeds(*USUAL):
        with subtests.test(seed=seed):
            check(world, control[0], seed)


@pytest.mark.slow
def test_what_is_told_is_what_the_server_sees_in_many_arrangements(
    world: World, control: tuple[Description, object], subtests: pytest.Subtests
) -> None:
    for seed in seeds(*(random.randrange(1 << 32) for _ in range(34))):
        with subtests.test(seed=seed):
            check(world, control[0], seed)
