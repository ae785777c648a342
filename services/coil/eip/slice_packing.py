"""How a policy's endpoints are spread over its EgressEndpointSlices: as few writes as the change needs.

Endpoints stay in the slice that has them, so a slice without changes is not written. New ones go where something is
written anyway; what is left goes into one slice that has room for all of it, or else into new ones. So n new pods cost
at most n / limit writes, rounded up, and of slices that exist only those are written that lose or change an endpoint,
and one more. A slice of those that is at most a quarter full is emptied into another that has the room: that is one
write more after three quarters of a slice have gone, and of all slices only one is ever as empty as that.

Invariants of the result: each endpoint is in one slice, once; no slice has more than `limit`; a slice's endpoints are
sorted; a slice without endpoints is deleted. Packing what was packed writes nothing.
"""

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field

import msgspec

from coil.crd.builtin import Pod
from coil.crd.egress_gateway_policy import (
    EGRESS_GATEWAY_POLICIES,
    EgressEndpoint,
    EgressEndpointSlice,
    EgressGatewayPolicy,
)
from coil.crd.meta import ObjectMeta, OwnerReference
from coil.crd.names import LABEL_POLICY

_FINISHED = frozenset({"Succeeded", "Failed"})


@dataclass(frozen=True, slots=True, kw_only=True)
class Packing:
    """What to write, in this order. Updates and deletions carry what was read: guard them by its resource version."""

    creates: tuple[EgressEndpointSlice, ...] = ()
    updates: tuple[EgressEndpointSlice, ...] = ()
    deletes: tuple[EgressEndpointSlice, ...] = ()

    @property
    def writes(self) -> int:
        return len(self.creates) + len(self.updates) + len(self.deletes)


@dataclass(slots=True, eq=False)
class _Parcel:
    """A slice under way; `source` is None for a new one. `dirty`: it is going to be written."""

    source: EgressEndpointSlice | None
    endpoints: list[EgressEndpoint] = field(default_factory=list)
    dirty: bool = True


def is_finished(pod: Pod) -> bool:
    """Whether nothing runs there any more, nor will."""
    return pod.status.phase in _FINISHED


def endpoint_of(pod: Pod) -> EgressEndpoint | None:
    """The endpoint that a pod is. None: it has no address of its own, or has none any more."""
    if pod.spec.host_network or is_finished(pod) or not pod.status.pod_ips:
        return None
    addresses = tuple(entry.ip for entry in pod.status.pod_ips)
    return EgressEndpoint(
        pod_name=pod.metadata.name,
        ipv4_list=tuple(text for text in addresses if ":" not in text),
        ipv6_list=tuple(text for text in addresses if ":" in text),
        node_name=pod.spec.node_name,
        uuid=pod.metadata.uid,
    )


def pack(
    policy: EgressGatewayPolicy,
    endpoints: Iterable[EgressEndpoint],
    existing: Sequence[EgressEndpointSlice],
    *,
    limit: int,
    fresh_name: Callable[[], str],
) -> Packing:
    """The writes after which the policy's slices have exactly `endpoints`, one per name of a pod.

    `existing` are the slices in the policy's namespace that have its label, or name it as their owner; those of an
    earlier policy of that name are deleted. `fresh_name` gives another name each time, which may be taken.
    """
    wanted = {endpoint.pod_name: endpoint for endpoint in endpoints}
    strangers = [one for one in existing if not _owns(policy, one)]
    parcels = [
        _keep(policy, one, wanted, limit)
        for one in sorted(existing, key=lambda one: one.metadata.name)
        if _owns(policy, one) and not one.metadata.deleting
    ]
    _add(parcels, sorted(wanted.values(), key=_order), limit)
    _compact(parcels, limit)
    return _writes(policy, parcels, strangers, {one.metadata.name for one in existing}, fresh_name)


def _keep(
    policy: EgressGatewayPolicy, source: EgressEndpointSlice, wanted: dict[str, EgressEndpoint], limit: int
) -> _Parcel:
    """What stays of a slice. It is taken out of `wanted`, so that it stays once."""
    names = [endpoint.pod_name for endpoint in source.endpoints]
    kept = [wanted.pop(name) for name in dict.fromkeys(names) if name in wanted]
    for endpoint in kept[limit:]:
        wanted[endpoint.pod_name] = endpoint
    kept = sorted(kept[:limit], key=_order)
    labelled = source.metadata.labels.get(LABEL_POLICY) == policy.metadata.name
    return _Parcel(source, kept, dirty=not labelled or not kept or tuple(kept) != source.endpoints)


def _add(parcels: list[_Parcel], newcomers: list[EgressEndpoint], limit: int) -> None:
    for parcel in sorted((one for one in parcels if one.dirty), key=lambda one: -len(one.endpoints)):
        newcomers = _fill(parcel, newcomers, limit)
    while newcomers:
        fitting = [one for one in parcels if not one.dirty and len(one.endpoints) + len(newcomers) <= limit]
        if fitting:
            parcel = max(fitting, key=lambda one: len(one.endpoints))
        else:
            parcel = _Parcel(None)
            parcels.append(parcel)
        newcomers = _fill(parcel, newcomers, limit)


def _compact(parcels: list[_Parcel], limit: int) -> None:
    small = [one for one in parcels if one.dirty and 0 < len(one.endpoints) <= limit // 4]
    for parcel in sorted(small, key=lambda one: len(one.endpoints)):
        size = len(parcel.endpoints)
        fitting = [one for one in parcels if one is not parcel and 0 < len(one.endpoints) <= limit - size]
        if fitting:
            # One that is written anyway costs nothing.
            target = max(fitting, key=lambda one: (one.dirty, len(one.endpoints)))
            _fill(target, parcel.endpoints, limit)
            parcel.endpoints = []


def _fill(parcel: _Parcel, newcomers: list[EgressEndpoint], limit: int) -> list[EgressEndpoint]:
    """Put into it what has room; the rest."""
    room = limit - len(parcel.endpoints)
    if room > 0 and newcomers:
        parcel.endpoints = sorted(parcel.endpoints + newcomers[:room], key=_order)
        parcel.dirty = True
    return newcomers[max(room, 0) :]


def _writes(
    policy: EgressGatewayPolicy,
    parcels: Sequence[_Parcel],
    strangers: Sequence[EgressEndpointSlice],
    names: set[str],
    fresh_name: Callable[[], str],
) -> Packing:
    creates: list[EgressEndpointSlice] = []
    updates: list[EgressEndpointSlice] = []
    deletes = [one for one in strangers if not one.metadata.deleting]
    for parcel in parcels:
        source, endpoints = parcel.source, tuple(parcel.endpoints)
        if source is None:
            if endpoints:
                name = fresh_name()
                while name in names:
                    name = fresh_name()
                names.add(name)
                creates.append(EgressEndpointSlice(metadata=_metadata(policy, name), endpoints=endpoints))
        elif not endpoints:
            deletes.append(source)
        elif parcel.dirty:
            labels = {**source.metadata.labels, LABEL_POLICY: policy.metadata.name}
            metadata = msgspec.structs.replace(source.metadata, labels=labels)
            if endpoints != source.endpoints or labels != source.metadata.labels:
                updates.append(msgspec.structs.replace(source, metadata=metadata, endpoints=endpoints))
    return Packing(creates=tuple(creates), updates=tuple(updates), deletes=tuple(deletes))


def _metadata(policy: EgressGatewayPolicy, name: str) -> ObjectMeta:
    owner = OwnerReference(
        api_version=EGRESS_GATEWAY_POLICIES.api_version,
        kind=EGRESS_GATEWAY_POLICIES.kind,
        name=policy.metadata.name,
        uid=policy.metadata.uid,
        controller=True,
        block_owner_deletion=True,
    )
    return ObjectMeta(
        name=name,
        namespace=policy.metadata.namespace,
        labels={LABEL_POLICY: policy.metadata.name},
        owner_references=(owner,),
    )


def _owns(policy: EgressGatewayPolicy, one: EgressEndpointSlice) -> bool:
    return any(owner.uid == policy.metadata.uid for owner in one.metadata.owner_references)


def _order(endpoint: EgressEndpoint) -> tuple[str, str]:
    return endpoint.pod_name, endpoint.uuid
