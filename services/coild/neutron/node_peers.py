"""The cluster's Nodes, watched, as what the binding `bridge` is to know of them.

    Nodes (cache) ─► NodePeers ─► coil.neutron.underlay.plan_underlay ─► BridgeBinding.set_underlay

Nothing is told before the cache has a complete list: the nodes that are still missing would be taken for ones that have
gone, and pods would be cut off from each other while coild restarts. If the API server is away, what was told last
stays.
"""

import asyncio
from collections.abc import Callable

from structlog.typing import FilteringBoundLogger

from coil.crd.builtin import Node
from coil.crd.names import NodeName
from coil.neutron.underlay import Underlay, UnderlayError, internal_addresses, plan_underlay
from coil.reconcile.cache import Cache, wait_synced


class NodePeers:
    """Tells `tell` of every change of what the node `own` is to know. One per process; `run` is its work."""

    def __init__(
        self, nodes: Cache[Node], *, own: NodeName, tell: Callable[[Underlay], None], log: FilteringBoundLogger
    ) -> None:
        self._nodes = nodes
        self._own = own
        self._tell = tell
        self._log = log
        self._changed = asyncio.Event()
        self._trouble = ""

    async def run(self) -> None:
        """For ever. Changes that come together are one."""
        await wait_synced([self._nodes], log=self._log)
        self._nodes.subscribe(self._note)
        try:
            self._changed.set()
            while True:
                await self._changed.wait()
                self._changed.clear()
                self._look()
        finally:
            self._nodes.unsubscribe(self._note)

    def _note(self, old: Node | None, new: Node | None) -> None:
        # A Node changes all the time, its addresses hardly ever.
        before, after = (() if node is None else internal_addresses(node) for node in (old, new))
        if before != after:
            self._changed.set()

    def _look(self) -> None:
        try:
            underlay = plan_underlay(self._nodes.items(), own=self._own)
        except UnderlayError as error:
            if str(error) != self._trouble:
                self._log.warning("networks of ports stay as they are", error=str(error))
            self._trouble = str(error)
            return
        self._trouble = ""
        self._tell(underlay)
