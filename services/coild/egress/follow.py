"""Maps events to the attachments that have to be refreshed. The refresh itself is `coild.egress.client`'s.

    Pod: annotations, addresses      ┐
    Egress: destinations, source port├─► the attachments concerned ─► queue ─► refresh
    Service: addresses               ┘

Other changes of these objects, such as the replicas of an Egress or the conditions of a pod, are ignored. Changes that
come together cause one refresh; one that fails is retried without delaying the others.
"""

from collections.abc import Iterable
from typing import TypeVar

from coil.crd.builtin import Pod, Service
from coil.crd.egress import Egress
from coil.crd.names import ANNOTATION_EGRESS_PREFIX
from coil.crd.resource import HasMetadata
from coil.egress.client_pod import EgressRef
from coil.ipam.occupancy import AttachmentKey, ContainerId
from coil.reconcile.controller import DONE, Done
from coild.egress.client import EgressClients

T = TypeVar("T", bound=HasMetadata)


class EgressFollow:
    """The key functions and the reconcile of a `coil.reconcile.controller.Controller`."""

    def __init__(self, clients: EgressClients) -> None:
        self._clients = clients

    def of_pod(self, old: Pod | None, new: Pod | None) -> Iterable[str]:
        """Attachments of the pod; none for a pod that is gone, as its namespace goes with it."""
        if new is None or (old is not None and _relevant(old) == _relevant(new)):
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


def _relevant(pod: Pod) -> tuple[object, ...]:
    """What of a pod decides which tunnels it has, or that an attachment is its own."""
    asked = {
        name: value for name, value in pod.metadata.annotations.items() if name.startswith(ANNOTATION_EGRESS_PREFIX)
    }
    return asked, pod.status.pod_ips, pod.spec.host_network


def _routes(egress: Egress) -> tuple[object, ...]:
    return egress.spec.destinations, egress.spec.fou_source_port_auto
