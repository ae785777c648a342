"""The node's kernel as the rest of the agent knows it: the overlay network and the nftables tables.

`coil.netlink.overlay` and `nft_store` are the real ones. Every method is idempotent and raises one of KERNEL_ERRORS,
with a sentence that says what to do about it; a call that is cancelled may take effect nevertheless.
"""

import asyncio
from collections.abc import Awaitable, Callable, Collection, Mapping, Sequence
from typing import Final, Protocol, TypeVar

from coil.eip.data_plane import DataPlaneIndex
from coil.kernel.family import Family, IPAddress
from coil.kernel.nft_element import ElementChanges
from coil.kernel.parent import ParentLink
from coil.kernel.vxlan import OverlayPeer, Vxlan
from coil.netlink.error import NetlinkError
from coil.nft.netfilter import NftError

R = TypeVar("R")

CALL_SECONDS: Final = 60.0
"""A call that takes longer is given up; the kernel has stalled, and what was asked for may still come about."""

KERNEL_ERRORS: Final = (NetlinkError, NftError, OSError)
"""What the kernel refuses, or does not answer (a TimeoutError is an OSError). All of it may pass."""


async def bounded(call: Awaitable[R]) -> R:
    """Its answer within CALL_SECONDS. Raises what it raises, and TimeoutError."""
    async with asyncio.timeout(CALL_SECONDS):
        return await call


def sentence(error: Exception) -> str:
    """What is to be told of it."""
    if isinstance(error, TimeoutError):
        return f"the kernel has not answered for {CALL_SECONDS:.0f} s"
    return str(error) or type(error).__name__


class Overlay(Protocol):
    """`coil.netlink.overlay.OverlayNetwork`. Calls about EIPs take turns in the order in which they were made, and so
    do those about the mesh.
    """

    async def ensure_sysctls(self, families: Collection[Family], /) -> None:
        """Forwarding, and answers to ARP."""
        ...

    async def parent_of(self, address: IPAddress, /) -> ParentLink:
        """The link that has the address."""
        ...

    async def ensure_tunnel(self, vxlan: Vxlan, /) -> bool:
        """The tunnel's device with its addresses. True: it was made anew, and peers and marks have to follow."""
        ...

    async def sync_peers(self, peers: Sequence[OverlayPeer], /) -> object:
        """These and no others."""
        ...

    async def sync_marks(self, ways: Mapping[int, Collection[IPAddress]], /) -> object:
        """Packets with a mark go to its tunnel addresses; these marks and no others."""
        ...

    async def ensure_eip_device(self) -> object: ...

    async def sync_eips(self, addresses: Collection[IPAddress], /) -> object:
        """The addresses of the EIP device: these and no others."""
        ...

    async def announce(self, addresses: Collection[IPAddress], /, *, is_held: Callable[[IPAddress], bool]) -> object:
        """Tell hosts that they are here. `is_held` is called in another thread, right before each is sent."""
        ...

    async def changed(self) -> None:
        """Wait until something of the overlay has changed, whoever changed it. For one task."""
        ...

    async def clean_up(self) -> object: ...


class Tables(Protocol):
    """`nft_store.NftStore`."""

    async def sync(self, book: DataPlaneIndex, /) -> bool:
        """Make tables, rules and elements those of the book; whether any was different."""
        ...

    async def change(self, changes: ElementChanges, /) -> None:
        """What the book has changed since it was last asked."""
        ...

    async def changed(self) -> None:
        """Wait until somebody else has changed the tables. For one task."""
        ...

    async def keep_alive(self, seconds: float, /) -> None:
        """Carry EIPs for so much longer. Does not wait in the line of the other calls."""
        ...

    async def silence(self) -> None:
        """Carry no EIP from now on."""
        ...

    async def clean_up(self) -> None:
        """Nothing of the tables is left."""
        ...
