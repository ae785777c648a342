"""One node whose interfaces a provisioner keeps, in an account of EC2 in memory, under a virtual clock.

Processes are booted, killed at any moment, and booted again; EC2, the kernel and the journal outlive them.
"""

import asyncio
from collections import Counter
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from datetime import UTC, datetime
from ipaddress import ip_network
from pathlib import Path
from random import Random

from coil.aws.ec2 import InterfaceRecord
from coil.crd.builtin import NODES
from coil.crd.names import NodeName
from coil.eni.tag import CLUSTER_TAG, INSTANCE_TAG
from coil.eni.warm_pool import WarmTargets
from coil.reconcile.event_recorder import EventSubject
from coild.eni.departure import NodeDeparture
from coild.eni.provisioner import Provisioner
from coild.eni.settings import EniSettings
from coild.model.attachment import PodName
from tests.coil.aws.memory_ec2 import MemoryEc2
from tests.coil.aws.memory_ec2_client import MemoryEc2Client
from tests.coil.aws.memory_metadata import MemoryMetadata
from tests.coil.kube.memory_api import MemoryApi, MemoryClient
from tests.coild.eni.memory_node_network import MemoryNodeNetwork
from tests.coild.eni.node import LOG, Node, loop_time

CLUSTER = "test"
NODE = NodeName("node-1")
CHANGING = (
    *("CreateNetworkInterface", "DeleteNetworkInterface", "AttachNetworkInterface", "DetachNetworkInterface"),
    *("AssignPrivateIpAddresses", "UnassignPrivateIpAddresses", "ModifyNetworkInterfaceAttribute"),
    "AssignIpv6Addresses",
)


@dataclass
class MemoryRecorder:
    """A `Recorder`."""

    told: list[tuple[EventSubject, str, str]] = field(default_factory=list)

    def warn(self, subject: EventSubject, *, reason: str, message: str) -> None:
        self.told.append((subject, reason, message))

    def note(self, subject: EventSubject, *, reason: str, message: str) -> None:
        self.told.append((subject, reason, message))


@dataclass
class Scene:
    """`boot` begins a process. `prefix` is the subnet's CIDR; `delay` what a link takes to appear."""

    path: Path
    settings: EniSettings = field(default_factory=lambda: EniSettings(cluster=CLUSTER, targets=WarmTargets(ips=3)))
    instance_type: str = "m5.large"
    cidr: str = "10.1.0.0/24"
    delay: float = 1.0
    seed: int = 1
    primary_device: int = 0

    def __post_init__(self) -> None:
        self.ec2 = MemoryEc2(clock=loop_time)
        self.subnet = self.ec2.subnet(self.cidr)
        self.client = MemoryEc2Client(self.ec2, caller="coild")
        self.admin = MemoryEc2Client(self.ec2, caller="admin")
        self.recorder = MemoryRecorder()
        self.api = MemoryApi()
        self.report()
        self.stopping = False
        """The process was told to end."""
        self.node = Node(self.path, version=self.settings.version)
        self.be(self.ec2.launch(self.instance_type, self.subnet, device=self.primary_device))
        self._task: asyncio.Task[None] | None = None
        self._boots = 0

    def be(self, instance: str) -> None:
        """The node is this instance. Before the first process."""
        self.instance = instance
        self.metadata = MemoryMetadata(self.ec2, instance, clock=loop_time)
        self.network = MemoryNodeNetwork(self.ec2, instance, delay=self.delay)
        self.provisioner = self._make()

    def _make(self) -> Provisioner:
        return Provisioner(
            ec2=self.client,
            metadata=self.metadata,
            store=self.node.store,
            network=self.network,
            settings=self.settings,
            clock=loop_time,
            random=Random(self.seed),
            recorder=self.recorder,
            node=NODE,
            departure=NodeDeparture(MemoryClient(self.api), self.metadata, node=NODE, stopping=lambda: self.stopping),
            log=LOG,
            wall=lambda: datetime.fromtimestamp(self.node.wall + loop_time(), UTC),
        )

    def report(self, **spec: object) -> None:
        """Have the Node object say so."""
        self.api.put(NODES, {"metadata": {"name": NODE}, "spec": spec})

    # --- processes

    async def boot(self, *, timeout: float = 10.0) -> None:
        """A process, after the one before was killed."""
        await self.kill()
        self._boots += 1
        if self._boots > 1:
            self.node.start()
            self.seed += 1
            self.provisioner = self._make()
        self._task = asyncio.create_task(self._run(timeout))
        await self.rest(0.0)

    async def _run(self, timeout: float) -> None:
        await self.provisioner.start(timeout=timeout)
        await self.provisioner.run()

    async def kill(self) -> None:
        """End the process where it is; nothing is tidied up. Raises what has ended it before."""
        task, self._task = self._task, None
        if task is not None:
            if task.done():
                task.result()
            task.cancel()
            with suppress(asyncio.CancelledError):
                await task

    async def rest(self, seconds: float) -> None:
        """Let time pass. A process that has ended by itself is an error."""
        await asyncio.sleep(seconds)
        if self._task is not None and self._task.done():
            self._task.result()

    # --- pods

    async def add(self, name: str, *, within: float = 60.0, pod: str = "") -> str:
        """The address of the sandbox of that name, which is the only one of its `pod` unless that is named."""
        pod = pod or name
        return await self.node.add(name, within=within, pod=PodName("apps", pod, f"uid-of-{pod}"))

    async def add_many(self, names: Sequence[str], *, within: float = 120.0) -> list[str]:
        """All at once; raises the first error after all have ended."""
        ends = await asyncio.gather(*(self.add(name, within=within) for name in names), return_exceptions=True)
        for end in ends:
            if isinstance(end, BaseException):
                raise end
        return [str(end) for end in ends]

    def delete(self, name: str) -> None:
        self.node.delete(name)

    # --- what there is

    def records(self) -> list[InterfaceRecord]:
        """Those that are attached to the instance, by device number."""
        found = [each for each in self.ec2.records() if each.instance == self.instance]
        return sorted(found, key=lambda each: each.device_number or 0)

    @property
    def source(self) -> str:
        """Who has described the interfaces."""
        return self.provisioner.status.source.value

    def own_tags(self) -> dict[str, str]:
        return {CLUSTER_TAG: CLUSTER, INSTANCE_TAG: self.instance}

    @property
    def addresses(self) -> int:
        """Of the instance's interfaces, for pods."""
        return sum(network.num_addresses for each in self.records() for network in each.ranges)

    @property
    def free(self) -> int:
        return sum(use.free for use in self.node.store.uses() if use.up)

    def count(self, *actions: str) -> int:
        """Calls of the node, of these operations or of all that change something."""
        wanted = actions or CHANGING
        return sum(call.caller == "coild" and call.action in wanted for call in self.ec2.calls)

    def calls(self) -> Counter[str]:
        return Counter(call.action for call in self.ec2.calls if call.caller == "coild")

    def check(self) -> None:
        """What holds at each moment, whatever has happened: no address doubled, and each is the node's."""
        held = [str(allocation.address) for allocation in self.node.store.held()]
        assert len(held) == len(set(held)), "an address is given twice"

    def check_settled(self) -> None:
        """What holds when the node has come to rest."""
        self.check()
        ours = {each for record in self.records() for each in record.ranges}
        for allocation in self.node.store.held():
            network = ip_network(allocation.address)
            assert any(network.subnet_of(each) for each in ours), f"{allocation.address} is not the node's"  # type: ignore[arg-type]
        for record in self.ec2.records():
            if record.tags.get(INSTANCE_TAG) == self.instance:
                assert record.instance == self.instance, f"{record.id} is leaked"
                assert record.deleted_with_instance, f"{record.id} would outlive the instance"
        assert self.node.store.journal.creation is None
        use = {each.interface.id: each for each in self.node.store.uses()}
        for record in self.records():
            if record.id == self.ec2.primary_of(self.instance).id or self.own_tags().items() <= record.tags.items():
                assert use[record.id].interface.ranges == record.ranges
                assert use[record.id].free == use[record.id].total - use[record.id].held - use[record.id].cooling
