"""What `kubectl coil status` tells, as a document: with `-o json` as it stands, otherwise the input of the tables.

The names of the fields are a contract. Sections of kinds that the cluster does not have, or that could not be read, are
null; the latter have a finding.
"""

from datetime import datetime
from enum import StrEnum

from coil.page.cluster_document import UseCounts
from coil.page.document import Document


class Verdict(StrEnum):
    FINE = "fine"
    DEGRADED = "degraded"
    """There is a finding that is an error."""


class Severity(StrEnum):
    ERROR = "error"
    """Something does not work, or it is unknown whether it does."""
    WARNING = "warning"
    """It works for now."""


class Finding(Document, frozen=True, kw_only=True):
    """`subject` is the kind and name of an object, `remedy` what to do."""

    severity: Severity
    subject: str
    message: str
    remedy: str


class ComponentDocument(Document, frozen=True, kw_only=True):
    """One program: its DaemonSet or Deployment. `updated` counts pods of the present template.

    `version` is the tag or digest of its image. `leader` is the replica that leads; null for programs without an
    election, "" where nobody leads. Of the pods that were asked, `cache_age` is the longest time, in seconds, that a
    cache has not heard the API server, and `certificate_end` the earliest end of a webhook's certificate; null if none
    has such a thing, or could be asked.
    """

    name: str
    namespace: str
    kind: str
    version: str
    desired: int
    ready: int
    updated: int
    leader: str | None
    cache_age: float | None
    certificate_end: datetime | None


class NodesDocument(Document, frozen=True, kw_only=True):
    """`asked` are those whose coild was asked, and has answered. `blocked_pods` of them have an Egress that nobody
    serves; null if none was asked.
    """

    total: int
    asked: int
    blocked_pods: int | None


class PoolDocument(Document, frozen=True, kw_only=True):
    """`fill` is HasRoom, NearlyFull, Exhausted or InvalidPool. `nodes` have a block of it; `nodes_without` have
    none, and are null where it is unknown which nodes there are.
    """

    name: str
    ready: bool
    fill: str
    blocks: UseCounts
    addresses: UseCounts
    nodes: int
    nodes_without: int | None


class EgressDocument(Document, frozen=True, kw_only=True):
    """`desired` and `ready` count router pods. `client_addresses` are those that a router has a tunnel to; null if none
    was asked.
    """

    namespace: str
    name: str
    desired: int
    ready: int
    client_addresses: int | None


class FamilyUsage(Document, frozen=True, kw_only=True):
    """Of floating addresses of one family."""

    total: int
    free: int


class GatewayDocument(Document, frozen=True, kw_only=True):
    """`placed` and `waiting` count policies; `eips` the addresses that nodes carry; `ready_nodes` of `nodes` hold
    their Lease, and can carry some.
    """

    name: str
    nodes: int
    ready_nodes: int
    eips: int
    placed: int
    waiting: int
    ipv4: FamilyUsage
    ipv6: FamilyUsage


class WarningDocument(Document, frozen=True, kw_only=True):
    """A warning Event of one of Coil's programs. `about` is the kind and name of its object."""

    at: datetime | None
    component: str
    about: str
    reason: str
    message: str
    count: int


class StatusDocument(Document, frozen=True, kw_only=True):
    at: datetime
    verdict: Verdict
    findings: tuple[Finding, ...]
    components: tuple[ComponentDocument, ...] | None
    nodes: NodesDocument | None
    pools: tuple[PoolDocument, ...] | None
    egresses: tuple[EgressDocument, ...] | None
    gateways: tuple[GatewayDocument, ...] | None
    warnings: tuple[WarningDocument, ...] | None
