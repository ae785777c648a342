"""This replica's part in the leader election of its service: its settings, its identity, and its lease."""

from collections.abc import Callable, Coroutine
from dataclasses import dataclass
from typing import Any

from coil.kube.client import KubeClient
from coil.kube.lease_lock import LeaseLock
from coil.reconcile.claim import LeaderTiming, LeaseClaim, boot_clock, new_identity
from coil.reconcile.leader import LeaderElector
from coil.reconcile.metric import ReconcileMetrics
from coil.reconcile.watchdog import WatchdogThread
from coil.runtime.duration import parse_period
from coil.runtime.flag import Group, flag, kind, parse_text
from coil.runtime.process import Process


@kind("PERIOD")
def parse_lease(text: str) -> LeaderTiming:
    """The timing of an election whose lease has that length, in whole seconds."""
    seconds = parse_period(text)
    if seconds < 5 or seconds != int(seconds):
        raise ValueError('a number of whole seconds, 5 or more, such as "15s"')
    # In the proportions of the default. Shorter leases leave too little for one slow answer.
    part = seconds / 15
    return LeaderTiming(lease=int(seconds), renew=9 * part, grace=4 * part, retry=2 * part, call=4 * part)


@dataclass(frozen=True, kw_only=True)
class ElectionSettings:
    """The settings of a process that elects a leader among its replicas; its own settings extend them."""

    lease_duration: LeaderTiming = flag(
        "15s",
        parse=parse_lease,
        group=Group.ELECTION,
        help="how long after a leader's death another replica takes over",
    )
    lease_namespace: str = flag(
        "kube-system", parse=parse_text, group=Group.ELECTION, help="where the lease of the leader election is kept"
    )


class Election:
    """Contends for the lease `process.name` in the namespace of the settings; see `coil.reconcile.leader`.

    `identity` is this replica's name in the election. One `run` at a time.
    """

    def __init__(
        self, process: Process, settings: ElectionSettings, *, client: KubeClient, metrics: ReconcileMetrics
    ) -> None:
        lock = LeaseLock(client=client, namespace=settings.lease_namespace, name=process.name)
        claim = LeaseClaim(lock, identity=new_identity(), timing=settings.lease_duration)
        watchdog = WatchdogThread(clock=boot_clock)
        process.stack.callback(watchdog.close)
        self.identity = claim.identity
        self._elector = LeaderElector(process.name, claim, watchdog=watchdog, metrics=metrics, log=process.log)

    def holds_lease(self) -> bool:
        """True while no other replica can be leading."""
        return self._elector.holds_lease()

    async def run(self, lead: Callable[[], Coroutine[Any, Any, None]]) -> None:
        """Await `lead()` whenever this replica is elected, and give the lease back at the end."""
        await self._elector.run(lead)
