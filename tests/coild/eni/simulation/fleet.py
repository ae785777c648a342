"""Many nodes on one account: what EC2 grants all of them together decides, and how they share it."""

import asyncio
from collections.abc import Coroutine, Iterable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from random import Random

from coil.aws.call_budget import CallBudget, Rate
from coil.aws.ec2 import InstanceId
from coil.eni.warm_pool import Demand, surplus_addresses
from coild.eni.settings import EniSettings
from tests.coil.aws.account_limits import DOCUMENTED, AccountLimits
from tests.coil.aws.faults import Call
from tests.coil.aws.memory_ec2 import MemoryEc2
from tests.coil.aws.memory_metadata import MemoryMetadata
from tests.coild.eni.memory_node_network import MemoryNodeNetwork
from tests.coild.eni.simulation.churn import LIMITS, TYPE
from tests.coild.eni.simulation.node import LINK_SECONDS, SimulatedNode
from tests.coild.eni.simulation.safety import Safety
from tests.coild.eni.simulation.trace import PodRun

SUBNET = "10.0.0.0/16"
LATENCY = 0.5
METADATA_LAG = 10.0
FOREVER = 1e7
COLD_START_SECONDS = 60.0
LOOK_SECONDS = 5.0
NODE_RATE = Rate(burst=10, per_second=1.0)
PODS = 5
"""On each node from its first moment, as of DaemonSets."""


@dataclass(frozen=True, slots=True, kw_only=True)
class FleetResult:
    """What came of one event of the whole fleet. `waits` are the pods', `seconds` until all nodes were at rest."""

    calls: Sequence[Call]
    waits: Sequence[float]
    seconds: float

    @property
    def calls_per_s(self) -> float:
        """All that were made, refused ones among them."""
        return len(self.calls) / self.seconds

    @property
    def worst_wait(self) -> float:
        """Of a pod for its address."""
        return max(self.waits)

    @property
    def refused_ratio(self) -> float:
        """The share of calls that EC2 refused."""
        return sum(call.error == "RequestLimitExceeded" for call in self.calls) / len(self.calls)


def least_seconds(action: str, calls: int) -> float:
    """How long it takes at least until EC2 has granted so many calls of an operation."""
    rate = DOCUMENTED[action]
    return max(0.0, (calls - rate.burst) / rate.per_second)


@dataclass(slots=True, kw_only=True)
class FleetWorld:
    """To be made on a virtual loop."""

    directory: Path
    size: int
    seed: int = 1
    ec2: MemoryEc2 = field(init=False)
    safety: Safety = field(init=False)
    random: Random = field(init=False)
    fleet: list[SimulatedNode] = field(init=False)
    _pods: list["asyncio.Task[None]"] = field(default_factory=list)
    _seen: int = 0

    def __post_init__(self) -> None:
        clock = asyncio.get_running_loop().time
        self.random = Random(self.seed)
        self.ec2 = MemoryEc2(clock=clock, limits=AccountLimits(clock))
        self.ec2.faults.random = Random(self.seed)
        self.ec2.faults.latency = LATENCY
        self.safety = Safety(self.ec2, clock)
        subnet = self.ec2.subnet(SUBNET)
        self.fleet = [self._make_node(number, subnet) for number in range(self.size)]

    async def start_cold(self) -> FleetResult:
        """All instances come up within a minute, each with some pods that want addresses at once."""
        return await self._watch(self._start_one(node) for node in self.fleet)

    async def restart(self, *, at_once: int, pause: float) -> FleetResult:
        """As a DaemonSet is updated: so many processes at once are killed and started; each node gets a pod after."""
        turns = asyncio.Semaphore(at_once)

        async def replace(node: SimulatedNode) -> None:
            async with turns:
                await node.kill()
                await asyncio.sleep(pause)
                await node.start()
                self._begin_pods(node, 1)
                await asyncio.sleep(pause)

        return await self._watch(replace(node) for node in self.fleet)

    async def end(self) -> None:
        """Of all processes."""
        for pod in self._pods:
            pod.cancel()
        await asyncio.gather(*self._pods, return_exceptions=True)
        for node in self.fleet:
            await node.kill()

    async def _watch(self, events: Iterable[Coroutine[None, None, None]]) -> FleetResult:
        """Let them happen, until every node has what it wants."""
        loop = asyncio.get_running_loop()
        begun, calls, waits = loop.time(), len(self.ec2.calls), self._count_waits()
        await asyncio.gather(*events)
        resting = False
        while not resting:
            await asyncio.sleep(LOOK_SECONDS)
            resting = all(map(_at_rest, self.fleet))
        for node in self.fleet:
            node.check()
        return FleetResult(
            calls=self.ec2.calls[calls:],
            waits=[wait for node, seen in zip(self.fleet, waits, strict=True) for wait in node.waits[seen:]],
            seconds=loop.time() - begun,
        )

    def _count_waits(self) -> list[int]:
        return [len(node.waits) for node in self.fleet]

    async def _start_one(self, node: SimulatedNode) -> None:
        await asyncio.sleep(self.random.uniform(0.0, COLD_START_SECONDS))
        await node.start()
        self._begin_pods(node, PODS)

    def _begin_pods(self, node: SimulatedNode, count: int) -> None:
        now = asyncio.get_running_loop().time()
        for _ in range(count):
            run = PodRun(now, len(self._pods), 0, FOREVER)
            self._pods.append(asyncio.create_task(node.run_pod(run)))

    def _make_node(self, number: int, subnet: str) -> SimulatedNode:
        clock = asyncio.get_running_loop().time
        instance = InstanceId(self.ec2.launch(TYPE, subnet))
        self.safety.watch(instance)
        random = Random(self.seed * 100_000 + number)
        return SimulatedNode(
            name=f"node-{number}",
            ec2=self.ec2,
            instance=instance,
            safety=self.safety,
            settings=EniSettings(cluster="test"),
            pods_limit=LIMITS.pods,
            metadata=MemoryMetadata(self.ec2, instance, lag=METADATA_LAG, clock=clock),
            network=MemoryNodeNetwork(self.ec2, instance, delay=LINK_SECONDS),
            budget=lambda: CallBudget({}, default=NODE_RATE, clock=clock, random=random.random),
            journal=self.directory / f"node-{number}.journal",
            random=random,
        )


def _at_rest(node: SimulatedNode) -> bool:
    """Whether no pod waits, and what shall be warm is there."""
    store = node.store
    if store is None or store.waiting(store.version):
        return False
    uses = store.uses()
    return (
        all(use.up for use in uses) and surplus_addresses(uses, node.settings.targets, LIMITS, Demand(waiting=0)) >= 0
    )
