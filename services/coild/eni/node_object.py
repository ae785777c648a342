"""This node's object at the API server: how many pods the node may run, and whether they would get addresses.

    Node ─► status.allocatable.pods ─► EniStore.pods_limit
    EniStore.obstacle ─► the condition CoilAddressesAvailable of the Node

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
from coil.reconcile.event_recorder import EventSubject
from coild.eni.store import EniStore

CONDITION: Final = "CoilAddressesAvailable"
AVAILABLE: Final = "AddressesAvailable"
SHORTAGE: Final = "NoAddresses"
LOOK_SECONDS: Final = 5.0
"""Between two looks at the store: a shortage that is shorter need not be known to the cluster."""
READ_SECONDS: Final = 600.0
"""Between two reads of the object: its limit hardly ever changes, and seldom does anybody remove the condition."""
LONGEST_MESSAGE: Final = 1024
BACKOFF: Final = Backoff(base=1.0, cap=60.0)


class NodeObject:
    """One per process; `run` is its task. `clock` never jumps, `wall` is the time of day."""

    def __init__(
        self,
        client: ApiClient,
        store: EniStore,
        *,
        node: NodeName,
        clock: Callable[[], float],
        random: Callable[[], float],
        log: FilteringBoundLogger,
        wall: Callable[[], datetime] = lambda: datetime.now(UTC),
    ) -> None:
        self._client = client
        self._store = store
        self._node = node
        self._clock = clock
        self._random = random
        self._log = log
        self._wall = wall
        self._told: tuple[str | None] | None = None
        """The obstacle of which the condition tells; None: not known what it tells."""
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
        """Have the store know the limit, and the object the obstacle. Raises ApiError."""
        obstacle = self._store.obstacle
        if self._told == (obstacle,) and self._clock() < self._read_at:
            return
        document = await self._client.get_document(NODES, self._node)
        status: Mapping[str, Any] = document.get("status") or {}
        self._learn_limit(status)
        patch = plan_condition(status.get("conditions") or (), obstacle, now=self._wall())
        if patch:
            await self._client.patch(NODES, self._node, patch, subresource="status")
        self._told = (obstacle,)
        # A part is left to chance, or all nodes that were started together would come back in one instant.
        self._read_at = self._clock() + READ_SECONDS * (0.9 + 0.2 * self._random())

    def _learn_limit(self, status: Mapping[str, Any]) -> None:
        text = str((status.get("allocatable") or {}).get("pods", ""))
        limit = int(text) if text.isascii() and text.isdigit() else None
        if limit is not None and limit != self._store.pods_limit:
            self._store.pods_limit = limit
            self._store.changed.set()


def node_subject(node: NodeName) -> EventSubject:
    """The Node, as what Events are about. `kubectl describe node` finds those whose uid is the name, as the kubelet's
    are.
    """
    return EventSubject(NODES.api_version, NODES.kind, node, uid=node)


def plan_condition(
    conditions: list[Mapping[str, Any]] | tuple[()], obstacle: str | None, *, now: datetime
) -> list[dict[str, Any]]:
    """The JSON patch of `nodes/status` that has the condition tell of the obstacle; none if it does. Pure.

    Whoever has changed the list of conditions meanwhile lets the patch fail.
    """
    index, known = next(
        ((index, each) for index, each in enumerate(conditions) if each.get("type") == CONDITION), (None, None)
    )
    status = "True" if obstacle is None else "False"
    message = "pods can get addresses" if obstacle is None else obstacle[:LONGEST_MESSAGE]
    moment = now.astimezone(UTC).strftime("%Y-%m-%dT%H:%M:%SZ")
    same = known is not None and known.get("status") == status
    if same and known is not None and known.get("message") == message:
        return []
    condition = {
        "type": CONDITION,
        "status": status,
        "reason": AVAILABLE if obstacle is None else SHORTAGE,
        "message": message,
        "lastHeartbeatTime": moment,
        "lastTransitionTime": known.get("lastTransitionTime", moment) if same and known is not None else moment,
    }
    if index is not None:
        path = f"/status/conditions/{index}"
        return [
            {"op": "test", "path": f"{path}/type", "value": CONDITION},
            {"op": "replace", "path": path, "value": condition},
        ]
    if conditions:
        return [{"op": "add", "path": "/status/conditions/-", "value": condition}]
    return [{"op": "add", "path": "/status/conditions", "value": [condition]}]
