"""Tells router pods of this node's clients, by an EgressClientSlice for each Egress that pods here name.

    EgressClients ─► ClientSlices ─► API server ─► coil-egress-agent of each router pod

A router serves the addresses that slices name. A pod's own object names them only once its kubelet has reported them: a
second or more after the containers have started, in which a client would not be answered. No ADD waits for the slice,
which is written while the runtime starts the containers.

Clients that no slice of a coild names, as on nodes that Coil in Go serves, are told by coil-egress-controller.
"""

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Final

from structlog.typing import FilteringBoundLogger

from coil.crd.builtin import NODES
from coil.crd.egress import EGRESSES, ClientEgress
from coil.crd.egress_client_slice import (
    EGRESS_CLIENT_SLICES,
    MAX_ADDRESSES,
    TOO_MANY_CLIENTS,
    EgressClientSlice,
    FittedAddresses,
    fit_addresses,
    slice_name,
)
from coil.crd.names import LABEL_EGRESS, LABEL_NODE, NodeName
from coil.egress.client_pod import EgressRef
from coil.kernel.family import IPAddress
from coil.kube.api_client import ApiClient
from coil.reconcile.cache import Cache
from coil.reconcile.controller import DONE, RequeueAfter, Result
from coil.reconcile.event_recorder import EventSubject, Recorder
from coil.reconcile.own_write import OwnWriter, OwnWrites

UNCERTAIN_SECONDS: Final = 5.0
"""Between two looks at a slice of which an address was kept because nobody knew whose it is."""


@dataclass(frozen=True, slots=True)
class ClientAddresses:
    """Of one Egress on this node. `uncertain` are those of pods that were here before this process and of which it is
    not known yet what they name; `pods` is how many pods have the others.
    """

    certain: frozenset[IPAddress]
    uncertain: frozenset[IPAddress]
    pods: int = 0


class ClientSlices:
    """The keys are those of Egresses. `slices` are this node's; `addresses` is asked at the moment of each write."""

    def __init__(
        self,
        client: ApiClient,
        slices: Cache[EgressClientSlice],
        addresses: Callable[[EgressRef], ClientAddresses],
        *,
        node: NodeName,
        egresses: Cache[ClientEgress],
        recorder: Recorder,
        log: FilteringBoundLogger,
    ) -> None:
        self._client = client
        self._addresses = addresses
        self._node = node
        self._egresses = egresses
        self._recorder = recorder
        self._log = log
        self._full: set[str] = set()
        """Egresses whose slice had no room for all clients when it was last looked at."""
        writes: OwnWrites[EgressClientSlice] = OwnWrites()
        slices.subscribe(writes.observe)
        self._writer = OwnWriter(client, EGRESS_CLIENT_SLICES, slices, writes)

    def of_slice(self, old: EgressClientSlice | None, new: EgressClientSlice | None) -> Iterable[str]:
        """The Egress of a slice that is not as it was last written here."""
        seen = new or old
        if seen is None or self._writer.wrote(new):
            return ()
        return [f"{seen.metadata.namespace}/{seen.egress}"] if seen.egress else ()

    async def reconcile(self, key: str) -> Result:
        """Make the node's slice of the Egress of that key what the clients are; without clients there is none.

        Nothing is withdrawn of which it is not known yet whether it is a client's.
        """
        namespace, _, name = key.partition("/")
        egress = EgressRef(namespace, name)
        object_name = slice_name(name, self._node)
        present = self._writer.latest(f"{namespace}/{object_name}")
        if present is not None and present.metadata.deleting:
            return DONE  # its event comes, and then it is made anew
        of_clients = self._addresses(egress)
        certain = {str(address) for address in of_clients.certain}
        told = set(present.addresses) if present is not None else set()
        kept = (told - certain) & {str(address) for address in of_clients.uncertain}
        fitted = fit_addresses(certain | kept, told)
        self._tell_left_out(egress, fitted)
        addresses = fitted.addresses
        if present is None:
            if addresses:
                await self._create(egress, object_name, addresses, pods=of_clients.pods)
        elif not addresses:
            await self._writer.delete(present)
        elif (present.addresses, present.pods) != (addresses, of_clients.pods):
            await self._writer.patch(present, {"addresses": list(addresses), "pods": of_clients.pods})
        return RequeueAfter(UNCERTAIN_SECONDS) if kept else DONE

    def _tell_left_out(self, egress: EgressRef, fitted: FittedAddresses) -> None:
        """In the log when it begins and ends; by an Event as often as it is seen, as they expire."""
        key = str(egress)
        if not fitted.left_out:
            if key in self._full:
                self._full.discard(key)
                self._log.info("all clients of the egress fit into its slice again", egress=key)
            return
        if key not in self._full:
            self._full.add(key)
            self._log.warning("not all clients of the egress fit into its slice", egress=key, left_out=fitted.left_out)
        if (found := self._egresses.get(key)) is not None:
            self._recorder.warn(
                EventSubject.of(EGRESSES, found.metadata),
                reason=TOO_MANY_CLIENTS,
                message=f"the clients on node {self._node} have more than {MAX_ADDRESSES} addresses, which is what its "
                "coild can tell router pods; further clients are not served before coil-egress-controller tells them",
            )

    async def _create(self, egress: EgressRef, name: str, addresses: tuple[str, ...], *, pods: int) -> None:
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
            "pods": pods,
        }
        # In a namespace that is being deleted, so is the Egress.
        await self._writer.create(body, namespace=egress.namespace)
