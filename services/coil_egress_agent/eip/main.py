"""coil-egress-agent on a node. Run by `python -m coil_egress_agent.eip`, one per node, in the node's own namespace.

Wires the parts together and nothing else. What brings the kernel up to date is no reconciler: that is done as a whole,
in one order, so the parts are runnables, which start once all caches are synced. An API server that is unavailable, a
kernel that lacks a feature or a missing permission keep the node unready, with the reason at `/readyz`, until they
pass.
"""

import asyncio
import os
import random
import sys
import time
from collections.abc import Mapping
from functools import partial
from typing import Final, TypeVar

from structlog.typing import FilteringBoundLogger

from coil.crd.address_pool import ADDRESS_POOLS
from coil.crd.builtin import CONFIG_MAPS, NODES
from coil.crd.egress_gateway import EGRESS_GATEWAYS
from coil.crd.egress_gateway_policy import EGRESS_GATEWAY_POLICIES
from coil.crd.egress_tunnel import EGRESS_TUNNELS
from coil.crd.names import NodeName
from coil.crd.resource import HasMetadata, object_key
from coil.eip.data_plane import DataPlaneIndex
from coil.eip.egressgateway import AGENT_LABELS
from coil.eip.eip_table import EipTableOptions, forward_shim
from coil.eip.gateway_lease import lease_name
from coil.eip.slice_packing import is_finished
from coil.kernel.packet_filter import ForwardedPacket
from coil.kernel.wireguard import WIREGUARD_LINK
from coil.kube.client import KubeClient
from coil.kube.lease_lock import LeaseLock
from coil.manager.manager import Manager
from coil.manager.term import Run
from coil.netlink.conntrack import FlowTable
from coil.netlink.node_sysctl import NodeSysctls
from coil.netlink.overlay import OverlayNetwork
from coil.netlink.worker import open_worker
from coil.nft.forward_watch import ForwardWatch, read_hooks
from coil.runtime.flag import parse_settings
from coil.runtime.log import describe_error, make_logger
from coil.runtime.process import Process, run
from coil_egress_agent.eip.address_source import AddressSourceGuard
from coil_egress_agent.eip.announcer import Announcer
from coil_egress_agent.eip.applier import Applier, Deps
from coil_egress_agent.eip.bypass_watch import BypassWatch
from coil_egress_agent.eip.change_tracker import BY_POLICY, ENDPOINT_SLICES, Caches, ChangeTracker, index_by_policy
from coil_egress_agent.eip.connection_prober import ConnectionProber
from coil_egress_agent.eip.data_plane_builder import DataPlaneBuilder
from coil_egress_agent.eip.egressgateway_state import EgressgatewayState
from coil_egress_agent.eip.former_gateway import FormerGateway
from coil_egress_agent.eip.forwarded_packets import ForwardedSources, dropped_condition, plan_packets, read_ways
from coil_egress_agent.eip.interpreter import shorten_pauses
from coil_egress_agent.eip.kernel import KERNEL_ERRORS, Overlay, Tables, bounded
from coil_egress_agent.eip.kernel_lease import KernelLease
from coil_egress_agent.eip.kernel_tables import KernelTables, RunProgram, ensure_shim, remove_shim, run_program
from coil_egress_agent.eip.lease_renewer import FenceTiming, LeaseRenewer
from coil_egress_agent.eip.mesh import DEVICE, MeshOptions, MeshSync
from coil_egress_agent.eip.metric import LeaseMetrics, NodeMetrics, ProbeMetrics
from coil_egress_agent.eip.node_pods import NODE_PODS, NodePods
from coil_egress_agent.eip.pod_hold import PodHold
from coil_egress_agent.eip.pod_starts import PodStarts, serve_pod_starts
from coil_egress_agent.eip.settings import Encryption, Settings
from coil_egress_agent.eip.tunnel_report import TunnelReporter

T = TypeVar("T", bound=HasMetadata)

NAME = "coil-egress-agent-node"

OVERLAY_PAUSE: Final = 1.0
"""Seconds between two looks at links, addresses and rules that were asked for by events."""

TABLES_PAUSE: Final = 10.0
"""Seconds between two looks at the tables: one takes seconds where there are a hundred thousand elements."""


def main() -> int:
    settings = parse_settings(
        Settings, sys.argv[1:], os.environ, program=NAME, about="Carries egress addresses on a node, and leads to them."
    )
    if settings.cleanup:
        return asyncio.run(_clean_up(settings))
    return run(partial(assemble, settings), name=NAME, settings=settings)


async def assemble(settings: Settings, process: Process) -> None:
    """Start everything once the caches are synced; until then `/readyz` says what is missing."""
    node = NodeName(settings.node_name)
    log = process.log.bind(node=node)
    stack = process.stack
    options = table_options(settings)
    overlay = await stack.enter_async_context(
        OverlayNetwork(
            tunnel=DEVICE,
            sysctls=NodeSysctls(settings.sysctl_record),
            excluded=settings.announced_interfaces_to_exclude,
        )
    )
    guard = await _await_permission(process, overlay, log=log)
    tables = await stack.enter_async_context(KernelTables(options))
    kube = await stack.enter_async_context(KubeClient.connect(settings.kubeconfig))
    state = await stack.enter_async_context(EgressgatewayState(node))
    former = FormerGateway(state, partial(_list_former_agents, kube, node), log=log)
    process.add_readiness("egressgateway", former.missing)
    await former.wait_until_free()
    # Connections of their own: a renewal waits for no other call.
    lease_kube = await stack.enter_async_context(KubeClient.connect(settings.kubeconfig))

    manager = Manager(process)
    gateways = manager.cache(kube.collection(EGRESS_GATEWAYS))
    policies = manager.cache(kube.collection(EGRESS_GATEWAY_POLICIES))
    slices = manager.cache(kube.collection(ENDPOINT_SLICES), indexers={BY_POLICY: index_by_policy})
    tunnels = manager.cache(kube.collection(EGRESS_TUNNELS))
    pools = manager.cache(kube.collection(ADDRESS_POOLS))
    nodes = manager.cache(kube.collection(NODES, fields=f"metadata.name={node}"))
    cluster_networks = None
    if (source := settings.cluster_networks) is not None:
        config_maps = kube.collection(CONFIG_MAPS, namespace=source.namespace, fields=f"metadata.name={source.name}")
        cluster_networks = manager.cache(config_maps)
    pods = manager.cache(kube.collection(NODE_PODS, fields=f"spec.nodeName={node}"))
    node_pods = NodePods()
    tracker = ChangeTracker(
        Caches(
            gateways=gateways,
            policies=policies,
            slices=slices,
            tunnels=tunnels,
            pools=pools,
            cluster_networks=cluster_networks,
            nodes=nodes,
        ),
        node_pods,
        node=node,
    )

    renewer = LeaseRenewer(
        LeaseLock(client=lease_kube, namespace=settings.eip_lease_namespace, name=lease_name(node)),
        node=node,
        timing=FenceTiming(settings.eip_lease),
        metrics=LeaseMetrics(process.registry),
        log=log,
    )
    metrics = NodeMetrics(process.registry)
    kernel_lease = KernelLease(tables, renewer, metrics=metrics, log=log)
    pod_hold = PodHold(node_pods, tables, caches=(policies, pods), metrics=metrics, log=log)
    announcer = Announcer(overlay, may_hold=lambda: renewer.term is not None, metrics=metrics, log=log)
    reporter = TunnelReporter(
        partial(kube.patch, EGRESS_TUNNELS, subresource="status"), tracker.own_tunnel, node=node, log=log
    )
    flows = await stack.enter_async_context(FlowTable())
    prober = ConnectionProber(flows, metrics=ProbeMetrics(process.registry), log=log)
    applier = Applier(
        Deps(
            overlay=overlay,
            tables=tables,
            mesh=MeshSync(overlay, reporter, options=mesh_options(settings), log=log, hold=lambda: former.hold),
            renewer=renewer,
            kernel_lease=kernel_lease,
            announcer=announcer,
            prober=prober,
            tracker=tracker,
            builder=DataPlaneBuilder(
                DataPlaneIndex(clock=time.monotonic),
                node=node,
                extra=settings.cluster_cidr,
                limits=settings.namespace_limits,
            ),
            pod_hold=pod_hold,
            note=reporter.tell_condition,
        ),
        node=node,
        metrics=metrics,
        log=log,
        on_loaded=partial(_note_loaded, former),
    )

    policies.subscribe(node_pods.note_policy)
    pods.subscribe(node_pods.note_pod)
    tracker.follow()
    renewer.on_term(applier.note_term)
    renewer.on_renewal(kernel_lease.renewed)

    process.add_readiness("kernel", applier.missing)
    runnables: dict[str, Run] = {
        "kernel-lease": kernel_lease.run,
        "announcer": announcer.run,
        "arp-responder": partial(overlay.answer, announcer.is_held),
        "prober": prober.run,
        "pod-hold": pod_hold.run,
        "lease": renewer.run,
        "applier": applier.run,
        "former-gateway": partial(former.run, applier.look_around),
        "resync": partial(_resync, settings, applier, log=log),
        "bypass-watch": BypassWatch(overlay.link_names, note=reporter.tell_condition, log=log).run,
        "forward-watch": (
            await _watch_forwarding(
                settings, process, ForwardedSources(node_pods, gateways, slices, node=node), reporter, metrics=metrics
            )
        ).run,
        "overlay-watch": partial(_watch_overlay, overlay, applier),
        "table-watch": partial(_watch_tables, tables, applier),
        "kernel-lease-watch": partial(_watch_kernel_lease, kernel_lease, applier),
        # A stop as if it were asked for: the node's addresses go to other gateways first.
        "address-source-watch": partial(guard.watch, process.stop),
    }
    for name, runnable in runnables.items():
        manager.add_runnable(name, runnable)
    manager.each_term(lambda term: reporter.setup(term, tunnels))
    await manager.start()
    if (socket := settings.pod_start_socket) is not None:
        await stack.enter_async_context(serve_pod_starts(PodStarts(node_pods, pod_hold).enter, socket))
    # Entered last, so it is the first step of a stop: until it is over everything else works on.
    stack.push_async_callback(_leave, settings, process, applier)


async def _watch_forwarding(
    settings: Settings, process: Process, sources: ForwardedSources, reporter: TunnelReporter, *, metrics: NodeMetrics
) -> ForwardWatch:
    await _keep_shim(settings, log=process.log)  # it is judged with what the agent itself puts there
    reading = await process.stack.enter_async_context(open_worker("forward-read"))

    async def packets() -> Mapping[str, ForwardedPacket]:
        local, remote = sources.local(), sources.remote()
        return plan_packets(local, remote, await reading.run(read_ways, local)) if local or remote else {}

    return ForwardWatch(
        packets,
        partial(reading.run, read_hooks),
        gauge=metrics.forward_dropped,
        note=lambda dropped: reporter.tell_condition(dropped_condition(dropped)),
        errors=KERNEL_ERRORS,
        log=process.log,
    )


async def _await_permission(
    process: Process, overlay: OverlayNetwork, *, log: FilteringBoundLogger
) -> AddressSourceGuard:
    """Not to work beside addresses of network interfaces: return when the node has none."""
    guard = AddressSourceGuard(overlay.rules, log=log)
    process.add_readiness("address-source", guard.missing)
    await guard.wait_until_free()
    return guard


async def _list_former_agents(kube: KubeClient, node: NodeName) -> list[str]:
    """`ListAgents`. A pod that is being deleted may still run. Only one with the node's network can be the agent: a
    tenant's pod may have the same labels, and must not keep the node from being taken over.
    """
    pods = await kube.list(NODE_PODS, labels=AGENT_LABELS, fields=f"spec.nodeName={node}")
    return [object_key(pod.metadata) for pod in pods if pod.spec.host_network and not is_finished(pod)]


def _note_loaded(former: FormerGateway) -> None:
    shorten_pauses()
    former.note_loaded()


def mesh_options(settings: Settings) -> MeshOptions:
    return MeshOptions(
        vni=settings.tunnel_vni,
        port=settings.tunnel_port,
        wireguard_port=settings.wireguard_port if settings.tunnel_encryption is Encryption.WIREGUARD else None,
        checksum_offload=settings.tunnel_checksum_offload,
    )


def table_options(settings: Settings) -> EipTableOptions:
    return EipTableOptions(
        tunnel=DEVICE,
        port=settings.tunnel_port,
        wireguard=WIREGUARD_LINK if settings.tunnel_encryption is Encryption.WIREGUARD else None,
        keep_source=settings.keep_source,
        verify_source=settings.verify_source,
    )


async def _leave(settings: Settings, process: Process, applier: Applier) -> None:
    """What has failed is not kept up: its lease lapses, and the kernel's timeouts run out."""
    if process.failure is None:
        await applier.leave(seconds=settings.stop_timeout / 2)


async def _resync(settings: Settings, applier: Applier, *, log: FilteringBoundLogger) -> None:
    """Compare the kernel with what it should hold, now and then; not all nodes at once."""
    while True:
        await _keep_shim(settings, log=log)
        await asyncio.sleep(settings.resync_interval * (1 - 0.2 * random.random()))  # noqa: S311 - a spread
        applier.look_around()


async def _keep_shim(settings: Settings, *, log: FilteringBoundLogger) -> None:
    if settings.forward_shim:
        try:
            await ensure_shim(forward_shim(table_options(settings)))
        except OSError as error:
            log.error("no way through iptables' FORWARD", error=describe_error(error))


async def _watch_overlay(overlay: OverlayNetwork, applier: Applier) -> None:
    """Have it looked at what has changed. Our own changes count, and are found to be right."""
    while True:
        await overlay.changed()
        applier.look_at_overlay()
        await asyncio.sleep(OVERLAY_PAUSE)


async def _watch_tables(tables: KernelTables, applier: Applier) -> None:
    """Have it looked at what others have changed: the first time at once."""
    while True:
        await tables.changed()
        applier.look_at_tables()
        await asyncio.sleep(TABLES_PAUSE)


async def _watch_kernel_lease(kernel_lease: KernelLease, applier: Applier) -> None:
    """A refresh that was refused means that the tables are gone."""
    while True:
        await kernel_lease.broken.wait()
        kernel_lease.broken.clear()
        applier.look_at_tables()
        await asyncio.sleep(OVERLAY_PAUSE)


async def clean_node(
    overlay: Overlay, tables: Tables, *, options: EipTableOptions, run: RunProgram = run_program
) -> None:
    """`--cleanup`: leave nothing of the agent's on this node, on which it must not run any more. Idempotent.

    In the order of a withdrawal: EIPs and tunnel, then the tables, then the iptables rule. Raises one of KERNEL_ERRORS,
    and then what was not reached is still there.
    """
    await bounded(overlay.clean_up())
    await bounded(tables.clean_up())
    await remove_shim(forward_shim(options), run=run)


async def _clean_up(settings: Settings) -> int:
    log = make_logger(NAME, level=settings.log_level, format=settings.log_format)
    options = table_options(settings)
    try:
        async with OverlayNetwork(tunnel=DEVICE) as overlay, KernelTables(options) as tables:
            await clean_node(overlay, tables, options=options)
    except KERNEL_ERRORS as error:
        log.error("not everything was undone", error=describe_error(error))
        return 1
    log.info("everything is undone")
    return 0
