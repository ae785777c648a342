"""`helm test` fails where a Node's conditions say that its pod network has a fault, with the chart's own rights."""

import json
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from integration.cluster.control_plane import ControlPlane
from integration.deployment import apply, apply_chart
from integration.helm.chart import CHART

pytestmark = pytest.mark.apiserver

FINE, FAULTY = "check-nodes-fine", "check-nodes-faulty"


def set_conditions(plane: ControlPlane, node: str, **statuses: str) -> None:
    conditions: list[dict[str, Any]] = [
        {"type": type_, "status": status, "reason": "Test", "message": f"why {type_}"}
        for type_, status in statuses.items()
    ]
    patch = json.dumps({"status": {"conditions": conditions}})
    plane.kubectl("patch", "node", node, "--subresource=status", "--type=strategic", f"--patch={patch}")


@pytest.fixture
def kubeconfig(plane: ControlPlane) -> Iterator[Path]:
    """Of the account that the test's pod has; the chart's accounts and roles are there."""
    apply_chart(plane)
    apply(plane, *({"apiVersion": "v1", "kind": "Node", "metadata": {"name": name}} for name in (FINE, FAULTY)))
    try:
        yield plane.kubeconfig_for("coil-test-nodes")
    finally:
        plane.kubectl("delete", "node", FINE, FAULTY)


def check(kubeconfig: Path) -> tuple[int, list[str]]:
    script = (CHART / "files" / "check_nodes.py").read_text()
    done = subprocess.run(
        [sys.executable, "-c", script],
        env={"KUBECONFIG": str(kubeconfig)},
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    assert done.returncode in (0, 1), done.stderr
    return done.returncode, [line for line in done.stdout.splitlines() if "check-nodes" in line]


def test_each_fault_is_told_with_its_node(plane: ControlPlane, kubeconfig: Path) -> None:
    set_conditions(plane, FINE, CoilPodTrafficDropped="False", CoilAddressesAvailable="True", Ready="False")
    set_conditions(
        plane, FAULTY, CoilAddressesAvailable="True", CoilPodTrafficDropped="True", NetworkUnavailable="True"
    )
    assert check(kubeconfig) == (
        1,
        [
            f"{FAULTY}: CoilPodTrafficDropped: why CoilPodTrafficDropped",
            f"{FAULTY}: NetworkUnavailable: why NetworkUnavailable",
        ],
    )
    set_conditions(plane, FAULTY, CoilPodTrafficDropped="False", NetworkUnavailable="False")
    assert check(kubeconfig)[1] == []


def test_a_limit_is_told_and_is_no_fault(plane: ControlPlane, kubeconfig: Path) -> None:
    """A node that is full has no fault, and neither has the installation."""
    set_conditions(plane, FAULTY, CoilAddressesAvailable="False", CoilPodLimitTooHigh="True")
    code, told = check(kubeconfig)
    assert (code, told) == (
        0,
        [
            f"a limit, and no fault: {FAULTY}: CoilAddressesAvailable: why CoilAddressesAvailable",
            f"a limit, and no fault: {FAULTY}: CoilPodLimitTooHigh: why CoilPodLimitTooHigh",
        ],
    )
