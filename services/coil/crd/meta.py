"""The metadata fields that the suite reads, as msgspec structs: unknown fields are skipped while decoding.

Structs are frozen: an object in a cache is a fact that was observed, never a scratch pad. (`frozen` and
`kw_only` are repeated on each class because type checkers, unlike msgspec, do not inherit them.)
"""

from datetime import datetime

import msgspec


class Struct(msgspec.Struct, frozen=True, rename="camel", omit_defaults=True):
    """The base of everything that is decoded from, or encoded for, the API server."""


class OwnerReference(Struct, frozen=True, kw_only=True):
    api_version: str
    kind: str
    name: str
    uid: str
    controller: bool = False
    block_owner_deletion: bool = False


class ObjectMeta(Struct, frozen=True, kw_only=True):
    name: str = ""
    namespace: str = ""
    uid: str = ""
    resource_version: str = ""
    generation: int = 0
    labels: dict[str, str] = {}
    annotations: dict[str, str] = {}
    finalizers: tuple[str, ...] = ()
    owner_references: tuple[OwnerReference, ...] = ()
    creation_timestamp: datetime | None = None
    deletion_timestamp: datetime | None = None

    @property
    def deleting(self) -> bool:
        """True once a deletion was asked for: only finalizers keep the object."""
        return self.deletion_timestamp is not None


class Condition(Struct, frozen=True, kw_only=True):
    """The usual condition. `status` is "True", "False" or "Unknown"."""

    type: str
    status: str
    reason: str = ""
    message: str = ""
    last_probe_time: datetime | None = None
    last_transition_time: datetime | None = None
