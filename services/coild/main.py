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

from coil.crd.address_block import ADDRESS_BLOCKS
from coil.crd.block_request import BLOCK_REQUESTS
from coil.crd.builtin import NAMESPACES, NODES, Namespace, Node
from coil.crd.names import LABEL_NODE, NodeName
from coil.crd.resource import HasMetadata
from coil.kube.client import KubeClient
from coil.kube.errors import ForbiddenError, NotFoundError, UnavailableError
from coil.netlink.host import HostNetwork
from coil.podnet.gateway import LINK_LOCAL, node_addresses
from coil.reconcile.backoff import Backoff
from coil.reconcile.cache import wait_synced
from coil.reconcile.controller import Controller
from coil.reconcile.event_metric import EventMetrics
from coil.reconcile.event_recorder import EventRecorder
from coil.reconcile.informer import Informer
from coil.reconcile.informer_metric import InformerMetrics
from coil.reconcile.metric import ReconcileMetrics
from coil.reconcile.queue import WorkQueue
from coil.runtime.flag import parse_settings
from coil.runtime.process import Process, run
from coild.addresses.block_release import BlockRelease, ReleasableBlocks, StuckRelease
from coild.addresses.supply import SupplyDeps, assemble_supply
from coild.cni.plugin_socket import serve_plugin
from coild.cni.service import CniService
from coild.egress.nat import EgressDeps, NodeEgress, WithoutEgress, start_egress
from coild.inspection import start_node_inspection
from coild.metric import NodeCollector, WaitMetrics
from coild.model.keyed_executor import KeyedExecutor
from coild.pods.chained_assembly import assemble_chained
from coild.pods.pod_service import PodNetworkOptions, PodService
from coild.pods.sweep import Sweep
from coild.routes.export import RouteExport
from coild.routes.flat_network import start_route_sync
from coild.settings import HostAddress, Settings

T = TypeVar("T", bound=HasMetadata)

START_BACKOFF = Backoff(base=0.5, cap=15.0)
EXPORT_BACKOFF = Backoff(base=0.5, cap=30.0)
RELEASE_WORKERS = 4


def main() -> int:
    settings = parse_settings(
        Settings,
        sys.argv[1:],
        os.environ,
        program="coild",
        about="Gives addresses to the pods of a node and wires them.",
    )
    assembly = assemble if settings.enable_ipam else assemble_chained
    return run(partial(assembly, settings), name="coild", settings=settings)


async def assemble(settings: Settings, process: Process) -> None:
    """Start everything; returns once the socket is served."""
    log = process.log.bind(node=settings.node_name)
    rng = random.Random()  # noqa: S311 - spreads retries, guards nothing
    stack = process.stack
    policy = settings.route_policy

    network = await stack.enter_async_context(HostNetwork())
    kube = await stack.enter_async_context(KubeClient.connect(settings.kubeconfig))
    node = await read_node(kube, settings.node_name, rng=rng, log=log)
    options = await pod_options(settings, node, network)

    informer_metrics = InformerMetrics(process.registry)
    own = f"{LABEL_NODE}={settings.node_name}"
    blocks = Informer(kube.collection(ADDRESS_BLOCKS, labels=own), log=log, metrics=informer_metrics)
    requests = Informer(kube.collection(BLOCK_REQUESTS, labels=own), log=log, metrics=informer_metrics)
    namespaces = Informer(kube.collection(NAMESPACES), log=log, metrics=informer_metrics)
    reconcile_metrics = ReconcileMetrics(process.registry)
    release_queue = WorkQueue("block-release", metrics=reconcile_metrics)
    export = RouteExport(network, policy=policy, backoff=EXPORT_BACKOFF, rng=rng, log=log)
    recorder = EventRecorder(
        kube, component="coild", host=settings.node_name, log=log, metrics=EventMetrics(process.registry)
    )
    supply = assemble_supply(
        settings.supply_options(node.metadata.uid),
        SupplyDeps(
            client=kube,
            blocks=blocks,
            requests=requests,
            namespace_of=partial(find_namespace, namespaces, kube),
            changed=export.changed,
            release_queue=release_queue,
        ),
        rng=rng,
        log=log,
        observer=WaitMetrics(process.registry),
    )
    store = supply.store
    namespaces.subscribe(supply.source.foresee)
    NodeCollector(store, export, process.registry)
    turns = KeyedExecutor(log)
    around = EgressDeps(
        kube=kube,
        network=network,
        turns=turns,
        recorder=recorder,
        informer_metrics=informer_metrics,
        reconcile_metrics=reconcile_metrics,
    )
    egress: NodeEgress = (
        await start_egress(settings, process, around, log=log) if settings.enable_egress else WithoutEgress()
    )
    pods = PodService(
        source=supply.source,
        network=network,
        egress=egress.clients,
        turns=turns,
        options=options,
        acquire_timeout=settings.acquire_timeout,
        recorder=recorder,
        log=log,
    )
    release = BlockRelease(
        client=kube,
        blocks=ReleasableBlocks(store, settings.cooling),
        demand=supply.demand,
        withdraw=export.settled,
        retract=supply.requester.retract,
        log=log,
    )
    releasing = Controller(
        "block-release",
        release.reconcile,
        queue=release_queue,
        metrics=reconcile_metrics,
        log=log,
        workers=RELEASE_WORKERS,
    )
    sweep = Sweep(
        network=network, pods=pods, late=StuckRelease(store, recorder, settings.node_name), policy=policy, log=log
    )
    await sweep.kernel()

    informers: dict[str, Informer[Any]] = {"addressblocks": blocks, "blockrequests": requests, "namespaces": namespaces}
    for name, informer in informers.items():
        process.spawn(name, informer.run())
    await wait_synced(informers.values(), log=log)
    await egress.wait_listed()
    process.spawn("events", recorder.run())
    await supply.requester.discard_stale()
    await pods.recover()
    egress.adopt(pods.sites(lambda key: supply.journal.holder(key).pod))

    if settings.clear_routes_on_shutdown:
        stack.push_async_callback(export.sync, ())
    process.spawn("route-export", export.run(store.networks))
    if settings.route_sync:
        start_route_sync(
            settings, process, network=network, kube=kube, informer_metrics=informer_metrics, rng=rng, log=log
        )
    stack.push_async_callback(supply.close)
    process.spawn("pool-demand", supply.demand.run())
    process.spawn("block-release", releasing.run())
    await serve_plugin(CniService(pods), settings, process, turns=turns, log=log)
    egress.follow()
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


async def find_namespace(namespaces: Informer[Namespace], kube: KubeClient, name: str) -> Namespace:
    """The namespace as it was last seen; one that was never seen is asked for."""
    return namespaces.get(name) or await kube.get(NAMESPACES, name)


async def pod_options(settings: Settings, node: Node, network: HostNetwork) -> PodNetworkOptions:
    """What the settings and the node say of all pods' networks."""
    addresses = [ip_address(entry.address) for entry in node.status.addresses if entry.type == "InternalIP"]
    return PodNetworkOptions(
        mtu=settings.mtu or (await network.uplink(addresses)).mtu,
        gateways=node_addresses(addresses) if settings.host_address is HostAddress.NODE_IP else LINK_LOCAL,
        policy=settings.route_policy,
        compat_calico=settings.compat_calico,
    )
