"""Kubernetes' own kinds as `kubectl coil status` reads them, with fields that no program of Coil keeps in a cache."""

from dataclasses import dataclass
from typing import ClassVar, TypeAlias

from coil.crd.meta import Condition, ObjectMeta, Struct
from coil.crd.resource import Resource


@dataclass(frozen=True, slots=True)
class PodCounts:
    """Of a workload; `updated` are those of the present template."""

    desired: int
    ready: int
    updated: int


class Container(Struct, frozen=True, kw_only=True):
    image: str = ""


class PodSpec(Struct, frozen=True, kw_only=True):
    containers: tuple[Container, ...] = ()


class PodTemplate(Struct, frozen=True, kw_only=True):
    spec: PodSpec = PodSpec()

    @property
    def version(self) -> str:
        """The digest or tag of the first container's image, or the image if it has neither."""
        image = next((container.image for container in self.spec.containers), "")
        name, _, digest = image.partition("@")
        tag = name.rpartition("/")[2].partition(":")[2]
        return digest or tag or image


class DeploymentSpec(Struct, frozen=True, kw_only=True):
    replicas: int = 1
    template: PodTemplate = PodTemplate()


class DeploymentStatus(Struct, frozen=True, kw_only=True):
    observed_generation: int = 0
    ready_replicas: int = 0
    updated_replicas: int = 0


class Deployment(Struct, frozen=True, kw_only=True):
    kind: ClassVar[str] = "Deployment"

    metadata: ObjectMeta
    spec: DeploymentSpec = DeploymentSpec()
    status: DeploymentStatus = DeploymentStatus()

    @property
    def pods(self) -> PodCounts:
        return PodCounts(self.spec.replicas, self.status.ready_replicas, self.status.updated_replicas)


class DaemonSetSpec(Struct, frozen=True, kw_only=True):
    template: PodTemplate = PodTemplate()


class DaemonSetStatus(Struct, frozen=True, kw_only=True):
    observed_generation: int = 0
    desired_number_scheduled: int = 0
    number_ready: int = 0
    updated_number_scheduled: int = 0


class DaemonSet(Struct, frozen=True, kw_only=True):
    kind: ClassVar[str] = "DaemonSet"

    metadata: ObjectMeta
    spec: DaemonSetSpec = DaemonSetSpec()
    status: DaemonSetStatus = DaemonSetStatus()

    @property
    def pods(self) -> PodCounts:
        status = self.status
        return PodCounts(status.desired_number_scheduled, status.number_ready, status.updated_number_scheduled)


Workload: TypeAlias = Deployment | DaemonSet


class NodeState(Struct, frozen=True, kw_only=True):
    conditions: tuple[Condition, ...] = ()


class NodeWithConditions(Struct, frozen=True, kw_only=True):
    """A Node with the texts of its conditions."""

    metadata: ObjectMeta
    status: NodeState = NodeState()

    @property
    def silent(self) -> bool:
        """Whether its kubelet has told that it is not ready, or tells nothing any more."""
        return any(each.type == "Ready" and each.status != "True" for each in self.status.conditions)


DEPLOYMENTS: Resource[Deployment] = Resource(
    "apps", "v1", "deployments", "Deployment", namespaced=True, type=Deployment
)
DAEMON_SETS: Resource[DaemonSet] = Resource("apps", "v1", "daemonsets", "DaemonSet", namespaced=True, type=DaemonSet)
NODES: Resource[NodeWithConditions] = Resource("", "v1", "nodes", "Node", namespaced=False, type=NodeWithConditions)
