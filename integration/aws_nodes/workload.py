"""A Deployment of servers in a namespace of its own, as many on each node as on the other."""

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

from integration.aws_nodes.node_pod import NodePod
from integration.aws_nodes.world import AwsNodes
from integration.cluster.control_plane import KubectlError
from integration.demo.workload import deployment_document, namespace_document
from integration.deployment import apply
from integration.patience import wait_until

READY_SECONDS = 180
"""A kubelet tries a sandbox that failed again after up to 15 s, and interfaces come one after the other."""
NAME = "web"


@dataclass(frozen=True, slots=True)
class Workload:
    """Made by `run_workload`. Its name is that of its namespace."""

    aws: AwsNodes
    namespace: str

    def kubectl(self, *arguments: str) -> str:
        """Standard output of kubectl in the namespace. Raises KubectlError."""
        return self.aws.plane.kubectl(f"--namespace={self.namespace}", *arguments, timeout=READY_SECONDS + 10)

    def create(self, document: dict[str, Any]) -> None:
        """Hand the API server an object of the namespace; not waited for."""
        document["metadata"]["namespace"] = self.namespace
        apply(self.aws.plane, document)

    def start(self, replicas: int) -> None:
        """Have so many pods, Ready. Raises AssertionError with what the kubelets have to say."""
        apply(self.aws.plane, deployment_document(NAME, namespace=self.namespace, replicas=replicas))
        try:
            self.kubectl("rollout", "status", f"deployment/{NAME}", f"--timeout={READY_SECONDS}s")
        except KubectlError as error:
            raise AssertionError(f"{error}\n{self.kubectl('get', 'pods,events', '--output=wide')}") from error

    def run(self, *documents: dict[str, Any]) -> None:
        """Create these pods, and return when they are Ready. Raises KubectlError."""
        for document in documents:
            self.create(document)
        names = [f"pod/{document['metadata']['name']}" for document in documents]
        self.kubectl("wait", "--for=condition=Ready", *names, f"--timeout={READY_SECONDS}s")

    def stop(self) -> None:
        """Return when no pod is left."""
        self.kubectl("delete", "deployments,pods", "--all", "--wait=false")
        wait_until(lambda: not self.pods(), what=f"the pods of {self.namespace} have gone", timeout=READY_SECONDS)

    def pods(self) -> list[NodePod]:
        """By node and name."""
        return self.aws.pods(self.namespace)

    def pods_on(self, device: int) -> list[NodePod]:
        """Of each node one whose address is of its interface with that number."""
        by_node = {pod.node.name: pod for pod in self.pods() if pod.device == device}
        assert len(by_node) == len(self.aws.nodes), f"not every node has a pod on interface {device}"
        return [by_node[node.name] for node in self.aws.nodes]


@contextmanager
def run_workload(aws: AwsNodes, namespace: str, *, replicas: int) -> Iterator[Workload]:
    """Ready; gone at the end of the block, and so is the namespace in a while."""
    with open_workload(aws, namespace) as workload:
        workload.start(replicas)
        yield workload


@contextmanager
def open_workload(aws: AwsNodes, namespace: str) -> Iterator[Workload]:
    """The same, without pods at first."""
    apply(aws.plane, namespace_document(namespace))
    workload = Workload(aws, namespace)
    try:
        yield workload
    finally:
        workload.stop()
        aws.plane.kubectl("delete", "namespace", namespace, "--wait=false")
