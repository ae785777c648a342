"""Two nodes on which the story of the pages is played: an admin's shell, the admin's values, and pods."""

import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import yaml

from integration.cluster.cluster import Cluster
from integration.cluster.image import BUSYBOX_IMAGE
from integration.cluster.node import Node, NodeCommandError
from integration.cluster.node_config import CNI_BIN_DIR, CNI_CONF_DIR
from integration.docs.execution import BlockError, Execution
from integration.docs.page import ROOT, read_pages, runnable_blocks
from integration.docs.story import NODE, Step
from integration.helm.chart import CHART
from integration.image.build import IMAGE
from integration.kernel_state import KernelState
from integration.patience import wait_until_clean

BLOCKS = runnable_blocks(read_pages())
DEPLOY = ROOT / "integration" / "kind" / "deploy.sh"
PROGRAMS = ("coild", "ipam-controller", "egress-controller")
PATIENCE = 180.0  # seconds; a kubelet that gets no processor takes a pod away in a minute


@dataclass(frozen=True, slots=True)
class Stage:
    """The cluster, an admin's shell, and the file with the admin's values."""

    cluster: Cluster
    shell: Execution
    values: Path
    played: set[str] = field(default_factory=set)
    """The blocks that have done what they are to do."""

    def play(self, step: Step, **variables: str) -> None:
        """Execute the step's block. Raises BlockError, NodeCommandError, or AssertionError for a wait in vain."""
        if step.waits:
            wait_until_clean(
                lambda: self._try(step), after=f"the block {step.block} was executed first", timeout=PATIENCE
            )
        elif faults := self._faults(step, variables):
            raise BlockError("\n".join(faults))
        self.played.add(step.block)

    def get(self, *arguments: str) -> list[dict[str, Any]]:
        """The objects of `kubectl get ARGUMENTS`."""
        found: dict[str, list[dict[str, Any]]] = json.loads(
            self.cluster.plane.kubectl("get", *arguments, "--output=json")
        )
        return found["items"]

    @property
    def node(self) -> Node:
        """The one that the blocks are about."""
        return next(node for node in self.cluster.nodes if node.name == NODE)

    def links(self, namespace: str = "") -> list[tuple[str, str]]:
        """Alias and name of the links of a namespace's pods, by default all, of both nodes."""
        prefix = f"COIL:{namespace}:" if namespace else "COIL:"
        found = [link for node in self.cluster.nodes for link in KernelState(str(node.netns)).pod_links().items()]
        return [link for link in found if link[0].startswith(prefix)]

    def _faults(self, step: Step, variables: Mapping[str, str]) -> list[str]:
        block = BLOCKS[step.block]
        settings = {**step.variables, **variables}
        printed = self.shell.run(block, node=self.node.run, variables=settings, code=step.code)
        return [f"{block} does not show {pattern!r}:\n{printed}" for pattern in step.missing(printed)]

    def _try(self, step: Step) -> list[str]:
        try:
            return self._faults(step, {})
        except (BlockError, NodeCommandError) as error:
            return [str(error)]


def write_values(stage: Stage, *, route_sync: bool) -> None:
    """What an admin of these nodes has in the file: the image comes from nowhere, and their paths are below /run."""
    repository, tag = IMAGE.rsplit(":", 1)
    values = {
        "image": {"repository": repository, "tag": tag, "pullPolicy": "Never"},
        "cni": {"binDir": str(CNI_BIN_DIR), "confDir": str(CNI_CONF_DIR)},
        # The module, where there is one, is the machine's affair.
        "egress": {"loadKernelModules": False},
        "routeSync": {"enabled": route_sync},
        # Blocks stay until the kinds go: no test waits for one to go, and there is one that keeps its finalizer.
        "coild": {"cooling": "1h"},
    }
    stage.values.write_text(yaml.safe_dump(values))


def deploy(stage: Stage) -> str:
    """What docker-compose.kind.yaml does once there is a cluster. Returns what it says; raises BlockError."""
    settings = {
        "COIL_CHART": str(CHART),
        "COIL_SAMPLES": str(ROOT / "docs" / "samples"),
        "COIL_IMAGE": IMAGE,
        "COIL_VALUES": str(stage.values),
        # Not every kernel that these nodes are on has Foo-over-UDP.
        "COIL_EGRESS": "false",
    }
    return stage.shell.execute(["sh", str(DEPLOY)], what=DEPLOY.name, variables=settings)


def run_pod(stage: Stage, name: str, *, namespace: str, node: Node, annotations: Mapping[str, str]) -> None:
    """Make a pod that waits to be ended."""
    container = {
        "name": "pod",
        "image": BUSYBOX_IMAGE,
        "imagePullPolicy": "Never",
        "command": ["busybox", "sleep", "infinity"],
    }
    pod = {
        "apiVersion": "v1",
        "kind": "Pod",
        "metadata": {
            "name": name,
            "namespace": namespace,
            "labels": {"app": "payments", "tier": "bank"},
            "annotations": dict(annotations),
        },
        "spec": {
            "nodeName": node.name,
            "automountServiceAccountToken": False,
            "terminationGracePeriodSeconds": 1,
            "containers": [container],
        },
    }
    stage.cluster.plane.kubectl("apply", "--filename=-", stdin=json.dumps(pod))


def programs(stage: Stage) -> set[str]:
    """The pods of the programs, each with how often it was started again."""
    selector = f"--selector=app.kubernetes.io/component in ({', '.join(PROGRAMS)})"
    return {
        f"{pod['metadata']['uid']} {[each['restartCount'] for each in pod['status'].get('containerStatuses', [])]}"
        for pod in stage.get("pods", "--namespace=kube-system", selector)
    }
