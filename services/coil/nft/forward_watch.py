"""Looks whether packet filters of others drop packets that the node is to forward, and says so; puts nothing right, as
it is not ours: no chain of Coil could let pass what a chain of others drops.

    packets, read_hooks ─► coil.kernel.packet_filter ─► ForwardWatch.dropped ─► who asked for it

Docker, ufw and firewalld set such chains up, some of them whenever they start; connections that exist go on, so that it
is noticed late.
"""

import asyncio
from collections.abc import Awaitable, Callable, Mapping, Sequence
from typing import Final, TypeAlias

from prometheus_client import Gauge
from structlog.typing import FilteringBoundLogger

from coil.kernel.packet_filter import ForwardedPacket, ForwardHook, judge
from coil.nft.forward_hook import read_forward_hooks
from coil.nft.legacy_iptables import read_legacy_hooks

LOOK_SECONDS: Final = 60.0
"""Between two looks. A change of tables is not listened to: on some nodes they change many times a second."""

PlanPackets: TypeAlias = Callable[[], Awaitable[Mapping[str, ForwardedPacket]]]
"""What is to pass now, by what it is called (`IPv4 from pods`); nothing where nothing is forwarded."""

ReadHooks: TypeAlias = Callable[[], Awaitable[Sequence[ForwardHook]]]
"""`read_hooks` in a thread of the node's namespace."""


def read_hooks() -> list[ForwardHook]:
    """The chains that forwarded packets pass in the calling thread's namespace: of nf_tables, iptables-nft's among
    them, and of iptables-legacy. Raises NftError.
    """
    return [*read_forward_hooks(), *read_legacy_hooks()]


class ForwardWatch:
    """`run` is its task. `note` is called with every difference in what is dropped, which is a sentence for each filter
    and kind of packet; `gauge` has their number. `errors` are those that `packets` and `hooks` raise and that may pass.
    """

    def __init__(
        self,
        packets: PlanPackets,
        hooks: ReadHooks,
        *,
        gauge: Gauge,
        note: Callable[[tuple[str, ...]], object],
        errors: tuple[type[Exception], ...],
        log: FilteringBoundLogger,
    ) -> None:
        self._packets = packets
        self._hooks = hooks
        self._gauge = gauge
        self._note = note
        self._errors = errors
        self._log = log
        self.dropped: tuple[str, ...] | None = None
        """What was found last; None: nobody has looked yet."""

    async def run(self) -> None:
        """Until cancelled."""
        told = ""
        while True:
            try:
                await self.look()
                told = ""
            except self._errors as error:
                # What was found last stands; the next look is not far.
                if str(error) != told:
                    self._log.warning("not looked for packet filters that drop packets", error=str(error))
                told = str(error)
            await asyncio.sleep(LOOK_SECONDS)

    async def look(self) -> None:
        """Judge all packets. Raises one of `errors`."""
        packets = await self._packets()
        hooks = await self._hooks() if packets else []
        dropped = tuple(
            f"{what}: {reason}" for what, packet in packets.items() for hook in hooks if (reason := judge(hook, packet))
        )
        if dropped and dropped != self.dropped:
            self._log.error("a packet filter of others drops packets of pods", dropped=dropped)
        elif self.dropped and not dropped:
            self._log.info("no packet filter of others drops packets of pods any more")
        self._gauge.set(len(dropped))
        if dropped != self.dropped:
            self.dropped = dropped
            self._note(dropped)
