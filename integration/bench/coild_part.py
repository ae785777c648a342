"""The figures of coild itself, with a node's full number of pods: memory, restart, idle time, stalls of its loop.

The real process with its own service account, against a real control plane; pods of both families, added by the plugin
as the runtime execs it.
"""

import json
import subprocess
import sys
import time
from collections.abc import Collection, Iterator
from contextlib import contextmanager
from http.client import HTTPConnection
from pathlib import Path
from tempfile import TemporaryDirectory

from integration.bench.cni_run import Command, next_serial, take_command
from integration.bench.coil_side import DUAL_STACK, CoilSide
from integration.bench.coild_module import PLAIN, WATCHED
from integration.bench.figure import Figure, Reading
from integration.bench.loop_watch import Stall, ask_stalls
from integration.bench.part import Part
from integration.bench.pod_namespace import PodNamespaces, pod_namespaces
from integration.bench.process_state import proportional_megabytes, resident_megabytes, thread_seconds
from integration.bench.room import require_room
from integration.bench.sample import median, spread
from integration.patience import wait_until

RSS = Figure("coild.rss_mb.pods110", "MB")
RESTART = Figure("coild.restart_ready_s.pods110", "s")
IDLE = Figure("coild.idle_cpu_percent", "%")
STALL = Figure("coild.stall_ms.par32", "ms")
IMPORT = Figure("coild.start.import_ms", "ms")

_PODS = 110  # as many as a kubelet takes
_WIDTH = 8
_RESTARTS = 7
_IDLE_SECONDS = 60.0
_STALL_WIDTH = 32
_STALL_RUNS = 7
_IMPORTS = 15
_IMPORT_SECONDS = 60.0
_IMPORT = """
import sys
from time import perf_counter, process_time
sys.modules["rich"] = sys.modules["greenlet"] = None  # see plain_coild
wall, cpu, before = perf_counter(), process_time(), len(sys.modules)
import coild.main
print((perf_counter() - wall) * 1000, (process_time() - cpu) * 1000, len(sys.modules) - before)
"""
_INSPECTION = 6666


def measure_coild(wanted: Collection[Figure]) -> Iterator[Reading]:
    """One coild, filled and left alone, killed and started again; then another that is watched."""
    require_room()
    with pod_namespaces(_PODS) as namespaces, CoilSide(DUAL_STACK) as side:
        side.restart_coild(module=PLAIN)
        with _attached(side, namespaces):
            if IDLE in wanted:
                yield _take_idle(side)
            if {RSS, RESTART} & {*wanted}:
                yield from _take_restarts(side)
        if STALL in wanted:
            yield _take_stalls(side, namespaces)


@contextmanager
def _attached(side: CoilSide, namespaces: PodNamespaces) -> Iterator[None]:
    """A pod in each namespace for the time of the block. After a failure they are left to the room's end."""
    serial = next_serial()
    take_command(Command.ADD, side, namespaces, width=_WIDTH, serial=serial)
    _require_pods(_PODS)
    yield
    take_command(Command.DEL, side, namespaces, width=_WIDTH, serial=serial)
    _require_pods(0)


def _take_idle(side: CoilSide) -> Reading:
    pid = side.coild.pid
    wait_until(lambda: _work_within(pid, 1.0) < 0.01, what="coild comes to rest", pause=0)
    seconds = _work_within(pid, _IDLE_SECONDS)
    return Reading(
        figure=IDLE,
        value=100 * seconds / _IDLE_SECONDS,
        runs=1,
        note=f"{_PODS} pods, nothing asked for {_IDLE_SECONDS:.0f} s: {1000 * seconds:.0f} ms of one core; neither a "
        "kubelet's probes nor the sweep of every five minutes is in it",
    )


def _work_within(pid: int, seconds: float) -> float:
    before = thread_seconds(pid)
    time.sleep(seconds)
    return thread_seconds(pid) - before


def _take_restarts(side: CoilSide) -> Iterator[Reading]:
    """Memory with pods that were added by this process, then starts with pods that it finds; and memory again."""
    pid = side.coild.pid
    resident, proportional = resident_megabytes(pid, "VmRSS"), proportional_megabytes(pid)
    starts = []
    for _ in range(_RESTARTS):
        starts.append(side.restart_coild(module=PLAIN))
        _require_pods(_PODS)
    yield Reading(
        figure=RESTART,
        value=median(starts),
        runs=len(starts),
        note=f"kill -9, then exec to /readyz 200, asked every 5 ms; all {_PODS} pods in its books then; "
        f"runs {spread(starts)}",
    )
    pid = side.coild.pid
    yield Reading(
        figure=RSS,
        value=resident,
        runs=1,
        note=f"after {_PODS} ADDs, dual stack (Pss {proportional:.1f}); {resident_megabytes(pid, 'VmRSS'):.1f} after a "
        f"restart that found them (Pss {proportional_megabytes(pid):.1f})",
    )


def _take_stalls(side: CoilSide, namespaces: PodNamespaces) -> Reading:
    """The coild of the room is replaced by one whose loop is watched from within."""
    with TemporaryDirectory(prefix="coil-bench-watch-") as folder:
        path = Path(folder, "watch.sock")
        side.restart_coild(module=WATCHED, arguments=[str(path)])
        stalls: dict[Command, list[tuple[Stall, Stall]]] = {command: [] for command in Command}
        for _ in range(1 + _STALL_RUNS):
            serial = next_serial()
            for command, found in stalls.items():
                ask_stalls(path)
                take_command(command, side, namespaces, width=_STALL_WIDTH, serial=serial)
                found.append(ask_stalls(path))
        side.restart_coild()
    adds, deletions = (stalls[command][1:] for command in Command)
    late = [longest.late_ms for longest, _ in adds]
    work = [busiest.ran_ms for _, busiest in adds]
    worst = max((longest for longest, _ in adds), key=lambda stall: stall.late_ms)
    return Reading(
        figure=STALL,
        value=median(late),
        runs=len(late),
        note=f"longest delay of a task in coild's loop that wakes every ms, while {_PODS} pods are created, "
        f"{_STALL_WIDTH} at a time, by plugins on the same machine; runs {spread(late)}; the worst of all {worst}; "
        f"the most work without a pause {median(work):.1f} ({spread(work)}); "
        f"while they are deleted {median(longest.late_ms for longest, _ in deletions):.1f}",
    )


def _require_pods(count: int) -> None:
    """Raises RuntimeError unless coild's ledger has so many."""
    connection = HTTPConnection("127.0.0.1", _INSPECTION, timeout=10)
    try:
        connection.request("GET", "/ip-manager", headers={"Accept": "application/json"})
        held = json.loads(connection.getresponse().read())["addresses"]["allocated"]
    finally:
        connection.close()
    if held != count:
        raise RuntimeError(f"coild knows {held} pods, and there are {count}")


def measure_import(_wanted: Collection[Figure]) -> Iterator[Reading]:
    """`import coild.main` in interpreters of their own, one after the other; the first, which is not counted, writes
    the bytecode.
    """
    runs = [_take_import() for _ in range(1 + _IMPORTS)][1:]
    yield Reading(
        figure=IMPORT,
        value=median(cpu for _, cpu, _ in runs),
        runs=len(runs),
        note=f"processor time of `import coild.main` within a started interpreter, bytecode cached, "
        f"{runs[0][2]:.0f} modules; by the clock {median(wall for wall, _, _ in runs):.0f} ms; "
        f"runs {spread([cpu for _, cpu, _ in runs])}",
    )


def _take_import() -> tuple[float, float, float]:
    """Milliseconds of the clock and of the processor, and how many modules it took."""
    command = [sys.executable, "-c", _IMPORT]
    result = subprocess.run(command, capture_output=True, text=True, check=True, timeout=_IMPORT_SECONDS)
    wall, cpu, modules = map(float, result.stdout.split())
    return wall, cpu, modules


PART = Part("coild", (RSS, RESTART, STALL, IDLE), measure_coild)
IMPORT_PART = Part("coild-import", (IMPORT,), measure_import)
