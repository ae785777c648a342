"""Event (core/v1): a sentence for people about one object, shown by `kubectl describe` and kept for an hour or so.

Of the two served forms this is the one that every tool reads, `count` and timestamps included. The API server
wants an Event in the namespace of its object, and one about an object without a namespace in `default`.
"""

from datetime import datetime
from enum import StrEnum

from coil.crd.meta import ObjectMeta, Struct
from coil.crd.resource import Resource

CLUSTER_EVENT_NAMESPACE = "default"
"""Where Events about objects without a namespace are kept."""

MESSAGE_BYTES = 1024
"""The API's limit on a message."""


class EventType(StrEnum):
    NORMAL = "Normal"
    WARNING = "Warning"


class ObjectReference(Struct, frozen=True, kw_only=True):
    """Which object it is about. Without a `uid` it is the object of that name, whichever life of it."""

    api_version: str
    kind: str
    name: str
    namespace: str = ""
    uid: str = ""


class EventSource(Struct, frozen=True, kw_only=True):
    component: str = ""
    host: str = ""


class Event(Struct, frozen=True, kw_only=True):
    """`reason` is one CamelCase word for machines. `count` occurrences, from the first to the last timestamp.

    Source and reporting component say the same: older tools read the one, newer ones the other.
    """

    metadata: ObjectMeta
    involved_object: ObjectReference
    type: str
    reason: str = ""
    message: str = ""
    source: EventSource = EventSource()
    first_timestamp: datetime | None = None
    last_timestamp: datetime | None = None
    count: int = 0
    reporting_component: str = ""
    reporting_instance: str = ""


EVENTS: Resource[Event] = Resource("", "v1", "events", "Event", namespaced=True, type=Event)
