"""The CNI figures: pods per second, latency and CPU of ADD and DEL, against `ptp` and `bridge` in alternation.

Each figure is there twice, with the same value of ours: against `ptp`, and with the suffix `.bridge` against that.
"""

from collections.abc import Collection, Iterator
from contextlib import ExitStack
from dataclasses import dataclass, field

from integration.bench.cni_run import Command, Run, Summary, summarise_runs, take_run
from integration.bench.cni_side import BRIDGE_NAME, PEER_NAME, BridgeSide, PeerSide, Side
from integration.bench.coil_side import CoilSide
from integration.bench.figure import Better, Figure, Reading
from integration.bench.part import Part
from integration.bench.plugin_exec import PluginError
from integration.bench.pod_namespace import PodNamespaces, pod_namespaces
from integration.bench.room import require_room

_NAMESPACES = 64
_RUNS = 7
_CPU_WIDTH = 8
_PEERS = {PEER_NAME: "", BRIDGE_NAME: ".bridge"}
"""By name, what the names of the figures against it end with."""


@dataclass(frozen=True, slots=True)
class _Aspect:
    """Where a figure's value comes from: a field of the summary of one command at one width; and whose is the other."""

    command: Command
    width: int
    field: str
    peer: str


def _figure(aspect: _Aspect) -> Figure:
    better, unit = (Better.HIGHER, "1/s") if aspect.field == "per_s" else (Better.LOWER, "ms")
    suffix = "" if aspect.field == "cpu_ms" else f".par{aspect.width}"
    suffix += _PEERS[aspect.peer]
    return Figure(f"cni.{aspect.command.lower()}.{aspect.field}{suffix}", unit, better, aspect.peer)


_ASPECTS = {
    _figure(aspect): aspect
    for peer in _PEERS
    for aspect in (
        *(_Aspect(Command.ADD, width, field, peer) for field in ("p50_ms", "p99_ms", "per_s") for width in (1, 8, 32)),
        *(_Aspect(Command.DEL, width, "p50_ms", peer) for width in (1, 8, 32)),
        *(_Aspect(Command.DEL, width, "per_s", peer) for width in (8, 32)),
        *(_Aspect(command, _CPU_WIDTH, "cpu_ms", peer) for command in Command),
    )
}


@dataclass(slots=True)
class _Contestant:
    """A side, what it has achieved at the present width, and, once it has failed, why."""

    side: Side
    failure: str = ""
    runs: dict[Command, list[Run]] = field(default_factory=dict)

    def enter(self, stack: ExitStack) -> None:
        try:
            stack.enter_context(self.side)
        except Exception as error:
            self.failure = f"{self.side.name} did not start: {error}"

    def compete(self, namespaces: PodNamespaces, *, width: int) -> None:
        """One counted run, unless this side has failed before."""
        if self.failure:
            return
        try:
            for command, run in take_run(self.side, namespaces, width=width).items():
                self.runs.setdefault(command, []).append(run)
        except PluginError as error:
            self.failure = f"{self.side.name} with {width} at a time: {error}"
            namespaces.renew()

    def summary(self, command: Command) -> Summary | None:
        return None if self.failure else summarise_runs(self.runs.get(command, ()))


def measure_cni(wanted: Collection[Figure]) -> Iterator[Reading]:
    """Each width in turn: one run each to warm up, then runs of ours and the peers' in alternation.

    A side that fails is left out from there on, and the others are still measured.
    """
    require_room()
    aspects = {figure: aspect for figure, aspect in _ASPECTS.items() if figure in wanted}
    with ExitStack() as stack:
        namespaces = stack.enter_context(pod_namespaces(_NAMESPACES))
        ours = _Contestant(CoilSide())
        peers = {side.name: _Contestant(side) for side in (PeerSide(), BridgeSide())}
        for contestant in (ours, *peers.values()):
            contestant.enter(stack)
        for width in sorted({aspect.width for aspect in aspects.values()}):
            _take_runs((ours, *peers.values()), namespaces, width=width)
            for figure, aspect in aspects.items():
                if aspect.width == width:
                    yield _reading(figure, aspect, ours=ours, peer=peers[aspect.peer])


def _take_runs(contestants: Collection[_Contestant], namespaces: PodNamespaces, *, width: int) -> None:
    for contestant in contestants:
        contestant.compete(namespaces, width=width)
    for contestant in contestants:
        contestant.runs.clear()  # that was to warm up
    for _ in range(_RUNS):
        for contestant in contestants:
            contestant.compete(namespaces, width=width)


def _reading(figure: Figure, aspect: _Aspect, *, ours: _Contestant, peer: _Contestant) -> Reading:
    note = f"runs of {_NAMESPACES} pods, IPv4, exec to exit"
    if aspect.field == "cpu_ms":
        note += f", {aspect.width} at a time; plugin and its children, and coild; means in ms: "
        note += ", against ".join(
            f"{contestant.side.name}: {summary.shares}"
            for contestant in (ours, peer)
            if (summary := contestant.summary(aspect.command)) is not None
        )
    return Reading(
        figure=figure,
        value=_value(ours, aspect),
        peer_value=_value(peer, aspect),
        runs=0 if ours.failure else len(ours.runs[aspect.command]),
        note="; ".join(filter(None, (ours.failure, peer.failure, note))),
    )


def _value(contestant: _Contestant, aspect: _Aspect) -> float | None:
    summary = contestant.summary(aspect.command)
    return None if summary is None else float(getattr(summary, aspect.field))


PART = Part("cni", tuple(_ASPECTS), measure_cni)
