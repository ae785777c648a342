"""Follows ports until Neutron knows that they are plugged in (ACTIVE).

Neutron tells that only to those who listen on its broker, so it is asked: for many ports in one call, for each one less
and less often, and no longer than `FOLLOW_SECONDS`. After that the regular comparison of all ports notices it.

A port may stay DOWN though its interface is there, since the back end has lost the event. It is stuck after
`STUCK_SECONDS`: then the pod's reconciler asks for a `Remedy`, and each is given once.
"""

import asyncio
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Final

from structlog.typing import FilteringBoundLogger

from coil.manager.term import Channel
from coil.openstack.error import OpenStackError
from coil.reconcile.backoff import Backoff
from coil_raven.pod_ports import PodPorts

LOOKS: Final = Backoff(base=1.0, cap=60.0)
FOLLOW_SECONDS: Final = 600.0
STUCK_SECONDS: Final = 75.0
"""Longer than any ADD waits for a port, so that the remedy does not interrupt one that is about to be plugged in."""
MOST_IN_A_CALL: Final = 50
"""Ports. Their IDs are in the request's line, of which some web servers take no more than 4 KiB."""


class Remedy(StrEnum):
    """What may help a port that stays DOWN, in this order."""

    REBIND = "rebind"
    """Unbind it and bind it again, which has the back end plug it in anew."""
    REPLACE = "replace"
    """Delete it and create another one."""


@dataclass(slots=True)
class _Followed:
    """`stuck_at` is when the next of `remedies` may be due."""

    since: float
    due: float
    stuck_at: float
    looks: int = 0
    remedies: list[Remedy] = field(default_factory=lambda: list(Remedy))


class PortStatus:
    """Of one term. `changed` tells the UIDs of pods whose ports are in another state now, or stuck. Run `run()` in one
    task.

    `clock` is in monotonic seconds, `random` gives [0, 1).
    """

    def __init__(
        self,
        ports: PodPorts,
        *,
        clock: Callable[[], float],
        random: Callable[[], float],
        log: FilteringBoundLogger,
    ) -> None:
        self._ports = ports
        self._clock = clock
        self._random = random
        self._log = log
        self._followed: dict[str, _Followed] = {}
        self._earlier = asyncio.Event()
        self.changed: Channel[str] = Channel()

    def follow(self, uid: str) -> None:
        """Look at the port of the pod with that UID until it is plugged in. Idempotent."""
        if uid not in self._followed:
            now = self._clock()
            self._followed[uid] = _Followed(now, now + LOOKS.delay(0, self._random), now + STUCK_SECONDS)
            self._earlier.set()

    def forget(self, uid: str) -> None:
        """Look no more. Idempotent."""
        self._followed.pop(uid, None)

    def take_remedy(self, uid: str) -> Remedy | None:
        """What is to be done about the pod's port, if it is stuck. It is not given again, and has `STUCK_SECONDS` to
        help.
        """
        followed = self._followed.get(uid)
        if followed is None or not followed.remedies or self._clock() < followed.stuck_at:
            return None
        followed.stuck_at = self._clock() + STUCK_SECONDS
        return followed.remedies.pop(0)

    def exhausted(self, uid: str) -> bool:
        """Whether every remedy was tried in vain."""
        followed = self._followed.get(uid)
        return followed is not None and not followed.remedies and self._clock() >= followed.stuck_at

    async def run(self) -> None:
        """Look until cancelled, by one call at a time."""
        while True:
            await self._wait()
            now = self._clock()
            due = sorted((uid for uid, each in self._followed.items() if each.due <= now), key=self._due)
            await self._look(due[:MOST_IN_A_CALL])

    async def _look(self, uids: list[str]) -> None:
        changed: frozenset[str] = frozenset()
        try:
            changed = await self._ports.look(uids)
        except OpenStackError as error:
            self._log.warning("ports were not looked at", error=str(error))
        now = self._clock()
        for uid in uids:
            followed = self._followed.get(uid)
            if followed is None:
                continue  # forgotten in the meantime
            ended = now - followed.since >= FOLLOW_SECONDS
            if ended:
                self.forget(uid)
            if uid in changed or (now >= followed.stuck_at and not ended):
                self.changed.send(uid)
            followed.looks += 1
            followed.due = now + LOOKS.delay(followed.looks, self._random)

    async def _wait(self) -> None:
        """Return when one is due."""
        while True:
            self._earlier.clear()
            pause = min((each.due for each in self._followed.values()), default=None)
            if pause is not None and (pause := pause - self._clock()) <= 0:
                return
            with suppress(TimeoutError):
                async with asyncio.timeout(pause):
                    await self._earlier.wait()

    def _due(self, uid: str) -> float:
        return self._followed[uid].due
