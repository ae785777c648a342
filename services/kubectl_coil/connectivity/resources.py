"""Kubernetes' own kinds with the fields that `kubectl coil connectivity` reads and no other program does."""

import msgspec

from coil.crd.builtin import NodeAddress, NodeCondition, PodIP
from coil.crd.meta import Condition, ObjectMeta, Struct
from coil.crd.resource import Resource


class Taint(Struct, frozen=True, kw_only=True):
    key: str = ""
    effect: str = ""


class NodeSpec(Struct, frozen=True, kw_only=True):
    unschedulable: bool = False
    taints: tuple[Taint, ...] = ()


class KubeletEndpoint(Struct, frozen=True, kw_only=True):
    port: int = msgspec.field(name="Port", default=0)


class DaemonEndpoints(Struct, frozen=True, kw_only=True):
    kubelet_endpoint: KubeletEndpoint = KubeletEndpoint()


class NodeStatus(Struct, frozen=True, kw_only=True):
    addresses: tuple[NodeAddress, ...] = ()
    conditions: tuple[NodeCondition, ...] = ()
    daemon_endpoints: DaemonEndpoints = DaemonEndpoints()


class CandidateNode(Struct, frozen=True, kw_only=True):
    """A Node on which a pod may be put."""

    metadata: ObjectMeta
    spec: NodeSpec = NodeSpec()
    status: NodeStatus = NodeStatus()

    @property
    def usable(self) -> bool:
        """Whether a pod without tolerations may be there."""
        ready = any((each.type, each.status) == ("Ready", "True") for each in self.status.conditions)
        effects = {taint.effect for taint in self.spec.taints}
        return ready and not self.spec.unschedulable and not effects & {"NoSchedule", "NoExecute"}


class Waiting(Struct, frozen=True, kw_only=True):
    reason: str = ""
    message: str = ""


class ContainerState(Struct, frozen=True, kw_only=True):
    waiting: Waiting | None = None


class ContainerStatus(Struct, frozen=True, kw_only=True):
    state: ContainerState = ContainerState()


class ProbePodStatus(Struct, frozen=True, kw_only=True):
    phase: str = ""
    reason: str = ""
    message: str = ""
    conditions: tuple[Condition, ...] = ()
    container_statuses: tuple[ContainerStatus, ...] = ()
    # The API writes "podIPs"; the struct's camel case would ask for "podIps".
    pod_ips: tuple[PodIP, ...] = msgspec.field(name="podIPs", default=())


class ProbePod(Struct, frozen=True, kw_only=True):
    """A pod with what tells why it does not start."""

    metadata: ObjectMeta
    status: ProbePodStatus = ProbePodStatus()

    @property
    def ready(self) -> bool:
        return any((each.type, each.status) == ("Ready", "True") for each in self.status.conditions)

    @property
    def trouble(self) -> str:
        """Why it is not ready, as far as the API server knows."""
        for container in self.status.container_statuses:
            if (waiting := container.state.waiting) is not None:
                return ": ".join(filter(None, (waiting.reason, waiting.message)))
        return ": ".join(filter(None, (self.status.reason, self.status.message))) or f"it is {self.status.phase}"


NODES: Resource[CandidateNode] = Resource("", "v1", "nodes", "Node", namespaced=False, type=CandidateNode)
PODS: Resource[ProbePod] = Resource("", "v1", "pods", "Pod", namespaced=True, type=ProbePod)
