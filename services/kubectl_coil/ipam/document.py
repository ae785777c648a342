"""What `kubectl coil ipam show` tells, as a document. The names of the fields are a contract."""

from datetime import datetime

from coil.page.cluster_document import BlockState, UseCounts
from coil.page.document import Document


class BlockDocument(Document, frozen=True, kw_only=True):
    """A block; networks stand as they are stored. `pods` counts the pods with addresses of it; null where pods were not
    looked at.
    """

    name: str
    pool: str
    node: str
    state: BlockState
    ipv4: str | None
    ipv6: str | None
    occupied_by: str
    pods: int | None


class PodDocument(Document, frozen=True, kw_only=True):
    """A pod with addresses. `block` is "" if no block has them: they are not of Coil's pools, or are in no block any
    more.
    """

    namespace: str
    name: str
    node: str
    addresses: tuple[str, ...]
    block: str
    since: datetime | None


class IpamPoolDocument(Document, frozen=True, kw_only=True):
    name: str
    subnets: tuple[str, ...]
    blocks: UseCounts
    addresses: UseCounts
    nodes: int


class IpamDocument(Document, frozen=True, kw_only=True):
    """`asked` is what was asked for, as `KIND/NAME` or an address; "" for everything.

    `note` says what is not known, or what it means that something is empty.
    """

    asked: str
    pools: tuple[IpamPoolDocument, ...]
    blocks: tuple[BlockDocument, ...]
    pods: tuple[PodDocument, ...]
    note: str
