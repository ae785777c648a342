"""Notices within seconds when somebody takes away what coild has made in the node's own namespace, and has it put back.

    rtnetlink: rules, routes, forwarding ─► StateWatch ─► the pods' wiring, exported routes, routes to other nodes
    what they put back ───────────────────► Repairs ───► an Event, where it happens again and again

systemd-networkd takes rules and routes of others away whenever it starts, unless it is told not to; administrators and
other agents flush tables. All of it is compared every few minutes as well, since events may be lost.
"""

import asyncio
import time
from collections import deque
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from typing import Final

from structlog.typing import FilteringBoundLogger

from coil.kernel.family import IPNetwork
from coil.kernel.route import RouteTable
from coil.netlink.error import NetlinkError
from coil.netlink.node_watch import EventsLost, ForwardingEvent, NodeEvent, RouteEvent, RuleEvent
from coil.podnet.plan import RoutePolicy
from coil.reconcile.event_recorder import Recorder
from coil.reconcile.event_series import EventSubject
from coild.model.repairs import Repairs

SETTLE_SECONDS: Final = 0.5
"""After the first event: who takes one thing away takes several."""
PAUSE_SECONDS: Final = 2.0
"""At least, between two looks."""
OFTEN: Final = 3
OFTEN_SECONDS: Final = 600.0
"""So many times within that time are told."""
SAME_SECONDS: Final = 10.0
"""What is put back within that time was taken away at once."""
TAKEN_AWAY: Final = "NodeStateRemoved"
MESSAGE: Final = (
    "rules or routes of Coil are removed from this node again and again, and are put back. With systemd-networkd, set "
    "ManageForeignRoutes=no and ManageForeignRoutingPolicyRules=no in networkd.conf"
)


@dataclass(frozen=True, slots=True, kw_only=True)
class OwnState:
    """What of the node's state is coild's. `is_routed` says whether a pod that is there has the address, `node_routes`
    is the protocol of routes to other nodes, None if coild makes none.
    """

    policy: RoutePolicy
    is_routed: Callable[[IPNetwork], bool]
    node_routes: int | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class StateParts:
    """Who puts what back. `export` and `sync_nodes` only ask for it; `unexported` hears of each exported route that is
    gone. `wiring` raises NetlinkError.
    """

    wiring: Callable[[], Awaitable[None]]
    export: Callable[[], None]
    unexported: Callable[[IPNetwork], None]
    sync_nodes: Callable[[], None]


class StateWatch:
    """One per process. `observe` is a `coil.netlink.node_watch.Listener`, `run` the task. `clock` never jumps."""

    def __init__(
        self,
        own: OwnState,
        parts: StateParts,
        *,
        repairs: Repairs,
        recorder: Recorder,
        node: EventSubject,
        log: FilteringBoundLogger,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._own = own
        self._parts = parts
        self._recorder = recorder
        self._node = node
        self._log = log
        self._clock = clock
        self._wanted = asyncio.Event()
        self._times: deque[float] = deque()
        self._told_at = float("-inf")
        repairs.subscribe(self._note_repair)

    def observe(self, event: NodeEvent) -> None:
        """What has gone, if it was ours, is asked back. After coild's own changes a look finds nothing missing."""
        match event:
            case EventsLost():
                self._wanted.set()
                self._parts.export()
                self._parts.sync_nodes()
            case RuleEvent(rule, gone=True) if rule.protocol == self._own.policy.protocol:
                self._wanted.set()
            case ForwardingEvent(on=False):
                self._wanted.set()
            case RouteEvent(gone=True):
                self._observe_route(event)

    @property
    def removed(self) -> str | None:
        """What somebody keeps removing, and what to do about it; None if that was not so for a while."""
        return MESSAGE if self._clock() - self._told_at < 2 * OFTEN_SECONDS else None

    async def run(self) -> None:
        """Have things put back, until cancelled."""
        while True:
            await self._wanted.wait()
            await asyncio.sleep(SETTLE_SECONDS)
            self._wanted.clear()
            try:
                await self._parts.wiring()
            except NetlinkError as error:
                self._log.warning("what was removed from the node is not back", error=str(error))
                self._wanted.set()
            await asyncio.sleep(PAUSE_SECONDS)

    def _observe_route(self, event: RouteEvent) -> None:
        policy = self._own.policy
        if event.table == RouteTable.MAIN and event.protocol == self._own.node_routes:
            self._parts.sync_nodes()
        elif event.protocol != policy.protocol:
            return
        elif event.table == policy.export_table:
            self._parts.unexported(event.destination)
            self._parts.export()
        elif event.table == policy.pod_table and self._own.is_routed(event.destination):
            self._wanted.set()

    def _note_repair(self) -> None:
        now = self._clock()
        if self._times and now - self._times[-1] < SAME_SECONDS:
            return
        self._times.append(now)
        while now - self._times[0] > OFTEN_SECONDS:
            self._times.popleft()
        if len(self._times) >= OFTEN:
            self._times.clear()
            self._told_at = now
            self._log.error("somebody removes what coild makes on this node", times=OFTEN, seconds=OFTEN_SECONDS)
            self._recorder.warn(self._node, reason=TAKEN_AWAY, message=MESSAGE)
