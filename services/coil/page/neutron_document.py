"""What coil-raven has in OpenStack: networks of namespaces, ports of pods, load balancers of Services, and its calls.

IDs are OpenStack's. What only the replica that leads knows is empty in the documents of the others.
"""

from datetime import datetime
from enum import StrEnum

import msgspec

from coil.page.document import Document


class NetworkState(StrEnum):
    READY = "ready"
    WAITING = "waiting"
    """It is not whole yet."""
    LEAVING = "leaving"
    """Its namespace is being deleted."""


class PortState(StrEnum):
    ACTIVE = "active"
    """Neutron reports that the port is plugged in."""
    DOWN = "down"
    """It is bound on the pod's node, and not plugged in."""
    NOT_BOUND = "notBound"
    """No agent on the host could bind it."""
    WAITING = "waiting"
    """The pod is to have a port, and has none yet."""
    LEAVING = "leaving"
    """The pod has ended, and its port is still there."""
    IDLE = "idle"
    """It waits for a pod."""


class ServiceState(StrEnum):
    AS_PLANNED = "asPlanned"
    CHANGING = "changing"
    """Octavia is at work, or has further changes to be asked for."""
    FAILED = "failed"
    """Octavia has given up; the load balancer is built again."""
    WAITING = "waiting"
    """It has no load balancer yet."""
    LEAVING = "leaving"
    """The Service is gone, or being deleted."""


class SupernetDocument(Document, frozen=True, kw_only=True):
    """`parts` prefixes of `part_length`, one for each namespace. `taken` are those that coil-raven has given."""

    network: str
    part_length: int
    parts: int
    taken: int
    left: int


class SubnetDocument(Document, frozen=True, kw_only=True):
    id: str
    cidr: str
    gateway: str | None = None


class NetworkDocument(Document, frozen=True, kw_only=True):
    """The network of a namespace. `segmentation_id` is its VNI, null where the account may not see it; `mtu` in bytes.

    `ports` are those of pods.
    """

    namespace: str
    state: NetworkState
    id: str | None = None
    project: str | None = None
    segmentation_id: int | None = None
    mtu: int | None = None
    subnets: tuple[SubnetDocument, ...] = ()
    ports: int = 0


class PortDocument(Document, frozen=True, kw_only=True):
    """The port of a pod. `node` is as Kubernetes has it, `host` as Neutron has it.

    `namespace` and `pod` are null where only the port is left: `description` is what was written there.
    """

    state: PortState
    namespace: str | None = None
    pod: str | None = None
    node: str | None = None
    id: str | None = None
    addresses: tuple[str, ...] = ()
    mac: str | None = None
    host: str | None = None
    description: str = ""


class MemberDocument(Document, frozen=True, kw_only=True):
    """Where a listener's connections go."""

    address: str
    port: int


class ListenerDocument(Document, frozen=True, kw_only=True):
    """A port of a Service. `members` are the first of `member_count`."""

    protocol: str
    port: int
    member_count: int
    members: tuple[MemberDocument, ...] = ()


class LoadBalancerDocument(Document, frozen=True, kw_only=True):
    """At one cluster IP, with its status as it was last looked at.

    `listeners` are those that it is to have; it has them where `as_planned`.
    """

    id: str
    vip: str
    provider: str
    provisioning_status: str
    as_planned: bool
    listeners: tuple[ListenerDocument, ...] = ()


class ServiceDocument(Document, frozen=True, kw_only=True):
    """A Service that has load balancers, or is to have them. `namespace` is null where only they are left."""

    namespace: str | None = None
    name: str
    type: str = ""
    state: ServiceState
    floating_ip: str | None = None
    load_balancers: tuple[LoadBalancerDocument, ...] = ()


class CallDocument(Document, frozen=True, kw_only=True):
    """The calls of one name. `mean_seconds` is how long one took, with its wait for its turn."""

    call: str
    count: int
    errors: int
    mean_seconds: float


class CallErrorDocument(Document, frozen=True, kw_only=True):
    at: datetime
    call: str
    code: str
    message: str


class CallsDocument(Document, frozen=True, kw_only=True):
    """This replica's calls to OpenStack in the last `span_seconds`: the most frequent first, the newest error first.

    `paused_seconds` is for how long none is made, as OpenStack has refused one for too many; 0 outside of a pause.
    """

    span_seconds: float
    count: int
    per_second: float
    errors: int
    paused_seconds: float
    by_call: tuple[CallDocument, ...] = ()
    last_errors: tuple[CallErrorDocument, ...] = ()


class EventDocument(Document, frozen=True, kw_only=True):
    """Something that this replica has told about an object, `count` times; the last time at `at`."""

    at: datetime
    count: int
    type: str
    kind: str
    namespace: str
    name: str
    reason: str
    message: str


class NeutronDocument(Document, frozen=True, kw_only=True):
    """As `replica` knows it. `leads` is whether it is the one that works, `leader` which one that is, null if unknown.

    `services` is null without load balancers. `port_counts` counts all pods by their state. `left_out` has how many
    entries are missing, by the name of the list: each has so many at most that the document stays readable.
    """

    replica: str
    leads: bool
    leader: str | None
    at: datetime
    cluster: str
    supernets: tuple[SupernetDocument, ...] = ()
    networks: tuple[NetworkDocument, ...] = ()
    ports: tuple[PortDocument, ...] = ()
    port_counts: dict[str, int] = msgspec.field(default_factory=dict)
    services: tuple[ServiceDocument, ...] | None = None
    left_out: dict[str, int] = msgspec.field(default_factory=dict)
    calls: CallsDocument
    events: tuple[EventDocument, ...] = ()
