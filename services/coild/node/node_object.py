"""This node's object at the API server: what its status tells coild, and what coild says of the node.

    Node ─► status ─► `learn`
    what coild knows ─► coild.model.node_condition ─► conditions of the Node

Nothing waits for either: without the API server a node gives addresses as before. The kubelet leaves conditions alone
that are not its own.
"""

import asyncio
from collections.abc import Callable, Mapping
from datetime import UTC, datetime
from typing import Any, Final

from structlog.typing import FilteringBoundLogger

from coil.crd.builtin import NODES
from coil.crd.names import NodeName
from coil.kube.api_client import ApiClient
from coil.kube.errors import ApiError
from coil.reconcile.backoff import Backoff
from coild.model.node_condition import NodeCondition, plan_conditions

LOOK_SECONDS: Final = 5.0
"""Between two looks at what is so: a shortage that is shorter need not be known to the cluster."""
READ_SECONDS: Final = 600.0
"""Between two reads of the object: its status seldom tells anything new, and seldom does anybody remove a condition."""
BACKOFF: Final = Backoff(base=1.0, cap=60.0)


class NodeObject:
    """One per process; `run` is its task. `conditions` are what is so now, at most one of each type, and may grow.
    `learn` is called with each status that is read. `clock` never jumps, `wall` is the time of day.
    """

    def __init__(
        self,
        client: ApiClient,
        conditions: Callable[[], tuple[NodeCondition, ...]],
        *,
        learn: Callable[[Mapping[str, Any]], None],
        node: NodeName,
        clock: Callable[[], float],
        random: Callable[[], float],
        log: FilteringBoundLogger,
        wall: Callable[[], datetime] = lambda: datetime.now(UTC),
    ) -> None:
        self._client = client
        self._learn = learn
        self._conditions = conditions
        self._node = node
        self._clock = clock
        self._random = random
        self._log = log
        self._wall = wall
        self._told: tuple[NodeCondition, ...] | None = None
        """What the object has said last; None: not known."""
        self._read_at = float("-inf")

    async def run(self) -> None:
        """Until cancelled."""
        failures = 0
        while True:
            try:
                await self.sync()
                failures = 0
            except ApiError as error:
                if failures == 0:
                    self._log.warning("this node's object is not up to date", error=str(error))
                failures += 1
            pause = BACKOFF.delay(failures - 1, self._random) if failures else LOOK_SECONDS
            await asyncio.sleep(max(LOOK_SECONDS, pause))

    async def sync(self) -> None:
        """Read the status if it is time to, and have it tell the conditions. Raises ApiError."""
        wanted = self._conditions()
        if self._told == wanted and self._clock() < self._read_at:
            return
        document = await self._client.get_document(NODES, self._node)
        status: Mapping[str, Any] = document.get("status") or {}
        self._learn(status)
        patch = plan_conditions(status.get("conditions") or (), wanted, now=self._wall())
        if patch:
            await self._client.patch(NODES, self._node, patch, subresource="status")
        self._told = wanted
        # A part is left to chance, or all nodes that were started together would come back in one instant.
        self._read_at = self._clock() + READ_SECONDS * (0.9 + 0.2 * self._random())
