"""The ports of this node's pods, as coil-raven writes them into the pods' annotations.

    API server ─► cache of the node's pods ─► PodHandoffs ─► an ADD that waits for its pod's port, or for ACTIVE

Whoever waits is woken by the watch; nobody asks the API server again and again. A pod is known by its UID: one that is
deleted and made again has the same name, and must not get its predecessor's port.
"""

import asyncio
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from enum import StrEnum
from typing import Final, TypeAlias

from coil.crd.builtin import PODS, Pod, pod_uids
from coil.crd.names import NodeName
from coil.crd.resource import object_key
from coil.kube.errors import ForbiddenError, NotFoundError, UnauthorizedError
from coil.neutron.handoff import ANNOTATION_PORT, Handoff, HandoffError, parse_handoff
from coil.neutron.resource import PortId
from coil.reconcile.cache import Cache
from coild.model.api_reader import APIReader, NoAnswerError
from coild.model.attachment import AddressUnavailableError, PodName, PodUnknownError
from coild.model.port_error import HandoffUnreadableError, PodForbiddenError, PortGoneError, PortNotActiveError

_REFUSALS: Final = (ForbiddenError, UnauthorizedError)
"""Answers that do not change by themselves, once the API server has read its roles."""


class WaitOutcome(StrEnum):
    """How a wait ended."""

    SERVED = "served"
    TIMED_OUT = "timed_out"
    REFUSED = "refused"
    """By what was heard meanwhile."""


WaitObserver: TypeAlias = Callable[[float, WaitOutcome], None]
"""Called with the seconds of each wait, those that were none included."""


class PodHandoffs:
    """One per process. `pods` are those of the node; `observe_*` are told of each wait."""

    def __init__(
        self,
        pods: Cache[Pod],
        reader: APIReader,
        *,
        node: NodeName,
        observe_handoff: WaitObserver = lambda seconds, outcome: None,
        observe_active: WaitObserver = lambda seconds, outcome: None,
    ) -> None:
        self._pods = pods
        self._reader = reader
        self._node = node
        self._observe_handoff = observe_handoff
        self._observe_active = observe_active
        self._waiting: dict[str, set[asyncio.Event]] = {}
        self._changed: set[str] = set()
        self._something_changed = asyncio.Event()
        pods.subscribe(self._heard)

    def find(self, pod: PodName) -> Handoff | None:
        """The pod's port, if its annotation names one now. A pod whose UID is not known has none."""
        try:
            return self._read(pod)
        except HandoffError:
            return None

    def by_port(self, port: PortId) -> tuple[PodName, Handoff] | None:
        """Which pod of this node has the port by its annotation."""
        for pod in self._pods.items():
            name = PodName(pod.metadata.namespace, pod.metadata.name, pod.metadata.uid)
            if (handoff := self.find(name)) is not None and handoff.port == port:
                return name, handoff
        return None

    async def identify(self, pod: PodName, *, deadline: float) -> PodName:
        """The pod with its UID, which is read from the API server if the runtime has not passed it.

        `deadline` by the event loop's clock. Raises PodUnknownError or PodForbiddenError.
        """
        if pod.uid:
            return pod
        try:
            found = await self._reader.get(PODS, pod.name, namespace=pod.namespace, deadline=deadline)
        except NotFoundError:
            raise PodUnknownError(f"the API server has no pod {pod.full_name}") from None
        except NoAnswerError as error:
            if isinstance(error.__cause__, _REFUSALS):
                raise PodForbiddenError(str(error)) from error
            raise PodUnknownError(str(error)) from error
        if found.spec.node_name != self._node:
            raise PodUnknownError(
                f"pod {pod.full_name} is bound to node {found.spec.node_name!r}, not to {self._node!r}"
            )
        return PodName(pod.namespace, pod.name, found.metadata.uid)

    async def wait(
        self, pod: PodName, *, deadline: float, enough: Callable[[Handoff], bool] = lambda found: True
    ) -> Handoff:
        """The port of the pod, whose UID is known, once its annotation names one that is `enough`.

        Raises AddressUnavailableError, HandoffUnreadableError or PodForbiddenError at the `deadline`, by the event
        loop's clock; not before, as coil-raven mends what others have written. Cancelled, it has changed nothing.
        """
        with self._observed(self._observe_handoff) as began, self._subscribed(pod) as changed:
            while True:
                unreadable = None
                try:
                    found = self._read(pod)
                except HandoffError as error:
                    found, unreadable = None, error
                if found is not None and enough(found):
                    return found
                if not await _happens(changed, deadline):
                    raise self._explain(pod, unreadable, seconds=_now() - began)

    async def wait_active(self, pod: PodName, port: PortId, *, deadline: float) -> None:
        """Return once Neutron knows that the port is plugged in, as the pod's annotation says.

        Raises PortGoneError as soon as the pod is gone or has another port, and PortNotActiveError at the `deadline`,
        by the event loop's clock.
        """
        with self._observed(self._observe_active) as began, self._subscribed(pod) as changed:
            while True:
                if self._pods.synced and self._pod(pod) is None:
                    raise PortGoneError(f"the pod {pod.full_name} with UID {pod.uid} was deleted")
                found = self.find(pod)
                if found is not None and found.port != port:
                    raise PortGoneError(f"the port {port} was replaced by {found.port}; the next ADD uses that one")
                if found is not None and found.active:
                    return
                if not await _happens(changed, deadline):
                    raise PortNotActiveError(
                        f"Neutron has not reported the port {port} as ACTIVE within {_now() - began:.1f} s. See the "
                        "log of its agent on this node, and the Events of the pod"
                    )

    async def changes(self) -> frozenset[str]:
        """Wait until pods have other annotations of ports, and return the pods' full names. For one task."""
        await self._something_changed.wait()
        self._something_changed.clear()
        changed, self._changed = frozenset(self._changed), set()
        return changed

    def _read(self, pod: PodName) -> Handoff | None:
        """What the annotation says; None where nothing is known of the pod, or it has no annotation."""
        if (found := self._pod(pod)) is None or (text := _annotation(found)) is None:
            return None
        return parse_handoff(text, pod_uid=found.metadata.uid)

    def _pod(self, pod: PodName) -> Pod | None:
        found = self._pods.get(pod.full_name)
        return found if found is not None and pod.uid in pod_uids(found) else None

    def _explain(self, pod: PodName, unreadable: HandoffError | None, *, seconds: float) -> Exception:
        trouble = self._pods.last_error
        if unreadable is not None:
            return HandoffUnreadableError(str(unreadable))
        if isinstance(trouble, _REFUSALS):
            return PodForbiddenError(str(trouble))
        if trouble is not None or not self._pods.synced:
            why = f"the pods of this node cannot be watched: {trouble or 'no answer yet'}"
        elif self._pod(pod) is None:
            why = f"the API server has no pod of that name with UID {pod.uid} on this node"
        else:
            why = (
                f"it has no annotation {ANNOTATION_PORT} that is enough. See the Events of the pod and of its "
                "namespace, and whether coil-raven runs"
            )
        return AddressUnavailableError(f"no port of the pod {pod.full_name} within {seconds:.1f} s: {why}")

    def _heard(self, old: Pod | None, new: Pod | None) -> None:
        if new is not None and _annotation(new) not in (None, None if old is None else _annotation(old)):
            self._changed.add(object_key(new.metadata))
            self._something_changed.set()
        if (seen := new or old) is not None:
            for event in self._waiting.get(object_key(seen.metadata), ()):
                event.set()

    @contextmanager
    def _subscribed(self, pod: PodName) -> Iterator[asyncio.Event]:
        """An event that each change of the pod sets."""
        event = asyncio.Event()
        waiting = self._waiting.setdefault(pod.full_name, set())
        waiting.add(event)
        try:
            yield event
        finally:
            waiting.discard(event)
            if not waiting and self._waiting.get(pod.full_name) is waiting:
                del self._waiting[pod.full_name]

    @contextmanager
    def _observed(self, observe: WaitObserver) -> Iterator[float]:
        """When the wait began."""
        began = _now()
        try:
            yield began
        except (AddressUnavailableError, PortNotActiveError):
            observe(_now() - began, WaitOutcome.TIMED_OUT)
            raise
        except Exception:
            observe(_now() - began, WaitOutcome.REFUSED)
            raise
        observe(_now() - began, WaitOutcome.SERVED)


def _annotation(pod: Pod) -> str | None:
    return pod.metadata.annotations.get(ANNOTATION_PORT)


async def _happens(event: asyncio.Event, deadline: float) -> bool:
    """Wait until then for the event, which is cleared; whether it happened."""
    try:
        async with asyncio.timeout_at(deadline):
            await event.wait()
    except TimeoutError:
        return False
    event.clear()
    return True


def _now() -> float:
    return asyncio.get_running_loop().time()
