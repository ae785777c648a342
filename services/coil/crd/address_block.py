"""AddressBlock: a block of addresses that belongs to one node, as the API server stores it.

The fields stand at the top level: there is no spec. Which pool, node and request a block belongs to is in its
labels, because that is what informers select by.
"""

from coil.crd.meta import ObjectMeta, Struct
from coil.crd.names import (
    ANNOTATION_OCCUPIED,
    GROUP,
    LABEL_NODE,
    LABEL_POOL,
    LABEL_REQUEST,
    LABEL_RESERVED,
    RESERVED,
    VERSION,
    BlockName,
    NodeName,
    PoolName,
    RequestUid,
)
from coil.crd.resource import Resource


class AddressBlock(Struct, frozen=True, kw_only=True):
    """`index` numbers the block within its pool. It has no default, so that block 0 is written out."""

    metadata: ObjectMeta
    index: int
    ipv4: str | None = None
    ipv6: str | None = None

    @property
    def name(self) -> BlockName:
        return BlockName(self.metadata.name)

    @property
    def pool(self) -> PoolName:
        """The pool's name; empty when the label is missing."""
        return PoolName(self.metadata.labels.get(LABEL_POOL, ""))

    @property
    def node(self) -> NodeName:
        """The owning node's name; empty when the label is missing."""
        return NodeName(self.metadata.labels.get(LABEL_NODE, ""))

    @property
    def request(self) -> RequestUid:
        """UID of the BlockRequest that this block answers; empty for blocks made by other means."""
        return RequestUid(self.metadata.labels.get(LABEL_REQUEST, ""))

    @property
    def reserved(self) -> bool:
        """True for blocks whose addresses another program still uses: exported, never given out."""
        return self.metadata.labels.get(LABEL_RESERVED) == RESERVED

    @property
    def occupied_by(self) -> str:
        """Which Nodes or networks of Services have addresses of the block, as the controller found; "" if none has."""
        return self.metadata.annotations.get(ANNOTATION_OCCUPIED, "")


ADDRESS_BLOCKS: Resource[AddressBlock] = Resource(
    GROUP, VERSION, "addressblocks", "AddressBlock", namespaced=False, type=AddressBlock
)
