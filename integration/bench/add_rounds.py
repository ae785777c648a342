"""ADDs one at a time on two sides in turns, each with pods at rest: a pod of some source beside one of a pool."""

import json
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Final

from integration.apiserver.runtime import addresses_of
from integration.bench.cni_run import next_serial
from integration.bench.cni_side import Wiring, pod_operations
from integration.bench.figure import Figure, Reading
from integration.bench.plugin_exec import Operation, execute_plugins
from integration.bench.process_state import proportional_megabytes, resident_megabytes
from integration.bench.sample import median, paired_ratios, spread

MEASURED: Final = 16
"""Pods of one run."""
_RUNS: Final = 25
_WIDTH: Final = 8


@dataclass(frozen=True, slots=True, kw_only=True)
class AddRun:
    """ADDs one after the other. `cpu_ms` is for each of them, plugin and daemon."""

    median_ms: float
    cpu_ms: float
    addresses: frozenset[str]


def take_runs(
    ours: Wiring, peer: Wiring, paths: Sequence[str], *, resting: int, check: Callable[[AddRun], None]
) -> tuple[list[AddRun], list[AddRun]]:
    """The sides in alternation, each first in turn, and each with `resting` pods that stay as they are.

    `paths` are of namespaces: of those pods on both sides, and `MEASURED` more. `check` is given each run of ours.
    """
    sides: dict[Wiring, list[AddRun]] = {ours: [], peer: []}
    shared = paths[len(sides) * resting :][:MEASURED]
    rest = next_serial()
    homes = {side: paths[number * resting :][:resting] for number, side in enumerate(sides)}
    for side, own in homes.items():
        execute_plugins(_operations(side, "ADD", own, serial=rest), width=_WIDTH)
    for number in range(1 + _RUNS):
        for side in reversed(sides) if number % 2 else sides:
            run = _take_run(side, shared, first=resting)
            if side is ours:
                check(run)
            if number:  # the first is to warm up
                sides[side].append(run)
    for side, own in homes.items():
        execute_plugins(_operations(side, "DEL", own, serial=rest), width=_WIDTH)
    return sides[ours], sides[peer]


def read_adds(figure: Figure, ours: Sequence[AddRun], peer: Sequence[AddRun], *, about: str) -> Reading:
    """Runs of the same number are neighbours. `about` tells which pods they were. Pure."""
    one, other = ([run.median_ms for run in runs] for runs in (ours, peer))
    pairs = paired_ratios(one, other)
    cpu, peer_cpu = (median(run.cpu_ms for run in runs) for runs in (ours, peer))
    return Reading(
        figure=figure,
        value=median(one),
        peer_value=median(other),
        runs=len(ours),
        note=f"one at a time, exec to exit, IPv4, medians of {MEASURED} {about}; runs {spread(one)} against "
        f"{spread(other)}; the ratio of neighbouring runs has the median {median(pairs):.3f} ({spread(pairs)}); "
        f"processor time of plugin and coild {cpu:.1f} against {peer_cpu:.1f} ms",
    )


def fill(side: Wiring, pid: int, paths: Sequence[str]) -> tuple[float, float]:
    """Megabytes that the process has with a pod in each namespace: resident, and with shared pages divided."""
    serial = next_serial()
    execute_plugins(_operations(side, "ADD", paths, serial=serial), width=_WIDTH)
    taken = resident_megabytes(pid, "VmRSS"), proportional_megabytes(pid)
    execute_plugins(_operations(side, "DEL", paths, serial=serial), width=_WIDTH)
    return taken


def _take_run(side: Wiring, paths: Sequence[str], *, first: int) -> AddRun:
    """An ADD in each namespace, one after the other, and then their DELs."""
    serial = next_serial()
    daemon = side.daemon_cpu()
    executions = execute_plugins(_operations(side, "ADD", paths, serial=serial, first=first), width=1)
    daemon = side.daemon_cpu() - daemon
    execute_plugins(_operations(side, "DEL", paths, serial=serial, first=first), width=1)
    cpu = sum((execution.cpu for execution in executions), start=daemon)
    results = [json.loads(execution.output) for execution in executions]
    return AddRun(
        median_ms=1000 * median(execution.seconds for execution in executions),
        cpu_ms=1000 * cpu.total / len(executions),
        addresses=frozenset(address for result in results for address in addresses_of(result)),
    )


def _operations(side: Wiring, command: str, paths: Sequence[str], *, serial: int, first: int = 0) -> list[Operation]:
    return pod_operations(side, command, netns=[*paths], serial=serial, first=first)
