"""Who has to be looked at when something changes: from events to attachments. The work is `coild.egress.client`'s.

    Pod: annotations, or whose attachment it is ┐
    Egress: destinations, source port           ├─► the attachments it concerns ─► queue ─► refresh
    Service: addresses                          ┘

Everything else that happens to these objects, above all every status, concerns nobody: the replicas of an Egress, the
conditions of a pod. Changes that come together are one refresh; a refresh that fails is tried again, and no other
waits for it.
"""

from collections.abc import Iterable
from typing import Protocol, TypeVar

from coil.crd.builtin import Pod, Service
from coil.crd.egress import Egress
from coil.crd.names import ANNOTATION_EGRESS_PREFIX
from coil.crd.resource import HasMetadata
from coil.egress.annotation import EgressRef
from coil.ipam.attachment import AttachmentKey, ContainerId
from coil.reconcile.controller import DONE, Done

T = TypeVar("T", bound=HasMetadata)


class Clients(Protocol):
    """The part of `coild.egress.client.EgressClients` that is used here."""

    def naming(self, egress: EgressRef) -> list[AttachmentKey]: ...

    def of_pod(self, pod: Pod) -> list[AttachmentKey]: ...

    async def refresh(self, key: AttachmentKey) -> None: ...


class EgressFollow:
    """The key functions and the reconcile of a `coil.reconcile.controller.Controller`."""

    def __init__(self, clients: Clients) -> None:
        self._clients = clients

    def of_pod(self, old: Pod | None, new: Pod | None) -> Iterable[str]:
        """What a pod's change concerns. Of a pod that is gone, nothing: its namespace goes with it."""
        if new is None or (old is not None and _wishes(old) == _wishes(new)):
            return ()
        return map(render_key, self._clients.of_pod(new))

    def of_egress(self, old: Egress | None, new: Egress | None) -> Iterable[str]:
        if old is not None and new is not None and _routes(old) == _routes(new):
            return ()
        return self._naming(old, new)

    def of_service(self, old: Service | None, new: Service | None) -> Iterable[str]:
        """A Service has the name of its Egress."""
        if old is not None and new is not None and old.spec == new.spec:
            return ()
        return self._naming(old, new)

    async def reconcile(self, key: str) -> Done:
        await self._clients.refresh(parse_key(key))
        return DONE

    def _naming(self, old: T | None, new: T | None) -> Iterable[str]:
        seen = new or old
        if seen is None:
            return ()
        return map(render_key, self._clients.naming(EgressRef(seen.metadata.namespace, seen.metadata.name)))


def render_key(key: AttachmentKey) -> str:
    """An attachment as the key of a queue; neither part has a slash in it."""
    return f"{key.container_id}/{key.ifname}"


def parse_key(text: str) -> AttachmentKey:
    container, _, ifname = text.rpartition("/")
    return AttachmentKey(ContainerId(container), ifname)


def _wishes(pod: Pod) -> tuple[object, ...]:
    """What of a pod says which tunnels it is to have, or that an attachment is its own."""
    asked = {
        name: value for name, value in pod.metadata.annotations.items() if name.startswith(ANNOTATION_EGRESS_PREFIX)
    }
    return asked, pod.status.pod_ips, pod.spec.host_network


def _routes(egress: Egress) -> tuple[object, ...]:
    return egress.spec.destinations, egress.spec.fou_source_port_auto
