"""Keeps the EgressEndpointSlices of each policy in line with the pods that it selects.

Pods come and go in crowds: changes are gathered for a moment, then a policy's endpoints are packed as a whole, with as
few writes as the change needs (`coil.eip.slice_packing`). The keys are those of policies. The slices of a deleted
policy are deleted here, too: the garbage collector would take longer, and agents read slices.
"""

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from typing import Final

from coil.crd.egress_gateway_policy import (
    EGRESS_GATEWAY_POLICIES,
    EgressEndpointSlice,
    EgressGatewayPolicy,
)
from coil.crd.names import LABEL_POLICY
from coil.crd.resource import object_key
from coil.eip.slice_packing import Packing, pack
from coil.manager.term import Term
from coil.reconcile.cache import Cache
from coil.reconcile.controller import DONE, Result
from coil.reconcile.own_write import OwnWriter, work_through
from coil_egress_controller.eip.endpoint_index import EipPod, EndpointIndex
from coil_egress_controller.eip.metric import EipMetrics, SliceWrite

WORKERS: Final = 4
BATCH_WINDOW: Final = 0.15
"""Counted from the first of several changes: the longest time that a pod waits until its slices are written. The last
pod of a crowd waits only for the rest of a window.
"""
BY_POLICY: Final = "policy"
_WRITES_AT_ONCE = 4
_NAME_LENGTH = 253
_SUFFIX_LETTERS = "bcdfghjklmnpqrstvwxz2456789"
"""Without vowels and characters that look like them, so that no words appear, as in Kubernetes' generated names."""
_SUFFIX_LENGTH = 5


def policies_of(slice_: EgressEndpointSlice) -> set[str]:
    """The keys of the policies that it names, by its label and as its owners: one, unless somebody has changed it."""
    metadata = slice_.metadata
    names = {owner.name for owner in metadata.owner_references if owner.kind == EGRESS_GATEWAY_POLICIES.kind}
    if label := metadata.labels.get(LABEL_POLICY):
        names.add(label)
    return {f"{metadata.namespace}/{name}" for name in names}


SLICE_INDEXERS: Final[Mapping[str, Callable[[EgressEndpointSlice], Iterable[str]]]] = {BY_POLICY: policies_of}
"""What the cache of slices needs."""


@dataclass(frozen=True, slots=True, kw_only=True)
class SliceReconciler:
    """Of a term. `limit` is the maximum of endpoints of a slice; `random` gives [0, 1). `writer` writes the slices."""

    pods: Cache[EipPod]
    policies: Cache[EgressGatewayPolicy]
    slices: Cache[EgressEndpointSlice]
    endpoints: EndpointIndex
    writer: OwnWriter[EgressEndpointSlice]
    limit: int
    metrics: EipMetrics
    random: Callable[[], float]

    def setup(self, term: Term, *, resync: float) -> None:
        controller = term.controller("egressendpointslice", self.reconcile, workers=WORKERS)
        # Policies before pods: see EndpointIndex.
        controller.watch(self.policies, self._changed_policies, batch_window=BATCH_WINDOW)
        controller.watch(self.pods, self.endpoints.change_pod, batch_window=BATCH_WINDOW)
        controller.watch(self.slices, self._changed_slices, batch_window=BATCH_WINDOW)
        controller.resync(lambda: [object_key(policy.metadata) for policy in self.policies.items()], every=resync)

    async def reconcile(self, key: str) -> Result:
        """Bring the slices of the policy of that key in line. Raises the first refusal, after the others are done."""
        policy = self.policies.get(key)
        existing = self._slices_of(key)
        if policy is None or policy.metadata.deleting:
            packing = Packing(deletes=tuple(one for one in existing if not one.metadata.deleting))
        else:
            packing = pack(
                policy,
                self.endpoints.endpoints(key),
                existing,
                limit=self.limit,
                fresh_name=lambda: self._fresh_name(policy.metadata.name),
            )
        # What is new first: an endpoint that moves is in two slices for a moment, never in none.
        await work_through(packing.creates, self._create, at_once=_WRITES_AT_ONCE)
        await work_through(packing.updates, self._replace, at_once=_WRITES_AT_ONCE)
        await work_through(packing.deletes, self._delete, at_once=_WRITES_AT_ONCE)
        return DONE

    def _changed_policies(self, old: EgressGatewayPolicy | None, new: EgressGatewayPolicy | None) -> Iterable[str]:
        """A policy that was created or deleted, or selects other pods."""
        self.endpoints.change_policy(old, new)
        present = new or old
        if present is not None and (old is None or new is None or old.spec.applied_to != new.spec.applied_to):
            yield object_key(present.metadata)

    def _changed_slices(self, old: EgressEndpointSlice | None, new: EgressEndpointSlice | None) -> Iterable[str]:
        """The policies of a slice that is not as it was last written here; of deleted policies, too."""
        present = new or old
        if present is not None and not self.writer.wrote(new):
            yield from policies_of(present)

    def _slices_of(self, key: str) -> list[EgressEndpointSlice]:
        known = {one.metadata.name: one for one in self.slices.by_index(BY_POLICY, key)}
        known |= {one.metadata.name: one for one in self.writer.unseen() if key in policies_of(one)}
        return list(known.values())

    async def _create(self, body: EgressEndpointSlice) -> None:
        # In a namespace that is being deleted, the policy is going to be, too.
        if await self.writer.create(body, namespace=body.metadata.namespace):
            self.metrics.count_write(SliceWrite.CREATE)

    async def _replace(self, body: EgressEndpointSlice) -> None:
        await self.writer.replace(body, body)
        self.metrics.count_write(SliceWrite.UPDATE)

    async def _delete(self, slice_: EgressEndpointSlice) -> None:
        if await self.writer.delete(slice_):
            self.metrics.count_write(SliceWrite.DELETE)

    def _fresh_name(self, policy: str) -> str:
        letters = (_SUFFIX_LETTERS[int(self.random() * len(_SUFFIX_LETTERS))] for _ in range(_SUFFIX_LENGTH))
        return f"{policy[: _NAME_LENGTH - 1 - _SUFFIX_LENGTH].rstrip('-.')}-{''.join(letters)}"
