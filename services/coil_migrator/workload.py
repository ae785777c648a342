"""Programs of a cluster as the API server has them: what a migration reads of DaemonSets, Deployments and pods."""

from coil.crd.meta import ObjectMeta, Struct
from coil.crd.resource import Resource


class KeyRef(Struct, frozen=True, kw_only=True):
    name: str = ""
    key: str = ""


class ValueFrom(Struct, frozen=True, kw_only=True):
    config_map_key_ref: KeyRef | None = None


class Variable(Struct, frozen=True, kw_only=True):
    name: str
    value: str = ""
    value_from: ValueFrom | None = None


class Port(Struct, frozen=True, kw_only=True):
    host_port: int = 0


class Container(Struct, frozen=True, kw_only=True):
    name: str
    image: str = ""
    command: tuple[str, ...] = ()
    args: tuple[str, ...] = ()
    env: tuple[Variable, ...] = ()
    ports: tuple[Port, ...] = ()


class ConfigMapVolume(Struct, frozen=True, kw_only=True):
    name: str = ""


class Volume(Struct, frozen=True, kw_only=True):
    config_map: ConfigMapVolume | None = None


class PodSpec(Struct, frozen=True, kw_only=True):
    containers: tuple[Container, ...] = ()
    init_containers: tuple[Container, ...] = ()
    volumes: tuple[Volume, ...] = ()
    host_network: bool = False


class PodTemplate(Struct, frozen=True, kw_only=True):
    metadata: ObjectMeta = ObjectMeta()
    spec: PodSpec = PodSpec()


class WorkloadSpec(Struct, frozen=True, kw_only=True):
    template: PodTemplate = PodTemplate()


class Workload(Struct, frozen=True, kw_only=True):
    """A DaemonSet or a Deployment."""

    metadata: ObjectMeta
    spec: WorkloadSpec = WorkloadSpec()


DAEMON_SETS: Resource[Workload] = Resource("apps", "v1", "daemonsets", "DaemonSet", namespaced=True, type=Workload)
DEPLOYMENTS: Resource[Workload] = Resource("apps", "v1", "deployments", "Deployment", namespaced=True, type=Workload)
