"""Keeps the EgressGatewayPolicies that stand for EgressPolicies or EgressClusterPolicies, and these kinds' status.

One of them reconciles one of the two kinds; the keys are those of its objects. What is refused at admission (a limit,
an address that others have) is said in the status and by an Event, and tried again after a while. A mirror that
somebody has changed is changed back.
"""

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from datetime import datetime
from typing import Any, Final, Generic, TypeVar

import msgspec

from coil.crd.builtin import Namespace
from coil.crd.egress_gateway_policy import EgressGatewayPolicy
from coil.crd.egress_policy import EgressClusterPolicy, EgressPolicy
from coil.crd.resource import Resource, object_key
from coil.eip.gateway_status import NO_NODE
from coil.eip.policy_mirror import BY_SOURCE, is_mirror, mirrors_of, plan_status, source_value, sources_of
from coil.kube.api_client import ApiClient
from coil.kube.errors import ApiError, ForbiddenError, InvalidError, NotFoundError
from coil.manager.term import Term
from coil.reconcile.cache import Cache
from coil.reconcile.controller import DONE, RequeueAfter, Result
from coil.reconcile.event_recorder import Recorder
from coil.reconcile.event_series import EventSubject
from coil.reconcile.own_write import OwnWriter, OwnWrites, work_through

S = TypeVar("S", bound=EgressPolicy | EgressClusterPolicy)

BATCH_WINDOW: Final = 0.2
_TRY_AGAIN: Final = 60.0
"""Seconds after a refusal: what caused it may have gone without a word to this controller."""


@dataclass(frozen=True, slots=True, kw_only=True)
class PolicyMirrorReconciler(Generic[S]):
    """Of one term, and one kind. `policies` has the index BY_SOURCE; `writer` writes EgressGatewayPolicies, `written`
    follows the cache of `sources`.
    """

    resource: Resource[S]
    client: ApiClient
    sources: Cache[S]
    written: OwnWrites[S]
    policies: Cache[EgressGatewayPolicy]
    writer: OwnWriter[EgressGatewayPolicy]
    namespaces: Cache[Namespace]
    recorder: Recorder
    now: Callable[[], datetime]

    def setup(self, term: Term, *, resync: float) -> None:
        controller = term.controller(self.resource.kind.lower(), self.reconcile)
        controller.watch(self.sources, self._of_source)
        controller.watch(self.policies, self._of_policy, batch_window=BATCH_WINDOW)
        if self.resource.namespaced:
            controller.needs(self.namespaces)
        else:
            controller.watch(self.namespaces, self._of_namespace, batch_window=BATCH_WINDOW)
        controller.resync(self._all, every=resync)

    async def reconcile(self, key: str) -> Result:
        """Bring mirrors and status of the object of that key in line. Idempotent; raises ApiError."""
        source = self.written.latest(key, self.sources.get(key))
        wanted = {} if source is None else mirrors_of(source, self.namespaces.items())
        present = self._mirrors(key)
        kept: dict[str, EgressGatewayPolicy] = {}
        outdated: list[EgressGatewayPolicy] = []
        for place, mirror in present.items():
            if source is not None and place in wanted and is_mirror(mirror, source) and not mirror.metadata.deleting:
                kept[place] = mirror
            else:
                outdated.append(mirror)
        await work_through(outdated, self._delete)
        refusals: dict[str, str] = {}
        news = [mirror for place, mirror in wanted.items() if place not in kept and not self._is_ending(mirror)]
        await work_through(news, lambda mirror: self._create(mirror, refusals))
        changed = [(mirror, wanted[place]) for place, mirror in kept.items() if mirror.spec != wanted[place].spec]
        await work_through(changed, lambda pair: self._update(*pair, refusals))
        if source is None or source.metadata.deleting:
            return DONE
        await self._say(key, source, refusals)
        return RequeueAfter(_TRY_AGAIN) if refusals else DONE

    def _mirrors(self, key: str) -> dict[str, EgressGatewayPolicy]:
        source = source_value(self.resource.kind, key)
        found = {object_key(one.metadata): one for one in self.policies.by_index(BY_SOURCE, source)}
        found |= {object_key(one.metadata): one for one in self.writer.unseen() if source in sources_of(one)}
        return found

    def _is_ending(self, mirror: EgressGatewayPolicy) -> bool:
        """Whether nothing can be created in its namespace any more. What is there stays: pods may still send."""
        namespace = self.namespaces.get(mirror.metadata.namespace)
        return namespace is not None and namespace.metadata.deleting

    async def _delete(self, mirror: EgressGatewayPolicy) -> None:
        if not mirror.metadata.deleting:
            await self.writer.delete(mirror)

    async def _create(self, mirror: EgressGatewayPolicy, refusals: dict[str, str]) -> None:
        key = object_key(mirror.metadata)
        if (other := self.policies.get(key)) is not None and not set(sources_of(other)):
            refusals[key] = "there is an EgressGatewayPolicy of this name: delete it, or this one"
            return
        try:
            await self.writer.create(mirror, namespace=mirror.metadata.namespace)
        except (InvalidError, ForbiddenError) as error:
            refusals[key] = str(error)

    async def _update(self, mirror: EgressGatewayPolicy, wanted: EgressGatewayPolicy, refusals: dict[str, str]) -> None:
        try:
            await self.writer.replace(mirror, msgspec.structs.replace(mirror, spec=wanted.spec))
        except (InvalidError, ForbiddenError) as error:
            refusals[object_key(mirror.metadata)] = str(error)

    async def _say(self, key: str, source: S, refusals: Mapping[str, str]) -> None:
        status = plan_status(source, self._mirrors(key).values(), refusals, self.now())
        if status == source.status:
            return
        metadata = source.metadata
        body: Any = msgspec.structs.replace(source, status=status)
        try:
            stored = await self.client.replace(
                self.resource, body, name=metadata.name, namespace=metadata.namespace, subresource="status"
            )
        except ApiError as error:
            self.written.forget(key)
            if isinstance(error, NotFoundError):
                return
            raise
        self.written.note(source, stored, cached=self.sources.get(key))
        before = {condition.type: condition.reason for condition in source.status.conditions}
        for condition in status.conditions:
            is_wrong = condition.status == "False" and condition.reason != NO_NODE
            if is_wrong and before.get(condition.type) != condition.reason:
                subject = EventSubject.of(self.resource, metadata)
                self.recorder.warn(subject, reason=condition.reason, message=condition.message)

    def _all(self) -> Iterable[str]:
        return [object_key(source.metadata) for source in self.sources.items()]

    def _of_source(self, old: S | None, new: S | None) -> Iterable[str]:
        """One that was created, changed or deleted. Its status is this controller's."""
        present = new or old
        before, after = (
            None if each is None else (each.metadata.uid, each.metadata.deleting, each.spec) for each in (old, new)
        )
        return [object_key(present.metadata)] if present is not None and before != after else []

    def _of_policy(self, old: EgressGatewayPolicy | None, new: EgressGatewayPolicy | None) -> Iterable[str]:
        """The objects that it stands, or stood, for."""
        kind = self.resource.kind
        for policy in filter(None, (old, new)):
            for source in sources_of(policy):
                found, _, key = source.partition(" ")
                if found == kind:
                    yield key

    def _of_namespace(self, old: Namespace | None, new: Namespace | None) -> Iterable[str]:
        before, after = (
            None if each is None else (each.metadata.labels, each.metadata.deleting) for each in (old, new)
        )
        return self._all() if before != after else ()
