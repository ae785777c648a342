"""The egress figures: throughput and latency through the tunnel, the wait of the n-th client, what the agent takes,
and what an Egress costs a pod's ADD.

The control plane runs here at native speed; the rest (`egress_guest`) where the kernel has Foo-over-UDP: here, or in
the virtual machine. Either way ours and the peer's samples come from one kernel in one run. What is emulated takes ten
to twenty times as long, so there only the ratios tell something, and each note says where it was measured.
"""

import sys
from collections.abc import Collection, Iterator
from contextlib import contextmanager
from ipaddress import IPv4Address
from pathlib import Path

from integration.bench.egress_reading import ADD_FIGURES, CROWD_FIGURES, FIGURES, PATH_FIGURES, take_readings
from integration.bench.egress_result import ADDS, CROWD, PATHS, RESULT, Result, decode
from integration.bench.egress_text import ROUTER_ACCOUNT, ROUTER_NAMESPACE, backdrop, node_backdrop
from integration.bench.figure import Figure, Reading
from integration.bench.part import Part
from integration.bench.room import UPLINK_ADDRESS, require_room
from integration.cluster.control_plane import ControlPlane
from integration.deployment import apply, apply_chart, ready_probe, start_ipam_controller
from integration.plugin.executable import plugin_executable
from integration.vm.run import Terms, run_with_fou

_SECONDS = 900.0
_SECTIONS = {ADDS: ADD_FIGURES, PATHS: PATH_FIGURES, CROWD: CROWD_FIGURES}
_CONTROLLER_PORTS = 9386, 9387
_START_SECONDS = 60.0


def measure_egress(wanted: Collection[Figure]) -> Iterator[Reading]:
    """What was measured before a failure is told; then the failure is raised."""
    require_room()
    sections = [section for section, figures in _SECTIONS.items() if set(wanted) & set(figures)]
    with _started() as plane:
        results = plane.workspace.make_folder("results")
        code = run_with_fou(
            [
                *(sys.executable, "-m", "integration.bench.egress_guest", str(plane.address)),
                *(str(plane.admin_kubeconfig), str(plane.kubeconfig_for(ROUTER_ACCOUNT, ROUTER_NAMESPACE))),
                *(str(plane.kubeconfig_for("coild")), str(results), *sections),
            ],
            # Built here and carried along: under emulation the compiler would take minutes.
            terms=Terms(timeout=_SECONDS, results=results, payload=[plugin_executable()]),
        )
        if (result := _read(results)) is not None:
            yield from take_readings(result)
        if code:
            raise RuntimeError(f"the measurement ended with code {code}; {_last_words(results)}")


@contextmanager
def _started() -> Iterator[ControlPlane]:
    """An API server at an address that the virtual machine can reach as well."""
    with ControlPlane.start(address=IPv4Address(UPLINK_ADDRESS)) as plane:
        apply_chart(plane)
        apply(plane, *backdrop(), *node_backdrop())
        start_ipam_controller(plane, ports=_CONTROLLER_PORTS).wait_ready(
            ready_probe(_CONTROLLER_PORTS[1]), timeout=_START_SECONDS
        )
        yield plane


def _read(results: Path) -> Result | None:
    file = results / RESULT
    return decode(file.read_bytes()) if file.exists() else None


def _last_words(results: Path) -> str:
    said = {log.stem: log.read_text(errors="replace").splitlines() for log in sorted(results.glob("*.log"))}
    return "; ".join(f"the {name} said: {lines[-1]}" for name, lines in said.items() if lines) or "nobody said anything"


PART = Part("egress", FIGURES, measure_egress)
