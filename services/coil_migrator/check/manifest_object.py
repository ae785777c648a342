"""Manifests from files beside, or in place of, what a cluster has: what it would have once they are applied."""

from collections.abc import Callable, Iterable
from dataclasses import replace
from typing import Any, Final, TypeVar

import msgspec

from coil.crd.address_pool import ADDRESS_POOLS, AddressPool
from coil.crd.builtin import CONFIG_MAPS, NAMESPACES, ConfigMap, Namespace
from coil.crd.egress import EGRESSES, Egress
from coil.crd.egress_cluster_info import EGRESS_CLUSTER_INFOS
from coil.crd.egress_gateway import EGRESS_GATEWAYS
from coil.crd.egress_policy import EGRESS_CLUSTER_POLICIES, EGRESS_POLICIES
from coil.crd.meta import ObjectMeta
from coil.crd.resource import HasMetadata, Resource, object_key
from coil_migrator.check.cluster import Cluster
from coil_migrator.check.egressgateway_object import Untyped
from coil_migrator.manifest_reader import Manifest, ManifestError, objects_in
from coil_migrator.workload import DAEMON_SETS, DEPLOYMENTS, Workload

T = TypeVar("T", bound=HasMetadata)
S = TypeVar("S", AddressPool, Egress, Untyped)

DEFAULT_NAMESPACE: Final = "default"


def with_manifests(cluster: Cluster, manifests: Iterable[Manifest]) -> Cluster:
    """The objects of kinds that a check looks at; others are passed over. Of an object that is there, the spec changes
    and nothing else. Raises ManifestError for one that is none of its kind.
    """
    for manifest in manifests:
        for document in objects_in(manifest.value):
            add = _KINDS.get((document.get("apiVersion"), document.get("kind")))
            if add is None:
                continue
            try:
                cluster = add(cluster, document)
            except msgspec.ValidationError as error:
                raise ManifestError(f"{manifest.place}: {document['kind']}: {error}") from error
    return cluster


def read_object(document: dict[str, Any], kind: type[T], *, namespaced: bool) -> T:
    """Where a document does not say so, its namespace is the default one. Raises msgspec.ValidationError."""
    found = msgspec.convert(document, kind)
    namespace = (found.metadata.namespace or DEFAULT_NAMESPACE) if namespaced else ""
    metadata: ObjectMeta = msgspec.structs.replace(found.metadata, namespace=namespace)
    return msgspec.structs.replace(found, metadata=metadata)  # type: ignore[type-var]  # all are structs


def _add_pool(cluster: Cluster, document: dict[str, Any]) -> Cluster:
    return replace(cluster, pools=_changed(cluster.pools, read_object(document, AddressPool, namespaced=False)))


def _add_egress(cluster: Cluster, document: dict[str, Any]) -> Cluster:
    return replace(cluster, egresses=_changed(cluster.egresses, read_object(document, Egress, namespaced=True)))


def _add_gateway(cluster: Cluster, document: dict[str, Any]) -> Cluster:
    return replace(cluster, gateways=_changed(cluster.gateways, read_object(document, Untyped, namespaced=False)))


def _add_policy(cluster: Cluster, document: dict[str, Any]) -> Cluster:
    added = read_object(document, Untyped, namespaced=document["kind"] == EGRESS_POLICIES.kind)
    return replace(cluster, egress_policies=_changed(cluster.egress_policies, added))


def _add_cluster_info(cluster: Cluster, document: dict[str, Any]) -> Cluster:
    added = read_object(document, Untyped, namespaced=False)
    return replace(cluster, cluster_infos=_changed(cluster.cluster_infos, added))


def _add_workload(cluster: Cluster, document: dict[str, Any]) -> Cluster:
    added = read_object(document, Workload, namespaced=True)
    place = document["kind"], object_key(added.metadata)
    others = [each for each in cluster.workloads if (each[0], object_key(each[1].metadata)) != place]
    return replace(cluster, workloads=(*others, (document["kind"], added)))


def _add_config_map(cluster: Cluster, document: dict[str, Any]) -> Cluster:
    added = read_object(document, ConfigMap, namespaced=True)
    key = added.metadata.namespace, added.metadata.name
    return replace(cluster, config_maps={**cluster.config_maps, key: added})


def _add_namespace(cluster: Cluster, document: dict[str, Any]) -> Cluster:
    added = read_object(document, Namespace, namespaced=False)
    others = [each for each in cluster.namespaces if each.metadata.name != added.metadata.name]
    return replace(cluster, namespaces=(*others, added))


def _changed(present: tuple[S, ...], added: S) -> tuple[S, ...]:
    objects = {object_key(each.metadata): each for each in present}
    key = object_key(added.metadata)
    objects[key] = msgspec.structs.replace(objects[key], spec=added.spec) if key in objects else added
    return tuple(objects.values())


def _name(resource: Resource[Any]) -> tuple[str, str]:
    return resource.api_version, resource.kind


_KINDS: Final[dict[tuple[Any, Any], Callable[[Cluster, dict[str, Any]], Cluster]]] = {
    _name(ADDRESS_POOLS): _add_pool,
    _name(EGRESSES): _add_egress,
    _name(EGRESS_GATEWAYS): _add_gateway,
    _name(EGRESS_POLICIES): _add_policy,
    _name(EGRESS_CLUSTER_POLICIES): _add_policy,
    _name(EGRESS_CLUSTER_INFOS): _add_cluster_info,
    _name(DAEMON_SETS): _add_workload,
    _name(DEPLOYMENTS): _add_workload,
    _name(CONFIG_MAPS): _add_config_map,
    _name(NAMESPACES): _add_namespace,
}
