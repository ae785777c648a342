"""A burst of pods on one node, with an API server that is far away: who waits, how long, and how much is asked for.

coild's way to the API server takes time in each direction; the controller is beside the API server. An ADD waits from
when it is sent, so that the time in which a busy machine sends two hundred is not in it, until coild writes its address
down, in its journal, so that the time in which the machine wires them is not in it. These times are printed; what is
asserted is that nobody waits for what is somebody else's.
"""

import asyncio
import json
import secrets
import sys
import time
from collections import Counter
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager
from dataclasses import dataclass
from functools import partial
from pathlib import Path

import pytest
import yaml
from grpclib.client import Channel

from coil.cnirpc.error import CniStatusCodec
from coil.cnirpc.messages import CniArgs, CniStub
from integration.apiserver.bare_node import BareNode
from integration.apiserver.event_record import EventRecord
from integration.apiserver.relay import Relay, relaying
from integration.apiserver.sandbox import PodName, Sandbox
from integration.cluster.control_plane import ControlPlane
from integration.patience import wait_until
from integration.service import Service

pytestmark = pytest.mark.apiserver

PODS = 200
POOLS = {"red": "10.91.0.0/20", "green": "10.92.0.0/20", "blue": "10.93.0.0/20"}
"""By name of pool and of namespace."""

BITS = 4
"""Fewer addresses than a block has by default, so that each pool has to give five."""
NEEDED = sum(-(-len(range(number, PODS, len(POOLS))) // (1 << BITS)) for number in range(len(POOLS)))
"""Blocks for so many pods, dealt to the pools in turn."""

ROUND_TRIP = 0.3
"""Seconds."""

PATIENCE = 500.0

ANSWERLESS = 240.0
"""Less than an ADD may wait for an address."""


@dataclass(frozen=True, slots=True)
class Burst:
    """In seconds: how long each pod waited for its address, the shortest first; in what time all were sent, and
    answered.
    """

    waits: list[float]
    sent: float
    answered: float

    @property
    def spread(self) -> float:
        return self.waits[-1] - self.waits[0]

    def render(self, title: str) -> str:
        trips = [value / ROUND_TRIP for value in (self.waits[0], self.waits[-1], self.spread)]
        return (
            f"{title}: {len(self.waits)} ADDs, round trip {ROUND_TRIP:g} s; the address after "
            f"{trips[0]:.2f} to {trips[1]:.2f} round trips, so the slowest {trips[2]:.2f} after the fastest; "
            f"all sent within {self.sent:.2f} s, all answered after {self.answered:.2f} s"
        )


@pytest.fixture(scope="module")
def node(plane: ControlPlane) -> Iterator[BareNode]:
    with BareNode.up(plane) as node:
        for pool, subnet in POOLS.items():
            node.make_pool(pool, {"ipv4": subnet}, bits=BITS)
            node.make_namespace(pool, pool=pool)
        yield node


@pytest.fixture(scope="module")
def controller(node: BareNode) -> Iterator[Service]:
    controller = node.start_controller()
    yield controller
    controller.process.stop()


@asynccontextmanager
async def far_coild(node: BareNode, folder: Path, sandboxes: list[Sandbox]) -> AsyncIterator[Relay]:
    """The relay before a coild that was started while the way was still short; at the end it gives everything back."""
    async with relaying(str(node.plane.address), node.plane.port) as relay:
        document = yaml.safe_load(node.plane.kubeconfig_for("coild").read_text())
        document["clusters"][0]["cluster"]["server"] = f"https://{relay.host}:{relay.port}"
        path = folder / "coild.kubeconfig"
        path.touch(mode=0o600)
        path.write_text(yaml.safe_dump(document))
        flags = ("--acquire-timeout=5m", "--cooling=1s")
        coild = await asyncio.to_thread(node.start_coild, *flags, kubeconfig=path)
        try:
            yield relay
        finally:
            relay.delay = 0.0
            try:
                await delete(node, sandboxes)
            finally:
                coild.process.stop()


@pytest.fixture
def sandboxes(node: BareNode) -> Iterator[list[Sandbox]]:
    """One for each pod, dealt to the namespaces in turn."""
    names = list(POOLS)
    made = [
        node.make_sandbox(PodName(names[number % len(names)], f"pod-{number}"), container_id=secrets.token_hex(32))
        for number in range(PODS)
    ]
    yield made
    node.destroy_sandboxes()


async def burst(node: BareNode, sandboxes: list[Sandbox]) -> Burst:
    """All ADDs at once, each over a connection of its own as from a plugin of its own."""
    sent: dict[str, float] = {}

    async def add(sandbox: Sandbox) -> None:
        async with Channel(path=str(node.socket), status_details_codec=CniStatusCodec()) as channel:
            await channel.__connect__()
            sent[sandbox.container_id] = time.time()
            await CniStub(channel).add(arguments(sandbox), timeout=PATIENCE)

    begun = time.time()
    async with asyncio.TaskGroup() as group:
        for sandbox in sandboxes:
            group.create_task(add(sandbox))
    answered = time.time() - begun
    given = given_at(node)
    waits = sorted(given[container] - at for container, at in sent.items())
    return Burst(waits, max(sent.values()) - begun, answered)


def arguments(sandbox: Sandbox) -> CniArgs:
    return CniArgs(
        container_id=sandbox.container_id,
        netns=sandbox.netns,
        ifname="eth0",
        args={"K8S_POD_NAMESPACE": sandbox.pod.namespace, "K8S_POD_NAME": sandbox.pod.name, "IS_CHAINED": "false"},
        stdin_data=b'{"cniVersion": "1.0.0", "name": "pods", "type": "coil"}',
    )


def given_at(node: BareNode) -> dict[str, float]:
    """When each container was given its address, by coild's own journal."""
    lines = node.socket.with_suffix(".journal").read_text().splitlines()[1:]
    records = [json.loads(line.partition(" ")[2]) for line in lines]
    return {record[1]: record[7] for record in records if record[0] == "given"}


async def delete(node: BareNode, sandboxes: list[Sandbox]) -> None:
    """All DELs, and until nothing is left of the blocks."""
    async with Channel(path=str(node.socket), status_details_codec=CniStatusCodec()) as channel:
        for sandbox in sandboxes:
            await CniStub(channel).del_(arguments(sandbox), timeout=PATIENCE)
    left = partial(wait_until, lambda: not node.objects("addressblocks"), what="no block is left", timeout=PATIENCE)
    await asyncio.to_thread(left)


@pytest.mark.usefixtures("controller")
@pytest.mark.slow
async def test_two_hundred_pods_at_once(
    node: BareNode, sandboxes: list[Sandbox], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    async with far_coild(node, tmp_path, sandboxes) as relay:
        requests = await asyncio.to_thread(EventRecord, node, "blockrequests")
        relay.delay = ROUND_TRIP / 2
        cold = await burst(node, sandboxes)
        with capsys.disabled():
            print("\n" + cold.render("three cold pools"), file=sys.stderr)
        await check_blocks(node, requests)


async def test_all_blocks_are_asked_for_before_one_is_given(
    node: BareNode, controller: Service, sandboxes: list[Sandbox], tmp_path: Path
) -> None:
    """Nobody gives any meanwhile, so whoever asks has waited for no block."""
    async with far_coild(node, tmp_path, sandboxes) as relay:
        requests = await asyncio.to_thread(EventRecord, node, "blockrequests")
        relay.delay = ROUND_TRIP / 2
        controller.process.stop()
        waiting = asyncio.create_task(burst(node, sandboxes))
        asked = partial(wait_until, lambda: len(requests.first_versions()) == NEEDED, what="all blocks are asked for")
        try:
            await asyncio.to_thread(asked, timeout=ANSWERLESS)
        finally:
            await asyncio.to_thread(controller.ensure_running)
            await waiting
        await check_blocks(node, requests)


async def check_blocks(node: BareNode, requests: EventRecord) -> None:
    made = Counter(entry["spec"]["poolName"] for entry in requests.first_versions().values())
    blocks = await asyncio.to_thread(node.objects, "addressblocks")
    assert made.total() == len(blocks) == NEEDED, "one request for each block that is needed, not for each pod"


@pytest.mark.usefixtures("controller")
async def test_pods_that_find_an_address_wait_for_nobody(
    node: BareNode, sandboxes: list[Sandbox], tmp_path: Path
) -> None:
    """One pod of each pool has brought a block; now many come, and there are addresses for a part of them."""
    async with far_coild(node, tmp_path, sandboxes) as relay:
        first, rest = sandboxes[: len(POOLS)], sandboxes[len(POOLS) :]
        await burst(node, first)
        relay.open.clear()
        waiting = asyncio.create_task(burst(node, rest))
        free = len(POOLS) * ((1 << BITS) - 1)
        # Nothing is heard of the API server meanwhile, so whoever has an address has waited for none of its answers.
        served = partial(
            wait_until, lambda: len(given_at(node)) == len(first) + free, what="all free addresses are given"
        )
        try:
            await asyncio.to_thread(served, timeout=ANSWERLESS)
        finally:
            relay.open.set()
        await waiting
