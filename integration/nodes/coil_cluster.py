"""A real cluster with Coil on it, as tests use it: what they ask of Kubernetes, and what they see there and in kernels.

A test works in a `Room` of its own: a namespace whose pods draw from a pool that nobody else draws from. A room that is
left has proven that nothing leaks: its pool can only go after its last block, and a block only after its last pod.
"""

import itertools
import json
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from enum import Enum
from typing import Any

from integration.cluster.cluster import Cluster
from integration.cluster.control_plane import ControlPlane, KubectlError
from integration.cluster.node import Node
from integration.demo.inventory import BlockRow, PodRow, read_blocks, read_pods
from integration.demo.reach import find_gaps
from integration.demo.workload import namespace_document, pool_document, server_container
from integration.deployment import apply
from integration.helm.release import Release
from integration.kernel_state import KernelState
from integration.nodes.program_pods import ProgramPods
from integration.patience import wait_until

READY_SECONDS = 300
"""A kubelet tries a sandbox that failed again after up to 15 s."""

DEFAULT_POOL = "default"


class Families(Enum):
    """What a pool gives; the values are IP versions in the order of `status.podIPs`."""

    DUAL = (4, 6)
    IPV4 = (4,)
    IPV6 = (6,)


@dataclass(frozen=True, slots=True)
class CoilCluster:
    """`release` is what was installed on it; its programs may be killed, kept away and upgraded."""

    cluster: Cluster
    release: Release
    _numbers: Iterator[int] = field(default_factory=lambda: itertools.count(1))

    @property
    def plane(self) -> ControlPlane:
        return self.cluster.plane

    @property
    def nodes(self) -> list[Node]:
        return self.cluster.nodes

    @property
    def programs(self) -> ProgramPods:
        return ProgramPods(self.cluster, self.release)

    def kernel(self, node: Node) -> KernelState:
        """What the node's kernel holds."""
        return KernelState(str(node.netns))

    def read(self, *arguments: str) -> dict[str, Any]:
        """What `kubectl get` prints as JSON."""
        document: dict[str, Any] = json.loads(self.plane.kubectl("get", *arguments, "--output=json"))
        return document

    def blocks(self) -> list[BlockRow]:
        """All blocks of all pools."""
        return read_blocks(self.read("addressblocks"))

    @contextmanager
    def room(self, families: Families = Families.DUAL, *, bits: int = 3, pool: str = "") -> Iterator["Room"]:
        """As `make_room`. On leaving everything in the namespace is deleted, and the pool is waited for."""
        room = self.make_room(families, bits=bits, pool=pool)
        try:
            yield room
        finally:
            room.clear()
            self.plane.kubectl("delete", "namespace", room.namespace, "--wait=false")
            self.plane.kubectl("delete", "addresspool", room.pool, "--ignore-not-found", f"--timeout={READY_SECONDS}s")

    def make_room(self, families: Families = Families.DUAL, *, bits: int = 3, pool: str = "") -> "Room":
        """A new namespace and its pool of 256 addresses, in blocks of 2 to the power of `bits`.

        The pool's name goes into the namespace's annotation, unless it is `default`.
        """
        number = next(self._numbers)
        name = f"room-{number}"
        subnets = {4: ("ipv4", f"10.110.{number}.0/24"), 6: ("ipv6", f"fd10:110:0:{number}::/120")}
        spec = {"blockSizeBits": bits, "subnets": [dict(subnets[version] for version in families.value)]}
        room = Room(self, namespace=name, pool=pool or name)
        self.release.apply(
            pool_document(room.pool, spec),
            namespace_document(name, pool="" if room.pool == DEFAULT_POOL else room.pool),
        )
        # A controller makes it; before that no pod is taken.
        wait_until(lambda: _has(self.plane, "serviceaccount", "default", name), what=f"{name} has its service account")
        return room


@dataclass(frozen=True, slots=True)
class Room:
    """A namespace and the pool that its pods draw from."""

    coil: CoilCluster
    namespace: str
    pool: str

    def kubectl(self, *arguments: str) -> str:
        """Standard output of kubectl in this namespace. Raises KubectlError."""
        return self.coil.plane.kubectl(f"--namespace={self.namespace}", *arguments)

    def create(self, *documents: dict[str, Any]) -> None:
        """Hand the API server objects; not waited for."""
        apply(self.coil.plane, *documents)

    def pod(self, name: str, node: Node, **spec: Any) -> dict[str, Any]:
        """A server pod bound to a node; `spec` adds to its PodSpec or replaces what is there."""
        return {
            "apiVersion": "v1",
            "kind": "Pod",
            "metadata": {"name": name, "namespace": self.namespace, "labels": {"app": name}},
            "spec": {
                "nodeName": node.name,
                "automountServiceAccountToken": False,
                "terminationGracePeriodSeconds": 0,
                "containers": [server_container()],
                **spec,
            },
        }

    def run(self, *documents: dict[str, Any]) -> None:
        """Create pods and wait until all of the namespace are Ready."""
        self.create(*documents)
        self.wait_ready("--all")

    def wait_ready(self, *pods: str) -> None:
        """Return when the pods are Ready. Raises AssertionError with what the kubelets have to say."""
        try:
            self.kubectl("wait", "--for=condition=Ready", "pod", *pods, f"--timeout={READY_SECONDS}s")
        except KubectlError as error:
            raise AssertionError(f"{error}\n{self.kubectl('get', 'pods,events', '--output=wide')}") from error

    def pods(self) -> list[PodRow]:
        """The namespace's pods that have addresses, by node and name."""
        return read_pods(self.coil.read("pods", f"--namespace={self.namespace}"), self.coil.blocks())

    def blocks(self) -> list[BlockRow]:
        """The pool's blocks, by index."""
        return [block for block in self.coil.blocks() if block.pool == self.pool]

    def find_gaps(self, pods: Sequence[PodRow] | None = None) -> list[str]:
        """A sentence for each of these pods, by default all, that another one or a node does not reach by TCP."""
        return find_gaps(self.coil.plane, self.coil.nodes, list(self.pods() if pods is None else pods))

    def events(self, pod: str, *, reason: str) -> list[str]:
        """The messages of a pod's events."""
        selector = f"involvedObject.name={pod},reason={reason}"
        items = self.coil.read("events", f"--namespace={self.namespace}", f"--field-selector={selector}")["items"]
        return [item["message"] for item in items]

    def clear(self) -> None:
        """Delete every workload of the namespace."""
        self.kubectl("delete", "deployments,services,pods", "--all", f"--timeout={READY_SECONDS}s")


def _has(plane: ControlPlane, kind: str, name: str, namespace: str) -> bool:
    return bool(plane.kubectl("get", kind, name, f"--namespace={namespace}", "--ignore-not-found", "--output=name"))
