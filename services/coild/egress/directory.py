"""The Egresses and their Services, as far as this node has seen them.

Informers follow them; what an ADD needs and they lack is read from the API server once, and that object counts until
the informer has an event for it: an object read before its event must not look as if it had gone again.
"""

import asyncio
import time
from collections.abc import Callable, Iterable
from typing import Any, Generic, Protocol, TypeVar

from coil.crd.builtin import SERVICES, Service
from coil.crd.egress import EGRESSES, Egress
from coil.crd.names import APP_NAME, COMPONENT_EGRESS, LABEL_APP_COMPONENT, LABEL_APP_NAME
from coil.crd.resource import HasMetadata, Resource, object_key
from coil.egress.client_pod import EgressRef
from coil.egress.resolution import EgressView
from coil.kube.errors import NotFoundError
from coild.egress.api_reader import APIReader

T = TypeVar("T", bound=HasMetadata)
T_co = TypeVar("T_co", bound=HasMetadata, covariant=True)

SERVICE_LABELS = {LABEL_APP_NAME: APP_NAME, LABEL_APP_COMPONENT: COMPONENT_EGRESS}
"""What `coil.egress.router_pod.EGRESS_SELECTOR` selects by."""

ANSWER_SECONDS = 60.0
"""An informer that has not heard of an object by then was right: it went before it was seen."""


class Cache(Protocol[T_co]):
    """The part of `coil.reconcile.informer.Informer` that is used here."""

    def get(self, key: str) -> T_co | None: ...

    def subscribe(self, listener: Callable[[T_co | None, T_co | None], None]) -> None: ...


class _Known(Generic[T]):
    """The objects of one kind: an informer's, and answers that it has not caught up with."""

    def __init__(self, resource: Resource[T], cache: Cache[T], clock: Callable[[], float]) -> None:
        self.resource = resource
        self._cache = cache
        self._clock = clock
        self._answers: dict[str, tuple[T, float]] = {}
        cache.subscribe(self._heard)

    def get(self, reference: EgressRef) -> T | None:
        if (cached := self._cache.get(str(reference))) is not None:
            return cached
        answer, until = self._answers.get(str(reference), (None, 0.0))
        return answer if self._clock() < until else None

    def answer(self, found: T) -> None:
        now = self._clock()
        self._answers = {key: entry for key, entry in self._answers.items() if now < entry[1]}
        self._answers[object_key(found.metadata)] = found, now + ANSWER_SECONDS

    def _heard(self, old: T | None, new: T | None) -> None:
        if self._answers and (seen := new or old) is not None:
            self._answers.pop(object_key(seen.metadata), None)


class EgressDirectory:
    """`services` are those with the labels `SERVICE_LABELS`, and no other counts. `clock` never jumps."""

    def __init__(
        self,
        egresses: Cache[Egress],
        services: Cache[Service],
        reader: APIReader,
        *,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._egresses = _Known(EGRESSES, egresses, clock)
        self._services = _Known(SERVICES, services, clock)
        self._reader = reader
        self.view = EgressView(egress=self._egresses.get, service=self._services.get)

    async def complete(self, references: Iterable[EgressRef], *, deadline: float) -> None:
        """Read what the caches lack of these, all at once, until `deadline` (the event loop's clock) at most.

        What does not exist goes on lacking. Raises NoAnswerError if that is not known of all of them; what was answered
        by then counts.
        """
        known: tuple[_Known[Any], ...] = self._egresses, self._services
        lacking = [(kind, ref) for ref in references for kind in known if kind.get(ref) is None]
        reads = (self._read(kind, reference, deadline) for kind, reference in lacking)
        for outcome in await asyncio.gather(*reads, return_exceptions=True):
            if outcome is not None:
                raise outcome

    async def _read(self, kind: _Known[Any], reference: EgressRef, deadline: float) -> None:
        try:
            found = await self._reader.get(
                kind.resource, reference.name, namespace=reference.namespace, deadline=deadline
            )
        except NotFoundError:
            return
        if kind is not self._services or found.metadata.labels.items() >= SERVICE_LABELS.items():
            kind.answer(found)
