"""The Lease on which processes of one kind agree who of them works, as it is stored.

Below the leader election, which decides; here a Lease is only read and written. Every write is guarded by
the resource version that was read, so of two writers that saw the same Lease one gets a ConflictError.
A document that is replaced keeps the labels, annotations and owners it was read with.
"""

from dataclasses import dataclass

from coil.crd.meta import ObjectMeta, Struct
from coil.crd.resource import Resource
from coil.kube.client import KubeClient
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
    metadata: ObjectMeta
    spec: LeaseSpec = LeaseSpec()


LEASES: Resource[Lease] = Resource("coordination.k8s.io", "v1", "leases", "Lease", namespaced=True, type=Lease)


@dataclass(frozen=True, slots=True, kw_only=True)
class LeaseLock:
    """The Lease `namespace`/`name`. Any error but those named leaves open whether a write took place."""

    client: KubeClient
    namespace: str
    name: str

    async def read(self) -> Lease | None:
        """The Lease as the API server's quorum has it; None when there is none."""
        try:
            return await self.client.get(LEASES, self.name, namespace=self.namespace)
        except NotFoundError:
            return None

    async def create(self, spec: LeaseSpec) -> Lease:
        """Raises AlreadyExistsError when somebody else was faster."""
        body = Lease(metadata=ObjectMeta(name=self.name, namespace=self.namespace), spec=spec)
        return await self.client.create(LEASES, body, namespace=self.namespace)

    async def replace(self, lease: Lease) -> Lease:
        """Store `lease`, which carries the resource version it was read with.

        Raises ConflictError when it has changed since, NotFoundError when it is gone.
        """
        return await self.client.replace(LEASES, lease, name=self.name, namespace=self.namespace)
