"""What a check reads of a cluster, and nothing else: lists, and no Secret."""

import asyncio
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import product
from typing import Any, Final, TypeVar

import msgspec

from coil.crd.address_pool import ADDRESS_POOLS, AddressPool
from coil.crd.builtin import (
    CLUSTER_ROLE_BINDINGS,
    CONFIG_MAPS,
    NAMESPACES,
    NODES,
    SERVICE_ACCOUNTS,
    SERVICE_CIDRS,
    SERVICES,
    ConfigMap,
    Namespace,
    Node,
    Service,
    ServiceCidr,
)
from coil.crd.egress import EGRESSES, Egress
from coil.crd.egress_cluster_info import EGRESS_CLUSTER_INFOS
from coil.crd.egress_gateway import EGRESS_GATEWAYS
from coil.crd.egress_gateway_policy import EGRESS_ENDPOINT_SLICES
from coil.crd.egress_policy import EGRESS_CLUSTER_POLICIES, EGRESS_POLICIES
from coil.crd.egress_tunnel import EGRESS_TUNNELS
from coil.crd.foreign_network import CALICO_POOLS, CILIUM_NODES, CalicoPool, CiliumNode
from coil.crd.meta import ObjectMeta, Struct
from coil.crd.names import LABEL_APP_NAME
from coil.crd.resource import HasMetadata, Resource
from coil.egress.client_pod import FINAL_PHASES
from coil.egress.cluster_networks import CILIUM, KUBE_PROXY, KUBEADM
from coil.kube.client import KubeClient
from coil.kube.errors import NotFoundError, NotServedError, UnavailableError
from coil_migrator.check.egressgateway_object import Untyped
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


class VersionSchema(Struct, frozen=True, kw_only=True):
    """Nothing but what it says of itself: whole schemas are large."""

    description: str = ""


class VersionValidation(Struct, frozen=True, kw_only=True):
    schema: VersionSchema = msgspec.field(name="openAPIV3Schema", default=VersionSchema())


class DefinitionVersion(Struct, frozen=True, kw_only=True):
    schema: VersionValidation = VersionValidation()


class DefinitionSpec(Struct, frozen=True, kw_only=True):
    versions: tuple[DefinitionVersion, ...] = ()


class Definition(Struct, frozen=True, kw_only=True):
    metadata: ObjectMeta
    spec: DefinitionSpec = DefinitionSpec()

    @property
    def description(self) -> str:
        """Of its first version's objects: by this, definitions of one name are told apart."""
        return next((version.schema.schema.description for version in self.spec.versions), "")


PODS: Resource[ClientPod] = Resource("", "v1", "pods", "Pod", namespaced=True, type=ClientPod)
MACHINES: Resource[Machine] = Resource("", "v1", "nodes", "Node", namespaced=False, type=Machine)
DEFINITIONS: Resource[Definition] = Resource(
    *("apiextensions.k8s.io", "v1", "customresourcedefinitions", "CustomResourceDefinition"),
    namespaced=False,
    type=Definition,
)
FORMER_SLICE_LABEL: Final = "spidernet.io/policy-name"
"""On egressgateway's EgressEndpointSlices; those of these programs have another."""


def untyped(resource: Resource[Any]) -> Resource[Untyped]:
    """The same kind, whatever its objects have in them."""
    return replace(resource, type=Untyped)


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

ATTEMPTS: Final = 5
LONGEST_PAUSE: Final = 5.0
"""Seconds between two of them."""

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
    """`definitions` are custom resource definitions by name, each with what it says of itself, `named` what there is of
    `NAMED_KINDS`, by kind. `former_slices` are egressgateway's.
    """

    workloads: tuple[tuple[str, Workload], ...] = ()
    """Each with its kind."""
    config_maps: Mapping[tuple[str, str], ConfigMap] = field(default_factory=dict)
    """By namespace and name: those that the workloads name, and configurations that tell networks of pods."""
    pools: tuple[AddressPool, ...] = ()
    egresses: tuple[Egress, ...] = ()
    pods: tuple[ClientPod, ...] = ()
    namespaces: tuple[Namespace, ...] = ()
    nodes: tuple[Node, ...] = ()
    machines: tuple[Machine, ...] = ()
    services: tuple[Service, ...] = ()
    service_cidrs: tuple[ServiceCidr, ...] = ()
    calico_pools: tuple[CalicoPool, ...] = ()
    cilium_nodes: tuple[CiliumNode, ...] = ()
    gateways: tuple[Untyped, ...] = ()
    egress_policies: tuple[Untyped, ...] = ()
    """EgressPolicies, and without a namespace EgressClusterPolicies."""
    cluster_infos: tuple[Untyped, ...] = ()
    tunnels: tuple[Untyped, ...] = ()
    former_slices: tuple[ObjectMeta, ...] = ()
    definitions: Mapping[str, str] = field(default_factory=dict)
    named: Mapping[str, tuple[ObjectMeta, ...]] = field(default_factory=dict)


async def read_cluster(client: KubeClient, *, namespaces: Sequence[str]) -> Cluster:
    """Lists of what there is; a kind that the API server does not know has none. Raises ApiError.

    Programs are those of `namespaces`: what tenants call a program of theirs is none of Coil's.
    """

    async def listed(
        resource: Resource[T], *, namespace: str = "", labels: str = "", fields: str = ""
    ) -> tuple[T, ...]:
        async def ask() -> tuple[T, ...]:
            try:
                return tuple(await client.list(resource, namespace=namespace, labels=labels, fields=fields))
            except (NotFoundError, NotServedError):
                if not resource.group:  # that is no API server
                    raise
                return ()

        for _ in range(ATTEMPTS - 1):
            try:
                return await ask()
            except UnavailableError as error:
                # A kind that was just defined: the API server says when to come again.
                if error.retry_after is None:
                    raise
                await asyncio.sleep(min(error.retry_after, LONGEST_PAUSE))
        return await ask()

    workloads: list[tuple[str, Workload]] = []
    for resource, namespace in product((DAEMON_SETS, DEPLOYMENTS), namespaces):
        workloads += [(resource.kind, workload) for workload in await listed(resource, namespace=namespace)]
    places = [(at.namespace, at.name) for at in (KUBEADM, KUBE_PROXY, CILIUM)]
    for _, workload in workloads:
        names = (*config_maps_of(workload), *configurations_of(workload))
        places += [(workload.metadata.namespace, name) for name in names]
    config_maps: dict[tuple[str, str], ConfigMap] = {}
    for namespace, name in places:
        for found in await listed(CONFIG_MAPS, namespace=namespace, fields=f"metadata.name={name}"):
            config_maps[namespace, name] = found
    return Cluster(
        workloads=tuple(workloads),
        config_maps=config_maps,
        pools=await listed(ADDRESS_POOLS),
        egresses=await listed(EGRESSES),
        pods=await listed(PODS),
        namespaces=await listed(NAMESPACES),
        nodes=await listed(NODES),
        machines=await listed(MACHINES),
        services=await listed(SERVICES),
        service_cidrs=await listed(SERVICE_CIDRS),
        calico_pools=await listed(CALICO_POOLS),
        cilium_nodes=await listed(CILIUM_NODES),
        gateways=await listed(untyped(EGRESS_GATEWAYS)),
        egress_policies=(
            *await listed(untyped(EGRESS_POLICIES)),
            *await listed(untyped(EGRESS_CLUSTER_POLICIES)),
        ),
        cluster_infos=await listed(untyped(EGRESS_CLUSTER_INFOS)),
        tunnels=await listed(untyped(EGRESS_TUNNELS)),
        former_slices=tuple(
            each.metadata for each in await listed(untyped(EGRESS_ENDPOINT_SLICES), labels=FORMER_SLICE_LABEL)
        ),
        definitions={each.metadata.name: each.description for each in await listed(DEFINITIONS)},
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


def configurations_of(workload: Workload) -> list[str]:
    """The ConfigMaps that a program of egressgateway has as files."""
    if not is_egressgateway(workload):
        return []
    volumes = workload.spec.template.spec.volumes
    return [volume.config_map.name for volume in volumes if volume.config_map is not None]


def is_egressgateway(workload: Workload) -> bool:
    """Whether it is a program of egressgateway, by its chart's labels."""
    return workload.metadata.labels.get(LABEL_APP_NAME) == "egressgateway"


def document_of(text: str) -> Any:
    """A JSON document; None if it is none."""
    try:
        return msgspec.json.decode(text)
    except msgspec.DecodeError:
        return None
