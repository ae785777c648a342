"""One node: the product's store, journal and provisioner, which may be killed at any moment, and what outlives them."""

import asyncio
import logging
from collections.abc import Callable, Coroutine
from contextlib import suppress
from dataclasses import dataclass, field
from datetime import UTC, datetime
from pathlib import Path
from random import Random
from typing import TypeVar

import structlog

from coil.aws.call_budget import CallBudget
from coil.aws.ec2 import InstanceId
from coil.crd.names import NodeName
from coil.ipam.occupancy import AttachmentKey, ContainerId
from coil.kernel.family import IPAddress
from coild.eni.journal import EniJournal
from coild.eni.provisioner import Provisioner
from coild.eni.settings import EniSettings
from coild.eni.store import EniStore
from coild.model.attachment import AddressUnavailableError, PodName
from coild.model.journal_file import JournalFile
from tests.coil.aws.memory_ec2 import MemoryEc2
from tests.coil.aws.memory_ec2_client import MemoryEc2Client
from tests.coil.aws.memory_metadata import MemoryMetadata
from tests.coild.eni.memory_node_network import MemoryNodeNetwork
from tests.coild.eni.simulation.safety import Safety
from tests.coild.eni.simulation.trace import COOLDOWN, PodRun
from tests.coild.scene import ListRecorder

Answer = TypeVar("Answer")

LOG = structlog.wrap_logger(
    structlog.PrintLogger(), wrapper_class=structlog.make_filtering_bound_logger(logging.CRITICAL)
)
"""Of thousands of nodes nobody reads what each has to say."""
WALL = 1_900_000_000.0
LINK_SECONDS = 1.0
"""From an interface's attachment to its link."""
ADD_SECONDS = 55.0
"""For which an ADD waits for an address, before the kubelet asks anew."""
RETRY_SECONDS = 1.0
START_SECONDS = 20.0
WIRING_SECONDS = 0.05
"""From a pod's address to its interface, and from the end of its interface to that of its address."""


class DeadError(Exception):
    """The process has been killed."""


class MortalClient(MemoryEc2Client):
    """A process's client: once the process is dead, nothing of it reaches EC2."""

    alive = True

    async def _call(self, action: str, act: Callable[[], Answer]) -> Answer:
        if not self.alive:
            raise DeadError
        return await super()._call(action, act)


class Staying:
    """A `Departure` of a node that leaves without notice."""

    async def reason(self) -> str | None:
        return None


@dataclass(slots=True, kw_only=True)
class SimulatedNode:
    """`start` and `kill` processes. `budget` makes one for each; `journal` is the file that outlives them."""

    name: str
    ec2: MemoryEc2
    instance: InstanceId
    safety: Safety
    settings: EniSettings
    pods_limit: int
    metadata: MemoryMetadata
    network: MemoryNodeNetwork
    budget: Callable[[], CallBudget]
    journal: Path
    random: Random
    store: EniStore | None = None
    """Of the process, if there is one."""
    kernel: dict[AttachmentKey, IPAddress] = field(default_factory=dict)
    waits: list[float] = field(default_factory=list)
    """What each pod waited for its address."""
    kills: int = 0
    _up: asyncio.Event = field(default_factory=asyncio.Event)
    _client: MortalClient | None = None
    _process: asyncio.Task[None] | None = None
    _operations: set[asyncio.Task[None]] = field(default_factory=set)

    async def start(self) -> None:
        """The next process, with what the kernel and the journal have."""
        clock = asyncio.get_running_loop().time
        file = JournalFile(self.journal, log=LOG)
        journal = EniJournal(file, cooldown=COOLDOWN, boot="boot", wall=lambda: WALL + clock(), clock=clock)
        store = EniStore(journal, version=4, cooldown=COOLDOWN, clock=clock)
        store.pods_limit = self.pods_limit
        for key, address in self.kernel.items():
            store.adopt(key, address)
        store.resume()
        self._client = MortalClient(self.ec2, caller=self.name, budget=self.budget())
        provisioner = Provisioner(
            ec2=self._client,
            metadata=self.metadata,
            store=store,
            network=self.network,
            settings=self.settings,
            clock=clock,
            random=self.random,
            recorder=ListRecorder(),
            node=NodeName(self.name),
            departure=Staying(),
            log=LOG,
            wall=lambda: datetime.fromtimestamp(WALL + clock(), UTC),
        )
        self.store = store
        self._up.set()
        self._process = asyncio.create_task(_live(provisioner), name=self.name)

    async def kill(self) -> None:
        """As SIGKILL does it: nothing is written and nothing is called any more, and pods' operations are cut off."""
        assert self.store is not None
        assert self._client is not None
        assert self._process is not None
        written = self.journal.read_bytes()
        self._client.alive = False
        self._up.clear()
        doomed = [self._process, *self._operations]
        for task in doomed:
            task.cancel()
        ends = await asyncio.gather(*doomed, return_exceptions=True)
        for end in ends:
            assert isinstance(end, asyncio.CancelledError | DeadError | None), end
        self.store.journal.close()
        self.journal.write_bytes(written)
        self.store = None
        self.kills += 1

    async def run_pod(self, run: PodRun) -> None:
        """From its start to its end, whatever becomes of the processes meanwhile."""
        loop = asyncio.get_running_loop()
        await asyncio.sleep(run.start - loop.time())
        key = AttachmentKey(ContainerId(f"c{run.number}"), "eth0")
        await self._insist(lambda: self._add(key, run))
        self.waits.append(loop.time() - run.start)
        await asyncio.sleep(run.seconds)
        await self._insist(lambda: self._delete(key))

    def check(self) -> None:
        """The process has not ended by itself."""
        assert self._process is not None
        if self._process.done():
            self._process.result()

    async def _insist(self, operation: Callable[[], Coroutine[None, None, None]]) -> None:
        """As the kubelet does: again and again, and only where a process is there."""
        while True:
            await self._up.wait()
            task = asyncio.create_task(operation())
            self._operations.add(task)
            task.add_done_callback(self._operations.discard)
            with suppress(AddressUnavailableError):
                [done], _ = await asyncio.wait([task])
                if not done.cancelled():
                    done.result()
                    return
            await asyncio.sleep(RETRY_SECONDS)

    async def _add(self, key: AttachmentKey, run: PodRun) -> None:
        assert self.store is not None
        store = self.store
        deadline = asyncio.get_running_loop().time() + ADD_SECONDS
        allocation = await store.take(key, PodName("apps", f"pod-{run.number}", f"uid-{run.number}"), deadline=deadline)
        await asyncio.sleep(WIRING_SECONDS)
        self.kernel[key] = allocation.address
        self.safety.take(f"pod-{run.number}", allocation.address, self.instance)

    async def _delete(self, key: AttachmentKey) -> None:
        assert self.store is not None
        if (address := self.kernel.pop(key, None)) is not None:
            self.safety.release(address, self.instance)
            await asyncio.sleep(WIRING_SECONDS)
        self.store.release(key)


async def _live(provisioner: Provisioner) -> None:
    await provisioner.start(timeout=START_SECONDS)
    await provisioner.run()
