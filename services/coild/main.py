"""coild: gives addresses to the pods of its node and wires them. Run by `python -m coild`, one per node, as root.

Wires the parts together and nothing else. The order of the start is the order of trust: the kernel's side first
(rules, sysctls), then what the API server knows (this node's blocks), then the books from both, and only then the
socket: an ADD never meets half a picture. Until then the plugin finds no socket and the runtime asks again.
"""

import asyncio
import itertools
import os
import random
import sys
from functools import partial
from ipaddress import ip_address
from typing import Any, TypeVar

from structlog.typing import FilteringBoundLogger

from coil.cnirpc.call_gate import CallLimits
from coil.cnirpc.call_metric import CallMetrics
from coil.cnirpc.server import serve_cni
from coil.crd.address_block import ADDRESS_BLOCKS
from coil.crd.block_request import BLOCK_REQUESTS
from coil.crd.builtin import NAMESPACES, NODES, Namespace, Node
from coil.crd.names import LABEL_NODE, NodeName
from coil.crd.resource import HasMetadata, Resource
from coil.kube.client import KubeClient
from coil.kube.errors import ForbiddenError, NotFoundError, UnavailableError
from coil.netlink.host import HostNetwork
from coil.podnet.gateway import LINK_LOCAL, node_addresses
from coil.reconcile.backoff import Backoff
from coil.reconcile.controller import Controller
from coil.reconcile.event_metric import EventMetrics
from coil.reconcile.event_recorder import EventRecorder
from coil.reconcile.informer import Informer
from coil.reconcile.informer_metric import InformerMetrics
from coil.reconcile.metric import ReconcileMetrics
from coil.reconcile.queue import WorkQueue
from coil.reconcile.sync_barrier import wait_synced
from coil.runtime.flag import parse_settings
from coil.runtime.process import Process, run
from coild.block_release import BlockRelease
from coild.cni_service import CniService
from coild.flat_network import start_route_sync
from coild.inspection import start_node_inspection
from coild.late_release import LateRelease
from coild.metric import NodeCollector, WaitMetrics
from coild.pod_service import PodNetworkOptions, PodService
from coild.route_export import RouteExport
from coild.settings import HostAddress, Settings
from coild.supply import Surroundings, assemble_supply
from coild.sweep import Sweep

T = TypeVar("T", bound=HasMetadata)

START_BACKOFF = Backoff(base=0.5, cap=15.0)
EXPORT_BACKOFF = Backoff(base=0.5, cap=30.0)
LIMITS = CallLimits(running=512, queued=0)
"""An ADD that waits for the API server costs a coroutine; what works on the kernel is bounded by its threads."""

RELEASE_WORKERS = 4
GRACE = 3.0
"""Seconds that calls have to end after a stop was asked for."""


def main() -> int:
    settings = parse_settings(
        Settings,
        sys.argv[1:],
        os.environ,
        program="coild",
        about="Gives addresses to the pods of a node and wires them.",
    )
    return run(partial(assemble, settings), name="coild", settings=settings)


async def assemble(settings: Settings, process: Process) -> None:
    """Start everything; returns once the socket is served."""
    log = process.log.bind(node=settings.node_name)
    rng = random.Random()  # noqa: S311 - spreads retries, guards nothing
    stack = process.stack
    policy = settings.route_policy

    network = await stack.enter_async_context(HostNetwork())
    kube = await stack.enter_async_context(KubeClient.connect(settings.kubeconfig))
    node = await read_node(kube, settings.node_name, rng=rng, log=log)
    addresses = [ip_address(entry.address) for entry in node.status.addresses if entry.type == "InternalIP"]
    options = PodNetworkOptions(
        mtu=settings.mtu or (await network.uplink(addresses)).mtu,
        gateways=node_addresses(addresses) if settings.host_address is HostAddress.NODE_IP else LINK_LOCAL,
        policy=policy,
        compat_calico=settings.compat_calico,
    )

    informer_metrics = InformerMetrics(process.registry)

    def follow(resource: Resource[T], *, labels: str = "") -> Informer[T]:
        return Informer(kube.collection(resource, labels=labels), log=log, metrics=informer_metrics)

    own = f"{LABEL_NODE}={settings.node_name}"
    blocks = follow(ADDRESS_BLOCKS, labels=own)
    requests = follow(BLOCK_REQUESTS, labels=own)
    namespaces = follow(NAMESPACES)

    async def namespace_of(name: str) -> Namespace:
        return namespaces.get(name) or await kube.get(NAMESPACES, name)

    reconcile_metrics = ReconcileMetrics(process.registry)
    emptied = WorkQueue("block-release", metrics=reconcile_metrics)
    export = RouteExport(network, policy=policy, backoff=EXPORT_BACKOFF, rng=rng, log=log)
    recorder = EventRecorder(
        kube, component="coild", host=settings.node_name, log=log, metrics=EventMetrics(process.registry)
    )
    supply = assemble_supply(
        settings.supply_options(node.metadata.uid),
        Surroundings(
            client=kube,
            blocks=blocks,
            requests=requests,
            namespace_of=namespace_of,
            changed=export.changed,
            emptied=emptied.add,
        ),
        rng=rng,
        log=log,
        observer=WaitMetrics(process.registry),
    )
    store = supply.store
    namespaces.subscribe(supply.source.foresee)
    NodeCollector(store, export, process.registry)
    pods = PodService(
        source=supply.source,
        network=network,
        options=options,
        acquire_timeout=settings.acquire_timeout,
        recorder=recorder,
        log=log,
    )
    release = BlockRelease(
        client=kube,
        store=store,
        withdraw=export.settled,
        stay=supply.demand.stay,
        log=log,
    )
    releasing = Controller(
        "block-release",
        release.reconcile,
        queue=emptied,
        metrics=reconcile_metrics,
        log=log,
        workers=RELEASE_WORKERS,
    )
    late = LateRelease(store, recorder, settings.node_name)
    sweep = Sweep(network=network, pods=pods, late=late, policy=policy, log=log)
    await sweep.kernel()

    informers: dict[str, Informer[Any]] = {"addressblocks": blocks, "blockrequests": requests, "namespaces": namespaces}
    for name, informer in informers.items():
        process.spawn(name, informer.run())
    await wait_synced(informers.values(), log=log)
    process.spawn("events", recorder.run())
    await supply.demand.discard_stale()
    await pods.recover()

    if settings.clear_routes_on_shutdown:
        stack.push_async_callback(export.sync, ())
    process.spawn("route-export", export.run(store.networks))
    if settings.route_sync:
        start_route_sync(
            settings, process, network=network, kube=kube, informer_metrics=informer_metrics, rng=rng, log=log
        )
    stack.push_async_callback(supply.close)
    process.spawn("block-release", releasing.run())
    stack.push_async_callback(settle, pods, log=log)
    calls = CallMetrics(process.registry)
    await stack.enter_async_context(
        serve_cni(CniService(pods), path=settings.socket, limits=LIMITS, grace=GRACE, metrics=calls)
    )
    process.add_readiness("socket", lambda: None if settings.socket.is_socket() else f"{settings.socket} is gone")
    process.spawn("sweep", sweep.run(settings.addressblock_gc_interval))
    start_node_inspection(settings, process, books=store, names=supply.journal, log=log)


async def read_node(kube: KubeClient, name: NodeName, *, rng: random.Random, log: FilteringBoundLogger) -> Node:
    """This node's object; waits for the API server, and for the kubelet to register the node, as long as it takes."""
    for attempt in itertools.count():
        try:
            return await kube.get(NODES, name)
        except (UnavailableError, NotFoundError, ForbiddenError) as error:
            # An API server that has just started refuses everybody: it has not read the roles yet.
            log.warning("waiting for this node's object", why=str(error))
        await asyncio.sleep(START_BACKOFF.delay(attempt, rng.random))
    raise AssertionError("unreachable")


async def settle(pods: PodService, *, log: FilteringBoundLogger) -> None:
    """Let operations that have begun come to their end, within bounds."""
    try:
        async with asyncio.timeout(GRACE):
            await pods.settle()
    except TimeoutError:
        log.warning("stopping with operations under way; the next start recovers from the kernel")
