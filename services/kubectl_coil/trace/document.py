"""What `kubectl coil trace` tells, as a document. The names of the fields are a contract."""

from enum import StrEnum

from coil.page.document import Document


class Verdict(StrEnum):
    DELIVERED = "delivered"
    """It reaches its destination, or leaves the cluster; whether somebody listens there is not known."""
    STOPPED = "stopped"
    UNKNOWN = "unknown"
    """Something on its way could not be read."""


class HopDocument(Document, frozen=True, kw_only=True):
    """One step: `at` is a pod or a node, `action` what becomes of the packet there, `by` the rule, route, set or object
    that says so.
    """

    at: str
    action: str
    by: str


class TraceDocument(Document, frozen=True, kw_only=True):
    """`port` is null for protocols without ports. `source_seen` is what the other side sees as source; "" where nothing
    arrives. `reason` is why the packet stops, or what could not be read; `replies` how answers come back, "" where
    they take the same way; `doubts` are what may change the answer and is not followed.
    """

    pod: str
    source: str
    destination: str
    protocol: str
    port: int | None
    hops: tuple[HopDocument, ...]
    verdict: Verdict
    reason: str
    source_seen: str
    replies: str
    doubts: tuple[str, ...]
