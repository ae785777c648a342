"""Looks whether packet filters of others drop what pods send or receive, and says so; puts nothing right, as it is not
ours: no chain of Coil could let pass what a chain of others drops.

    attachments, uplink ─► packets, ForwardReader ─► coil.kernel.packet_filter ─► coild.node.condition

Docker, ufw and firewalld set such chains up, some of them whenever they start; connections that exist go on, so that it
is noticed late.
"""

import asyncio
from collections.abc import Callable, Collection, Iterable
from typing import Final, Protocol

from prometheus_client import CollectorRegistry, Gauge
from structlog.typing import FilteringBoundLogger

from coil.kernel.family import Family, IPAddress
from coil.kernel.link import LinkName
from coil.kernel.packet_filter import ForwardedPacket, ForwardHook, judge
from coil.netlink.error import NetlinkError
from coil.nft.netfilter import NftError
from coil.reconcile.event_recorder import Recorder
from coil.reconcile.event_series import EventSubject
from coild.model.attachment import Attachment
from coild.model.node_condition import fit_sentences

LOOK_SECONDS: Final = 60.0
"""Between two looks. A change of tables is not listened to: on some nodes they change many times a second."""
DROPPED: Final = "PodTrafficDropped"


class ForwardReader(Protocol):
    """`coild.node.kernel_forward.KernelForward`, as far as this goes."""

    async def hooks(self) -> list[ForwardHook]:
        """The chains of others that forwarded packets pass. Raises NftError."""
        ...

    async def uplink(self) -> LinkName:
        """The link by which packets leave the node. Raises NetlinkError if there is none."""
        ...


class ForwardWatch:
    """One per process; `run` is its task. `attachments` are the pods that are connected now."""

    def __init__(
        self,
        kernel: ForwardReader,
        attachments: Callable[[], Collection[Attachment]],
        *,
        registry: CollectorRegistry,
        recorder: Recorder,
        node: EventSubject,
        log: FilteringBoundLogger,
    ) -> None:
        self._kernel = kernel
        self._attachments = attachments
        self._recorder = recorder
        self._node = node
        self._log = log
        self._gauge = Gauge(
            "coil_node_forward_dropped",
            "Directions and families in which packet filters of others drop packets of pods.",
            registry=registry,
        )
        self.dropped: tuple[str, ...] | None = None
        """A sentence for each filter and kind of packet; None: nobody has looked yet."""

    async def run(self) -> None:
        """Until cancelled."""
        told = ""
        while True:
            try:
                await self.look()
                told = ""
            except (NetlinkError, NftError) as error:
                # What was found last stands; the next look is not far.
                if str(error) != told:
                    self._log.warning("not looked for packet filters that drop packets of pods", error=str(error))
                told = str(error)
            await asyncio.sleep(LOOK_SECONDS)

    async def look(self) -> None:
        """Judge a pod of each family, in both directions; without pods there is nothing to drop. Raises NetlinkError
        and NftError.
        """
        attachments = self._attachments()
        packets = plan_packets(attachments, await self._kernel.uplink()) if attachments else []
        hooks = await self._kernel.hooks() if packets else []
        dropped = tuple(
            f"{what}: {reason}" for what, packet in packets for hook in hooks if (reason := judge(hook, packet))
        )
        if dropped and dropped != self.dropped:
            self._log.error("a packet filter of others drops packets of pods", dropped=dropped)
            self._recorder.warn(self._node, reason=DROPPED, message=fit_sentences(dropped))
        elif self.dropped and not dropped:
            self._log.info("no packet filter of others drops packets of pods any more")
        self._gauge.set(len(dropped))
        self.dropped = dropped


def plan_packets(attachments: Iterable[Attachment], uplink: LinkName) -> list[tuple[str, ForwardedPacket]]:
    """What is to pass, and how it is called: for one pod of each family, what it sends and what is sent to it."""
    found: dict[Family, tuple[LinkName, IPAddress]] = {}
    for attachment in attachments:
        if attachment.link is not None:
            for address in attachment.addresses:
                found.setdefault(Family.of(address), (attachment.link, address))
    packets = []
    for family, (link, address) in sorted(found.items(), key=lambda each: each[0].value):
        version = f"IPv{address.version}"
        out = ForwardedPacket(family=family, input=link, output=uplink, source=address)
        back = ForwardedPacket(family=family, input=uplink, output=link, destination=address)
        packets += [(f"{version} from pods", out), (f"{version} to pods", back)]
    return packets
