"""Objects of egressgateway's kinds as these programs would read them.

Their specs and statuses are whatever an API server or a file has: they are decoded one by one, so that one that cannot
be decoded is told, where the programs' own lists would fail as a whole.
"""

from collections.abc import Iterable, Mapping
from typing import Any, TypeVar

import msgspec

from coil.crd.builtin import Namespace
from coil.crd.egress_gateway import EgressGateway, EgressGatewaySpec, EgressGatewayStatus
from coil.crd.egress_gateway_policy import (
    AllocatorPolicy,
    EgressGatewayPolicy,
    EgressGatewayPolicySpec,
)
from coil.crd.egress_policy import (
    EgressClusterPolicy,
    EgressClusterPolicySpec,
    EgressPolicy,
    EgressPolicyStatus,
)
from coil.crd.meta import ObjectMeta, Struct
from coil.crd.resource import object_key
from coil.eip.policy_mirror import Source, mirrors_of

T = TypeVar("T")


class Untyped(Struct, frozen=True, kw_only=True):
    """An object of a custom resource."""

    metadata: ObjectMeta
    spec: Any = None
    status: Any = None


class Undecodable(Struct, frozen=True):
    """Why a spec or a status cannot be read, in the decoder's words."""

    reason: str


def decode(value: Any, kind: type[T]) -> T | Undecodable:
    """A spec or a status; an absent one is an empty one."""
    try:
        return msgspec.convert({} if value is None else value, kind)
    except msgspec.ValidationError as error:
        return Undecodable(str(error))


def decode_gateway(found: Untyped) -> EgressGateway | Undecodable:
    """A status that cannot be decoded counts as none: see `decode`."""
    spec, status = decode(found.spec, EgressGatewaySpec), decode(found.status, EgressGatewayStatus)
    if isinstance(spec, Undecodable):
        return spec
    known = EgressGatewayStatus() if isinstance(status, Undecodable) else status
    return EgressGateway(metadata=found.metadata, spec=spec, status=known)


def decode_policy(found: Untyped) -> EgressPolicy | EgressClusterPolicy | Undecodable:
    """With the default that the API server fills in; the one kind has a namespace. A status likewise."""
    status = decode(found.status, EgressPolicyStatus)
    known = EgressPolicyStatus() if isinstance(status, Undecodable) else status
    spec = _with_allocator(found.spec)
    if found.metadata.namespace:
        policy_spec = decode(spec, EgressGatewayPolicySpec)
        if isinstance(policy_spec, Undecodable):
            return policy_spec
        return EgressPolicy(metadata=found.metadata, spec=policy_spec, status=known)
    cluster_spec = decode(spec, EgressClusterPolicySpec)
    if isinstance(cluster_spec, Undecodable):
        return cluster_spec
    return EgressClusterPolicy(metadata=found.metadata, spec=cluster_spec, status=known)


def _with_allocator(spec: Any) -> Any:
    if not isinstance(spec, Mapping) or not isinstance(address := spec.get("egressIP") or {}, Mapping):
        return spec
    return {**spec, "egressIP": {"allocatorPolicy": str(AllocatorPolicy.DEFAULT), **address}}


def sample_mirror(source: Source) -> EgressGatewayPolicy:
    """An EgressGatewayPolicy as they stand for `source`, in any of its namespaces."""
    somewhere = Namespace(metadata=ObjectMeta(name=source.metadata.namespace or "default"))
    if isinstance(source, EgressClusterPolicy):
        applied_to = msgspec.structs.replace(source.spec.applied_to, namespace_selector=None)
        source = msgspec.structs.replace(source, spec=msgspec.structs.replace(source.spec, applied_to=applied_to))
    return next(iter(living_mirrors(source, [somewhere]).values()))


def living_mirrors(source: Source, namespaces: Iterable[Namespace]) -> dict[str, EgressGatewayPolicy]:
    """The EgressGatewayPolicies that would stand for `source`, as old as it is, which decides who gets an address."""
    metadata = msgspec.structs.replace(source.metadata, deletion_timestamp=None)
    found = mirrors_of(msgspec.structs.replace(source, metadata=metadata), namespaces)
    return {key: _aged(mirror, metadata) for key, mirror in found.items()}


def _aged(mirror: EgressGatewayPolicy, source: ObjectMeta) -> EgressGatewayPolicy:
    metadata = msgspec.structs.replace(mirror.metadata, creation_timestamp=source.creation_timestamp)
    return msgspec.structs.replace(mirror, metadata=metadata)


def subject_of(kind: str, metadata: ObjectMeta) -> str:
    """For a Finding."""
    return f"{kind} {object_key(metadata)}"
