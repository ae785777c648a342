"""Tells router pods of this node's clients, by an EgressClientSlice for each Egress that pods here name.

    EgressClients ─► ClientSlices ─► API server ─► coil-egress-agent of each router pod

A router serves the addresses that the API server names, and a pod's own object names them only once its kubelet has
reported them: a second or more after the containers have started, in which a client would not be answered. No ADD waits
for the slice, which is written while the runtime starts the containers.

Without the CRD, or without the API server, clients are served once their pods show their addresses.
"""

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Final

from structlog.typing import FilteringBoundLogger

from coil.crd.builtin import NODES
from coil.crd.egress_client_slice import EGRESS_CLIENT_SLICES, MAX_ADDRESSES, EgressClientSlice, slice_name
from coil.crd.names import LABEL_EGRESS, LABEL_NODE, NodeName
from coil.crd.resource import object_key
from coil.egress.client_pod import EgressRef
from coil.kernel.family import IPAddress
from coil.kube.api_client import ApiClient
from coil.kube.errors import ApiError, NamespaceTerminatingError, NotFoundError
from coil.reconcile.cache import Cache
from coil.reconcile.controller import DONE, RequeueAfter, Result
from coil.reconcile.own_write import OwnWrites

UNCERTAIN_SECONDS: Final = 5.0
"""Between two looks at a slice of which an address was kept because nobody knew whose it is."""


@dataclass(frozen=True, slots=True)
class ClientAddresses:
    """Of one Egress on this node. `uncertain` are those of pods that were here before this process and of which it is
    not known yet what they name.
    """

    certain: frozenset[IPAddress]
    uncertain: frozenset[IPAddress]


class ClientSlices:
    """The keys are those of Egresses. `slices` are this node's; `addresses` is asked at the moment of each write."""

    def __init__(
        self,
        client: ApiClient,
        slices: Cache[EgressClientSlice],
        addresses: Callable[[EgressRef], ClientAddresses],
        *,
        node: NodeName,
        log: FilteringBoundLogger,
    ) -> None:
        self._client = client
        self._slices = slices
        self._addresses = addresses
        self._node = node
        self._log = log
        self._written: OwnWrites[EgressClientSlice] = OwnWrites()
        slices.subscribe(self._written.observe)

    def of_slice(self, old: EgressClientSlice | None, new: EgressClientSlice | None) -> Iterable[str]:
        """The Egress of a slice that is not as it was last written here."""
        seen = new or old
        if seen is None:
            return ()
        ours = self._written.latest(object_key(seen.metadata), None)
        if ours is not None and new is not None and ours.metadata.resource_version == new.metadata.resource_version:
            return ()
        return [f"{seen.metadata.namespace}/{seen.egress}"] if seen.egress else ()

    async def reconcile(self, key: str) -> Result:
        """Make the node's slice of the Egress of that key what the clients are; without clients there is none.

        Nothing is withdrawn of which it is not known yet whether it is a client's.
        """
        namespace, _, name = key.partition("/")
        egress = EgressRef(namespace, name)
        object_name = slice_name(name, self._node)
        slice_key = f"{namespace}/{object_name}"
        present = self._written.latest(slice_key, self._slices.get(slice_key))
        if present is not None and present.metadata.deleting:
            return DONE  # its event comes, and then it is made anew
        of_clients = self._addresses(egress)
        certain = {str(address) for address in of_clients.certain}
        told = set(present.addresses) if present is not None else set()
        kept = (told - certain) & {str(address) for address in of_clients.uncertain}
        addresses = tuple(sorted(certain | kept))[:MAX_ADDRESSES]
        if present is None:
            if addresses:
                await self._create(egress, object_name, addresses)
        elif not addresses:
            await self._delete(present)
        elif present.addresses != addresses:
            await self._replace(present, addresses)
        return RequeueAfter(UNCERTAIN_SECONDS) if kept else DONE

    async def _create(self, egress: EgressRef, name: str, addresses: tuple[str, ...]) -> None:
        node = await self._client.get(NODES, self._node)
        body = {
            "metadata": {
                "name": name,
                "namespace": egress.namespace,
                "labels": {LABEL_EGRESS: egress.name, LABEL_NODE: self._node},
                # With its node the slice goes, too.
                "ownerReferences": [
                    {"apiVersion": NODES.api_version, "kind": NODES.kind, "name": self._node, "uid": node.metadata.uid}
                ],
            },
            "nodeName": self._node,
            "addresses": list(addresses),
        }
        try:
            created = await self._client.create(EGRESS_CLIENT_SLICES, body, namespace=egress.namespace)
        except NamespaceTerminatingError:
            return  # so is the Egress
        self._note(None, created)

    async def _replace(self, present: EgressClientSlice, addresses: tuple[str, ...]) -> None:
        metadata = present.metadata
        patch = {"metadata": {"resourceVersion": metadata.resource_version}, "addresses": list(addresses)}
        try:
            stored = await self._client.patch(EGRESS_CLIENT_SLICES, metadata.name, patch, namespace=metadata.namespace)
        except ApiError:
            self._written.forget(object_key(metadata))
            raise
        self._note(present, stored)

    async def _delete(self, present: EgressClientSlice) -> None:
        metadata = present.metadata
        self._written.forget(object_key(metadata))
        try:
            await self._client.delete(
                EGRESS_CLIENT_SLICES, metadata.name, namespace=metadata.namespace, uid=metadata.uid
            )
        except NotFoundError:
            self._log.debug("slice is gone already", slice=object_key(metadata))

    def _note(self, before: EgressClientSlice | None, written: EgressClientSlice) -> None:
        self._written.note(before, written, cached=self._slices.get(object_key(written.metadata)))
