"""Reviews changes of AddressPools before they are stored.

Every replica answers, from before its caches are synced until its end. A new pool gets the finalizer and must keep
every rule. Of an update only what it changes is reviewed, so that a pool that was stored without a review, or that is
being deleted, can always lose its finalizer, get a label, or have a status.

Two overlapping pools that are created at the same moment may both pass, as neither review sees the other pool. No lock
is needed against that: `pool_assessment.check_pool` gives blocks from the older one only.
"""

import asyncio
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from structlog.typing import FilteringBoundLogger

from coil.admission.review import (
    ALLOWED,
    AdmissionRequest,
    Allowed,
    Invalid,
    Operation,
    ReviewError,
    Unavailable,
    Verdict,
    decode_object,
)
from coil.admission.server import AdmissionHandler
from coil.crd.address_pool import ADDRESS_POOLS, AddressPool
from coil.crd.meta import ObjectMeta, Struct, with_finalizer
from coil.crd.names import FINALIZER
from coil.crd.pool_validation import validate_disjoint, validate_pool, validate_pool_update
from coil.crd.validation import FieldError
from coil.ipam.cluster_network import ClusterNetworks, validate_unoccupied
from coil.kube.api_client import ApiClient
from coil.kube.errors import ApiError

MUTATE_PATH = "/mutate-coil-cybozu-com-v2-addresspool"
VALIDATE_PATH = "/validate-coil-cybozu-com-v2-addresspool"

LIST_SECONDS = 3.0
"""For the list of pools; the webhooks have 10 in all, and the API server that asks may be a busy one."""

Patch = list[dict[str, Any]]


class _AnyPool(Struct, frozen=True, kw_only=True):
    """A pool whose spec has not been decoded; it may be anything."""

    metadata: ObjectMeta
    spec: Any = None


class PoolAdmission:
    """`known_pools` are those of the cache, and `networks` the cluster's own; None while the caches are not synced."""

    def __init__(
        self,
        *,
        client: ApiClient,
        known_pools: Callable[[], Sequence[AddressPool] | None],
        networks: Callable[[], ClusterNetworks | None],
        log: FilteringBoundLogger,
    ) -> None:
        self._client = client
        self._known_pools = known_pools
        self._networks = networks
        self._log = log

    @property
    def handlers(self) -> Mapping[str, AdmissionHandler]:
        """By path, as Coil v2 names them."""
        return {MUTATE_PATH: self.mutate, VALIDATE_PATH: self.validate}

    async def mutate(self, request: AdmissionRequest) -> Verdict:
        """Add the finalizer to a new pool. Raises ReviewError."""
        if request.operation is not Operation.CREATE:
            return ALLOWED
        return Allowed(plan_finalizer(decode_object(request.object, _AnyPool).metadata))

    async def validate(self, request: AdmissionRequest) -> Verdict:
        """Refuse what breaks a rule, naming the fields. Raises ReviewError."""
        if request.operation not in {Operation.CREATE, Operation.UPDATE}:
            return ALLOWED
        if request.operation is Operation.UPDATE and not _changes_spec(request):
            return ALLOWED
        try:
            new = decode_object(request.object, AddressPool)
        except ReviewError as error:
            return Invalid([FieldError("spec", str(error))])
        old = _decode_old(request)
        if errors := validate_change(old, new):
            return Invalid(errors)
        return await self._compare(old, new)

    async def _compare(self, old: AddressPool | None, new: AddressPool) -> Verdict:
        """With the other pools and the cluster's own addresses."""
        others = await self._other_pools()
        if others is None:
            return Unavailable("the other pools cannot be listed now, so nobody can say whether this one overlaps")
        if overlaps := validate_overlaps(old, new, others):
            return Invalid(overlaps)
        networks = self._networks()
        if networks is None:
            return Unavailable("the Nodes are not known yet, so nobody can say whether the pool has their addresses")
        occupied = validate_occupied(old, new, networks)
        return Invalid(occupied) if occupied else ALLOWED

    async def _other_pools(self) -> Sequence[AddressPool] | None:
        """As the API server has them; as the cache has them if it does not answer; None if it is not synced either."""
        try:
            async with asyncio.timeout(LIST_SECONDS):
                return await self._client.list(ADDRESS_POOLS)
        except (ApiError, TimeoutError) as error:
            self._log.warning("comparing with the pools of the cache", error=str(error) or "no answer in time")
            return self._known_pools()


def plan_finalizer(metadata: ObjectMeta) -> Patch:
    """The operations that add the finalizer to a new object."""
    if FINALIZER in metadata.finalizers:
        return []
    return [{"op": "add", "path": "/metadata/finalizers", "value": with_finalizer(metadata.finalizers)}]


def validate_change(old: AddressPool | None, new: AddressPool) -> list[FieldError]:
    """What a change, or with `old` None a creation, breaks, other pools apart."""
    if old is None:
        return validate_pool(new)
    changed = validate_pool_update(old, new)
    present = validate_pool(old)
    return changed + [error for error in validate_pool(new) if error not in [*present, *changed]]


def validate_overlaps(old: AddressPool | None, new: AddressPool, others: Sequence[AddressPool]) -> list[FieldError]:
    """Where a change, or with `old` None a creation, makes the pool overlap another one."""
    present = [] if old is None else validate_disjoint(old, others)
    return [error for error in validate_disjoint(new, others) if error not in present]


def validate_occupied(old: AddressPool | None, new: AddressPool, networks: ClusterNetworks) -> list[FieldError]:
    """Where a change, or with `old` None a creation, makes the pool have addresses of the cluster's own."""
    present = [] if old is None else validate_unoccupied(old, networks)
    return [error for error in validate_unoccupied(new, networks) if error not in present]


def _changes_spec(request: AdmissionRequest) -> bool:
    new, old = decode_object(request.object, _AnyPool), decode_object(request.old_object, _AnyPool)
    return bool(new.spec != old.spec)


def _decode_old(request: AdmissionRequest) -> AddressPool | None:
    """The pool before an update; None for a creation.

    An old pool that cannot even be decoded has nothing worth keeping: its successor is validated like a new one.
    """
    if request.operation is Operation.CREATE:
        return None
    try:
        return decode_object(request.old_object, AddressPool)
    except ReviewError:
        return None
