"""Which nodes each gateway selects, updated with every change: a cluster has many nodes, and few carry EIPs."""

from collections.abc import Iterable

from coil.crd.builtin import Node
from coil.crd.egress_gateway import EgressGateway
from coil.reconcile.cache import Cache


class SelectionIndex:
    """In memory, of one term. The methods `change_…` take a cache's changes and return the gateways that are affected.
    An empty selector selects no node: admission refuses it, so one that is stored is a mistake.
    """

    def __init__(self, *, gateways: Cache[EgressGateway], nodes: Cache[Node]) -> None:
        self._gateways = gateways
        self._nodes = nodes
        self._selected: dict[str, set[str]] = {}

    def nodes(self, gateway: str) -> list[str]:
        """The names of the nodes that exist and that the gateway of that name selects."""
        return sorted(self._selected.get(gateway, ()))

    def change_gateway(self, old: EgressGateway | None, new: EgressGateway | None) -> Iterable[str]:
        """Changes of a status alone are none."""
        if new is None:
            if old is not None:
                self._selected.pop(old.metadata.name, None)
            return
        if old is not None and old.spec == new.spec and old.metadata.deleting == new.metadata.deleting:
            return
        self._selected[new.metadata.name] = {node.metadata.name for node in self._nodes.items() if _selects(new, node)}
        yield new.metadata.name

    def change_node(self, old: Node | None, new: Node | None) -> Iterable[str]:
        """Changes of a node's labels, or its creation or deletion."""
        present = new or old
        if present is None or (old is not None and new is not None and _relevant(old) == _relevant(new)):
            return
        name = present.metadata.name
        for gateway in self._gateways.items():
            selected = self._selected.setdefault(gateway.metadata.name, set())
            before = name in selected
            after = new is not None and _selects(gateway, new)
            if after:
                selected.add(name)
            else:
                selected.discard(name)
            if before or after:
                yield gateway.metadata.name

    def selects(self, node: str) -> bool:
        """Whether any gateway selects the node of that name."""
        return any(node in selected for selected in self._selected.values())

    def listed_term(self, node: str) -> int | None:
        """The highest term for which a gateway's status lists addresses at the node; None if none does."""
        terms = [
            entry.term
            for gateway in self._gateways.items()
            for entry in gateway.status.node_list
            if entry.name == node and any(eip.ipv4 or eip.ipv6 for eip in entry.eips)
        ]
        return max(terms, default=None)

    def gateways(self, node: str) -> Iterable[str]:
        """The gateways that the node of that name affects: they select it, or their status lists it."""
        for gateway in self._gateways.items():
            name = gateway.metadata.name
            if node in self._selected.get(name, ()) or any(entry.name == node for entry in gateway.status.node_list):
                yield name


def _selects(gateway: EgressGateway, node: Node) -> bool:
    selector = gateway.spec.node_selector.selector
    return not selector.empty and selector.selects(node.metadata.labels)


def _relevant(node: Node) -> tuple[object, ...]:
    return node.metadata.uid, node.metadata.labels, node.metadata.deleting
