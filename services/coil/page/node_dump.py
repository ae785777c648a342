"""What a node's kernel holds, as one document: `coil-node-dump` writes it, `kubectl coil` reads it.

Values are written as iproute2 writes them. Fields that do not apply are null or "". The names are a contract; `version`
grows when one of them means something else.
"""

from datetime import datetime
from enum import StrEnum
from typing import Any, Final

import msgspec

from coil.page.document import Document

VERSION: Final = 1


class Part(StrEnum):
    """What a dump can be asked for."""

    NODE = "node"
    PODS = "pods"
    FOU = "fou"
    TABLES = "tables"
    INSPECTION = "inspection"
    METRICS = "metrics"
    """Of the program beside which it runs. Only if it is asked for."""


class LinkDump(Document, frozen=True, kw_only=True):
    """`link` is the index of the other end of a veth, or of what is below a tunnel; `peer_namespace` the number of the
    namespace that it is in. `info` has what the link's kind knows, as the kernel's attributes are called.
    """

    index: int
    name: str
    kind: str
    mac: str
    mtu: int
    flags: tuple[str, ...]
    state: str
    link: int | None
    peer_namespace: int | None
    master: int | None
    alias: str
    info: dict[str, Any]


class AddressDump(Document, frozen=True, kw_only=True):
    """`address` with its prefix length; `label` is its link's name."""

    link: int
    address: str
    scope: str
    permanent: bool


class RuleDump(Document, frozen=True, kw_only=True):
    """A policy routing rule. `action` is lookup, goto, nop, blackhole, unreachable or prohibit; `inverted` says that it
    is about what its selectors do not match. `suppress` is the prefix length up to which routes of the table do not
    count. Selectors of which this document has no field are in `others`.
    """

    family: int
    priority: int
    action: str
    table: int
    source: str
    destination: str
    mark: int | None
    mask: int | None
    input_link: str
    output_link: str
    goto: int | None
    protocol: int
    inverted: bool
    suppress: int | None = None
    others: tuple[str, ...]


class NextHopDump(Document, frozen=True, kw_only=True):
    """`dead` is one that the kernel does not use now."""

    link: int | None
    gateway: str
    dead: bool = False


class RouteDump(Document, frozen=True, kw_only=True):
    """`destination` with its prefix length, the default route as 0.0.0.0/0 or ::/0."""

    family: int
    table: int
    destination: str
    type: str
    protocol: int
    scope: int
    metric: int
    source: str
    mtu: int | None
    hops: tuple[NextHopDump, ...]


class NeighbourDump(Document, frozen=True, kw_only=True):
    """Of IPv4 and IPv6. `state` is the kernel's word, such as PERMANENT."""

    link: int
    address: str
    mac: str
    state: str


class ForwardingEntryDump(Document, frozen=True, kw_only=True):
    """Of a bridge or a VXLAN link: what is sent to `mac` goes to `destination`, or out by the link itself."""

    link: int
    mac: str
    destination: str
    master: int | None
    state: str


class NamespaceDump(Document, frozen=True, kw_only=True):
    """One network namespace; `path` is where it is mounted, "" for the node's own."""

    path: str
    links: tuple[LinkDump, ...] = ()
    addresses: tuple[AddressDump, ...] = ()
    rules: tuple[RuleDump, ...] = ()
    routes: tuple[RouteDump, ...] = ()
    neighbours: tuple[NeighbourDump, ...] = ()
    forwarding_entries: tuple[ForwardingEntryDump, ...] = ()
    sysctls: dict[str, str] = msgspec.field(default_factory=dict)


class FouPortDump(Document, frozen=True, kw_only=True):
    """A port of Foo-over-UDP. `protocol` is that of what is inside, 0 for GUE."""

    port: int
    family: int
    protocol: int


class NodeDump(Document, frozen=True, kw_only=True):
    """`troubles` says what could not be read, and why; `truncated` what was longer than the limit. `inspection` is
    the document of coild's own page, null if there is no coild; `tables` is what `nft --json list ruleset` prints,
    without the elements of sets if these are too many; `metrics` is a program's, in Prometheus' text format. Parts that
    were not asked for are empty or null.
    """

    version: int
    at: datetime
    host: str
    kernel: str
    node: NamespaceDump
    pods: tuple[NamespaceDump, ...]
    fou_ports: tuple[FouPortDump, ...]
    tables: Any
    inspection: Any
    truncated: tuple[str, ...]
    troubles: tuple[str, ...]
    metrics: str | None = None
