"""What `kubectl coil ipam show` tells, as a document. The names of the fields are a contract."""

from datetime import datetime
from enum import StrEnum

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
    """A pod with addresses, of its status. `block` is "" if no block has them: they are not of Coil's pools, or are in
    no block any more.
    """

    namespace: str
    name: str
    node: str
    addresses: tuple[str, ...]
    block: str
    created: datetime | None


class LedgerState(StrEnum):
    ALLOCATED = "allocated"
    COOLING = "cooling"
    FREE = "free"


class FormerPodDocument(Document, frozen=True, kw_only=True):
    """Who had an address, from when until when, as far as it is known."""

    pod: str
    since: datetime | None
    until: datetime | None


class LedgerEntryDocument(Document, frozen=True, kw_only=True):
    """One address of each family, as the node's coild has it. `block` may be a network interface of EC2; `pod` is
    `namespace/name`, "" where nobody has the address, or where it is not known who. `before` is who had it last.
    """

    addresses: tuple[str, ...]
    block: str
    state: LedgerState
    pod: str
    container: str
    since: datetime | None
    before: FormerPodDocument | None


class IpamPoolDocument(Document, frozen=True, kw_only=True):
    name: str
    subnets: tuple[str, ...]
    blocks: UseCounts
    addresses: UseCounts
    nodes: int


class IpamDocument(Document, frozen=True, kw_only=True):
    """`asked` is what was asked for, as `KIND/NAME` or an address; "" for everything.

    `ledger` is null where no node was asked, or none answered. `note` says what it means that something is empty;
    `troubles` what could not be read, and what to do.
    """

    asked: str
    pools: tuple[IpamPoolDocument, ...]
    blocks: tuple[BlockDocument, ...]
    pods: tuple[PodDocument, ...]
    ledger: tuple[LedgerEntryDocument, ...] | None = None
    note: str
    troubles: tuple[str, ...] = ()


class FindingDocument(Document, frozen=True, kw_only=True):
    """`kind` is a `kubectl_coil.ipam.finding.FindingKind`; `subject` what it is about, `remedy` what to do."""

    kind: str
    subject: str
    message: str
    remedy: str


class CheckDocument(Document, frozen=True, kw_only=True):
    """What `kubectl coil ipam check` tells. `nodes` is how many were asked and have answered, `looks` how often it was
    looked at what it had found; `troubles` is what could not be judged.
    """

    at: datetime
    nodes: int
    looks: int
    findings: tuple[FindingDocument, ...]
    troubles: tuple[str, ...]
