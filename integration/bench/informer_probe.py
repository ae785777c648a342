"""The measured side of the informer figures: run as a fresh process, it prints one JSON object and ends.

    python -m integration.bench.informer_probe list   URL   PODS            → seconds, rss_mb, peak_mb, stall_ms
    python -m integration.bench.informer_probe stream URL   PODS            → the same
    python -m integration.bench.informer_probe events URL   PODS   EVENTS   → per_s, stall_ms
    python -m integration.bench.informer_probe loads  URL                   → seconds, megabytes

All but the last are the real `KubeClient` and `Informer` against a `pod_server`; `list` reads it in pages, `stream` by
a watch. `loads` is the peer, json.loads of the bytes that the same server sends for the same pages. Memory is what was
added since just before the informer ran: `rss_mb` what is held once it is synced and the garbage collected, `peak_mb`
the most that was held on the way.
"""

import asyncio
import gc
import json
import sys
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any
from urllib.parse import quote
from urllib.request import urlopen

import structlog
from prometheus_client import CollectorRegistry
from structlog import make_filtering_bound_logger

from coil.crd.builtin import PODS, Pod
from coil.kube.client import KubeClient
from coil.reconcile.informer import Informer, InformerMetrics
from integration.bench.stall import StallProbe

_PATIENCE_SECONDS = 120
_PAGE = 500
_MEGABYTE = 1 << 20


async def probe_list(url: str, pods: int, *, streamed: bool) -> dict[str, float]:
    """From the start of `run()` until the informer says that it is synced."""
    async with _client(url) as client:
        informer = _informer(client, streamed=streamed)
        gc.collect()
        _reset_peak()
        before = _status_kilobytes("VmRSS")
        async with StallProbe() as stall:
            started = time.perf_counter()
            running = asyncio.create_task(informer.run())
            await informer.wait_synced(_PATIENCE_SECONDS)
            seconds = time.perf_counter() - started
        peak = _status_kilobytes("VmHWM")
        gc.collect()
        after = _status_kilobytes("VmRSS")
        _expect(len(informer.items()), pods)
        await _end(running)
    return {
        "seconds": seconds,
        "rss_mb": (after - before) / 1024,
        "peak_mb": (peak - before) / 1024,
        "stall_ms": stall.longest_ms,
    }


async def probe_events(url: str, pods: int, events: int) -> dict[str, float]:
    """From the first event that reaches a listener to the last one."""
    tally = _Tally(skip=pods, events=events)
    async with _client(url) as client:
        informer = _informer(client)
        informer.subscribe(tally.count)
        running = asyncio.create_task(informer.run())
        await informer.wait_synced(_PATIENCE_SECONDS)
        async with StallProbe() as stall:
            await asyncio.wait_for(tally.done.wait(), _PATIENCE_SECONDS)
        await _end(running)
    return {"per_s": (events - 1) / (tally.last - tally.first), "stall_ms": stall.longest_ms}


class _Tally:
    """A listener that takes the time of the first and the last event after the `skip` objects of the list."""

    def __init__(self, *, skip: int, events: int) -> None:
        self.first = self.last = 0.0
        self.done = asyncio.Event()
        self._opening = skip + 1
        self._closing = skip + events
        self._told = 0

    def count(self, _old: Pod | None, _new: Pod | None) -> None:
        self._told += 1
        if self._told == self._opening:
            self.first = time.perf_counter()
        if self._told == self._closing:
            self.last = time.perf_counter()
            self.done.set()


def probe_loads(url: str) -> dict[str, float]:
    """The peer: the standard library's decoder on the same bytes, already in memory, page by page."""
    pages: list[bytes] = []
    token = ""
    while not pages or token:
        with urlopen(f"{url}/api/v1/pods?limit={_PAGE}&continue={quote(token)}", timeout=60) as answer:  # noqa: S310
            pages.append(answer.read())
        token = json.loads(pages[-1])["metadata"].get("continue", "")
    gc.collect()
    started = time.perf_counter()
    documents = [json.loads(page) for page in pages]
    seconds = time.perf_counter() - started
    del documents
    return {"seconds": seconds, "megabytes": sum(map(len, pages)) / _MEGABYTE}


def _informer(client: KubeClient, *, streamed: bool = True) -> Informer[Pod]:
    """As a process makes it; only the log does not go to standard output, which is for the result."""
    pods = client.collection(PODS)
    pods.streams_lists = streamed
    log = structlog.wrap_logger(structlog.WriteLogger(sys.stderr), wrapper_class=make_filtering_bound_logger("info"))
    return Informer(pods, log=log, metrics=InformerMetrics(CollectorRegistry()))


@asynccontextmanager
async def _client(url: str) -> AsyncIterator[KubeClient]:
    """A client for a server without TLS or credentials, from a kubeconfig as any other."""
    kubeconfig = {
        "apiVersion": "v1",
        "kind": "Config",
        "clusters": [{"name": "bench", "cluster": {"server": url}}],
        "users": [{"name": "bench", "user": {}}],
        "contexts": [{"name": "bench", "context": {"cluster": "bench", "user": "bench"}}],
        "current-context": "bench",
    }
    with TemporaryDirectory(prefix="coil-bench-") as folder:
        path = Path(folder, "kubeconfig")
        path.write_text(json.dumps(kubeconfig), encoding="utf-8")
        async with KubeClient.connect(path) as client:
            yield client


def _reset_peak() -> None:
    """Make VmHWM start from here (proc(5), clear_refs)."""
    Path("/proc/self/clear_refs").write_text("5", encoding="ascii")


def _status_kilobytes(field: str) -> int:
    for line in Path("/proc/self/status").read_text(encoding="ascii").splitlines():
        if line.startswith(f"{field}:"):
            return int(line.split()[1])
    raise LookupError(f"/proc/self/status has no {field}")


def _expect(found: int, wanted: int) -> None:
    if found != wanted:
        raise RuntimeError(f"the informer holds {found} pods instead of {wanted}")


async def _end(task: "asyncio.Task[Any]") -> None:
    """Cancel an informer that is still running; one that has failed says so here."""
    if task.done():
        task.result()
    task.cancel()
    await asyncio.wait([task])


def main(arguments: list[str]) -> None:
    match arguments:
        case ["list", url, pods]:
            result = asyncio.run(probe_list(url, int(pods), streamed=False))
        case ["stream", url, pods]:
            result = asyncio.run(probe_list(url, int(pods), streamed=True))
        case ["events", url, pods, events]:
            result = asyncio.run(probe_events(url, int(pods), int(events)))
        case ["loads", url]:
            result = probe_loads(url)
        case _:
            raise SystemExit(__doc__)
    print(json.dumps(result))


if __name__ == "__main__":
    main(sys.argv[1:])
