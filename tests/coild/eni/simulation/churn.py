"""The same pods on the product and on the proposal's algorithm, where EC2 refuses, is slow, and metadata is old."""

import asyncio
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from random import Random

from coil.aws.call_budget import CallBudget, Rate
from coil.aws.ec2 import InstanceId
from coil.eni.interface import SubnetId
from coil.eni.surplus import SURPLUS_SECONDS
from coil.eni.warm_pool import NodeLimits, WarmTargets
from coild.eni.settings import EniSettings
from tests.coil.aws.faults import Call
from tests.coil.aws.memory_ec2 import INSTANCE_TYPES, MemoryEc2
from tests.coil.aws.memory_ec2_client import MemoryEc2Client
from tests.coil.aws.memory_metadata import MemoryMetadata
from tests.coild.eni.memory_node_network import MemoryNodeNetwork
from tests.coild.eni.simulation.node import LINK_SECONDS, SimulatedNode
from tests.coild.eni.simulation.safety import Safety
from tests.coild.eni.simulation.thresholds import ThresholdNode
from tests.coild.eni.simulation.trace import PodRun, Waves, fewest_changes

TYPE = "m5.large"
LIMITS = NodeLimits(
    interfaces=INSTANCE_TYPES[TYPE].interfaces,
    slots=INSTANCE_TYPES[TYPE].addresses,
    pods=29,
)
"""Three interfaces with ten addresses each, and the pods that EKS allows such a node."""
SUBNET = "10.1.0.0/20"
REST_SECONDS = 4000.0
"""More than any wait of the product."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Weather:
    """What goes wrong, calls refused, latency, metadata's age; and processes killed."""

    throttled: float = 0.3
    latency: float = 2.0
    metadata_lag: float = 30.0
    detaching: float = 4.0
    lives: tuple[float, float] = (60.0, 900.0)
    """How long a process lives until it is killed."""
    downtimes: tuple[float, float] = (1.0, 10.0)

    def make_ec2(self, seed: int) -> MemoryEc2:
        """On the clock of the running loop."""
        ec2 = MemoryEc2(clock=asyncio.get_running_loop().time)
        ec2.faults.random = Random(seed)
        ec2.faults.throttled = self.throttled
        ec2.faults.latency = self.latency
        ec2.faults.detaching = self.detaching
        return ec2


@dataclass(frozen=True, slots=True, kw_only=True)
class ChurnResult:
    """`calls` are all that were made while there were pods, refused ones among them."""

    calls: Sequence[Call]
    waits: Sequence[float]
    kills: int
    fewest_granted: int
    """What no schedule goes below: the changes that the pods need; one description for each process, which has to know
    what became of what its predecessor had asked for; and, once for each node, what EC2 allows its type."""

    @property
    def fewest_calls(self) -> float:
        """With the share that is refused."""
        refused = sum(call.error == "RequestLimitExceeded" for call in self.calls)
        return self.fewest_granted / (1 - refused / len(self.calls))

    @property
    def by_action(self) -> Counter[str]:
        """How many of each operation."""
        return Counter(call.action for call in self.calls)


@dataclass(slots=True, kw_only=True)
class ChurnWorld:
    """Some nodes with the product on them. To be made on a virtual loop."""

    directory: Path
    seed: int
    nodes: int = 3
    weather: Weather = Weather()
    targets: WarmTargets = field(default_factory=WarmTargets)
    unneeded: float = SURPLUS_SECONDS
    ec2: MemoryEc2 = field(init=False)
    safety: Safety = field(init=False)
    random: Random = field(init=False)
    fleet: list[SimulatedNode] = field(init=False)

    def __post_init__(self) -> None:
        clock = asyncio.get_running_loop().time
        self.random = Random(self.seed)
        self.ec2 = self.weather.make_ec2(self.seed)
        self.safety = Safety(self.ec2, clock)
        subnet = self.ec2.subnet(SUBNET)
        self.fleet = [self._make_node(number, subnet) for number in range(self.nodes)]

    async def play(self, runs: Sequence[PodRun]) -> ChurnResult:
        """All pods from their start to their end; then the nodes come to rest, and everything is checked."""
        for node in self.fleet:
            await node.start()
        killers = [asyncio.create_task(self._kill_now_and_then(node)) for node in self.fleet]
        await asyncio.gather(*(self.fleet[run.node].run_pod(run) for run in runs))
        for killer in killers:
            killer.cancel()
        await asyncio.gather(*killers, return_exceptions=True)
        calls = list(self.ec2.calls)
        await self.rest()
        kills = sum(node.kills for node in self.fleet)
        result = ChurnResult(
            calls=calls,
            waits=[wait for node in self.fleet for wait in node.waits],
            kills=kills,
            fewest_granted=fewest_changes(runs, LIMITS) + 2 * len(self.fleet) + kills,
        )
        await self.end()
        return result

    async def rest(self) -> None:
        """Until nothing goes on any more."""
        for node in self.fleet:
            if node.store is None:
                await node.start()
        await asyncio.sleep(REST_SECONDS)
        for node in self.fleet:
            node.check()
        self.safety.check_end()

    async def end(self) -> None:
        """Of all processes and instances: nothing is left in the account."""
        for node in self.fleet:
            await node.kill()
            self.ec2.terminate(node.instance)
        assert self.ec2.records() == []

    async def _kill_now_and_then(self, node: SimulatedNode) -> None:
        while True:
            await asyncio.sleep(self.random.uniform(*self.weather.lives))
            await node.kill()
            await asyncio.sleep(self.random.uniform(*self.weather.downtimes))
            await node.start()

    def _make_node(self, number: int, subnet: str) -> SimulatedNode:
        clock = asyncio.get_running_loop().time
        instance = InstanceId(self.ec2.launch(TYPE, subnet))
        self.safety.watch(instance)
        random = Random(self.seed * 1000 + number)
        return SimulatedNode(
            name=f"node-{number}",
            ec2=self.ec2,
            instance=instance,
            safety=self.safety,
            settings=EniSettings(cluster="test", targets=self.targets, unneeded=self.unneeded),
            pods_limit=LIMITS.pods,
            metadata=MemoryMetadata(self.ec2, instance, lag=self.weather.metadata_lag, clock=clock),
            network=MemoryNodeNetwork(self.ec2, instance, delay=LINK_SECONDS),
            budget=lambda: CallBudget({}, default=Rate(burst=10, per_second=1.0), clock=clock, random=random.random),
            journal=self.directory / f"node-{number}.journal",
            random=random,
        )


async def play(directory: Path, *, seed: int, runs: Sequence[PodRun], weather: Weather = Weather()) -> ChurnResult:
    """The pods on nodes with the product."""
    return await ChurnWorld(directory=directory, seed=seed, weather=weather).play(runs)


async def play_thresholds(runs: Sequence[PodRun], *, seed: int, nodes: int, weather: Weather) -> list[Call]:
    """The same pods on the proposal's algorithm; all calls while there were pods."""
    clock = asyncio.get_running_loop().time
    ec2 = weather.make_ec2(seed)
    subnet = ec2.subnet(SUBNET)
    fleet = []
    for number in range(nodes):
        instance = InstanceId(ec2.launch(TYPE, subnet))
        fleet.append(
            ThresholdNode(
                ec2=MemoryEc2Client(ec2, caller=f"node-{number}"),
                metadata=MemoryMetadata(ec2, instance, lag=weather.metadata_lag, clock=clock),
                instance=instance,
                subnet=SubnetId(subnet),
                limits=LIMITS,
                clock=clock,
            )
        )
    processes = [asyncio.create_task(node.run()) for node in fleet]

    async def run_pod(run: PodRun) -> None:
        await asyncio.sleep(run.start)
        address = await fleet[run.node].take()
        await asyncio.sleep(run.seconds)
        fleet[run.node].release(address)

    await asyncio.gather(*map(run_pod, runs))
    calls = list(ec2.calls)
    for process in processes:
        process.cancel()
    await asyncio.gather(*processes, return_exceptions=True)
    return calls


def draw_runs(seed: int, pods: int, *, nodes: int = 3) -> list[PodRun]:
    """The pods of one churn."""
    return Waves(nodes=nodes).draw(Random(seed), pods=pods)
