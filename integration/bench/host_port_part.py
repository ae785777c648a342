"""What a host port costs an ADD: served by coild, and by the reference `portmap` plugin behind Coil, in alternation.

The peer's ADD is two executions, one after the other, as the runtime does it: coil, then portmap with its result.
"""

import json
from collections.abc import Collection, Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from integration.bench.cni_run import next_serial
from integration.bench.cni_side import PEER_FOLDER, pod_operations
from integration.bench.coil_side import CoilSide
from integration.bench.figure import Figure, Reading
from integration.bench.part import Part
from integration.bench.plugin_exec import Operation, execute_plugins
from integration.bench.pod_namespace import PodNamespaces, pod_namespaces
from integration.bench.room import require_room
from integration.bench.sample import median

_FIRST_PORT = 20000
_NAMESPACES = 32
_RUNS = 7
_PORTMAP = PEER_FOLDER / "portmap"

FIGURE = Figure("cni.add.p50_ms.hostport", "ms", peer="coil, then portmap")


def measure_host_ports(_wanted: Collection[Figure]) -> Iterator[Reading]:
    """One run each to warm up, then runs of ours and the peer's in alternation, one pod at a time."""
    require_room()
    if not _PORTMAP.exists():
        raise FileNotFoundError(f"{PEER_FOLDER} has no portmap: install containernetworking-plugins")
    ours: list[float] = []
    theirs: list[float] = []
    with pod_namespaces(_NAMESPACES) as namespaces, CoilSide() as coil:
        for run in range(_RUNS + 1):
            for plugins, medians in (([coil.plugin], ours), ([coil.plugin, _PORTMAP], theirs)):
                seconds = _take_run(coil, plugins, namespaces)
                if run:
                    medians.append(1000 * median(seconds))
    yield Reading(
        figure=FIGURE,
        value=median(ours),
        peer_value=median(theirs),
        runs=_RUNS,
        note=f"runs of {_NAMESPACES} pods with one TCP port each, IPv4, one at a time, exec to exit",
    )


def _take_run(coil: CoilSide, plugins: Sequence[Path], namespaces: PodNamespaces) -> list[float]:
    """Seconds of each ADD; the last of the plugins is told of the pod's host port."""
    serial = next_serial()
    seconds = []
    for number, add in enumerate(pod_operations(coil, "ADD", netns=namespaces.paths, serial=serial)):
        result: Any = None
        spent = 0.0
        for operation in _chain(add, plugins, number):
            told = operation if result is None else _with(operation, prevResult=result)
            [execution] = execute_plugins([told], width=1)
            spent += execution.seconds
            result = json.loads(execution.output)
        seconds.append(spent)
    for number, delete in enumerate(pod_operations(coil, "DEL", netns=namespaces.paths, serial=serial)):
        for operation in reversed(_chain(delete, plugins, number)):
            execute_plugins([operation], width=1)
    return seconds


def _chain(operation: Operation, plugins: Sequence[Path], number: int) -> list[Operation]:
    port = {"hostPort": _FIRST_PORT + number, "containerPort": 80, "protocol": "tcp"}
    chain = [replace(operation, plugin=plugin) for plugin in plugins]
    chain[1:] = [_with(each, type="portmap", snat=True) for each in chain[1:]]
    chain[-1] = _with(chain[-1], runtimeConfig={"portMappings": [port]})
    return chain


def _with(operation: Operation, **keys: object) -> Operation:
    return replace(operation, netconf=json.dumps({**json.loads(operation.netconf), **keys}).encode())


PART = Part("host-ports", (FIGURE,), measure_host_ports)
