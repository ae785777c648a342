"""Addresses of the node's network interfaces, put together: everything that coild has for them, behind one object.

    instance metadata ─┐
    EC2 ◄──────────────┴► Provisioner ─► EniStore ◄─ EniSource ◄─ pods' ADD, DEL
                              └─► NodeNetwork ◄─ EniWiring ◄───┘
    the Node object ◄─► coild.node.node_object ◄─► EniStore

`coild.main` hands nothing of it to anybody else. `open_eni` needs neither the API server nor EC2, and `start` waits for
nobody longer than it is told: what this node was by its journal is enough to go on with.
"""

import asyncio
import itertools
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Coroutine
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path
from random import Random
from typing import Any, Final

from structlog.typing import FilteringBoundLogger

from coil.aws.call_budget import CallBudget, Rate
from coil.aws.call_metrics import Ec2CallMetrics
from coil.aws.ec2 import BotocoreEc2, Ec2
from coil.aws.metadata import ENDPOINT, HttpInstanceMetadata, InstanceMetadata, MetadataError
from coil.kube.api_client import ApiClient
from coil.netlink.node_sysctl import NodeSysctls
from coil.page.eni_document import EniNodeDocument
from coil.podnet.plan import PodPlan
from coil.reconcile.backoff import Backoff
from coil.reconcile.event_recorder import Recorder
from coild.eni.departure import NodeDeparture
from coild.eni.journal import Checkpoint, EniJournal
from coild.eni.node_condition import describe_addresses, describe_diversions, describe_pod_limit
from coild.eni.node_kernel import NodeKernel
from coild.eni.node_network import EniKernel, NodeNetwork
from coild.eni.provisioner import Provisioner
from coild.eni.report import EniCollector, WaitMetrics, describe_node
from coild.eni.settings import read_eni_settings
from coild.eni.source import EniSource
from coild.eni.store import EniStore
from coild.eni.wiring import EniWiring
from coild.model.address_source import PodWiring
from coild.model.journal_file import JournalFile
from coild.model.node_condition import NodeCondition
from coild.model.pod_network import PodNetwork
from coild.settings import Settings

PACE: Final = Rate(burst=4, per_second=1.0)
"""Of each kind of call to EC2; whoever starts a node makes some four of a kind at most. Beyond, EC2's refusals rule."""
IDENTITY_SECONDS: Final = 3.0
"""For the metadata service to say where this is, when the journal does so, too."""
BOOT_ID: Final = Path("/proc/sys/kernel/random/boot_id")
IDENTITY_BACKOFF: Final = Backoff(base=0.5, cap=15.0)


@dataclass(frozen=True, kw_only=True)
class EniDeps:
    """What the parts depend on.

    `veth` makes the pods' links, and leaves the lookup of their routes to `kernel`. `clock` never jumps; `wall` is the
    time of day in seconds since 1970. `stopping` is whether the process was told to end.
    """

    client: ApiClient
    network: PodNetwork
    veth: PodWiring[PodPlan]
    kernel: EniKernel
    ec2: Ec2
    ec2_metrics: Ec2CallMetrics
    metadata: InstanceMetadata
    journal: EniJournal
    recorder: Recorder
    stopping: Callable[[], bool]
    rng: Random
    log: FilteringBoundLogger
    clock: Callable[[], float] = time.monotonic


class EniIpam:
    """One per process."""

    def __init__(self, settings: Settings, deps: EniDeps) -> None:
        log, rng, clock = deps.log, deps.rng, deps.clock
        eni = read_eni_settings(settings)
        waits = WaitMetrics()
        self.node = settings.node_name
        self.store = EniStore(
            deps.journal, version=eni.version, cooldown=settings.cooling, clock=clock, observe_wait=waits.waited
        )
        self.network = NodeNetwork(deps.kernel, pod_table=settings.pod_table_id, mtu=None, random=rng.random, log=log)
        self.provisioner = Provisioner(
            ec2=deps.ec2,
            metadata=deps.metadata,
            store=self.store,
            network=self.network,
            settings=eni,
            clock=clock,
            random=rng,
            recorder=deps.recorder,
            node=settings.node_name,
            departure=NodeDeparture(deps.client, deps.metadata, node=settings.node_name, stopping=deps.stopping),
            log=log,
        )
        self.wiring = EniWiring(
            deps.veth,
            self.network,
            deps.network,
            interface_of=self.store.interface_of,
            random=rng.random,
            log=log,
        )
        self.source = EniSource(
            store=self.store,
            wiring=self.wiring,
            collectors=(EniCollector(self.store), waits.seconds, *deps.ec2_metrics.collectors()),
            log=log,
        )

    async def start(self, *, timeout: float) -> None:
        """Have a picture of the interfaces, of whoever answers within so many seconds."""
        await self.provisioner.start(timeout=timeout)

    def tasks(self, restore: Callable[[], Awaitable[None]]) -> dict[str, Coroutine[Any, Any, None]]:
        """What is to run as long as the process, by name; once, after the source has recovered. `restore` is the
        engine's.
        """
        return {
            "interfaces": self.provisioner.run(),
            "interface-network": self.network.run(),
            "pod-network": self.wiring.follow(restore),
        }

    def conditions(self) -> tuple[NodeCondition, ...]:
        """Those that are known yet."""
        found = [describe_addresses(self.store.obstacle)]
        if (diversions := self.network.diversions) is not None:
            found.append(describe_diversions(diversions))
        if self.store.pods_limit is not None and self.store.ip_max is not None:
            found.append(describe_pod_limit(pods_limit=self.store.pods_limit, ip_max=self.store.ip_max))
        return tuple(found)

    @property
    def obstacle(self) -> str | None:
        """Why a new pod would get no address; None if it would."""
        return self.store.obstacle

    @property
    def status(self) -> str | None:
        """Why STATUS fails; None if it does not.

        It makes the node NotReady, and Kubernetes then takes running pods out of their Services, and away in the end:
        so it does only where there are none. A node with pods has the condition, and whoever is added is told.
        """
        return self.store.obstacle if not self.store.held() else None

    def describe(self, now: datetime) -> EniNodeDocument:
        """The node, for its inspection page."""
        return describe_node(self.store, self.node, now=now)


@asynccontextmanager
async def open_eni(  # noqa: PLR0913 - every one of them is another's
    settings: Settings,
    *,
    client: ApiClient,
    network: PodNetwork,
    veth: PodWiring[PodPlan],
    recorder: Recorder,
    stopping: Callable[[], bool],
    sysctls: NodeSysctls,
    rng: Random,
    log: FilteringBoundLogger,
) -> AsyncIterator[EniIpam]:
    """With connections to the instance's metadata service, to EC2, and to the kernel; closed in the end.

    Waits for the metadata service only where nobody else says in which region this is: at a node's first start.
    """
    clock = time.monotonic
    async with AsyncExitStack() as stack:
        metadata = await stack.enter_async_context(
            HttpInstanceMetadata.connect(clock=clock, endpoint=settings.metadata_endpoint or ENDPOINT)
        )
        journal = open_journal(settings, log=log)
        stack.callback(journal.close)
        region = await find_region(metadata, journal.checkpoint, rng=rng, log=log)
        metrics = Ec2CallMetrics()
        budget = CallBudget({}, default=PACE, clock=clock, random=rng.random)
        ec2 = await stack.enter_async_context(
            BotocoreEc2.connect(region=region, budget=budget, endpoint=settings.ec2_endpoint, metrics=metrics)
        )
        yield EniIpam(
            settings,
            EniDeps(
                client=client,
                network=network,
                veth=veth,
                kernel=await stack.enter_async_context(NodeKernel(sysctls=sysctls)),
                ec2=ec2,
                ec2_metrics=metrics,
                metadata=metadata,
                journal=journal,
                recorder=recorder,
                stopping=stopping,
                rng=rng,
                log=log,
                clock=clock,
            ),
        )


def open_journal(settings: Settings, *, log: FilteringBoundLogger) -> EniJournal:
    """The journal, in a folder that is made if it is missing; one that cannot be made is told by the file."""
    path = settings.eni_journal
    if path is not None:
        try:
            path.parent.mkdir(parents=True, exist_ok=True)
        except OSError as error:
            log.warning("no folder for the journal", journal=str(path), error=str(error))
    return EniJournal(JournalFile(path, log=log), cooldown=settings.cooling, boot=read_boot())


def read_boot(path: Path = BOOT_ID) -> str:
    """The name of this start of the machine, which the monotonic clock counts from; "" if the kernel does not tell."""
    try:
        return path.read_text().strip()
    except OSError:
        return ""


async def find_region(
    metadata: InstanceMetadata, checkpoint: Checkpoint | None, *, rng: Random, log: FilteringBoundLogger
) -> str:
    """The instance's region, by the metadata service, or else by the journal; waits if neither says so."""
    for attempt in itertools.count():
        try:
            async with asyncio.timeout(IDENTITY_SECONDS):
                return (await metadata.identity()).region
        except (MetadataError, TimeoutError) as error:
            if checkpoint is not None:
                return checkpoint.region
            log.warning("waiting for the instance's metadata service", error=str(error) or "no answer")
        await asyncio.sleep(IDENTITY_BACKOFF.delay(attempt, rng.random))
    raise AssertionError("unreachable")
