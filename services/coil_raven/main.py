"""coil-raven: gives namespaces networks in OpenStack's Neutron, and pods ports on them.

Run by `python -m coil_raven`, any number of replicas. Wires the parts together and nothing else: every replica follows
its caches; the leader makes what they say in Neutron, and tells the nodes by annotations. `coil-raven cleanup` is a
command (`cleanup_command`).
"""

import asyncio
import os
import random
import sys
import time
from collections.abc import Mapping
from datetime import UTC, datetime
from functools import partial

from coil.kube.client import KubeClient
from coil.manager.election import Election
from coil.manager.manager import Manager
from coil.neutron.identity import ClusterId
from coil.neutron.resource import RouterId
from coil.openstack.call_metrics import CallMetrics
from coil.openstack.error import OpenStackError
from coil.openstack.neutron import Neutron, NeutronApi
from coil.openstack.octavia import Octavia, OctaviaApi
from coil.openstack.recent_calls import RecentCalls
from coil.runtime.process import Process, run
from coil_raven import cleanup_command
from coil_raven.caches import Caches
from coil_raven.connection import NAME, START_BACKOFF, identify, open_openstack, read_settings
from coil_raven.inspection import Sources, start_raven_inspection
from coil_raven.load_balancing import Cloud, LoadBalancing
from coil_raven.pod_reconciler import remedies_counter
from coil_raven.raven_conf import read_raven_conf
from coil_raven.recent_events import RecentEvents
from coil_raven.reconcilers import Reconcilers
from coil_raven.settings import Settings
from coil_raven.start_checks import StartError, Surroundings, check_services, check_start
from coil_raven.view import RavenView


class Raven:
    """The process; `exit_code` is that of a finding which ended its start, None if there was none."""

    def __init__(self, settings: Settings, environment: Mapping[str, str]) -> None:
        self._settings = settings
        self._environment = environment
        self.exit_code: int | None = None

    async def assemble(self, process: Process) -> None:
        """Start everything; returns once the caches are synced and this replica contends for the lease."""
        settings = self._settings
        self._warn_of_unknown(process)
        kube = await process.stack.enter_async_context(
            KubeClient.connect(settings.kubeconfig, environment=self._environment)
        )
        calls, recent = CallMetrics(), RecentCalls(clock=time.monotonic, now=partial(datetime.now, UTC))
        remedies = remedies_counter()
        for collector in (*calls.collectors(), remedies):
            process.registry.register(collector)
        openstack_client = process.stack.enter_context(open_openstack(settings, metrics=calls, recent=recent))
        neutron, octavia = NeutronApi(openstack_client), OctaviaApi(openstack_client)
        cluster = await identify(settings, kube, log=process.log)
        surroundings = await self._check(process, neutron, octavia, cluster)
        manager = Manager(process)
        recorder = RecentEvents(manager.event_recorder(kube), now=partial(datetime.now, UTC))
        cloud = Cloud(neutron=neutron, octavia=octavia, cluster=cluster, public=surroundings.public)
        caches, view = Caches.follow(manager, kube), RavenView()
        load_balancing = (
            LoadBalancing.open(
                manager,
                cloud,
                settings=settings,
                client=kube,
                recorder=recorder,
                clock=time.monotonic,
                random=random.random,
                log=process.log,
            )
            if settings.service_cidrs
            else None
        )
        reconcilers = Reconcilers(
            settings=settings,
            cloud=cloud,
            router=None if surroundings.router is None else RouterId(surroundings.router.id),
            client=kube,
            caches=caches,
            load_balancing=load_balancing,
            recorder=recorder,
            remedies=remedies,
            view=view,
            clock=time.monotonic,
            random=random.random,
            log=process.log,
        )
        manager.each_term(reconcilers.setup)
        election = Election(process, settings, client=kube, metrics=manager.metrics)
        await manager.start(election)
        sources = Sources(
            cluster=cluster,
            caches=caches,
            load_balancing=load_balancing,
            view=view,
            paused=lambda: openstack_client.pause_left,
            calls=recent,
            events=recorder,
        )
        start_raven_inspection(settings, process, sources=sources, election=election)

    def _warn_of_unknown(self, process: Process) -> None:
        conf = read_raven_conf(self._settings.raven_conf)
        if conf is not None:
            process.log.info("read raven.conf", path=str(self._settings.raven_conf), settings=sorted(conf.settings))
            for option in conf.unknown:
                process.log.warning("an option of raven.conf has no meaning here", option=option)

    async def _check(self, process: Process, neutron: Neutron, octavia: Octavia, cluster: ClusterId) -> Surroundings:
        """What is in OpenStack; waits while it does not answer. Raises StartError."""
        settings = self._settings
        attempt = 0
        while True:
            try:
                surroundings = await check_start(
                    neutron,
                    cluster=cluster,
                    public_network=settings.public_network,
                    router=settings.router,
                    supernets=settings.supernets,
                    pools=settings.port_pool_size > 0,
                )
                if settings.service_cidrs:
                    await check_services(
                        neutron,
                        octavia,
                        cluster=cluster,
                        ranges=settings.service_cidrs,
                        provider=settings.provider,
                        supernets=settings.supernets,
                    )
                return surroundings
            except StartError as error:
                self.exit_code = int(error.finding)
                raise
            except OpenStackError as error:
                process.log.warning("waiting for OpenStack", error=str(error))
            await asyncio.sleep(START_BACKOFF.delay(attempt, random.random))
            attempt += 1


def main() -> int:
    arguments = sys.argv[1:]
    if arguments[:1] == [cleanup_command.COMMAND]:
        return cleanup_command.main(arguments[1:], os.environ)
    settings, environment = read_settings(arguments, os.environ)
    raven = Raven(settings, environment)
    code = run(raven.assemble, name=NAME, settings=settings)
    return code if raven.exit_code is None else raven.exit_code
