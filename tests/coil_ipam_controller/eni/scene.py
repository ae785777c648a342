"""A leader that looks after the interfaces of a cluster, on an EC2 in memory and in virtual time."""

import asyncio
import random
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta

import structlog
from prometheus_client import CollectorRegistry
from structlog.testing import LogCapture

from coil.aws.ec2 import Ec2, InstanceId, InterfaceRecord, InterfaceRequest
from coil.aws.metadata import MetadataError
from coil.eni.interface import InterfaceId, SubnetId
from coil.eni.tag import CLUSTER_TAG, CREATED_TAG, INSTANCE_TAG, render_created
from coil.kernel.family import IPNetwork
from coil_ipam_controller.eni.leader import EniLeader
from coil_ipam_controller.eni.view import Deps, EniMetrics, EniView, EniViewCollector, event_subject
from tests.coil.aws.memory_ec2 import MemoryEc2
from tests.coil.aws.memory_ec2_client import MemoryEc2Client
from tests.coil.reconcile.virtual_time import run_virtual
from tests.coil_ipam_controller.memory_recorder import MemoryRecorder

NOON = datetime(2030, 1, 1, 12, tzinfo=UTC)
CLUSTER = "blue"


@dataclass
class Scene:
    """`connections` counts them; the next `refused` ones fail, as without a metadata service."""

    ec2: MemoryEc2
    view: EniView = field(default_factory=lambda: EniView(CLUSTER))
    recorder: MemoryRecorder = field(default_factory=MemoryRecorder)
    registry: CollectorRegistry = field(default_factory=CollectorRegistry)
    lines: LogCapture = field(default_factory=LogCapture)
    connections: int = 0
    refused: int = 0

    def __post_init__(self) -> None:
        self.metrics = EniMetrics(self.registry)
        EniViewCollector(self.view, self.registry)

    def now(self) -> datetime:
        return NOON + timedelta(seconds=asyncio.get_running_loop().time())

    def deps(self) -> Deps:
        return Deps(
            view=self.view,
            metrics=self.metrics,
            recorder=self.recorder,
            subject=event_subject("kube-system"),
            clock=asyncio.get_running_loop().time,
            now=self.now,
            log=structlog.wrap_logger(structlog.ReturnLogger(), processors=[self.lines]),
        )

    @asynccontextmanager
    async def connect(self) -> AsyncIterator[Ec2]:
        self.connections += 1
        if self.refused:
            self.refused -= 1
            raise MetadataError("the metadata service does not answer")
        yield MemoryEc2Client(self.ec2, caller="controller")

    def leader(self) -> EniLeader:
        return EniLeader(self.connect, self.deps(), random=random.Random(1).random)

    async def make(
        self, subnet: str, *, age: float = 3600.0, cluster: str = CLUSTER, addresses: int = 0
    ) -> InterfaceId:
        """An interface of a node that no instance has, made so many seconds ago."""
        tags = {CREATED_TAG: render_created(self.now() - timedelta(seconds=age)), INSTANCE_TAG: "i-gone"}
        if cluster:
            tags[CLUSTER_TAG] = cluster
        made = await self.make_with(subnet, tags, addresses=addresses)
        return made.id

    async def attach(self, subnet: str, *, addresses: int = 0) -> InterfaceId:
        """An interface of the cluster, in use."""
        instance = InstanceId(self.ec2.launch("m5.large", self.ec2.subnet("10.1.255.0/24")))
        made = await self.make(subnet, addresses=addresses)
        await MemoryEc2Client(self.ec2, caller="test").attach_interface(made, instance, device=1)
        return made

    async def make_with(self, subnet: str, tags: dict[str, str], *, addresses: int = 0) -> InterfaceRecord:
        return await MemoryEc2Client(self.ec2, caller="test").create_interface(
            InterfaceRequest(
                subnet=SubnetId(subnet),
                groups=(),
                token=f"token-{len(self.ec2.records())}-{len(self.ec2.calls)}",
                description="of a test",
                tags=tags,
                addresses=addresses,
            )
        )

    def there(self) -> set[InterfaceId]:
        return {each.id for each in self.ec2.records()}

    def logged(self) -> list[str]:
        return [entry["event"] for entry in self.lines.entries]

    def ranges(self, interface: InterfaceId) -> frozenset[IPNetwork]:
        [found] = [each for each in self.ec2.records() if each.id == interface]
        return found.ranges

    def value(self, name: str, **labels: str) -> float | None:
        return self.registry.get_sample_value(name, labels)


def play(script: Callable[[Scene], Awaitable[None]]) -> None:
    """Run `script` beside a leader."""

    async def main() -> None:
        scene = Scene(MemoryEc2(clock=asyncio.get_running_loop().time))
        running = asyncio.create_task(scene.leader().run())
        try:
            await script(scene)
            assert not running.done()
        finally:
            running.cancel()
            await asyncio.wait({running})

    run_virtual(main)
