"""Takes part in a leader election, into the frame of a process: what every service with replicas does the same."""

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
from coil.runtime.flag import flag, parse_text
from coil.runtime.process import Process


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
        "15s", parse=parse_lease, help="how long after a leader's death another replica takes over"
    )
    lease_namespace: str = flag("kube-system", parse=parse_text, help="where the lease of the leader election is kept")


@dataclass(frozen=True, slots=True)
class Election:
    """`identity` is this replica's name in the election."""

    identity: str
    elector: LeaderElector


def start_election(
    process: Process,
    settings: ElectionSettings,
    lead: Callable[[], Coroutine[Any, Any, None]],
    *,
    client: KubeClient,
    metrics: ReconcileMetrics,
) -> Election:
    """Contend for the lease named like the process from now on, and `lead` whenever it is held."""
    store = LeaseLock(client=client, namespace=settings.lease_namespace, name=process.name)
    claim = LeaseClaim(store, identity=new_identity(), timing=settings.lease_duration)
    dead_man = WatchdogThread(clock=boot_clock)
    process.stack.callback(dead_man.close)
    elector = LeaderElector(process.name, claim, dead_man=dead_man, metrics=metrics, log=process.log)
    process.spawn("election", elector.run(lead))
    return Election(claim.identity, elector)
