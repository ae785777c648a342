"""One run of the CNI figures: every pod namespace gets ADD, then every one gets DEL, `width` at a time."""

import time
from collections.abc import Sequence
from dataclasses import dataclass
from enum import StrEnum
from itertools import count

from integration.bench.cni_side import Side, Wiring, pod_operations
from integration.bench.plugin_exec import execute_plugins
from integration.bench.pod_namespace import PodNamespaces
from integration.bench.process_state import CpuTime
from integration.bench.sample import median, percentile

_serials = count(1)


class Command(StrEnum):
    ADD = "ADD"
    DEL = "DEL"


@dataclass(frozen=True, slots=True, kw_only=True)
class Run:
    """One command once in each namespace. CPU time is for the whole run."""

    latencies_ms: tuple[float, ...]
    seconds: float
    plugins: CpuTime
    daemon: CpuTime


@dataclass(frozen=True, slots=True, kw_only=True)
class Summary:
    """Medians over the runs, but `p99_ms`, which is over all operations. `cpu_ms` is per operation, of plugin and
    daemon together; `shares` says in words how it divides, on average."""

    p50_ms: float
    p99_ms: float
    per_s: float
    cpu_ms: float
    shares: str


def take_run(side: Side, namespaces: PodNamespaces, *, width: int) -> dict[Command, Run]:
    """ADD and DEL once in each namespace, which is empty before and after.

    Raises PluginError when an operation fails; the namespaces must then be renewed.
    """
    serial = next_serial()
    return {command: take_command(command, side, namespaces, width=width, serial=serial) for command in Command}


def next_serial() -> int:
    """A number for new pods that no others had."""
    return next(_serials)


def take_command(command: Command, side: Wiring, namespaces: PodNamespaces, *, width: int, serial: int) -> Run:
    """One command once in each namespace, for the pods of that serial. Raises PluginError."""
    operations = pod_operations(side, command.value, netns=namespaces.paths, serial=serial)
    daemon = side.daemon_cpu()
    started = time.perf_counter()
    executions = execute_plugins(operations, width=width)
    seconds = time.perf_counter() - started
    return Run(
        latencies_ms=tuple(execution.seconds * 1000 for execution in executions),
        seconds=seconds,
        plugins=sum((execution.cpu for execution in executions), start=CpuTime()),
        daemon=side.daemon_cpu() - daemon,
    )


def summarise_runs(runs: Sequence[Run]) -> Summary | None:
    """None when there is no run. Pure."""
    if not runs:
        return None
    every = [latency for run in runs for latency in run.latencies_ms]
    return Summary(
        p50_ms=median(median(run.latencies_ms) for run in runs),
        p99_ms=percentile(every, 99),
        per_s=median(len(run.latencies_ms) / run.seconds for run in runs),
        cpu_ms=median((run.plugins + run.daemon).total * 1000 / len(run.latencies_ms) for run in runs),
        shares="; ".join(
            f"{who} {_milliseconds(times, operations=len(every))}"
            for who, times in (
                ("plugin", [run.plugins for run in runs]),
                ("daemon", [run.daemon for run in runs]),
            )
            if sum(times, start=CpuTime()).total
        ),
    )


def _milliseconds(times: Sequence[CpuTime], *, operations: int) -> str:
    whole = sum(times, start=CpuTime())
    return f"{whole.user * 1000 / operations:.1f} user + {whole.system * 1000 / operations:.1f} system"
