"""EgressClientSlice: addresses of an Egress's clients on one node, as the API server stores it.

A pod's own object shows its addresses only once the kubelet has reported them, a second or more after its containers
have started. coild knows them before, and writes them here, for the router pods to be ready for the client's first
packet. Clients that no coild tells of, as on nodes that Coil in Go serves, coil-egress-controller writes into slices of
its own. So router pods need not read pods, whose environment is nobody else's business.

The fields stand at the top level, as in an EndpointSlice. The Egress, in the same namespace, and the node are labels,
too: that is what router pods and coild select by. A slice of the controller has no label of the node.
"""

from collections.abc import Collection
from dataclasses import dataclass
from hashlib import sha256
from typing import Final

from coil.crd.meta import ObjectMeta, Struct
from coil.crd.names import GROUP, LABEL_EGRESS, LABEL_NODE, VERSION, NodeName
from coil.crd.resource import Resource

MAX_ADDRESSES: Final = 2048
"""Of one slice: those of all pods that a node can have (1 024, of two families)."""
TOO_MANY_CLIENTS: Final = "TooManyClients"
"""Reason of the Event about an Egress of whose clients on one node a slice cannot name all."""
_DIGITS: Final = 16


@dataclass(frozen=True, slots=True)
class FittedAddresses:
    """What a slice names, sorted, and the number of addresses that it has no room for."""

    addresses: tuple[str, ...]
    left_out: int


def fit_addresses(wanted: frozenset[str] | set[str], told: Collection[str]) -> FittedAddresses:
    """As many of the wanted addresses as one slice has room for. Those that are told already come first: a new client
    does not take the place of one that is served.
    """
    served = sorted(wanted.intersection(told))
    new = sorted(wanted.difference(told))
    fitting = [*served, *new][:MAX_ADDRESSES]
    return FittedAddresses(tuple(sorted(fitting)), len(wanted) - len(fitting))


class EgressClientSlice(Struct, frozen=True, kw_only=True):
    """`node_name` never changes. `addresses` are sorted, as text, and those of so many `pods`."""

    metadata: ObjectMeta
    node_name: str = ""
    addresses: tuple[str, ...] = ()
    pods: int = 0

    @property
    def egress(self) -> str:
        """The name of the Egress; "" when the label is missing."""
        return self.metadata.labels.get(LABEL_EGRESS, "")

    @property
    def of_node(self) -> bool:
        """Whether the node's coild writes it, and not the controller."""
        return LABEL_NODE in self.metadata.labels


def slice_name(egress: str, node: NodeName) -> str:
    """The name of the slice that the node's coild writes for the Egress: names of nodes are too long to be a part of
    it.
    """
    return f"{egress}-{sha256(node.encode()).hexdigest()[:_DIGITS]}"


def extra_slice_name(egress: str, node: NodeName) -> str:
    """The name of the controller's slice."""
    return slice_name(egress, NodeName(f"{node}/extra"))  # no node has a slash in its name


EGRESS_CLIENT_SLICES: Resource[EgressClientSlice] = Resource(
    GROUP, VERSION, "egressclientslices", "EgressClientSlice", namespaced=True, type=EgressClientSlice
)
