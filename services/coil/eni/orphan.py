"""Interfaces that were made for a node of the cluster and belong to none any more.

A node makes an interface in several calls, and EC2 deletes one with its instance only after the third of them. An
instance that ends in between, or a call whose answer nobody heard, leaves an interface that takes addresses of its
subnet for good. Pure: which of those that EC2 has found are orphans; clocks are arguments.

An interface is one if all of it holds:
* it has this cluster's tag, and the tag that says when it was made. What lacks one of them is somebody else's, or was
  not made by a node; and nobody has asked by a tag that it be left alone;
* it was made more than `ORPHAN_SECONDS` ago, by the wall clock;
* for as long it has been unattached at each look, by the observer's own monotonic clock: one that a node is about to
  attach again after a pause is not taken from it because its tag is old, and a wall clock that jumps deletes nothing.
"""

from collections.abc import Collection, Mapping
from dataclasses import dataclass
from datetime import datetime
from typing import Final

from coil.eni.interface import InterfaceId
from coil.eni.tag import CLUSTER_TAG, CREATED_TAG, is_managed, parse_created

ORPHAN_SECONDS: Final = 300.0
UNATTACHED: Final = "available"
"""EC2's word for the status of an interface that is attached to nothing, nor being so."""


@dataclass(frozen=True, slots=True, kw_only=True)
class FoundInterface:
    """What a look at EC2 says of an interface."""

    id: InterfaceId
    status: str
    tags: Mapping[str, str]


def may_be_orphan(found: FoundInterface, cluster: str) -> bool:
    """Whether it is this cluster's, made by a node, and attached to nothing."""
    ours = bool(cluster) and found.tags.get(CLUSTER_TAG) == cluster and is_managed(found.tags)
    return ours and found.status == UNATTACHED and parse_created(found.tags.get(CREATED_TAG, "")) is not None


class OrphanWatch:
    """What one observer has seen of a cluster's unattached interfaces. Begins with nothing, as an observer does."""

    def __init__(self, cluster: str) -> None:
        self._cluster = cluster
        self._since: dict[InterfaceId, float] = {}
        self._refusals: dict[InterfaceId, int] = {}

    @property
    def unattached(self) -> int:
        """How many were so at the last look, orphans or not yet."""
        return len(self._since)

    def observe(self, found: Collection[FoundInterface], *, clock: float, now: datetime) -> list[InterfaceId]:
        """Take note of a whole look; returns the orphans, those first that were refused least, and seen first.

        `clock` is monotonic seconds, the same clock each time, and `now` the wall clock with its zone.
        """
        unattached = {each.id: each for each in found if may_be_orphan(each, self._cluster)}
        self._since = {each: self._since.get(each, clock) for each in unattached}
        self._refusals = {each: count for each, count in self._refusals.items() if each in unattached}
        due = [
            each
            for each, since in self._since.items()
            if clock - since >= ORPHAN_SECONDS and _old(unattached[each], now)
        ]
        return sorted(due, key=lambda each: (self._refusals.get(each, 0), self._since[each], each))

    def note_refusal(self, interface: InterfaceId) -> None:
        """It could not be deleted; the others come before it, however many there are like it."""
        self._refusals[interface] = self._refusals.get(interface, 0) + 1

    def forget(self, interface: InterfaceId) -> None:
        """It is gone, or somebody has it again."""
        self._since.pop(interface, None)
        self._refusals.pop(interface, None)


def _old(found: FoundInterface, now: datetime) -> bool:
    created = parse_created(found.tags.get(CREATED_TAG, ""))
    return created is not None and (now - created).total_seconds() > ORPHAN_SECONDS
