"""A node's store and journal, as each process has them, and what outlives the process."""

import asyncio
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path

import structlog

from coil.eni.interface import NetworkInterface
from coil.eni.ledger import Allocation
from coil.ipam.occupancy import AttachmentKey
from coil.kernel.family import IPAddress
from coild.eni.journal import EniJournal
from coild.eni.store import EniStore, WaitOutcome
from coild.model.attachment import PodName
from coild.model.journal_file import JournalFile
from tests.coil.eni.vpc import COOLDOWN, interface
from tests.coild.scene import key

LOG = structlog.get_logger()
POD = PodName("apps", "web", "uid-of-web")
WALL = 1_900_000_000.0


def loop_time() -> float:
    return asyncio.get_running_loop().time()


@dataclass
class Node:
    """`start` begins the next process with what the kernel holds; `kernel` is who has which address there.

    `wall` is what the time of day is ahead of `clock`. Where a source recovers, it is not `resumed` here.
    """

    path: Path | None
    clock: Callable[[], float] = loop_time
    wall: float = WALL
    kernel: dict[AttachmentKey, IPAddress] = field(default_factory=dict)
    waits: list[tuple[float, WaitOutcome]] = field(default_factory=list)
    resumed: bool = True
    version: int = 4
    boots: int = 1
    store: EniStore = field(init=False)

    def __post_init__(self) -> None:
        self.start()

    def start(self) -> None:
        if hasattr(self, "store"):
            self.store.journal.close()
        clock = self.clock
        journal = EniJournal(
            JournalFile(self.path, log=LOG),
            cooldown=COOLDOWN,
            boot=f"boot-{self.boots}",
            wall=lambda: self.wall + clock(),
            clock=clock,
        )
        self.store = EniStore(
            journal,
            version=self.version,
            cooldown=COOLDOWN,
            clock=clock,
            observe_wait=lambda seconds, outcome: self.waits.append((seconds, outcome)),
        )
        if self.resumed:
            for who, address in self.kernel.items():
                self.store.adopt(who, address)
            self.store.resume()

    def reboot(self) -> None:
        self.kernel.clear()
        self.boots += 1
        self.start()

    def see(self, *interfaces: NetworkInterface, inherited: bool = False) -> list[Allocation]:
        """EC2 has these, and the links of all are up."""
        return self.store.update(interfaces, up=[each.id for each in interfaces], inherited=inherited)

    async def add(self, container: str, *, within: float = 0.0, pod: PodName = POD) -> str:
        """The address that it gets."""
        allocation = await self.store.take(key(container), pod, deadline=loop_time() + within)
        self.kernel[allocation.key] = allocation.address
        return str(allocation.address)

    def delete(self, container: str) -> None:
        del self.kernel[key(container)]
        self.store.release(key(container))


def one(*ranges: str, device: int = 0) -> NetworkInterface:
    return interface(device, *ranges)
