"""coil-raven: gives namespaces networks in OpenStack's Neutron, and pods ports on them.

Run by `python -m coil_raven`, any number of replicas. Wires the parts together and nothing else: every replica follows
its caches; the leader makes what they say in Neutron, and tells the nodes by annotations.
"""

import asyncio
import os
import random
import sys
import time
from collections.abc import Mapping, Sequence
from functools import partial
from typing import Any

from coil.crd.builtin import NAMESPACES, NODES, PODS
from coil.kube.api_client import ApiClient
from coil.kube.client import KubeClient
from coil.kube.errors import ApiError
from coil.manager.election import Election
from coil.manager.manager import Manager
from coil.manager.term import Term
from coil.neutron.identity import ClusterId, cluster_id
from coil.neutron.resource import ProjectId, RouterId
from coil.openstack.call_metrics import CallMetrics
from coil.openstack.client import OpenStackClient, connect
from coil.openstack.error import OpenStackError
from coil.openstack.neutron import Neutron, NeutronApi
from coil.openstack.octavia import Octavia, OctaviaApi
from coil.reconcile.backoff import Backoff
from coil.runtime.flag import parse_settings
from coil.runtime.process import Process, run
from coil_raven.caches import NAMESPACE_INDEXERS, POD_INDEXERS
from coil_raven.cluster_router import ClusterRouter
from coil_raven.load_balancing import Cloud, LoadBalancing
from coil_raven.namespace_network import NamespaceNetworks
from coil_raven.namespace_reconciler import NamespaceReconciler, Networks
from coil_raven.owned import OwnedObjects
from coil_raven.pod_ports import PodPorts
from coil_raven.pod_reconciler import PodReconciler, remedies_counter
from coil_raven.port_status import PortStatus
from coil_raven.raven_conf import RavenConfError, api_server, read_raven_conf
from coil_raven.settings import Settings
from coil_raven.start_checks import StartError, Surroundings, check_services, check_start

NAME = "coil-raven"
START_BACKOFF = Backoff(base=0.5, cap=30.0)


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
        calls = CallMetrics()
        remedies = remedies_counter()
        for collector in (*calls.collectors(), remedies):
            process.registry.register(collector)
        openstack_client = process.stack.enter_context(
            OpenStackClient(
                partial(connect, settings.clouds_file, settings.cloud, app_name=NAME, fallback=self._credentials),
                metrics=calls,
                concurrency=settings.concurrency,
            )
        )
        neutron, octavia = NeutronApi(openstack_client), OctaviaApi(openstack_client)
        cluster = await self._identify(process, kube)
        surroundings = await self._check(process, neutron, octavia, cluster)
        manager = Manager(process)
        recorder = manager.event_recorder(kube)
        namespaces = manager.cache(kube.collection(NAMESPACES), indexers=NAMESPACE_INDEXERS)
        pods = manager.cache(kube.collection(PODS), indexers=POD_INDEXERS)
        nodes = manager.cache(kube.collection(NODES))
        load_balancing = (
            LoadBalancing.open(
                manager,
                Cloud(neutron=neutron, octavia=octavia, cluster=cluster, public=surroundings.public),
                settings=settings,
                client=kube,
                recorder=recorder,
                log=process.log,
            )
            if settings.service_cidrs
            else None
        )
        project = ProjectId(settings.project)

        def setup(term: Term) -> None:
            networks = Networks()
            router = ClusterRouter(
                neutron,
                cluster=cluster,
                given=None if surroundings.router is None else RouterId(surroundings.router.id),
                public=surroundings.public,
                project=project,
                log=process.log,
            )
            owned = OwnedObjects(neutron, cluster=cluster, log=process.log)
            maker = NamespaceNetworks(
                neutron,
                cluster=cluster,
                router=router,
                supernets=settings.supernets,
                isolated=settings.isolate_namespaces,
                owned=owned,
                log=process.log,
            )
            NamespaceReconciler(
                client=kube,
                namespaces=namespaces,
                pods=pods,
                maker=maker,
                networks=networks,
                project=project,
                resync=settings.gc_interval,
                recorder=recorder,
                log=process.log,
            ).setup(term)
            ports = PodPorts(neutron, cluster=cluster, log=process.log)
            PodReconciler(
                client=kube,
                pods=pods,
                ports=ports,
                statuses=PortStatus(ports, clock=time.monotonic, random=random.random, log=process.log),
                remedies=remedies,
                networks=networks,
                nodes=nodes,
                port_type=settings.port_type,
                workers=settings.concurrency,
                resync=settings.gc_interval,
                recorder=recorder,
                log=process.log,
            ).setup(term)
            if load_balancing is not None:
                load_balancing.setup(term, router=router, owned=owned)

        manager.each_term(setup)
        await manager.start(Election(process, settings, client=kube, metrics=manager.metrics))

    def _warn_of_unknown(self, process: Process) -> None:
        conf = read_raven_conf(self._settings.raven_conf)
        if conf is not None:
            process.log.info("read raven.conf", path=str(self._settings.raven_conf), settings=sorted(conf.settings))
            for option in conf.unknown:
                process.log.warning("an option of raven.conf has no meaning here", option=option)

    def _credentials(self) -> Mapping[str, Any] | None:
        """As raven.conf has them now. Raises OSError where it cannot be used."""
        try:
            conf = read_raven_conf(self._settings.raven_conf)
        except RavenConfError as error:
            raise OSError(str(error)) from None
        return None if conf is None else conf.credentials

    async def _identify(self, process: Process, kube: ApiClient) -> ClusterId:
        """The cluster's name in Neutron; waits for the API server if the UID of kube-system is needed for it."""
        if self._settings.cluster_name:
            return ClusterId(self._settings.cluster_name)
        attempt = 0
        while True:
            try:
                return cluster_id((await kube.get(NAMESPACES, "kube-system")).metadata.uid)
            except ApiError as error:
                process.log.warning("waiting for the namespace kube-system", error=str(error))
            await asyncio.sleep(START_BACKOFF.delay(attempt, random.random))
            attempt += 1

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


def read_settings(arguments: Sequence[str], environment: Mapping[str, str]) -> tuple[Settings, Mapping[str, str]]:
    """What command line, environment and Kuryr's raven.conf say together; and the environment to go on with.

    Exits with 2, as `parse_settings` does, for what cannot be read.
    """
    parse = partial(
        parse_settings,
        Settings,
        arguments,
        program=NAME,
        about="Gives namespaces networks in OpenStack's Neutron, and pods ports on them.",
    )
    settings = parse(environment)
    try:
        conf = read_raven_conf(settings.raven_conf)
        if conf is None:
            return settings, environment
        settings = parse(environment, configured=conf.settings)
        if conf.api_root and settings.kubeconfig is None:
            host, port = api_server(conf.api_root)
            environment = {**environment, "KUBERNETES_SERVICE_HOST": host, "KUBERNETES_SERVICE_PORT": str(port)}
    except RavenConfError as error:
        sys.stderr.write(f"{NAME}: {error}\n")
        raise SystemExit(2) from None
    return settings, environment


def main() -> int:
    settings, environment = read_settings(sys.argv[1:], os.environ)
    raven = Raven(settings, environment)
    code = run(raven.assemble, name=NAME, settings=settings)
    return code if raven.exit_code is None else raven.exit_code
