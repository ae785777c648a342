"""A release: Coil on a cluster as a person installs it, by Helm, every program in pods of the image.

Used by the demo, the tests on two nodes, and the bench. What is installed ends with the cluster.
"""

import json
import time
from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path

from integration.cluster.cluster import Cluster
from integration.cluster.control_plane import ControlPlane, KubectlError
from integration.cluster.node_config import CNI_BIN_DIR, CNI_CONF_DIR
from integration.deployment import apply, apply_kinds, check_supported
from integration.helm.chart import CHART, NAMESPACE, RELEASE, Document, profile_files
from integration.helm.program import run_helm
from integration.image.build import IMAGE

_SECONDS = 300.0
_ADMISSION_SECONDS = 180.0
_PAUSE = 0.3

COILD = "daemonset/coild"
IPAM_CONTROLLER = "deployment/coil-ipam-controller"


def import_image(cluster: Cluster, archive: Path) -> None:
    """Have the image on every node. Raises NodeCommandError."""
    with ThreadPoolExecutor(max_workers=len(cluster.nodes)) as pool:
        for done in [pool.submit(node.import_images, archive, timeout=_SECONDS) for node in cluster.nodes]:
            done.result()


@dataclass(frozen=True, slots=True)
class Release:
    """The release of that name in kube-system; the image is on the nodes. Methods raise HelmError or KubectlError."""

    plane: ControlPlane
    values: Mapping[str, object]
    profiles: Sequence[str] = ()
    chart: Path = CHART

    def install(self) -> None:
        """Returns when the API server has it all; `wait_rolled_out` is for the programs."""
        check_supported(self.plane)
        self._helm("install", str(self.chart), *self._settings({}))

    def upgrade(self, values: Mapping[str, object]) -> None:
        """With `values` in addition, which win; those of an earlier upgrade are gone."""
        self._helm("upgrade", str(self.chart), *self._settings(values))

    def rollback(self) -> None:
        """To the revision before; the kinds stay as they are."""
        self._helm("rollback")

    def apply_kinds(self) -> None:
        """The chart's custom resource definitions, which Helm does not upgrade. Idempotent."""
        apply_kinds(self.plane, self.chart)

    def test(self) -> None:
        """`helm test`. Raises HelmError with the logs of the test's pods."""
        self._helm("test", "--logs", f"--timeout={_SECONDS:.0f}s")

    def uninstall(self) -> None:
        """The kinds and their objects stay."""
        self._helm("uninstall", "--wait", f"--timeout={_SECONDS:.0f}s")

    def wait_rolled_out(self, *workloads: str) -> None:
        """Return when each, by default all of the release, is as it was last asked for."""
        for workload in workloads or self._workloads():
            self.plane.kubectl(
                *(f"--namespace={NAMESPACE}", "rollout", "status", workload, f"--timeout={_SECONDS:.0f}s"),
                timeout=_SECONDS + 10,
            )

    def apply(self, *documents: Document) -> None:
        """`kubectl apply`, as soon as the webhooks let it pass: the API server hears of them after their controllers.

        Raises KubectlError with what is still refused after a minute.
        """
        deadline = time.monotonic() + _ADMISSION_SECONDS
        while True:
            try:
                return apply(self.plane, *documents)
            except KubectlError:
                if time.monotonic() > deadline:
                    raise
            time.sleep(_PAUSE)

    def _workloads(self) -> list[str]:
        selector = f"--selector=app.kubernetes.io/instance={RELEASE}"
        return self.plane.kubectl(
            *("get", "deployments,daemonsets", f"--namespace={NAMESPACE}", selector, "--output=name")
        ).split()

    def _settings(self, values: Mapping[str, object]) -> list[str]:
        files = [f"--values={path}" for path in profile_files(self.profiles, self.chart)]
        merged = {**_node_values(), **self.values, **values}
        return [*files, *(f"--set-json={name}={json.dumps(value)}" for name, value in merged.items())]

    def _helm(self, command: str, *arguments: str) -> str:
        return run_helm(
            [
                *(command, RELEASE, *arguments),
                f"--namespace={NAMESPACE}",
                f"--kubeconfig={self.plane.admin_kubeconfig}",
            ],
            seconds=_SECONDS + 30,
        )


def _node_values() -> dict[str, object]:
    """What is different on nodes under test: the image comes from nowhere, and their paths are below /run."""
    repository, tag = IMAGE.rsplit(":", 1)
    return {
        "image.repository": repository,
        "image.tag": tag,
        "image.pullPolicy": "Never",
        "cni.binDir": str(CNI_BIN_DIR),
        "cni.confDir": str(CNI_CONF_DIR),
        # The module, where there is one, is the machine's affair.
        "egress.loadKernelModules": False,
    }
