"""Keeps the EgressEndpointSlices of each policy true to the pods that it selects.

Pods come and go in crowds: changes are gathered for `SETTLE_SECONDS`, then a policy's endpoints are packed as a whole,
with as few writes as the change needs (`coil.eip.slice_packing`). The keys are those of policies. What a policy that is
gone has left is deleted here, too: the garbage collector would take longer, and agents read slices.
"""

from collections.abc import Callable, Iterable
from typing import Final

from coil.crd.egress_endpoint_slice import EGRESS_ENDPOINT_SLICES, EgressEndpointSlice
from coil.crd.egress_gateway_policy import EgressGatewayPolicy
from coil.crd.resource import object_key
from coil.eip.slice_packing import Packing, pack
from coil.kube.api_client import ApiClient
from coil.kube.errors import ApiError, NamespaceTerminatingError, NotFoundError
from coil.reconcile.controller import DONE, Result
from coil_egress_controller.eip.bounded_work import work_through
from coil_egress_controller.eip.endpoint_index import EndpointIndex
from coil_egress_controller.eip.metric import EipMetrics, SliceWrite
from coil_egress_controller.eip.own_write import OwnWrites
from coil_egress_controller.eip.pod import EipPod
from coil_egress_controller.eip.view import BY_POLICY, EipView, policies_of

SETTLE_SECONDS: Final = 0.15
_WRITES_AT_ONCE = 4
_NAME_LENGTH = 253
_SUFFIX_LETTERS = "bcdfghjklmnpqrstvwxz2456789"
"""Without vowels, and what looks like them: no words (as Kubernetes does it)."""
_SUFFIX_LENGTH = 5


class SliceReconciler:
    """Of one term. `limit` is the most endpoints of a slice, `random` gives [0, 1). `written` follows the slices."""

    def __init__(
        self,
        *,
        client: ApiClient,
        view: EipView,
        book: EndpointIndex,
        written: OwnWrites[EgressEndpointSlice],
        limit: int,
        metrics: EipMetrics,
        random: Callable[[], float],
    ) -> None:
        self._client = client
        self._view = view
        self._book = book
        self._written = written
        self._limit = limit
        self._metrics = metrics
        self._random = random

    async def reconcile(self, key: str) -> Result:
        """Bring the slices of the policy of that key in line. Raises the first refusal, after the others are done."""
        policy = self._view.policies.get(key)
        existing = self._slices(key)
        if policy is None or policy.metadata.deleting:
            packing = Packing(deletes=tuple(one for one in existing if not one.metadata.deleting))
        else:
            packing = pack(
                policy,
                self._book.endpoints(key),
                existing,
                limit=self._limit,
                fresh_name=lambda: self._fresh_name(policy.metadata.name),
            )
        # What is new first: an endpoint that moves is in two slices for a moment, never in none.
        await work_through(packing.creates, self._create, at_once=_WRITES_AT_ONCE)
        await work_through(packing.updates, self._replace, at_once=_WRITES_AT_ONCE)
        await work_through(packing.deletes, self._delete, at_once=_WRITES_AT_ONCE)
        return DONE

    def changed_pods(self, old: EipPod | None, new: EipPod | None) -> Iterable[str]:
        return self._book.change_pod(old, new)

    def changed_policies(self, old: EgressGatewayPolicy | None, new: EgressGatewayPolicy | None) -> Iterable[str]:
        """A policy that has come or gone, or selects other pods."""
        self._book.change_policy(old, new)
        present = new or old
        if present is not None and (old is None or new is None or old.spec.applied_to != new.spec.applied_to):
            yield object_key(present.metadata)

    def changed_slices(self, old: EgressEndpointSlice | None, new: EgressEndpointSlice | None) -> Iterable[str]:
        """A slice that is not as it was last written here. Those of policies that are gone count, too."""
        present = new or old
        if present is None:
            return
        ours = self._written.latest(object_key(present.metadata), None)
        if ours is None or new is None or ours.metadata.resource_version != new.metadata.resource_version:
            yield from policies_of(present)

    def _slices(self, key: str) -> list[EgressEndpointSlice]:
        known = {one.metadata.name: one for one in self._view.slices.by_index(BY_POLICY, key)}
        known |= {one.metadata.name: one for one in self._written.unseen() if key in policies_of(one)}
        return list(known.values())

    async def _create(self, body: EgressEndpointSlice) -> None:
        try:
            created = await self._client.create(EGRESS_ENDPOINT_SLICES, body, namespace=body.metadata.namespace)
        except NamespaceTerminatingError:
            # The policy goes, too, though it does not say so yet.
            return
        self._metrics.count_write(SliceWrite.CREATE)
        self._written.note(None, created, cached=self._cached(created))

    async def _replace(self, body: EgressEndpointSlice) -> None:
        name, namespace = body.metadata.name, body.metadata.namespace
        try:
            stored = await self._client.replace(EGRESS_ENDPOINT_SLICES, body, name=name, namespace=namespace)
        except ApiError:
            self._written.forget(object_key(body.metadata))
            raise
        self._metrics.count_write(SliceWrite.UPDATE)
        self._written.note(body, stored, cached=self._cached(stored))

    async def _delete(self, slice_: EgressEndpointSlice) -> None:
        metadata = slice_.metadata
        self._written.forget(object_key(metadata))
        try:
            await self._client.delete(
                EGRESS_ENDPOINT_SLICES, metadata.name, namespace=metadata.namespace, uid=metadata.uid
            )
        except NotFoundError:
            return
        self._metrics.count_write(SliceWrite.DELETE)

    def _cached(self, slice_: EgressEndpointSlice) -> EgressEndpointSlice | None:
        return self._view.slices.get(object_key(slice_.metadata))

    def _fresh_name(self, policy: str) -> str:
        letters = (_SUFFIX_LETTERS[int(self._random() * len(_SUFFIX_LETTERS))] for _ in range(_SUFFIX_LENGTH))
        return f"{policy[: _NAME_LENGTH - 1 - _SUFFIX_LENGTH].rstrip('-.')}-{''.join(letters)}"
