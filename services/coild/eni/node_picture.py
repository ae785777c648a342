"""The node's interfaces as far as they are known, and how that gets to the kernel and to the store.

    EC2, or else metadata and the journal ─► NodePicture ─► NodeNetwork.apply ─► EniStore.update

What the kernel is not ready for is not given to pods. Where connections to the outside are translated, no address is
given before the VPC's CIDRs are known.
"""

import asyncio
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from enum import StrEnum
from typing import Protocol

from structlog.typing import FilteringBoundLogger

from coil.eni.interface import InterfaceId, NetworkInterface
from coil.eni.node_plan import AttachedInterface, NodeState
from coil.kernel.family import IPAddress, IPNetwork
from coil.netlink.error import NetlinkError
from coil.nft.netfilter import NftError
from coild.eni.lost_addresses import LostAddresses
from coild.eni.pool_keeper import PoolKeeper
from coild.eni.settings import EniSettings
from coild.eni.store import EniStore
from coild.eni.vpc_watch import VpcWatch


class InterfaceNetwork(Protocol):
    """The node's network, as far as interfaces go; `coild.eni.node_network` is one."""

    links_changed: asyncio.Event
    """Set when a link has appeared, gone, or come up or down, or when `own_addresses` have changed; cleared by who acts
    upon it.
    """

    @property
    def own_addresses(self) -> frozenset[IPAddress]:
        """Addresses of the interfaces' ranges that the node itself has, on whichever of its links; as of the last look,
        `apply`'s among them.
        """
        ...

    async def apply(self, state: NodeState) -> frozenset[InterfaceId]:
        """Bring the kernel there; returns the interfaces whose links are up. Raises NetlinkError or NftError."""
        ...


class PictureSource(StrEnum):
    """Who has described the node's interfaces."""

    NONE = "none"
    CHECKPOINT = "checkpoint"
    METADATA = "metadata"
    EC2 = "ec2"


@dataclass(slots=True, kw_only=True)
class NodePicture:
    """One per process. `checkpoint` writes down what is there, after each change."""

    store: EniStore
    network: InterfaceNetwork
    settings: EniSettings
    vpc: VpcWatch
    lost: LostAddresses
    checkpoint: Callable[[], None]
    log: FilteringBoundLogger
    keeper: PoolKeeper | None = None
    """What EC2 has described; None until it is known which instance this is."""
    source: PictureSource = PictureSource.NONE
    tentative: tuple[AttachedInterface, ...] = ()
    """What counts until EC2 has answered."""
    failing: bool = False
    """The kernel has not taken the last picture."""
    _applied: dict[InterfaceId, NetworkInterface] = field(default_factory=dict)
    _up: frozenset[InterfaceId] = frozenset()
    _publishing: asyncio.Lock = field(default_factory=asyncio.Lock)
    _final: bool = False
    """A picture of EC2's is in the store."""

    @property
    def described(self) -> bool:
        """Whether it is EC2's."""
        return self.source is PictureSource.EC2

    @property
    def translates(self) -> bool:
        """Whether connections to the outside are translated: then the CIDRs must be known before a pod may send."""
        return self.settings.version == 4 and not self.settings.external_snat

    def known(self) -> tuple[AttachedInterface, ...]:
        """The interfaces."""
        if not self.described or self.keeper is None:
            return self.tentative
        networks = self.keeper.subnets.networks
        return tuple(
            AttachedInterface(interface=each, subnet=networks[each.subnet])
            for each in self.keeper.inventory.interfaces()
        )

    def state(self, known: tuple[AttachedInterface, ...]) -> NodeState:
        """What the kernel is to have for such interfaces."""
        return NodeState(
            interfaces=known,
            inside=self.vpc.cidrs | frozenset(self.settings.excluded),
            external_snat=self.settings.external_snat,
            snat_ports=self.settings.snat_ports,
            metadata_access=self.settings.metadata_access,
            complete=self.described,
        )

    async def publish(self) -> None:
        """Bring the picture to the kernel, and then to the store. A refusal of the kernel's is logged; `failing` says
        that it is to be tried again.
        """
        async with self._publishing:
            known = self.known()
            if not known or (self.translates and not self.vpc.cidrs):
                return
            interfaces = {each.interface.id: each.interface for each in known}
            try:
                self._up = await self.network.apply(self.state(known))
            except (NetlinkError, NftError) as error:
                self.log.warning("interfaces not set up in the kernel", error=str(error))
                self.failing = True
                # What is gone is gone; what is new has to wait.
                interfaces = {
                    key: replace(each, ranges=each.ranges & self._applied[key].ranges)
                    for key, each in interfaces.items()
                    if key in self._applied
                }
                if not interfaces:
                    return
            else:
                self.failing = False
            self._applied = interfaces
            final = self.described
            lost = self.store.update(
                interfaces.values(),
                up=self._up,
                doubted=self._doubted(),
                configured=self.network.own_addresses,
                inherited=not self._final,
            )
            self._final |= final
            self.lost.found(lost, final=final)
            self.checkpoint()

    def _doubted(self) -> frozenset[IPNetwork]:
        """Of what only the journal and the metadata service know, nothing is: they agree upon it."""
        if not self.described or self.keeper is None:
            return frozenset()
        return self.keeper.inventory.doubted
