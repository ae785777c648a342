"""What `kubectl coil trace` tells of packets is what the server sees of them, in arrangements of the stage that a seed
makes: always the same ones in `make test`, any in `make test-all`.

A failure names the seed of its arrangement, `COIL_TRACE_SEED`, which makes it again.
"""

import asyncio
import os
import random
import subprocess
import sys
from collections.abc import Collection, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from ipaddress import ip_address

import msgspec
import pytest

from coil.kube.client_config import ClientConfig
from coil.page.node_dump import NodeDump, Part
from integration.eip.description import Description
from integration.eip.pod import Pod
from integration.eip.world import Policy, World
from integration.patience import wait_until, wait_until_clean
from kubectl_coil.cluster import Cluster
from kubectl_coil.trace.cluster_view import ClusterView
from kubectl_coil.trace.document import TraceDocument, Verdict
from kubectl_coil.trace.walk import Walk

pytestmark = [pytest.mark.kernel, pytest.mark.apiserver]

NODES = ("n1", "n2", "n3")
APPS = ("red", "green", "blue")
PORT = 9
USUAL = (1197, 108, 1292)
"""Of these, pods have addresses of this node and of others, or a node's own, by destination and for all; gateways are
without a node, Open and Closed; one family; two policies; and none.
"""
SECONDS = 240


@dataclass(frozen=True, slots=True)
class StageReader:
    """A `NodeReader` of the stage's nodes: the program runs in the node's namespaces, as in a pod of its network."""

    world: World

    async def read(self, node: str, parts: Collection[Part]) -> NodeDump:
        entrance = self.world.node(node).namespaces.entrance
        limit = f"--time-limit={SECONDS}s"
        command = [sys.executable, "-m", "coil_node_dump", f"--parts={','.join(sorted(parts))}", limit]
        process = await asyncio.create_subprocess_exec(*entrance, *command, stdout=subprocess.PIPE)
        async with asyncio.timeout(SECONDS):
            output, _ = await process.communicate()
        dump = msgspec.json.decode(output, type=NodeDump)
        # In the namespaces of other tests, which it finds as well, anything may be going on.
        assert [trouble for trouble in dump.troubles if not trouble.startswith("/")] == []
        return dump


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


@dataclass(slots=True)
class Tracer:
    """Asks `kubectl coil trace`'s own code; objects and nodes are read once."""

    config: ClientConfig
    reader: StageReader

    async def trace(self, questions: Sequence[tuple[Pod, str]]) -> list[TraceDocument]:
        async with Cluster.connect(self.config, timeout=SECONDS) as cluster:
            view = ClusterView(cluster, self.reader)
            documents = []
            for pod, destination in questions:
                found = await view.pod(pod.sandbox.pod.namespace, pod.sandbox.pod.name)
                documents.append(await Walk(view, found, ip_address(destination), "udp", PORT).trace())
            return documents


def agrees(document: TraceDocument, seen: str | None, *, node: str) -> bool:
    """The plain CNI of the stage masquerades, which is told as a doubt."""
    if document.verdict is not Verdict.DELIVERED:
        return document.verdict is Verdict.STOPPED and seen is None
    return seen == document.source_seen or (bool(document.doubts) and seen == node)


def compare(world: World, description: Description, arrangement: Arrangement) -> list[str]:
    """Where they do not agree."""
    config = ClientConfig(
        server=f"https://{description.address}:{description.port}",
        authority=description.authority,
        certificate=description.admin_certificate,
        key=description.admin_key,
    )
    questions = [(pod, address) for pod in arrangement.pods for address in world.server.addresses.values()]
    documents = asyncio.run(Tracer(config, StageReader(world)).trace(questions))
    differences = []
    for (pod, address), document in zip(questions, documents, strict=True):
        seen = world.seen(pod, address)
        if not agrees(document, seen, node=world.node(pod.node).addresses[6 if ":" in address else 4]):
            hops = "; ".join(f"{hop.at} {hop.action} ({hop.by})" for hop in document.hops)
            differences.append(
                f"{pod.sandbox.pod.name} on {pod.node} to {address}: seen as {seen}, told: {document.verdict} "
                f"{document.source_seen} {document.reason}: {hops}"
            )
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
