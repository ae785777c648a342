"""coil-egress-controller: runs router pods for each Egress behind a Service, and moves floating egress addresses.

Run by `python -m coil_egress_controller`, any number of replicas. Wires the parts together and nothing else: all
replicas keep their caches up to date, answer admission reviews and are ready; the elected one works.
"""

import os
import random
import sys
import time
from collections.abc import Sequence
from datetime import UTC, datetime
from functools import partial

from structlog.typing import FilteringBoundLogger

from coil.admission.webhook_service import WebhookService, start_admission
from coil.crd.builtin import NAMESPACES, NODES, ConfigMap, Namespace, Node
from coil.crd.cidr import OwnedNetwork
from coil.crd.egress_cluster_info import EGRESS_CLUSTER_INFOS, EgressClusterInfo
from coil.egress.router_pod import RouterProgram
from coil.eip.tunnel_plan import TunnelNets
from coil.kube.client import KubeClient
from coil.kube.collection import Freshness
from coil.manager.election import Election
from coil.manager.manager import Manager
from coil.reconcile.cache import Cache
from coil.reconcile.event_recorder import Recorder
from coil.runtime import former_flag
from coil.runtime.flag import parse_settings
from coil.runtime.process import Process, run
from coil_egress_controller.egress.admission import EgressAdmission
from coil_egress_controller.egress.client_metric import ClientPodCollector
from coil_egress_controller.egress.cluster_info_reconciler import ClusterInfoReconciler
from coil_egress_controller.egress.cluster_networks_reconciler import (
    ClusterCaches,
    ClusterNetworksReconciler,
    follow_config_map,
)
from coil_egress_controller.egress.controllers import EgressCaches, EgressControllers
from coil_egress_controller.egress.own_image import find_own_image
from coil_egress_controller.eip.admission_reader import AdmissionCaches, AdmissionReader
from coil_egress_controller.eip.cluster_objects import ClusterSettings
from coil_egress_controller.eip.controllers import EipCaches, EipControllers, SourceCaches
from coil_egress_controller.eip.gateway_admission import GatewayAdmission
from coil_egress_controller.eip.metric import EipCollector, EipMetrics
from coil_egress_controller.eip.policy_admission import PolicyAdmission
from coil_egress_controller.settings import Settings

NAME = "coil-egress-controller"


def main() -> int:
    settings = parse_settings(
        Settings,
        sys.argv[1:],
        os.environ,
        program=NAME,
        about="Has router pods run for each Egress.",
        former=former_flag.EGRESS_CONTROLLER,
    )
    return run(partial(assemble, settings), name=NAME, settings=settings)


async def assemble(settings: Settings, process: Process) -> None:
    """Start everything; returns once the required caches are synced and this replica contends for the lease."""
    log = process.log
    kube = await process.stack.enter_async_context(KubeClient.connect(settings.kubeconfig))
    # First: until its webhooks are answered, no Egress can be changed.
    service = WebhookService(NAME, settings.lease_namespace)
    given = [OwnedNetwork(network, "the cluster (--cluster-cidr)") for network in settings.cluster_cidr]
    reader = AdmissionReader(kube, settings=_cluster_settings(settings, given), log=log)
    egresses = EgressAdmission(privileged_templates=settings.allow_privileged_templates, served=settings.enable_egress)
    handlers = {
        **egresses.handlers,
        **GatewayAdmission(reader).handlers,
        **PolicyAdmission(
            reader,
            limits=settings.namespace_limits,
            policies_per_gateway=settings.policies_per_gateway,
            serves_cluster_policies=settings.enable_egress_policies,
        ).handlers,
    }
    await start_admission(process, settings, handlers, client=kube, at=service)
    image = await _router_image(settings, kube, log=log) if settings.enable_egress else ""

    manager = Manager(process)
    recorder = manager.event_recorder(kube)
    # No decision relies on this cache for the absence of a Namespace.
    namespaces = manager.cache(kube.collection(NAMESPACES, freshness=Freshness.CACHED), optional=True)
    into = settings.cluster_networks
    config_maps = follow_config_map(manager, kube, into) if into is not None else None
    if settings.enable_egress:
        routers = EgressControllers(
            caches=EgressCaches.start(manager, kube, namespaces=namespaces, cluster_networks=config_maps),
            client=kube,
            recorder=recorder,
            program=RouterProgram(image=image, port=settings.egress_port),
            resync=settings.resync_interval,
            privileged_templates=settings.allow_privileged_templates,
            log=log,
        )
        manager.each_term(routers.setup)
        ClientPodCollector(routers.caches.clients, process.registry)
    if settings.enable_eip or settings.cluster_networks is not None:
        # No decision relies on this cache for the absence of a Node.
        nodes = manager.cache(kube.collection(NODES, freshness=Freshness.CACHED), optional=True)
        cluster = ClusterCaches.start(manager, kube, nodes=nodes)
        infos: Cache[EgressClusterInfo] | None = None
        if settings.enable_eip and settings.enable_egress_policies:
            infos = manager.cache(kube.collection(EGRESS_CLUSTER_INFOS), optional=True)
            cluster_info = ClusterInfoReconciler(client=kube, caches=cluster, infos=infos, log=log)
            manager.each_term(partial(cluster_info.setup, resync=settings.resync_interval))
        if into is not None and config_maps is not None:
            networks = ClusterNetworksReconciler(
                client=kube,
                caches=cluster,
                config_maps=config_maps,
                into=into,
                infos=infos,
                given=given,
                log=log,
            )
            manager.each_term(partial(networks.setup, resync=settings.resync_interval))
        if settings.enable_eip:
            eip = _eip(settings, process, manager, kube, recorder, nodes, namespaces, config_maps)
            manager.each_term(eip.setup)
            manager.while_standing_by(eip.stand_by)
            caches = eip.caches
            reader.use(
                AdmissionCaches(
                    gateways=caches.gateways,
                    policies=caches.policies,
                    namespaces=caches.namespaces,
                    nodes=nodes,
                    pools=cluster.pools,
                    service_cidrs=cluster.service_cidrs,
                    apiserver_service=cluster.apiserver_service,
                    tunnels=caches.tunnels,
                    calico_pools=cluster.calico_pools,
                    cilium_nodes=cluster.cilium_nodes,
                    cilium=cluster.cilium,
                    kubeadm=cluster.kubeadm,
                    kube_proxy=cluster.kube_proxy,
                    config_maps=config_maps,
                    infos=infos,
                )
            )
            EipCollector(gateways=caches.gateways, policies=caches.policies, registry=process.registry)
    await manager.start(Election(process, settings, client=kube, metrics=manager.metrics))


def _cluster_settings(settings: Settings, given: Sequence[OwnedNetwork]) -> ClusterSettings:
    to_agents = [OwnedNetwork(network, "the cluster (--eip-cluster-cidr)") for network in settings.eip_cluster_cidr]
    return ClusterSettings(
        tunnels=(settings.tunnel_ipv4_subnet, settings.tunnel_ipv6_subnet),
        given=(*given, *to_agents),
        cluster_networks=settings.cluster_networks,
        serves_cluster_info=settings.enable_eip and settings.enable_egress_policies,
    )


async def _router_image(settings: Settings, kube: KubeClient, *, log: FilteringBoundLogger) -> str:
    """That of router pods; this controller's own unless settings say otherwise."""
    image = settings.egress_image or await find_own_image(
        kube,
        namespace=settings.pod_namespace,
        name=settings.pod_name,
        container=NAME,
        log=log,
        random=random.random,
    )
    log.info("router pods", image=image, port=settings.egress_port)
    return image


def _eip(
    settings: Settings,
    process: Process,
    manager: Manager,
    kube: KubeClient,
    recorder: Recorder,
    nodes: Cache[Node],
    namespaces: Cache[Namespace],
    cluster_networks: Cache[ConfigMap] | None,
) -> EipControllers:
    return EipControllers(
        caches=EipCaches.start(
            manager, kube, nodes=nodes, namespaces=namespaces, lease_namespace=settings.eip_lease_namespace
        ),
        sources=SourceCaches.start(manager, kube) if settings.enable_egress_policies else None,
        cluster_networks=cluster_networks,
        extra_networks=settings.eip_cluster_cidr,
        client=kube,
        recorder=recorder,
        metrics=EipMetrics(process.registry),
        lease_namespace=settings.eip_lease_namespace,
        tunnel_nets=TunnelNets(ipv4=settings.tunnel_ipv4_subnet, ipv6=settings.tunnel_ipv6_subnet),
        slice_endpoints=settings.slice_endpoints,
        policies_per_gateway=settings.policies_per_gateway,
        resync=settings.resync_interval,
        now=partial(datetime.now, UTC),
        clock=time.monotonic,
        random=random.random,
        log=process.log,
    )
