"""The informer's figures: a list of 10 000 pods, and a long watch, each time in a fresh process."""

import json
import subprocess
import sys
from collections.abc import Collection, Iterator

from integration.bench.figure import Better, Figure, Reading
from integration.bench.part import Part
from integration.bench.pod_server import serving_pods
from integration.bench.sample import median, spread

SECONDS = Figure("informer.list_10k_pods.seconds", "s", peer="json.loads of the same bytes")
RSS = Figure("informer.list_10k_pods.rss_mb", "MB")
STALL = Figure("informer.list_10k_pods.stall_ms", "ms")
WATCHLIST_SECONDS = Figure("informer.watchlist_10k_pods.seconds", "s", peer="the list in pages")
WATCHLIST_RSS = Figure("informer.watchlist_10k_pods.rss_mb", "MB", peer="the list in pages")
WATCHLIST_STALL = Figure("informer.watchlist_10k_pods.stall_ms", "ms", peer="the list in pages")
EVENTS = Figure("informer.events_per_s", "1/s", Better.HIGHER)

_PODS = 10_000
_EVENTS = 100_000
_LIST_RUNS = 7
_EVENT_RUNS = 3
_PROBE_SECONDS = 180


def measure_list(_wanted: Collection[Figure]) -> Iterator[Reading]:
    """We and the peer in alternation, so that both see the same machine."""
    ours: list[dict[str, float]] = []
    peer: list[dict[str, float]] = []
    with serving_pods(pods=_PODS) as url:
        for _ in range(_LIST_RUNS):
            ours.append(_probe("list", url, str(_PODS)))
            peer.append(_probe("loads", url))
    seconds = [run["seconds"] for run in ours]
    held = [run["rss_mb"] for run in ours]
    stalls = [run["stall_ms"] for run in ours]
    size = f"{_PODS} pods, {peer[0]['megabytes']:.1f} MB of JSON"
    yield Reading(
        figure=SECONDS,
        value=median(seconds),
        peer_value=median(run["seconds"] for run in peer),
        runs=len(ours),
        note=f"start of run() to synced over HTTP, {size}; runs {spread(seconds)}; the peer decodes only, from memory",
    )
    peak = median(run["peak_mb"] for run in ours)
    yield Reading(
        figure=RSS,
        value=median(held),
        runs=len(ours),
        note=f"VmRSS added once synced, after gc; the peak on the way there added {peak:.1f} MB; runs {spread(held)}",
    )
    yield Reading(
        figure=STALL,
        value=median(stalls),
        runs=len(ours),
        note=f"longest delay of a task that wakes every ms, from start to synced; runs {spread(stalls)}",
    )


def measure_watchlist(_wanted: Collection[Figure]) -> Iterator[Reading]:
    """Streamed and in pages, in alternation."""
    runs: dict[str, list[dict[str, float]]] = {"stream": [], "list": []}
    with serving_pods(pods=_PODS) as url:
        for _ in range(_LIST_RUNS):
            for how, taken in runs.items():
                taken.append(_probe(how, url, str(_PODS)))
    peaks = [median(run["peak_mb"] for run in taken) for taken in runs.values()]
    notes = {
        "seconds": "start of run() to synced over HTTP",
        "rss_mb": f"VmRSS added once synced, after gc; peak {peaks[0]:.1f} MB, of the peer {peaks[1]:.1f} MB",
        "stall_ms": "longest delay of a task that wakes every ms, from start to synced",
    }
    for figure in (WATCHLIST_SECONDS, WATCHLIST_RSS, WATCHLIST_STALL):
        what = figure.name.rpartition(".")[2]
        yield Reading(
            figure=figure,
            value=median(run[what] for run in runs["stream"]),
            peer_value=median(run[what] for run in runs["list"]),
            runs=_LIST_RUNS,
            note=f"{_PODS} pods; {notes[what]}; runs {spread([run[what] for run in runs['stream']])}",
        )


def measure_events(_wanted: Collection[Figure]) -> Iterator[Reading]:
    """The watch as fast as the informer takes it, every event handed to one listener."""
    with serving_pods(pods=_PODS, events=_EVENTS) as url:
        runs = [_probe("events", url, str(_PODS), str(_EVENTS)) for _ in range(_EVENT_RUNS)]
    rates = [run["per_s"] for run in runs]
    stall = max(run["stall_ms"] for run in runs)
    yield Reading(
        figure=EVENTS,
        value=median(rates),
        runs=len(runs),
        note=f"{_EVENTS} events of about 3.5 KB each, {_PODS} pods cached; runs {spread(rates)}; "
        f"longest stall of the loop in any run {stall:.1f} ms",
    )


def _probe(*arguments: str) -> dict[str, float]:
    """Run the probe in a new interpreter. Raises RuntimeError with the end of its complaint."""
    command = [sys.executable, "-m", "integration.bench.informer_probe", *arguments]
    done = subprocess.run(command, capture_output=True, text=True, timeout=_PROBE_SECONDS, check=False)
    if done.returncode:
        complaint = done.stderr.strip().splitlines() or ["it said nothing"]
        raise RuntimeError(f"the probe {arguments[0]} ended with code {done.returncode}: {complaint[-1]}")
    result: dict[str, float] = json.loads(done.stdout)
    return result


PARTS = (
    Part("informer.list", (SECONDS, RSS, STALL), measure_list),
    Part("informer.watchlist", (WATCHLIST_SECONDS, WATCHLIST_RSS, WATCHLIST_STALL), measure_watchlist),
    Part("informer.events", (EVENTS,), measure_events),
)
