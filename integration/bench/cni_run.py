"""One run of the CNI figures: every pod namespace gets ADD, then every one gets DEL, `width` at a time."""

import time
from collections.abc import Sequence
from dataclasses import dataclass
from enum import StrEnum
from itertools import count

from integration.bench.cni_side import Side, pod_operations
from integration.bench.plugin_exec import execute_plugins
from integration.bench.pod_namespace import PodNamespaces
from integration.bench.sample import median, percentile

_serials = count(1)


class Command(StrEnum):
    ADD = "ADD"
    DEL = "DEL"


@dataclass(frozen=True, slots=True, kw_only=True)
class Run:
    """One command once in each namespace. `cpu_ms` is for the whole run, plugins and daemon together."""

    latencies_ms: tuple[float, ...]
    seconds: float
    cpu_ms: float


@dataclass(frozen=True, slots=True, kw_only=True)
class Summary:
    """Medians over the runs, but `p99_ms`, which is over all operations. `cpu_ms` is per operation."""

    p50_ms: float
    p99_ms: float
    per_s: float
    cpu_ms: float


def take_run(side: Side, namespaces: PodNamespaces, *, width: int) -> dict[Command, Run]:
    """ADD and DEL once in each namespace, which is empty before and after.

    Raises PluginError when an operation fails; the namespaces must then be renewed.
    """
    serial = next(_serials)
    runs: dict[Command, Run] = {}
    for command in Command:
        operations = pod_operations(side, command.value, netns=namespaces.paths, serial=serial)
        daemon = side.daemon_cpu_seconds()
        started = time.perf_counter()
        executions = execute_plugins(operations, width=width)
        seconds = time.perf_counter() - started
        cpu = side.daemon_cpu_seconds() - daemon + sum(execution.cpu_seconds for execution in executions)
        latencies = tuple(execution.seconds * 1000 for execution in executions)
        runs[command] = Run(latencies_ms=latencies, seconds=seconds, cpu_ms=cpu * 1000)
    return runs


def summarise_runs(runs: Sequence[Run]) -> Summary | None:
    """None when there is no run. Pure."""
    if not runs:
        return None
    every = [latency for run in runs for latency in run.latencies_ms]
    return Summary(
        p50_ms=median(median(run.latencies_ms) for run in runs),
        p99_ms=percentile(every, 99),
        per_s=median(len(run.latencies_ms) / run.seconds for run in runs),
        cpu_ms=median(run.cpu_ms / len(run.latencies_ms) for run in runs),
    )
