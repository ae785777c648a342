"""The figures of a node whose pods have addresses of network interfaces: ADD beside the same from pools, and memory.

Real plugin, coild, kernel and API server on both sides; EC2 and the metadata service are the tests'. Most of the
primary interface's pods need nothing of the kernel that a pod of a pool does not need, so it is full before the first
ADD that counts: each of these is for a pod of another interface, with a rule of its own.
"""

import json
from collections.abc import Collection, Iterator, Sequence
from dataclasses import dataclass

from integration.apiserver.runtime import addresses_of
from integration.bench.cni_run import next_serial
from integration.bench.cni_side import Wiring, pod_operations
from integration.bench.coil_side import CoilSide
from integration.bench.coild_module import PLAIN
from integration.bench.eni_side import ADDRESSES_OF_INTERFACE, TYPE, EniSide
from integration.bench.figure import Figure, Reading
from integration.bench.part import Part
from integration.bench.plugin_exec import Operation, execute_plugins
from integration.bench.pod_namespace import pod_namespaces
from integration.bench.process_state import proportional_megabytes, resident_megabytes
from integration.bench.room import require_room
from integration.bench.sample import median, paired_ratios, spread

ADD = Figure("aws.add_ms.warm", "ms", peer="ADD from pools")
RSS = Figure("aws.coild.rss_mb", "MB")

_PODS = 110  # as many as a kubelet takes
_RESTING = ADDRESSES_OF_INTERFACE
_MEASURED = 16
_RUNS = 25
_INTERFACES = 3
_WARM = _INTERFACES * ADDRESSES_OF_INTERFACE
_WIDTH = 8


class MisplacedError(Exception):
    """What was measured is not what the figure promises."""


@dataclass(frozen=True, slots=True, kw_only=True)
class AddRun:
    """ADDs one after the other. `cpu_ms` is for each of them, plugin and daemon."""

    median_ms: float
    cpu_ms: float
    addresses: frozenset[str]


def measure_node(wanted: Collection[Figure]) -> Iterator[Reading]:
    """The instance beside a node with a pool, each with its own API server, in one kernel."""
    require_room()
    with pod_namespaces(_PODS) as namespaces, EniSide() as ours, CoilSide() as peer:
        peer.restart_coild(module=PLAIN)
        if ADD in wanted:
            # No more than these can be had: what cools down is not replaced, and EC2 is asked for nothing.
            limits = (f"--max-eni={_INTERFACES}", f"--minimum-ip-target={_WARM}", "--cooling=1s")
            ours.start_coild(*limits, warm=_WARM)
            yield _measure_adds(ours, peer, namespaces.paths)
        if RSS in wanted:
            ours.start_coild(f"--minimum-ip-target={_PODS}", warm=_PODS)
            yield _measure_memory(ours, peer, namespaces.paths)


def _measure_adds(ours: EniSide, peer: CoilSide, paths: Sequence[str]) -> Reading:
    """The sides in alternation, each first in turn; on both sides with pods at rest."""
    sides: dict[Wiring, list[AddRun]] = {ours: [], peer: []}
    shared = paths[len(sides) * _RESTING :][:_MEASURED]
    resting = next_serial()
    homes = {side: paths[number * _RESTING :][:_RESTING] for number, side in enumerate(sides)}
    for side, own in homes.items():
        execute_plugins(_operations(side, "ADD", own, serial=resting), width=_WIDTH)
    asked = ours.changes_asked()
    for number in range(1 + _RUNS):
        for side in reversed(sides) if number % 2 else sides:
            run = _take_run(side, shared)
            if side is ours and not all(ours.device_of(address) for address in run.addresses):
                raise MisplacedError("a pod has an address of the primary interface")
            if number:  # the first is to warm up
                sides[side].append(run)
    if (now := ours.changes_asked()) != asked:
        raise MisplacedError(f"EC2 was asked for {now - asked} changes while ADDs were measured")
    for side, own in homes.items():
        execute_plugins(_operations(side, "DEL", own, serial=resting), width=_WIDTH)
    return read_adds(sides[ours], sides[peer])


def read_adds(ours: Sequence[AddRun], peer: Sequence[AddRun]) -> Reading:
    """Runs of the same number are neighbours. Pure."""
    one, other = ([run.median_ms for run in runs] for runs in (ours, peer))
    pairs = paired_ratios(one, other)
    cpu, peer_cpu = (median(run.cpu_ms for run in runs) for runs in (ours, peer))
    return Reading(
        figure=ADD,
        value=median(one),
        peer_value=median(other),
        runs=len(ours),
        note=f"one at a time, exec to exit, IPv4, medians of {_MEASURED} pods of a secondary interface of {TYPE} with "
        f"{_RESTING} pods at rest on its primary one; runs {spread(one)} against {spread(other)}; the ratio of "
        f"neighbouring runs has the median {median(pairs):.3f} ({spread(pairs)}); processor time of plugin and coild "
        f"{cpu:.1f} against {peer_cpu:.1f} ms",
    )


def _take_run(side: Wiring, paths: Sequence[str]) -> AddRun:
    """An ADD in each namespace, one after the other, and then their DELs."""
    serial = next_serial()
    daemon = side.daemon_cpu()
    executions = execute_plugins(_operations(side, "ADD", paths, serial=serial), width=1)
    daemon = side.daemon_cpu() - daemon
    execute_plugins(_operations(side, "DEL", paths, serial=serial), width=1)
    cpu = sum((execution.cpu for execution in executions), start=daemon)
    results = [json.loads(execution.output) for execution in executions]
    return AddRun(
        median_ms=1000 * median(execution.seconds for execution in executions),
        cpu_ms=1000 * cpu.total / len(executions),
        addresses=frozenset(address for result in results for address in addresses_of(result)),
    )


def _measure_memory(ours: EniSide, peer: CoilSide, paths: Sequence[str]) -> Reading:
    """One after the other, as both take all namespaces."""
    resident, proportional = _fill(ours, ours.pid, paths)
    pools, _ = _fill(peer, peer.coild.pid, paths)
    return Reading(
        figure=RSS,
        value=resident,
        runs=1,
        note=f"VmRSS after {len(paths)} ADDs, IPv4, on {TYPE} (Pss {proportional:.1f}); with pools {pools:.1f}",
    )


def _fill(side: Wiring, pid: int, paths: Sequence[str]) -> tuple[float, float]:
    """What the process has with a pod in each namespace: resident, and with shared pages divided."""
    serial = next_serial()
    execute_plugins(_operations(side, "ADD", paths, serial=serial), width=_WIDTH)
    taken = resident_megabytes(pid, "VmRSS"), proportional_megabytes(pid)
    execute_plugins(_operations(side, "DEL", paths, serial=serial), width=_WIDTH)
    return taken


def _operations(side: Wiring, command: str, paths: Sequence[str], *, serial: int) -> list[Operation]:
    return pod_operations(side, command, netns=[*paths], serial=serial)


PART = Part("aws.node", (ADD, RSS), measure_node)
