"""kubectl coil: how long it takes to begin, and to tell the state of a cluster of 2 000 nodes, each in a new process.

kubectl beside it lists the same kinds as JSON, and judges nothing.
"""

import asyncio
import json
import subprocess
import sys
import tempfile
from collections.abc import Collection, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from coil.crd.names import PoolName
from integration.bench.figure import Figure, Reading
from integration.bench.ipam_stage import open_stage
from integration.bench.part import Part
from integration.bench.sample import median, spread
from integration.cluster.control_plane import ControlPlane, find_kubectl

START = Figure("cli.start_ms", "ms", peer="kubectl --help")
SECONDS = Figure("cli.status_2000.seconds", "s", peer="kubectl get of the same kinds")
RSS = Figure("cli.status_2000.rss_mb", "MB", peer="kubectl get of the same kinds")

_NODES: Final = 2000
_BLOCKS: Final = 4000
_STARTS: Final = 20
_RUNS: Final = 5
_SECONDS: Final = 120.0
_POOL: Final = PoolName("default")
_KINDS: Final = (
    *("nodes", "addresspools", "addressblocks", "blockrequests", "egresses", "deployments", "daemonsets"),
    *("egressgateways.egressgateway.spidernet.io", "egressgatewaypolicies.egressgateway.spidernet.io"),
)
_OURS: Final = (sys.executable, "-m", "kubectl_coil")


@dataclass(frozen=True, slots=True)
class _Run:
    """Of one process, to its end."""

    seconds: float
    rss_mb: float
    code: int


def measure_start(_wanted: Collection[Figure]) -> Iterator[Reading]:
    """In alternation; the first run of each only fills the page cache."""
    kubectl = find_kubectl()
    ours, peer = [], []
    for number in range(_STARTS + 1):
        one, other = _run([*_OURS, "--help"]), _run([kubectl, "--help"])
        if number:
            ours.append(1000 * one.seconds)
            peer.append(1000 * other.seconds)
    yield Reading(
        figure=START,
        value=median(ours),
        peer_value=median(peer),
        runs=_STARTS,
        note=f"--help, exec to exit; runs {spread(ours)} against {spread(peer)}",
    )


def measure_status(_wanted: Collection[Figure]) -> Iterator[Reading]:
    ours, peer = asyncio.run(_take_rounds())
    size = f"{_NODES} nodes, {_BLOCKS} blocks, {_NODES} requests, no program of Coil"
    for figure, values, theirs in (
        (SECONDS, [run.seconds for run in ours], [run.seconds for run in peer]),
        (RSS, [run.rss_mb for run in ours], [run.rss_mb for run in peer]),
    ):
        note = f"{size}; runs {spread(values)} against {spread(theirs)}"
        yield Reading(figure=figure, value=median(values), peer_value=median(theirs), runs=len(ours), note=note)


async def _take_rounds() -> tuple[list[_Run], list[_Run]]:
    async with open_stage(nodes=_NODES) as stage:
        pool = await stage.add_pool(_POOL, "10.0.0.0/8")
        await stage.add_old_blocks(pool, _BLOCKS)
        await stage.add_requests(_POOL)
        return await asyncio.to_thread(_alternate, stage.plane)


def _alternate(plane: ControlPlane) -> tuple[list[_Run], list[_Run]]:
    where = f"--kubeconfig={plane.admin_kubeconfig}"
    ours, peer = [], []
    for _ in range(_RUNS):
        ours.append(_run([*_OURS, "status", "--output=json", where]))
        peer.append(_run([find_kubectl(), "get", ",".join(_KINDS), "--all-namespaces", "--output=json", where]))
    if {run.code for run in ours} != {1} or {run.code for run in peer} != {0}:
        # Without a program of Coil the cluster is degraded.
        raise RuntimeError(f"exit codes {[run.code for run in ours]} and {[run.code for run in peer]}")
    return ours, peer


_LAUNCHER: Final = """
import json, os, sys, time
began = time.perf_counter()
pid = os.posix_spawn(sys.argv[1], sys.argv[1:], os.environ)
_, status, usage = os.wait4(pid, 0)
seconds = time.perf_counter() - began
json.dump([seconds, usage.ru_maxrss, os.waitstatus_to_exitcode(status)], sys.stderr)
"""
"""A small process that starts the command: to begin with, a process has as its maximum that of the one that made it."""


def _run(command: Sequence[str | Path]) -> _Run:
    quiet = ["/bin/sh", "-c", 'exec "$@" 2> /dev/null', "sh", *command]
    launcher = [sys.executable, "-IS", "-c", _LAUNCHER, *quiet]
    with tempfile.TemporaryFile() as output:
        done = subprocess.run(launcher, stdout=output, stderr=subprocess.PIPE, timeout=_SECONDS, check=True)
    seconds, kilobytes, code = json.loads(done.stderr)
    return _Run(seconds, kilobytes / 1024, code)


PARTS = (Part("cli.start", (START,), measure_start), Part("cli.status", (SECONDS, RSS), measure_status))
