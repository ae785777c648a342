"""`coil-raven cleanup`: removes the cluster from OpenStack. A command for a person or a Job, not a service.

Exit codes: 0 nothing is left, 1 something is (the last lines say what and why), 2 for flags that cannot be read, 3 for
credentials that are not accepted, 9 while a coil-raven leads, 130 when interrupted.
"""

import asyncio
import random
import signal
import sys
import time
from collections.abc import Mapping, Sequence
from typing import Final

from prometheus_client import CollectorRegistry
from structlog.typing import FilteringBoundLogger

from coil.kube.access import AccessError
from coil.kube.client import KubeClient
from coil.kube.errors import ApiError
from coil.kube.lease_lock import LeaseLock
from coil.manager.claim import LeaseClaim, boot_clock, new_identity
from coil.manager.election import LeaderElector, Watchdog
from coil.openstack.error import DeniedError, OpenStackError, UnauthenticatedError
from coil.openstack.neutron import NeutronApi
from coil.openstack.octavia import OctaviaApi
from coil.reconcile.metric import ReconcileMetrics
from coil.runtime.log import make_logger
from coil_raven.cleanup import LEASE_WAIT, Cleanup, Clock, LeaderError, while_leading
from coil_raven.connection import NAME, identify, open_openstack, read_settings
from coil_raven.kubernetes_removal import KubernetesRemoval
from coil_raven.openstack_removal import OpenStackRemoval
from coil_raven.remnant import Deeds
from coil_raven.settings import Settings
from coil_raven.start_checks import Finding

COMMAND: Final = "cleanup"
ABOUT: Final = (
    "Deletes everything that this cluster has in OpenStack, and coil-raven's finalizers and annotations. Pods that are "
    "plugged into their ports lose their network. Can be repeated."
)
LEFT: Final = 1
LEADING: Final = 9
INTERRUPTED: Final = 128 + signal.SIGINT
_IDENTIFY_SECONDS: Final = 60.0


def main(arguments: Sequence[str], environment: Mapping[str, str]) -> int:
    """Run the command with these arguments, which come after its name; returns the exit code."""
    settings, environment = read_settings(arguments, environment, program=f"{NAME} {COMMAND}", about=ABOUT)
    try:
        return asyncio.run(_stoppable(settings, environment))
    except (KeyboardInterrupt, asyncio.CancelledError):
        say("interrupted; run it again to go on")
        return INTERRUPTED
    except TimeoutError:
        say("the API server does not answer, so that the cluster's name in OpenStack is not known; nothing was changed")
        return LEFT
    except (ApiError, AccessError, OSError) as error:
        say(f"the API server cannot be reached: {error}")
        return LEFT


def say(line: str) -> None:
    """To standard output, at once."""
    sys.stdout.write(line + "\n")
    sys.stdout.flush()


async def _stoppable(settings: Settings, environment: Mapping[str, str]) -> int:
    """SIGTERM ends it as Ctrl-C does."""
    task = asyncio.ensure_future(_clean_up(settings, environment))
    loop = asyncio.get_running_loop()
    loop.add_signal_handler(signal.SIGTERM, task.cancel)
    try:
        return await task
    finally:
        loop.remove_signal_handler(signal.SIGTERM)


async def _clean_up(settings: Settings, environment: Mapping[str, str]) -> int:
    log = make_logger(NAME, level=settings.log_level, format=settings.log_format)
    async with KubeClient.connect(settings.kubeconfig, environment=environment) as kube:
        with open_openstack(settings) as client:
            neutron, octavia = NeutronApi(client), OctaviaApi(client)
            async with asyncio.timeout(_IDENTIFY_SECONDS):
                cluster = await identify(settings, kube, log=log)
            say(f"the cluster is {cluster!r} in OpenStack")
            try:
                await neutron.extensions()
            except (UnauthenticatedError, DeniedError) as error:
                say(f"OpenStack does not accept the credentials: {error}")
                return int(Finding.CREDENTIALS)
            except OpenStackError as error:
                log.warning("OpenStack does not answer yet", error=str(error))
            deeds = Deeds(say)
            cleanup = Cleanup(
                OpenStackRemoval(
                    neutron,
                    octavia,
                    cluster=cluster,
                    router=settings.router,
                    balancers=bool(settings.service_cidrs),
                    concurrency=settings.concurrency,
                    deeds=deeds,
                ),
                KubernetesRemoval(
                    kube,
                    balancer_class=settings.load_balancer_class,
                    balancers=bool(settings.service_cidrs),
                    deeds=deeds,
                ),
                neutron,
                deeds=deeds,
                clock=Clock(now=time.monotonic, sleep=asyncio.sleep, random=random.random),
            )
            try:
                await _lead(settings, kube, cleanup, log=log)
            except LeaderError as error:
                say(str(error))
                for line in deeds.lines() or ["nothing was changed"]:
                    say(line)
                return LEADING
            return _conclude(cleanup, deeds)


async def _lead(settings: Settings, kube: KubeClient, cleanup: Cleanup, *, log: FilteringBoundLogger) -> None:
    lock = LeaseLock(client=kube, namespace=settings.lease_namespace, name=NAME)
    claim = LeaseClaim(lock, identity=new_identity(), timing=settings.lease_duration)
    watchdog = Watchdog(clock=boot_clock)
    metrics = ReconcileMetrics(CollectorRegistry())
    elector = LeaderElector(NAME, claim, watchdog=watchdog, metrics=metrics, log=log)
    lease = f"{settings.lease_namespace}/{NAME}"
    wait = LEASE_WAIT + settings.lease_duration.lease

    def leader() -> str:
        if not claim.rival:
            return f"the Lease {lease} could not be taken"
        return f"{claim.rival} leads, as the Lease {lease} says: end every coil-raven first"

    say(f"waiting for the Lease {lease}, at most {wait:.0f} s")
    try:
        await while_leading(elector, cleanup.run, leader=leader, wait=wait)
    finally:
        watchdog.close()


def _conclude(cleanup: Cleanup, deeds: Deeds) -> int:
    for line in deeds.lines() or ["nothing had to be done"]:
        say(line)
    if not cleanup.remnants:
        say("nothing of the cluster is left in OpenStack")
        return 0
    for remnant in cleanup.remnants:
        say(f"left: {remnant}")
    if any(remnant.cause.is_ours for remnant in cleanup.remnants):
        say("finalizers and annotations may be left, too. Run it again when the cause is gone")
    return LEFT
