"""Marks the AddressBlocks that have addresses of the cluster's own, for the nodes that hold them.

A Node, or a network of Services, may come into a pool after blocks were given out of it. The annotation tells the node
with the block: it gives no further address of it and does not export it. It is removed when the Node has gone.

The keys are names of blocks. Reserved blocks are left alone: their addresses are given by another program.
"""

from collections.abc import Iterable
from ipaddress import ip_network

from structlog.typing import FilteringBoundLogger

from coil.crd.address_block import ADDRESS_BLOCKS, AddressBlock
from coil.crd.builtin import Node
from coil.crd.names import ANNOTATION_OCCUPIED, BlockName
from coil.ipam.block import MalformedBlockError, parse_block
from coil.ipam.cluster_network import describe_occupants
from coil.ipam.index_set import IndexSet
from coil.kube.api_client import ApiClient
from coil.kube.errors import NotFoundError
from coil.manager.term import Term
from coil.reconcile.controller import DONE, Result
from coil_ipam_controller.caches import Caches

WORKERS = 2


class OccupiedBlockReconciler:
    """`index` follows the blocks of `caches`. All blocks are compared every `resync` seconds."""

    def __init__(
        self, *, client: ApiClient, caches: Caches, index: IndexSet, resync: float, log: FilteringBoundLogger
    ) -> None:
        self._client = client
        self._caches = caches
        self._index = index
        self._resync = resync
        self._log = log

    def setup(self, term: Term) -> None:
        controller = term.controller("occupiedblock", self.reconcile, workers=WORKERS)
        controller.watch(self._caches.blocks, changed_block)
        controller.watch(self._caches.nodes, self.of_node)
        controller.watch(self._caches.service_cidrs, self.of_services)
        controller.watch(self._caches.apiserver_service, self.of_services)
        controller.resync(self.differing, every=self._resync, at_start=True)

    async def reconcile(self, name: str) -> Result:
        """Have the annotation of the block of that name say who is in it. Idempotent; raises to be retried, also where
        the block has been replaced by another of its name.
        """
        block = self._caches.blocks.get(name)
        if block is None or (text := self._wanted(block)) == block.occupied_by:
            return DONE
        annotations = {ANNOTATION_OCCUPIED: text or None}
        try:
            await self._client.patch(
                ADDRESS_BLOCKS, name, {"metadata": {"uid": block.metadata.uid, "annotations": annotations}}
            )
        except NotFoundError:
            return DONE
        if text:
            self._log.warning("block has addresses of the cluster's own", block=name, node=block.node, occupants=text)
        else:
            self._log.info("block has no addresses of the cluster's own any more", block=name, node=block.node)
        return DONE

    def of_node(self, old: Node | None, new: Node | None) -> Iterable[BlockName]:
        """The blocks that have, or had, an address of the Node."""
        before, after = ({*node.addresses()} if node is not None else set() for node in (old, new))
        for address in before ^ after:
            if (holder := self._index.holder_of(ip_network(address))) is not None:
                yield holder

    def of_services(self, _old: object, _new: object) -> Iterable[BlockName]:
        """The blocks that are concerned when networks of Services change, which is seldom."""
        return self.differing()

    def differing(self) -> list[BlockName]:
        """The blocks whose annotation is not what it is to be."""
        return [block.name for block in self._caches.blocks.items() if self._wanted(block) != block.occupied_by]

    def _wanted(self, block: AddressBlock) -> str:
        if block.reserved:
            return ""
        try:
            parsed = parse_block(block)
        except MalformedBlockError:
            return ""  # no node takes it in
        networks = (network for network in (parsed.ipv4, parsed.ipv6) if network is not None)
        return describe_occupants(networks, self._caches.networks)


def changed_block(old: AddressBlock | None, new: AddressBlock | None) -> Iterable[BlockName]:
    """The block, where what it is compared with is new."""
    if new is not None and (old is None or _compared(old) != _compared(new)):
        yield new.name


def _compared(block: AddressBlock) -> tuple[object, ...]:
    return block.ipv4, block.ipv6, block.reserved, block.occupied_by
