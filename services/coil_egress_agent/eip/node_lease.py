"""The Lease of a node's EIPs as an object: how it is read and written. What it means is in `coil.eip.gateway_lease`.

A Lease is never deleted here: its `leaseTransitions` is the term, and a term must not be used twice. It goes with the
Node, which owns it.
"""

import msgspec

from coil.crd.meta import ObjectMeta, OwnerReference
from coil.eip.gateway_lease import LEASE_LABELS, GatewayLease, lease_name, parse_gateway_lease, render_annotations
from coil.kube.lease_lock import Lease, LeaseSpec


def parse_lease(lease: Lease) -> GatewayLease | None:
    """What a Lease says; None where its name is not that of a node's Lease."""
    return parse_gateway_lease(
        name=lease.metadata.name,
        version=lease.metadata.resource_version,
        holder=lease.spec.holder_identity,
        transitions=lease.spec.lease_transitions,
        annotations=lease.metadata.annotations,
    )


def render_lease(
    lease: GatewayLease,
    *,
    over: Lease | None,
    acquired: str | None,
    written: str,
    owners: tuple[OwnerReference, ...] = (),
) -> Lease:
    """The object that says `lease`, over the one that was read; labels and annotations of others stay. `owners` count
    where there was none.
    """
    before = over.metadata if over is not None else ObjectMeta(name=lease_name(lease.node), owner_references=owners)
    metadata = msgspec.structs.replace(
        before,
        labels={**before.labels, **LEASE_LABELS},
        annotations={**before.annotations, **render_annotations(fence=lease.fence, applied=lease.applied)},
    )
    spec = LeaseSpec(
        holder_identity=lease.holder,
        # The API has whole seconds. They are not computed with: the annotation is what counts.
        lease_duration_seconds=max(1, round(lease.fence)),
        acquire_time=acquired,
        renew_time=written,
        lease_transitions=lease.term,
    )
    return Lease(metadata=metadata, spec=spec)
