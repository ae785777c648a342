"""How long what lets a node carry EIPs waits for the kernel, while one tenant changes all that a tenant may.

The tenant has twenty policies of four pods and 1 024 destinations each, and changes them as fast as the agent carries
it out: one destination, all destinations, or the pods, of one policy and of all. Meanwhile the agent refreshes the
timeouts of its lease as it does after each acknowledged renewal.
"""

import asyncio
import gc
import sys
import time
from collections.abc import Iterable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from ipaddress import IPv4Address, IPv4Network
from typing import Final

from coil.crd.egress_gateway import PolicyRef
from coil.crd.names import NodeName
from coil.eip.claim import Eip
from coil.eip.data_plane import DataPlaneIndex, PolicyView
from coil.eip.eip_table import EipTableOptions
from coil.kernel.family import IPAddress
from coil.kernel.nft_element import ElementChanges
from coil_egress_agent.eip.interpreter import shorten_pauses
from coil_egress_agent.eip.kernel_tables import KernelTables
from integration.netns.netns import Netns

POLICIES: Final = 20
PODS: Final = 4
RANGES: Final = 1024
SECONDS: Final = 20.0
_LEASE: Final = 0.6
"""What a refresh gives: seconds."""
_PAUSE: Final = 0.02
"""Between two refreshes; an agent at its default settings makes them rarer."""
_NODE: Final = NodeName("gateway")
_PODS: Final = IPv4Address("10.64.0.0")
_EIPS: Final = IPv4Address("100.65.0.0")
_DESTINATIONS: Final = int(IPv4Address("172.16.0.0"))


@dataclass(frozen=True, slots=True, kw_only=True)
class Delays:
    """`refreshes`: seconds that each one took, from when it was due. `changes`: of how many elements each was."""

    refreshes: list[float]
    changes: list[int]


async def take_delays(netns: Netns, *, seconds: float = SECONDS) -> Delays:
    """In a namespace that has no tables: each kind of change at least once, and for that long. Raises NftError."""
    index = DataPlaneIndex(clock=time.monotonic)
    async with KernelTables(EipTableOptions(), netns=netns.path) as tables:
        index.set_own(_NODE)
        for number in range(POLICIES):
            _tell(index, number, _Edit())
        index.take_changes()
        await tables.sync(index.elements())
        delays = Delays(refreshes=[], changes=[])
        with _pauses_of_the_agent():
            refreshing = asyncio.create_task(_refresh(tables, delays.refreshes))
            ends = time.monotonic() + seconds
            try:
                while time.monotonic() < ends:
                    for numbers, edit in _turns():
                        changes = await asyncio.to_thread(_change, index, numbers, edit)
                        delays.changes.append(len(changes))
                        await tables.change(changes)
                        index.settle()
            finally:
                refreshing.cancel()
                with suppress(asyncio.CancelledError):
                    await refreshing
        return delays


@contextmanager
def _pauses_of_the_agent() -> Iterator[None]:
    interval = sys.getswitchinterval()
    shorten_pauses()
    try:
        yield
    finally:
        sys.setswitchinterval(interval)
        gc.unfreeze()


async def _refresh(tables: KernelTables, taken: list[float]) -> None:
    while True:
        due = time.monotonic() + _PAUSE
        await asyncio.sleep(_PAUSE)
        await tables.refresh(lambda: _LEASE)
        taken.append(time.monotonic() - due)


@dataclass(frozen=True, slots=True, kw_only=True)
class _Edit:
    """Of a policy: so many other destinations, other pods, and its place among the others."""

    destinations: int = 0
    pods: int = 0
    priority: int = 0


_EDITS: Final = (_Edit(destinations=1), _Edit(destinations=RANGES), _Edit(pods=1), _Edit(priority=1, pods=PODS))


def _turns() -> Iterator[tuple[Iterable[int], _Edit]]:
    """Which policies change next, and what they are then."""
    for edit in _EDITS:
        for numbers in (range(1), range(POLICIES)):
            yield numbers, edit
            yield numbers, _Edit()


def _change(index: DataPlaneIndex, numbers: Iterable[int], edit: _Edit) -> ElementChanges:
    for number in numbers:
        _tell(index, number, edit)
    return index.take_changes()


def _tell(index: DataPlaneIndex, number: int, edit: _Edit) -> None:
    ref = PolicyRef(namespace="tenant", name=f"policy-{number}")
    policy = PolicyView(
        ref=ref,
        priority=edit.priority,
        destinations=tuple(
            IPv4Network((_DESTINATIONS + 4 * (block * POLICIES + number), 31))
            for block in range(edit.destinations, edit.destinations + RANGES)
        ),
        eip=Eip(ipv4=_EIPS + number + 1),
        node=_NODE,
    )
    index.set_policy(policy)
    # With as many of the next policy's as it is moved by: those have two policies then.
    sources: dict[IPAddress, NodeName] = {_PODS + PODS * number + edit.pods + pod: _NODE for pod in range(PODS)}
    index.set_sources(ref, sources)
