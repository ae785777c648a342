"""One node from the start of its first process to the addresses of so many pods, where each call takes its time."""

import asyncio
from pathlib import Path
from random import Random

from coil.aws.call_budget import CallBudget, Rate
from coil.aws.ec2 import InstanceId
from coild.eni.settings import EniSettings
from tests.coil.aws.memory_ec2 import MemoryEc2
from tests.coil.aws.memory_metadata import MemoryMetadata
from tests.coild.eni.memory_node_network import MemoryNodeNetwork
from tests.coild.eni.simulation.node import LINK_SECONDS, SimulatedNode
from tests.coild.eni.simulation.safety import Safety
from tests.coild.eni.simulation.trace import PodRun

TYPE = "m5.4xlarge"
"""Eight interfaces with thirty addresses each: 50 pods are more than one has."""
LATENCY = 0.5
PODS_LIMIT = 234
CHAIN_FIRST = 2 * LATENCY
"""EC2 tells what there is, and at the same time what the type may have; then it assigns addresses."""
CHAIN_FIFTY = 3 * LATENCY + LINK_SECONDS
"""EC2 tells what there is; then it assigns addresses, and meanwhile makes an interface and attaches it, and the link of
that appears."""


async def start_with_pods(directory: Path, count: int) -> float:
    """Seconds until the last of so many pods has its address; all of them wait from the first moment."""
    clock = asyncio.get_running_loop().time
    ec2 = MemoryEc2(clock=clock)
    ec2.faults.latency = LATENCY
    safety = Safety(ec2, clock)
    instance = InstanceId(ec2.launch(TYPE, ec2.subnet("10.1.0.0/20")))
    safety.watch(instance)
    random = Random(1)
    node = SimulatedNode(
        name="node",
        ec2=ec2,
        instance=instance,
        safety=safety,
        settings=EniSettings(cluster="test"),
        pods_limit=PODS_LIMIT,
        metadata=MemoryMetadata(ec2, instance, clock=clock),
        network=MemoryNodeNetwork(ec2, instance, delay=LINK_SECONDS),
        budget=lambda: CallBudget({}, default=Rate(burst=10, per_second=1.0), clock=clock, random=random.random),
        journal=directory / "journal",
        random=random,
    )
    await node.start()
    await asyncio.gather(*(node.run_pod(PodRun(0.0, number, 0, 1.0)) for number in range(count)))
    node.check()
    await node.kill()
    return max(node.waits)
