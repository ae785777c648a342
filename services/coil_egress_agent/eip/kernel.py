"""The node's kernel as the rest of the agent knows it: one Protocol for each adapter.

Every method is idempotent unless it says otherwise, and raises one of KERNEL_ERRORS with a message that says what to do
about it. A call that is cancelled may take effect nevertheless.
"""

import asyncio
from collections.abc import Awaitable, Callable, Collection, Mapping, Sequence
from typing import Final, Protocol, TypeVar

from coil.kernel.family import Family, IPAddress
from coil.kernel.flow import Flow
from coil.kernel.link import ParentLink
from coil.kernel.nft_element import ElementChanges, Elements
from coil.kernel.vxlan import OverlayPeer, Vxlan
from coil.kernel.wireguard import PublicKey, WireGuard, WireGuardPeer
from coil.netlink.error import NetlinkError
from coil.nft.netfilter import NftError
from coil.runtime.log import describe_error

R = TypeVar("R")

CALL_SECONDS: Final = 60.0
"""A call that takes longer is abandoned: the kernel has stalled. What was asked for may still take effect."""

KERNEL_ERRORS: Final = (NetlinkError, NftError, OSError)
"""What the kernel refuses, or does not answer (a TimeoutError is an OSError). All of it may pass."""


async def bounded(call: Awaitable[R]) -> R:
    """Its answer within CALL_SECONDS. Raises what it raises, and TimeoutError."""
    async with asyncio.timeout(CALL_SECONDS):
        return await call


def sentence(error: Exception) -> str:
    """What to log of it."""
    if isinstance(error, TimeoutError):
        return f"the kernel has not answered for {CALL_SECONDS:.0f} s"
    return describe_error(error)


class Overlay(Protocol):
    """The mesh and the device of the EIPs; `coil.netlink.overlay.OverlayNetwork`. Calls about EIPs take turns in the
    order in which they were made, and so do those about the mesh.
    """

    async def ensure_sysctls(self, families: Collection[Family], /) -> None:
        """Forwarding, and answers to ARP."""
        ...

    async def parent_of(self, address: IPAddress, /) -> ParentLink:
        """The link that has the address."""
        ...

    async def ensure_tunnel(self, vxlan: Vxlan, /) -> bool:
        """The tunnel's device with its addresses. True: it was created, and peers and marks have to follow."""
        ...

    async def sync_peers(self, peers: Sequence[OverlayPeer], /) -> object:
        """These and no others."""
        ...

    async def ensure_wireguard(self, wireguard: WireGuard, /) -> PublicKey:
        """The link that carries the encrypted mesh; returns the node's key. Another one than before: peers follow."""
        ...

    async def sync_wireguard_peers(self, peers: Sequence[WireGuardPeer], /) -> object:
        """These and no others, and the routes of their tunnel addresses."""
        ...

    async def read_wireguard_peers(self) -> Sequence[WireGuardPeer]:
        """Those that it has, of an earlier process as well."""
        ...

    async def remove_wireguard(self) -> object:
        """Have no such link."""
        ...

    async def sync_marks(self, paths: Mapping[int, Collection[IPAddress]], /) -> object:
        """Packets with a mark go to its tunnel addresses; these marks and no others."""
        ...

    async def ensure_eip_device(self) -> object:
        """The link that has the addresses."""
        ...

    async def sync_eips(self, addresses: Collection[IPAddress], /) -> object:
        """The addresses of the EIP device: these and no others."""
        ...

    async def announce(self, addresses: Collection[IPAddress], /, *, is_held: Callable[[IPAddress], bool]) -> object:
        """Send gratuitous ARP and unsolicited neighbour advertisements, once, for those of which `is_held` is true; it
        is called in another thread right before each is sent.
        """
        ...

    async def answer(self, is_held: Callable[[IPAddress], bool], /) -> None:
        """Answer ARP requests for the addresses of the EIP device, where the kernel does not, until cancelled.
        `is_held` is asked right before each answer. For one task.
        """
        ...

    async def changed(self) -> None:
        """Wait until the overlay has changed, no matter who changed it. For one task."""
        ...

    async def clean_up(self) -> object:
        """Delete all that the calls above have made."""
        ...


class Tables(Protocol):
    """The node's nftables tables; `kernel_tables.KernelTables`. Four verbs write to them: `sync` and `change` take
    turns, `refresh` and `let_pass` have a thread and a socket of their own and wait for neither.
    """

    async def sync(self, elements: Elements, /) -> bool:
        """Make the tables what they should be, with these elements and no others; returns whether they were not. What
        expires stays as it is. The first `sync` of a process comes before its first `refresh`.
        """
        ...

    async def change(self, changes: ElementChanges, /) -> None:
        """Add and delete elements of tables that are what they should be. Not idempotent: what is deleted must be
        there, and what is added must not be there with another value. Takes as long as it needs: each of its steps is
        `bounded`. After an error a part may have taken place, and `sync` is the way on.
        """
        ...

    async def refresh(self, remaining: Callable[[], float], /) -> None:
        """Answer for EIPs for so many more seconds; 0: not at all. After an error the former time stands.

        `remaining` is called in another thread right before the kernel is told, and again if telling it took long.
        """
        ...

    async def let_pass(self, seconds: float, /) -> None:
        """Let unknown sources pass for so many more seconds; 0: not at all. It is another expiry than that of
        `refresh`, and takes turns with it. After an error the former time stands.
        """
        ...

    async def changed(self) -> None:
        """Wait until something else has, or may have, changed the tables. For one task."""
        ...

    async def clean_up(self) -> None:
        """Delete the tables."""
        ...


class FormerState(Protocol):
    """What egressgateway (the Go program) has left on the node; `egressgateway_state.EgressgatewayState`."""

    async def find(self) -> Sequence[str]:
        """What there is of it, in words; nothing is changed."""
        ...

    async def remove(self) -> Sequence[str]:
        """Have none of it; returns the names of IP sets that rules of others use, which stay. Takes as long as it
        needs: each of its steps is `bounded`. After an error the steps that were not reached have not taken place.
        """
        ...


class Flows(Protocol):
    """The node's connections; `coil.netlink.conntrack.FlowTable`."""

    async def read(self, wanted: Callable[[IPAddress], bool], limit: int, /) -> tuple[tuple[Flow, ...], bool]:
        """Connections that such sources have begun; whether there are more. `wanted` is called in another thread."""
        ...

    async def forget(self, flows: Sequence[Flow], /) -> None:
        """Drop their conntrack entries; absent ones are fine."""
        ...

    async def probe(self, flows: Sequence[Flow], /, *, random: Callable[[], int], mark: int) -> int:
        """Have their sources send something; returns how many of them were told to."""
        ...
