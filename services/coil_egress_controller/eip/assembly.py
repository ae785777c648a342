"""Wires the half of the controller that is about floating egress addresses into the process, and nothing else.

Its kinds may not be served yet, when the program was upgraded and its CRDs were not: then everything else works, this
half waits in its term, and says so in the log.
"""

import asyncio
import random
import time
from collections.abc import Callable
from datetime import UTC, datetime
from functools import partial
from typing import Any

from coil.crd.builtin import NAMESPACES, NODES
from coil.crd.egress_endpoint_slice import EGRESS_ENDPOINT_SLICES
from coil.crd.egress_gateway import EGRESS_GATEWAYS
from coil.crd.egress_gateway_policy import EGRESS_GATEWAY_POLICIES
from coil.crd.egress_tunnel import EGRESS_TUNNELS
from coil.eip.gateway_lease import LEASE_LABELS
from coil.eip.tunnel_plan import TunnelNets
from coil.kube.client import KubeClient
from coil.kube.collection import Freshness
from coil.kube.errors import NotFoundError
from coil.kube.lease_lock import LEASES
from coil.reconcile.cache import wait_synced
from coil.reconcile.event_recorder import Recorder
from coil.reconcile.informer import Informer
from coil.reconcile.informer_metric import InformerMetrics
from coil.reconcile.metric import ReconcileMetrics
from coil.reconcile.term import TermSource
from coil.runtime.process import Process
from coil_egress_controller.eip.deps import EipDeps, EipSettings
from coil_egress_controller.eip.leadership import EipLeadership, EipSources
from coil_egress_controller.eip.metric import EipCollector, EipMetrics
from coil_egress_controller.eip.pod import EIP_PODS, is_endpoint
from coil_egress_controller.eip.view import POD_INDEXERS, POLICY_INDEXERS, SLICE_INDEXERS, EipView
from coil_egress_controller.settings import Settings


def start_eip(
    process: Process,
    settings: Settings,
    *,
    client: KubeClient,
    informer_metrics: InformerMetrics,
    metrics: ReconcileMetrics,
    recorder: Recorder,
    show: Callable[[EipView], None],
) -> EipLeadership:
    """Follow everything from now on; returns what is to be led. `show` gets the caches once they are complete."""
    log = process.log
    follow = partial(Informer, log=log, metrics=informer_metrics)
    labels = ",".join(f"{key}={value}" for key, value in LEASE_LABELS.items())
    # What is built in is many, and no decision takes a cache's word for the absence of one of these.
    cached = Freshness.CACHED
    nodes = follow(client.collection(NODES, freshness=cached))
    namespaces = follow(client.collection(NAMESPACES, freshness=cached))
    pods = follow(client.collection(EIP_PODS, freshness=cached, keep=is_endpoint), indexers=POD_INDEXERS)
    leases = follow(client.collection(LEASES, namespace=settings.eip_lease_namespace, labels=labels))
    tunnels = follow(client.collection(EGRESS_TUNNELS))
    gateways = follow(client.collection(EGRESS_GATEWAYS))
    policies = follow(client.collection(EGRESS_GATEWAY_POLICIES), indexers=POLICY_INDEXERS)
    slices = follow(client.collection(EGRESS_ENDPOINT_SLICES), indexers=SLICE_INDEXERS)
    view = EipView(
        nodes=nodes,
        namespaces=namespaces,
        pods=pods,
        tunnels=tunnels,
        gateways=gateways,
        policies=policies,
        slices=slices,
        leases=leases,
    )
    sources = EipSources(
        nodes=TermSource(nodes),
        namespaces=TermSource(namespaces),
        pods=TermSource(pods),
        tunnels=TermSource(tunnels),
        gateways=TermSource(gateways),
        policies=TermSource(policies),
        slices=TermSource(slices),
        leases=TermSource(leases),
    )
    informers: list[Informer[Any]] = [nodes, namespaces, pods, leases, tunnels, gateways, policies, slices]
    for informer, name in zip(
        informers,
        (
            *("nodes", "namespaces", "pods", "leases"),
            *("egresstunnels", "egressgateways", "egressgatewaypolicies", "egressendpointslices"),
        ),
        strict=True,
    ):
        process.add_readiness(name, partial(_listed, informer))
        process.spawn(name, informer.run())

    async def synced() -> None:
        await wait_synced(informers, log=log)

    async def show_synced() -> None:
        await synced()
        show(view)
        await asyncio.get_running_loop().create_future()  # a task lives as long as its process

    process.spawn("eip view", show_synced())
    EipCollector(view, process.registry)
    place = EipDeps(
        client=client,
        view=view,
        recorder=recorder,
        policy=EipSettings(
            lease_namespace=settings.eip_lease_namespace,
            tunnel_nets=TunnelNets(ipv4=settings.tunnel_ipv4_subnet, ipv6=settings.tunnel_ipv6_subnet),
            slice_endpoints=settings.slice_endpoints,
            resync=settings.resync_interval,
        ),
        metrics=EipMetrics(process.registry),
        now=partial(datetime.now, UTC),
        clock=time.monotonic,
        random=random.random,
        log=log,
    )
    return EipLeadership(place, sources=sources, synced=synced, metrics=metrics)


def _listed(informer: Informer[Any]) -> str | None:
    """Why it is not ready. A kind that is not served is no reason: this process has other work than that."""
    if informer.synced or isinstance(informer.last_error, NotFoundError):
        return None
    return f"not listed yet: {informer.last_error or 'no answer'}"
