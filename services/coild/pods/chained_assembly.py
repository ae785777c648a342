"""coild with `--enable-ipam=false`: egress NAT behind another plugin, and nothing of addresses, blocks or routes.

As with addresses the socket comes last, so that no ADD meets half a picture.
"""

import asyncio

from structlog.typing import FilteringBoundLogger

from coil.kube.client import KubeClient
from coil.netlink.error import NetlinkError
from coil.netlink.host import HostNetwork
from coil.reconcile.event_metric import EventMetrics
from coil.reconcile.event_recorder import EventRecorder
from coil.reconcile.informer_metric import InformerMetrics
from coil.reconcile.metric import ReconcileMetrics
from coil.runtime.process import Process
from coild.cni.chained import ChainedCniService
from coild.cni.plugin_socket import serve_plugin
from coild.egress.nat import EgressDeps, start_egress
from coild.model.address_source import PodName
from coild.model.keyed_executor import KeyedExecutor
from coild.model.pod_egress import PodUnknownError
from coild.pods.chained_service import ChainedPods
from coild.settings import Settings


async def assemble_chained(settings: Settings, process: Process) -> None:
    """Start everything; returns once the socket is served."""
    if not settings.enable_egress:
        raise ValueError("--enable-ipam=false and --enable-egress=false leave coild nothing to do")
    log = process.log.bind(node=settings.node_name)
    network = await process.stack.enter_async_context(HostNetwork())
    kube = await process.stack.enter_async_context(KubeClient.connect(settings.kubeconfig))
    recorder = EventRecorder(
        kube, component="coild", host=settings.node_name, log=log, metrics=EventMetrics(process.registry)
    )
    process.spawn("events", recorder.run())
    turns = KeyedExecutor(log)
    around = EgressDeps(
        kube=kube,
        network=network,
        turns=turns,
        recorder=recorder,
        informer_metrics=InformerMetrics(process.registry),
        reconcile_metrics=ReconcileMetrics(process.registry),
    )
    egress = await start_egress(settings, process, around, log=log)

    async def uid_of(name: PodName, deadline: float) -> str:
        try:
            return (await egress.pods.find(name, deadline=deadline)).metadata.uid
        except PodUnknownError:
            if not settings.egress_fail_open:
                raise
            return ""

    await egress.wait_listed()
    pods = ChainedPods(network=network, egress=egress.clients, uid_of=uid_of, turns=turns, log=log)
    egress.adopt(await pods.recover())
    await serve_plugin(ChainedCniService(pods), settings, process, turns=turns, log=log)
    egress.follow()
    process.spawn("sweep", sweep(pods, settings.addressblock_gc_interval, log=log))


async def sweep(pods: ChainedPods, interval: float, *, log: FilteringBoundLogger) -> None:
    """Every `interval` seconds, for ever, forget the pods that went without a DEL."""
    while True:
        await asyncio.sleep(interval)
        try:
            await pods.collect()
        except NetlinkError as error:
            log.warning("sweep not complete", why=str(error))
