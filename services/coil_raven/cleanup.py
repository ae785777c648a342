"""Removes a cluster from OpenStack, and what coil-raven has put on the cluster's objects: an uninstallation.

    the Lease of the election ─► OpenStackRemoval, until nothing is left ─► KubernetesRemoval, until nothing is left

While this holds the Lease, no coil-raven leads, and none makes again what is being deleted. If something that could
still be deleted is left in OpenStack, the finalizers stay: the next cleanup goes on.
"""

import asyncio
from collections.abc import Awaitable, Callable, Coroutine
from contextlib import suppress
from dataclasses import dataclass
from functools import partial
from typing import Any, Final, Protocol

from coil.kube.errors import ApiError
from coil.neutron.resource import NetworkId
from coil.openstack.error import NotFoundError, OpenStackError
from coil.openstack.neutron import Neutron
from coil.reconcile.backoff import Backoff
from coil_raven.kubernetes_removal import KubernetesRemoval
from coil_raven.openstack_removal import OpenStackRemoval
from coil_raven.remnant import Cause, Deeds, Remnant, cause_of

PAUSE: Final = Backoff(base=1.0, cap=15.0)
"""Seconds between two sweeps."""
DEADLINE: Final = 3600.0
"""Seconds for all sweeps."""
LEASE_WAIT: Final = 60.0
"""Seconds to wait for the Lease beside its duration: a leader that is told to end has 45."""
MOST_NETWORKS: Final = 50
"""Networks that are asked for in search of a mistaken name."""


class LeaderError(Exception):
    """The Lease is not to be had, or was lost; the message says who has it."""


class Elector(Protocol):
    """`coil.manager.election.LeaderElector`, as far as this needs it."""

    async def run(self, lead: Callable[[], Coroutine[Any, Any, None]]) -> None:
        """Await `lead()` once this replica is elected; give the Lease back."""


async def while_leading(
    elector: Elector, work: Callable[[], Coroutine[Any, Any, None]], *, leader: Callable[[], str], wait: float
) -> None:
    """Await `work()` while this process holds the Lease, and give it back.

    Should the Lease be lost, `work()` is cancelled and begins again with it. Raises LeaderError if it is not to be had
    within `wait` seconds, or if the work is not done `DEADLINE` after that; and what `work` raises. Cancelled, the work
    is cancelled and awaited.
    """
    leading = asyncio.Event()

    async def lead() -> None:
        leading.set()
        await work()

    task = asyncio.create_task(elector.run(lead))
    waiting = asyncio.create_task(leading.wait())
    try:
        await asyncio.wait({task, waiting}, timeout=wait, return_when=asyncio.FIRST_COMPLETED)
        if not leading.is_set() and not task.done():
            raise LeaderError(leader())
        await asyncio.wait({task}, timeout=DEADLINE)
        if not task.done():
            raise LeaderError(leader())
        await task
    finally:
        for each in (waiting, task):
            each.cancel()
        await asyncio.wait({waiting, task})


@dataclass(frozen=True, slots=True, kw_only=True)
class Clock:
    """`now` is in monotonic seconds, `random` gives [0, 1)."""

    now: Callable[[], float]
    sleep: Callable[[float], Awaitable[object]]
    random: Callable[[], float]


class Cleanup:
    """One run of it. `remnants` is what was left at the last look."""

    def __init__(
        self,
        openstack: OpenStackRemoval,
        kubernetes: KubernetesRemoval,
        neutron: Neutron,
        *,
        deeds: Deeds,
        clock: Clock,
    ) -> None:
        self._openstack = openstack
        self._kubernetes = kubernetes
        self._neutron = neutron
        self._deeds = deeds
        self._clock = clock
        self._deadline = clock.now() + DEADLINE
        self.remnants: tuple[Remnant, ...] = ()

    async def run(self) -> None:
        """Do it. May be called again after a cancellation. Raises nothing of OpenStack's or the API server's."""
        left = await self._settle(self._openstack.sweep)
        if any(remnant.cause.is_ours for remnant in left):
            return
        if mistaken := await self._settle(partial(self._mistaken, left)):
            self.remnants = (*left, *mistaken)
            return
        self.remnants = (*left, *await self._settle(self._kubernetes.sweep))

    async def _settle(self, sweep: Callable[[], Awaitable[list[Remnant]]]) -> tuple[Remnant, ...]:
        """Sweep until nothing is left, or nothing more is to be expected; what is left."""
        before: tuple[int, tuple[Remnant, ...]] | None = None
        progress = self._clock.now()
        attempt = 0
        while True:
            left = self.remnants = tuple(sorted(await sweep()))
            state = (self._deeds.total, left)
            if state != before:
                before, progress, attempt = state, self._clock.now(), 0
            patience = max((remnant.cause.patience for remnant in left), default=0.0)
            pause = PAUSE.delay(attempt, self._clock.random)
            now = self._clock.now()
            if not left or now + pause > min(progress + patience, self._deadline):
                return left
            attempt += 1
            await self._clock.sleep(pause)

    async def _mistaken(self, left: tuple[Remnant, ...]) -> list[Remnant]:
        """Networks that pods of this cluster are told of, and that are there under another name.

        Then this has looked for the wrong name, or in the wrong cloud, and the finalizers are still needed.
        """
        try:
            networks = sorted(await self._kubernetes.networks())[:MOST_NETWORKS]
        except ApiError as error:
            return [Remnant("finalizers and annotations", Cause.UNANSWERED, str(error))]
        known = " ".join(remnant.what for remnant in left)
        return [remnant for network in networks if network not in known for remnant in await self._ask_for(network)]

    async def _ask_for(self, network: NetworkId) -> list[Remnant]:
        try:
            with suppress(NotFoundError):
                found = await self._neutron.network(network)
                reason = f"pods of this cluster are told of it, and its name is {found.name!r}: see --cluster-name"
                return [Remnant(f"network {network}", Cause.REFUSED, reason)]
        except OpenStackError as error:
            return [Remnant(f"network {network}, perhaps", cause_of(error), str(error))]
        return []
