"""The Lease of a node's EIPs as an object: how it is read and written. What it means is in `coil.eip.gateway_lease`.

A Lease is never deleted here: its `leaseTransitions` is the term, and a term must not be used twice. It goes with the
Node, which owns it.
"""

from dataclasses import dataclass
from typing import Protocol

import msgspec

from coil.crd.meta import ObjectMeta, OwnerReference
from coil.crd.names import NodeName
from coil.eip.gateway_lease import LEASE_LABELS, GatewayLease, lease_name, read_tenure, render_annotations
from coil.kube.client import KubeClient
from coil.kube.errors import NotFoundError
from coil.kube.lease_lock import LEASES, Lease, LeaseSpec


class NodeLeaseStore(Protocol):
    """Where one node's Lease is kept. Errors are those of `KubeClient`; every write is guarded by the version read."""

    async def read(self) -> Lease | None:
        """As the API server's quorum has it; None when there is none."""
        ...

    async def create(self, lease: Lease, /) -> Lease:
        """AlreadyExistsError when somebody else was faster."""
        ...

    async def replace(self, lease: Lease, /) -> Lease:
        """ConflictError when it has changed since it was read, NotFoundError when it is gone."""
        ...


@dataclass(frozen=True, slots=True, kw_only=True)
class KubeNodeLeaseStore:
    """The Lease of `node` in `namespace`, on the API server."""

    client: KubeClient
    namespace: str
    node: NodeName

    async def read(self) -> Lease | None:
        try:
            return await self.client.get(LEASES, lease_name(self.node), namespace=self.namespace)
        except NotFoundError:
            return None

    async def create(self, lease: Lease) -> Lease:
        return await self.client.create(LEASES, lease, namespace=self.namespace)

    async def replace(self, lease: Lease) -> Lease:
        return await self.client.replace(LEASES, lease, name=lease_name(self.node), namespace=self.namespace)


def parse_lease(lease: Lease) -> GatewayLease | None:
    """What a Lease says; None where its name is not that of a node's Lease."""
    return read_tenure(
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
