"""Nodes that are dead, exist all the same, and hold blocks: nobody but an admin can tell whether they come back.

Their blocks are not taken, as their pods may still run behind a network that is cut. Somebody is told, once per time
that a node dies, and a metric shows how much of each pool is held so (`dead_node_metric`).

A node is dead when its condition Ready has been False or Unknown for `after` seconds. One that never said anything of
itself is not: no kubelet has run there. The node's heartbeats change nothing of that, so they lead to no work.
"""

from collections import Counter
from collections.abc import Callable, Iterable
from datetime import datetime

from structlog.typing import FilteringBoundLogger

from coil.crd.address_block import AddressBlock
from coil.crd.builtin import NODES, Node
from coil.reconcile.controller import DONE, RequeueAfter, Result
from coil.reconcile.event_recorder import Recorder
from coil.reconcile.event_series import EventSubject
from coil_ipam_controller.cluster_view import BY_NODE, ClusterView

SHORTEST_PAUSE = 1.0
"""Seconds: a condition's time has no fractions."""


def unready_since(node: Node) -> datetime | None:
    """When the node stopped to be ready; None when it is ready, or has never said."""
    for condition in node.status.conditions:
        if condition.type == "Ready":
            return None if condition.status == "True" else condition.last_transition_time
    return None


class DeadNodeReconciler:
    """The keys are node names. `now` is the wall clock, in UTC."""

    def __init__(
        self,
        *,
        view: ClusterView,
        recorder: Recorder,
        after: float,
        now: Callable[[], datetime],
        log: FilteringBoundLogger,
    ) -> None:
        self._view = view
        self._recorder = recorder
        self._after = after
        self._now = now
        self._log = log
        # The death that was told last, by node.
        self._told: dict[str, tuple[str, datetime]] = {}

    async def reconcile(self, name: str) -> Result:
        """Tell that the node of that name is dead and holds blocks, when it is time to."""
        node = self._view.nodes.get(name)
        since = None if node is None else unready_since(node)
        blocks = held_blocks(self._view, name)
        if node is None or since is None or not blocks:
            if self._told.pop(name, None) is not None:
                self._log.info("dead node holds no blocks any more", node=name)
            return DONE
        left = self._after - (self._now() - since).total_seconds()
        if left > 0:
            return RequeueAfter(max(left, SHORTEST_PAUSE))
        death = node.metadata.uid, since
        if self._told.get(name) != death:
            self._told[name] = death
            self._tell(node, since, blocks)
        return DONE

    def unready_nodes(self) -> list[str]:
        """By name, however long they have not been ready."""
        return [node.metadata.name for node in self._view.nodes.items() if unready_since(node) is not None]

    def changed_nodes(self, old: Node | None, new: Node | None) -> Iterable[str]:
        """The node whose change this is, if it began or ceased to be ready."""
        before = None if old is None else unready_since(old)
        after = None if new is None else unready_since(new)
        node = new or old
        if before != after and node is not None:
            yield node.metadata.name

    def holders(self, old: AddressBlock | None, new: AddressBlock | None) -> Iterable[str]:
        """The node that begins or ceases to hold that block, if it is not ready."""
        for block in (old, new):
            if block is not None and block.node and (old is None or new is None or old.node != new.node):
                node = self._view.nodes.get(block.node)
                if node is not None and unready_since(node) is not None:
                    yield block.node

    def _tell(self, node: Node, since: datetime, blocks: list[AddressBlock]) -> None:
        name = node.metadata.name
        pools = ", ".join(f"{pool} ({count})" for pool, count in sorted(Counter(b.pool for b in blocks).items()))
        message = (
            f"not ready since {since:%Y-%m-%d %H:%M:%S} UTC, and holds blocks that no other node can use, of the pools "
            f"{pools}. If it does not come back, delete the Node object to get them back"
        )
        self._recorder.warn(EventSubject.of(NODES, node.metadata), reason="HoldsBlocks", message=message)
        self._log.warning("dead node holds blocks", node=name, since=since.isoformat(), blocks=len(blocks), pools=pools)


def held_blocks(view: ClusterView, node: str) -> list[AddressBlock]:
    """The blocks that go when the node does."""
    return [block for block in view.blocks.by_index(BY_NODE, node) if not block.reserved]
