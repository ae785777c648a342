"""Which nodes each gateway selects, kept up to date change by change: a cluster has many nodes, and few carry EIPs."""

from collections.abc import Iterable

from coil.crd.builtin import Node
from coil.crd.egress_gateway import EgressGateway
from coil_egress_controller.eip.view import EipView


class SelectionIndex:
    """In memory, of one term. The methods `change_…` take an informer's changes and name the gateways that are
    concerned. An empty selector selects no node: admission refuses it, and one that is there is a mistake.
    """

    def __init__(self, view: EipView) -> None:
        self._view = view
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
        self._selected[new.metadata.name] = {
            node.metadata.name for node in self._view.nodes.items() if _selects(new, node)
        }
        yield new.metadata.name

    def change_node(self, old: Node | None, new: Node | None) -> Iterable[str]:
        """A node's labels, or whether it is there to stay."""
        present = new or old
        if present is None or (old is not None and new is not None and _standing(old) == _standing(new)):
            return
        name = present.metadata.name
        for gateway in self._view.gateways.items():
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
            for gateway in self._view.gateways.items()
            for entry in gateway.status.node_list
            if entry.name == node and any(eip.ipv4 or eip.ipv6 for eip in entry.eips)
        ]
        return max(terms, default=None)

    def gateways(self, node: str) -> Iterable[str]:
        """The gateways that the node of that name concerns: they select it, or their status names it."""
        for gateway in self._view.gateways.items():
            name = gateway.metadata.name
            if node in self._selected.get(name, ()) or any(entry.name == node for entry in gateway.status.node_list):
                yield name


def _selects(gateway: EgressGateway, node: Node) -> bool:
    selector = gateway.spec.node_selector.selector
    return not selector.empty and selector.selects(node.metadata.labels)


def _standing(node: Node) -> tuple[object, ...]:
    return node.metadata.uid, node.metadata.labels, node.metadata.deleting
