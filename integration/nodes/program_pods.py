"""Coil's programs, which are pods of the release: where they run, what their kernels say of them, and how they go.

A component is the value of the label `app.kubernetes.io/component` on a program's pods.
"""

import json
import re
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from typing import Any, Final, TypeAlias
from urllib.parse import quote

from integration.cluster.cluster import Cluster
from integration.cluster.control_plane import KubectlError
from integration.cluster.node import Node, NodeCommandError
from integration.demo.reach import TRY_FETCH
from integration.helm.chart import NAMESPACE
from integration.helm.release import Release

Pod: TypeAlias = dict[str, Any]

CONTROLLERS: Final = ("ipam-controller", "egress-controller")
SECONDS: Final = 180.0
_LOG_LINES: Final = 60
_COMPONENT: Final = "app.kubernetes.io/component"
_LEADING = re.compile(r"^leader_election_master_status\{.*\} 1(\.0)?$", re.MULTILINE)
_NOWHERE = {"coil.test/nowhere": ""}


@dataclass(frozen=True, slots=True)
class ProgramPods:
    """Of one release on one cluster. Every look is a new one."""

    cluster: Cluster
    release: Release

    def kubectl(self, *arguments: str) -> str:
        """In the release's namespace. Raises KubectlError."""
        return self.cluster.plane.kubectl(f"--namespace={NAMESPACE}", *arguments, timeout=SECONDS + 10)

    def install(self, logs: Callable[[], Iterable[tuple[str, str]]]) -> None:
        """Install the release, and return when all nodes are Ready. An error has these logs as notes."""
        try:
            self.release.install()
            self.release.wait_rolled_out()
            self.cluster.wait_ready()
        except Exception as error:
            for name, text in logs():
                error.add_note(f"--- {name}\n{text}")
            raise

    def of(self, component: str) -> list[Pod]:
        """The living pods, by node; that of one which has none yet is empty."""
        path = f"/api/v1/namespaces/{NAMESPACE}/pods?labelSelector={quote(f'{_COMPONENT}={component}')}"
        items = self.cluster.plane.read(path)["items"]
        living = [pod for pod in items if "deletionTimestamp" not in pod["metadata"]]
        return sorted(living, key=lambda pod: str(pod["spec"].get("nodeName", "")))

    def logs(self, *components: str) -> Iterator[tuple[str, str]]:
        """What Kubernetes has, and name and last lines of each pod of these; what cannot be read is left out."""
        with suppress(KubectlError):
            yield "Kubernetes", self.cluster.plane.kubectl("get", "pods,events", "--all-namespaces", "--output=wide")
        for pod in (pod for component in components for pod in self.of(component)):
            name = pod["metadata"]["name"]
            with suppress(KubectlError):
                yield name, self.kubectl("logs", name, f"--tail={_LOG_LINES}")

    def restarts(self, component: str) -> int:
        """How often the kubelets have started its containers again."""
        statuses = [status for pod in self.of(component) for status in pod["status"].get("containerStatuses", [])]
        return sum(status["restartCount"] for status in statuses)

    def leader(self) -> str:
        """The ipam-controller that leads, as its metrics say on its node's localhost; empty when none does."""
        ask = (*TRY_FETCH, "http://127.0.0.1:9386/metrics")
        # A successor has no node before the one that it follows has gone.
        for pod in [pod for pod in self.of("ipam-controller") if "nodeName" in pod["spec"]]:
            try:
                printed = self.node_of(pod).run(ask)
            except NodeCommandError:
                continue  # not there yet, or gone
            if _LEADING.search(printed):
                return str(pod["metadata"]["name"])
        return ""

    def node_of(self, pod: Pod) -> Node:
        return next(node for node in self.cluster.nodes if node.name == pod["spec"]["nodeName"])

    def kernel_says(self, pod: Pod, field: str) -> str:
        """A field of /proc/<pid>/status of the pod's program, proc(5)."""
        lines = self.node_of(pod).run(["cat", f"/proc/{self._pid(pod)}/status"]).splitlines()
        return next(line.partition(":")[2].strip() for line in lines if line.startswith(f"{field}:"))

    def kill(self, component: str) -> None:
        """SIGKILL for each program of the component that is ready; their kubelets start them again."""
        for pod in self.of(component):
            self.node_of(pod).run(["kill", "-KILL", self._pid(pod)])

    @contextmanager
    def away(self, component: str, workload: str) -> Iterator[None]:
        """For the time of the block, no node has the component, whose programs were killed. Then it is back, ready."""
        self.kill(component)
        away, back = _changes(workload)
        self.kubectl("patch", workload, "--type=merge", f"--patch={json.dumps(away)}")
        try:
            self.kubectl("wait", "--for=delete", "pod", _selector(component), f"--timeout={SECONDS:.0f}s")
            yield
        finally:
            self.kubectl("patch", workload, "--type=merge", f"--patch={json.dumps(back)}")
            self.release.wait_rolled_out(workload)

    def complaints(self, *components: str) -> list[str]:
        """What these have logged of errors, and of rights that they were refused."""
        said: list[str] = []
        for pod in [pod for component in components for pod in self.of(component)]:
            said += self.kubectl("logs", pod["metadata"]["name"], "--all-containers").splitlines()
        return [line for line in said if "forbidden" in line.lower() or '"level": "error"' in line]

    def _pid(self, pod: Pod) -> str:
        """The program's process on its node."""
        [status] = [each for each in pod["status"]["containerStatuses"] if each["ready"]]
        container = status["containerID"].partition("//")[2]
        return self.node_of(pod).container_pid(container)


def names(pods: list[Pod]) -> set[str]:
    return {pod["metadata"]["name"] for pod in pods}


def _selector(component: str) -> str:
    return f"--selector={_COMPONENT}={component}"


def _changes(workload: str) -> tuple[dict[str, Any], dict[str, Any]]:
    """What takes a workload's pods away, and brings them back."""
    if workload.startswith("deployment/"):
        return {"spec": {"replicas": 0}}, {"spec": {"replicas": 2}}

    def select(labels: dict[str, str | None]) -> dict[str, Any]:
        return {"spec": {"template": {"spec": {"nodeSelector": labels}}}}

    return select({**_NOWHERE}), select(dict.fromkeys(_NOWHERE))
