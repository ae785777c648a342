"""What a check reads of a cluster, and nothing else: lists, and no Secret."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Final, TypeVar

import msgspec

from coil.crd.address_pool import ADDRESS_POOLS, AddressPool
from coil.crd.builtin import (
    CLUSTER_ROLE_BINDINGS,
    CONFIG_MAPS,
    NODES,
    SERVICE_ACCOUNTS,
    SERVICE_CIDRS,
    SERVICES,
    ConfigMap,
    Node,
    Service,
    ServiceCidr,
)
from coil.crd.egress import EGRESSES, Egress
from coil.crd.meta import ObjectMeta, Struct
from coil.crd.resource import HasMetadata, Resource
from coil.egress.client_pod import FINAL_PHASES
from coil.kube.client import KubeClient
from coil.kube.errors import NotFoundError
from coil_migrator.v1_install import CLUSTER_ROLES, Thing
from coil_migrator.workload import DAEMON_SETS, DEPLOYMENTS, PodSpec, Workload

T = TypeVar("T", bound=HasMetadata)


class PodStatus(Struct, frozen=True, kw_only=True):
    phase: str = ""


class ClientPod(Struct, frozen=True, kw_only=True):
    metadata: ObjectMeta
    spec: PodSpec = PodSpec()
    status: PodStatus = PodStatus()

    @property
    def is_ours(self) -> bool:
        """Whether it has, or gets, a network namespace of its own."""
        return not self.spec.host_network and self.status.phase not in FINAL_PHASES


class NodeInfo(Struct, frozen=True, kw_only=True):
    kernel_version: str = ""
    container_runtime_version: str = ""
    architecture: str = ""


class MachineStatus(Struct, frozen=True, kw_only=True):
    node_info: NodeInfo = NodeInfo()


class Machine(Struct, frozen=True, kw_only=True):
    """A Node as to what runs on it."""

    metadata: ObjectMeta
    status: MachineStatus = MachineStatus()


PODS: Resource[ClientPod] = Resource("", "v1", "pods", "Pod", namespaced=True, type=ClientPod)
MACHINES: Resource[Machine] = Resource("", "v1", "nodes", "Node", namespaced=False, type=Machine)
DEFINITIONS: Resource[Thing] = Resource(
    "apiextensions.k8s.io", "v1", "customresourcedefinitions", "CustomResourceDefinition", namespaced=False, type=Thing
)
MUTATING_WEBHOOKS: Resource[Thing] = Resource(
    "admissionregistration.k8s.io",
    "v1",
    "mutatingwebhookconfigurations",
    "MutatingWebhookConfiguration",
    namespaced=False,
    type=Thing,
)
VALIDATING_WEBHOOKS: Resource[Thing] = Resource(
    "admissionregistration.k8s.io",
    "v1",
    "validatingwebhookconfigurations",
    "ValidatingWebhookConfiguration",
    namespaced=False,
    type=Thing,
)

NETCONF: Final = "CNI_NETCONF"
"""The installer's variable with the network configuration."""
NAMED_KINDS: tuple[Resource[Any], ...] = (
    SERVICE_ACCOUNTS,
    CLUSTER_ROLES,
    CLUSTER_ROLE_BINDINGS,
    MUTATING_WEBHOOKS,
    VALIDATING_WEBHOOKS,
)
"""Kinds of which the chart has objects that the manifests of Coil v2 have, too."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Cluster:
    """`definitions` are the names of custom resource definitions, `named` what there is of `NAMED_KINDS`, by kind."""

    workloads: tuple[tuple[str, Workload], ...] = ()
    """Each with its kind."""
    config_maps: Mapping[tuple[str, str], ConfigMap] = field(default_factory=dict)
    """By namespace and name: those that the workloads name."""
    pools: tuple[AddressPool, ...] = ()
    egresses: tuple[Egress, ...] = ()
    pods: tuple[ClientPod, ...] = ()
    nodes: tuple[Node, ...] = ()
    machines: tuple[Machine, ...] = ()
    services: tuple[Service, ...] = ()
    service_cidrs: tuple[ServiceCidr, ...] = ()
    definitions: frozenset[str] = frozenset()
    named: Mapping[str, tuple[ObjectMeta, ...]] = field(default_factory=dict)


async def read_cluster(client: KubeClient, *, namespace: str) -> Cluster:
    """Lists of what there is; a kind that the API server does not know has none. Raises ApiError.

    Programs are those of `namespace`: what tenants call a program of theirs is none of Coil's.
    """

    async def listed(resource: Resource[T], *, namespace: str = "", fields: str = "") -> tuple[T, ...]:
        try:
            return tuple(await client.list(resource, namespace=namespace, fields=fields))
        except NotFoundError:
            return ()

    workloads: list[tuple[str, Workload]] = []
    for resource in (DAEMON_SETS, DEPLOYMENTS):
        workloads += [(resource.kind, workload) for workload in await listed(resource, namespace=namespace)]
    config_maps: dict[tuple[str, str], ConfigMap] = {}
    for _, workload in workloads:
        for name in config_maps_of(workload):
            key = workload.metadata.namespace, name
            for found in await listed(CONFIG_MAPS, namespace=key[0], fields=f"metadata.name={name}"):
                config_maps[key] = found
    return Cluster(
        workloads=tuple(workloads),
        config_maps=config_maps,
        pools=await listed(ADDRESS_POOLS),
        egresses=await listed(EGRESSES),
        pods=await listed(PODS),
        nodes=await listed(NODES),
        machines=await listed(MACHINES),
        services=await listed(SERVICES),
        service_cidrs=await listed(SERVICE_CIDRS),
        definitions=frozenset(each.metadata.name for each in await listed(DEFINITIONS)),
        named={kind.kind: tuple(each.metadata for each in await listed(kind)) for kind in NAMED_KINDS},
    )


def config_maps_of(workload: Workload) -> list[str]:
    """The ConfigMaps that variables of an installer of Coil are from."""
    return [
        variable.value_from.config_map_key_ref.name
        for container in workload.spec.template.spec.init_containers
        for variable in container.env
        if variable.name == NETCONF
        and variable.value_from is not None
        and variable.value_from.config_map_key_ref is not None
    ]


def document_of(text: str) -> Any:
    """A JSON document; None if it is none."""
    try:
        return msgspec.json.decode(text)
    except msgspec.DecodeError:
        return None
