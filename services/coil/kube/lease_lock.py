"""Reads and writes one Lease: that of a leader election, or that by which a gateway node holds its addresses.

What a Lease means, and when to write it, is decided above (`coil.manager.claim`, `coil.eip.gateway_lease`). Every
write is guarded by the resource version that was read, so of two writers that have read the same Lease one gets a
ConflictError. A Lease is never deleted here: its `lease_transitions` count terms, and no term may be used twice.
"""

from dataclasses import dataclass
from typing import Protocol

import msgspec

from coil.crd.meta import ObjectMeta, Struct
from coil.crd.resource import Resource
from coil.kube.api_client import ApiClient
from coil.kube.errors import NotFoundError


class LeaseSpec(Struct, frozen=True, kw_only=True):
    """Who holds the lease, and for how many seconds after the last change.

    The times stay text. Nobody may compute with another machine's clock, and Kubernetes' MicroTime wants
    exactly six digits after the point, which a datetime does not write when they are zero.
    """

    holder_identity: str = ""
    lease_duration_seconds: int = 0
    acquire_time: str | None = None
    renew_time: str | None = None
    lease_transitions: int = 0


class Lease(Struct, frozen=True, kw_only=True):
    metadata: ObjectMeta = ObjectMeta()
    spec: LeaseSpec = LeaseSpec()


LEASES: Resource[Lease] = Resource("coordination.k8s.io", "v1", "leases", "Lease", namespaced=True, type=Lease)


class ResourceLock(Protocol):
    """Where one Lease is kept (client-go's `resourcelock.Interface`). `LeaseLock` keeps it on the API server.

    Errors are those of `coil.kube.errors`. After any but those named here it is unknown whether a write took place.
    """

    async def read(self) -> Lease | None:
        """The Lease as the API server's quorum has it; None when there is none."""
        ...

    async def create(self, lease: Lease, /) -> Lease:
        """Store a first Lease, named by the lock. Raises AlreadyExistsError when another writer was faster."""
        ...

    async def replace(self, lease: Lease, /) -> Lease:
        """Store `lease`, which has the resource version that it was read with.

        A Lease that is the stored one changes nothing, not even its version. Raises ConflictError when the stored one
        has changed since, NotFoundError (or, if `lease` has a UID, ConflictError) when it is gone.
        """
        ...


@dataclass(frozen=True, slots=True, kw_only=True)
class LeaseLock:
    """The Lease `namespace`/`name` on the API server."""

    client: ApiClient
    namespace: str
    name: str

    async def read(self) -> Lease | None:
        try:
            return await self.client.get(LEASES, self.name, namespace=self.namespace)
        except NotFoundError:
            return None

    async def create(self, lease: Lease, /) -> Lease:
        metadata = msgspec.structs.replace(lease.metadata, name=self.name, namespace=self.namespace)
        body = Lease(metadata=metadata, spec=lease.spec)
        return await self.client.create(LEASES, body, namespace=self.namespace)

    async def replace(self, lease: Lease, /) -> Lease:
        return await self.client.replace(LEASES, lease, name=self.name, namespace=self.namespace)
