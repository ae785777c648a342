"""Whose packets go another way than before, and what that means for their connections.

Place in the flow: `coil.eip.data_plane` writes down the ways, and the node's agent holds the connections of its own
pods, as the kernel knows them, against what has changed.

Two things do not follow by themselves when packets of a connection go another way. The new gateway knows a TCP
connection only when it sees a packet from the pod, and a pod that merely listens sends none. And a node that has
carried a connection itself, or is about to, has settled long ago how it is translated: kept, that would not fit the new
way.
"""

from bisect import bisect_right
from collections.abc import Hashable, Mapping, Sequence
from dataclasses import dataclass, field
from enum import Enum
from typing import Generic, TypeAlias, TypeVar

from coil.eip.classification import Destinations, is_in
from coil.eip.eip_set import ANY_NODE, CLOSED, HERE
from coil.eip.source_index import SourceNumber, source_number
from coil.kernel.family import Family, IPAddress
from coil.kernel.flow import TCP, Flow
from coil.kernel.interval import Span

K = TypeVar("K", bound=Hashable)


class Remedy(Enum):
    """What a connection needs."""

    NONE = "none"
    PROBE = "probe"
    """The pod is to send something."""
    FORGET = "forget"
    """The node is to forget how it is translated."""
    BOTH = "both"
    """First forget, then probe."""


@dataclass(frozen=True, slots=True)
class PolicyPath:
    """What a policy is for, and its way as a mark; `OPEN` where its packets are left alone."""

    destinations: Destinations
    path: int


ClassPaths: TypeAlias = tuple[PolicyPath, ...]
"""Of the policies of one class, in their order: the first decides that has the destination."""


@dataclass(frozen=True, slots=True, kw_only=True)
class PathChanges:
    """Sources whose ways are other ones than before, with those of now; None: they are as they were. Ranges of sources
    (sorted and disjoint) hold for sources that are not named.
    """

    sources: Mapping[SourceNumber, ClassPaths | None] = field(default_factory=dict)
    ranges: Mapping[Family, Sequence[tuple[Span, ClassPaths]]] = field(default_factory=dict)
    cluster: Mapping[Family, Sequence[Span]] = field(default_factory=dict)

    def __bool__(self) -> bool:
        return any(paths is not None for paths in self.sources.values()) or any(self.ranges.values())

    def concerns(self, source: IPAddress) -> bool:
        """Whether its ways have changed. Quick, as it is asked of every connection of the node."""
        return self._paths(source) is not None

    def remedy(self, flow: Flow) -> Remedy:
        """What the connection needs now, if the ways of its source have changed.

        What came through the tunnel is the business of the node that it came from.
        """
        path = None if is_node_mark(flow.mark) else self.path(flow.source.address, flow.target.address)
        if path is None or not is_node_mark(path) or path == CLOSED:
            return Remedy.NONE
        fits = (flow.seen.address == flow.source.address) is (path != HERE)
        speaks = flow.protocol == TCP and flow.established
        if fits:
            return Remedy.PROBE if speaks else Remedy.NONE
        return Remedy.BOTH if speaks else Remedy.FORGET

    def path(self, source: IPAddress, destination: IPAddress) -> int | None:
        """The mark of what goes from there to there; None if the ways of the source have not changed, or if such a
        packet is left alone.
        """
        paths = self._paths(source)
        if paths is None:
            return None
        number = int(destination)
        in_cluster = is_in(self.cluster.get(Family.of(source), ()), number)
        return next((each.path for each in paths if each.destinations.has(number, in_cluster=in_cluster)), None)

    def _paths(self, source: IPAddress) -> ClassPaths | None:
        number = source_number(source)
        if number in self.sources:
            return self.sources[number]
        ranges = self.ranges.get(Family.of(source))
        return _find(ranges, int(source)) if ranges else None


class PathLog(Generic[K]):
    """Writes down the ways of classes, and which sources they are of, from one `take` to the next. At the first one
    everything has moved, as nobody knows what was before.
    """

    def __init__(self) -> None:
        self._paths: dict[K, ClassPaths] = {}
        self._moved: set[K] = set()
        self._former: dict[SourceNumber, ClassPaths] = {}
        self._begun = False

    def write(self, key: K, paths: ClassPaths) -> None:
        """The ways of a class, from now on."""
        if self._paths.get(key) != paths if key in self._paths else not self._begun:
            self._moved.add(key)
        self._paths[key] = paths

    def forget(self, key: K) -> None:
        """Nobody is of that class any more."""
        self._paths.pop(key, None)
        self._moved.discard(key)

    def leave(self, source: SourceNumber, key: K) -> None:
        """The source was of that class, whose ways are still those of then."""
        if key in self._paths:
            self._former.setdefault(source, self._paths[key])

    def take(
        self,
        sources: Mapping[SourceNumber, K],
        ranges: Mapping[Family, Mapping[Span, K]],
        cluster: Mapping[Family, Sequence[Span]],
    ) -> PathChanges:
        """What has changed since the last call. `sources` and `ranges` are all there are, with their classes."""
        moved, self._moved, self._begun = self._moved, set(), True
        former, self._former = self._former, {}
        found: dict[SourceNumber, ClassPaths | None] = {}
        for source, paths in former.items():
            if source in sources and self._paths[sources[source]] != paths:
                found[source] = self._paths[sources[source]]
        moved_ranges = {
            family: tuple(sorted((span, self._paths[key]) for span, key in spans.items() if key in moved))
            for family, spans in ranges.items()
        }
        if moved:
            any_range = any(moved_ranges.values())
            for source, key in sources.items():
                if key in moved:
                    found[source] = self._paths[key]
                elif any_range:
                    found.setdefault(source, None)
        return PathChanges(
            sources=found, ranges=moved_ranges, cluster={family: tuple(spans) for family, spans in cluster.items()}
        )


def is_node_mark(mark: int) -> bool:
    """Whether it is a way: a node's, `HERE` or `CLOSED`."""
    return mark >> (32 - ANY_NODE.length) == ANY_NODE.value >> (32 - ANY_NODE.length)


V = TypeVar("V")


def _find(entries: Sequence[tuple[Span, V]], number: int) -> V | None:
    position = bisect_right(entries, number, key=lambda entry: entry[0][0]) - 1
    return entries[position][1] if position >= 0 and number <= entries[position][0][1] else None
