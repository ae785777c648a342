"""The AddressBlock document for a planned block. Pure."""

from coil.crd.address_block import AddressBlock
from coil.crd.address_pool import ADDRESS_POOLS, AddressPool
from coil.crd.block_request import BlockRequest
from coil.crd.meta import ObjectMeta, OwnerReference
from coil.crd.names import FINALIZER, LABEL_NODE, LABEL_POOL, LABEL_REQUEST
from coil.ipam.layout import PlannedBlock


def render_block(planned: PlannedBlock, *, pool: AddressPool, request: BlockRequest) -> AddressBlock:
    """The block that answers `request`, complete from its birth: a block without labels, owner or finalizer
    would be nobody's."""
    owner = OwnerReference(
        api_version=ADDRESS_POOLS.api_version,
        kind=ADDRESS_POOLS.kind,
        name=pool.metadata.name,
        uid=pool.metadata.uid,
        controller=True,
        block_owner_deletion=True,
    )
    metadata = ObjectMeta(
        name=planned.name,
        labels={
            LABEL_POOL: pool.metadata.name,
            LABEL_NODE: request.spec.node_name,
            LABEL_REQUEST: request.uid,
        },
        finalizers=(FINALIZER,),
        owner_references=(owner,),
    )
    return AddressBlock(
        metadata=metadata,
        index=planned.index,
        ipv4=None if planned.ipv4 is None else str(planned.ipv4),
        ipv6=None if planned.ipv6 is None else str(planned.ipv6),
    )
