"""What it costs to start our plugin at all: VERSION, which needs no daemon, against `ptp` in alternation."""

import json
from collections.abc import Collection, Iterator
from pathlib import Path
from tempfile import TemporaryDirectory

from integration.bench.cni_side import PEER_FOLDER
from integration.bench.figure import Figure, Reading
from integration.bench.part import Part
from integration.bench.plugin_exec import Operation, execute_plugins
from integration.bench.sample import median, percentile
from integration.deployment import install_plugin

START = Figure("plugin.start_ms", "ms", peer="ptp")
_RUNS = 200
_WARM_UP = 5
_NETCONF = json.dumps({"cniVersion": "1.0.0", "name": "bench", "type": "coil"}).encode()


def measure_start(_wanted: Collection[Figure]) -> Iterator[Reading]:
    """One exec of ours, one of the peer's, and so on: each is a run."""
    with TemporaryDirectory(prefix="coil-bench-") as folder:
        bin_dir, etc_dir = Path(folder, "bin"), Path(folder, "net.d")
        for target in (bin_dir, etc_dir):
            target.mkdir()
        plugin = install_plugin(bin_dir=bin_dir, etc_dir=etc_dir, socket=Path(folder, "coild.sock"))
        ours = Operation(plugin=plugin, command="VERSION", netconf=_NETCONF)
        peer = Operation(plugin=PEER_FOLDER / "ptp", command="VERSION", netconf=_NETCONF)
        pairs = [(_milliseconds(ours), _milliseconds(peer)) for _ in range(_WARM_UP + _RUNS)][_WARM_UP:]
    yield Reading(
        figure=START,
        value=median(mine for mine, _ in pairs),
        peer_value=median(theirs for _, theirs in pairs),
        runs=len(pairs),
        note=f"VERSION, exec to exit; p99 {percentile([mine for mine, _ in pairs], 99):.1f} ms",
    )


def _milliseconds(operation: Operation) -> float:
    (execution,) = execute_plugins([operation], width=1)
    return execution.seconds * 1000


PART = Part("plugin", (START,), measure_start)
