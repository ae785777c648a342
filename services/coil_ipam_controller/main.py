"""coil-ipam-controller: gives address blocks of pools to nodes, and collects those of nodes that were deleted.

Run by `python -m coil_ipam_controller`, any number of replicas. Wires the parts together and nothing else: every
replica follows its caches, answers admission reviews and serves the inspection page; the leader reconciles.
"""

import os
import random
import sys
import time
from collections.abc import Callable
from dataclasses import dataclass
from datetime import UTC, datetime
from functools import partial

from structlog.typing import FilteringBoundLogger

from coil.admission.webhook_service import WebhookService, start_admission
from coil.crd.names import BlockName
from coil.ipam.index_set import IndexSet
from coil.ipam.layout import PlannedBlock
from coil.kube.api_client import ApiClient
from coil.kube.client import KubeClient
from coil.manager.election import Election
from coil.manager.manager import Manager
from coil.manager.term import Term
from coil.reconcile.event_recorder import Recorder
from coil.runtime import former_flag
from coil.runtime.flag import parse_settings
from coil.runtime.process import Process, run
from coil_ipam_controller.address_pool_reconciler import AddressPoolReconciler
from coil_ipam_controller.block_audit_reconciler import BlockAuditReconciler, doubtful_blocks
from coil_ipam_controller.block_request_reconciler import BlockRequestReconciler
from coil_ipam_controller.caches import Caches
from coil_ipam_controller.dead_node import DeadNodeCollector, DeadNodeReconciler
from coil_ipam_controller.eni.view import Deps, EniMetrics, EniView, EniViewCollector, event_subject
from coil_ipam_controller.inspection import BlockHistory, start_cluster_inspection
from coil_ipam_controller.node_reconciler import NodeReconciler
from coil_ipam_controller.occupied_block_reconciler import OccupiedBlockReconciler
from coil_ipam_controller.pool_admission import PoolAdmission
from coil_ipam_controller.pool_assessment import report_passed_over
from coil_ipam_controller.pool_status import PoolCollector, PoolStatusReconciler
from coil_ipam_controller.settings import AWS_ENI, Settings

NAME = "coil-ipam-controller"


def main() -> int:
    settings = parse_settings(
        Settings,
        sys.argv[1:],
        os.environ,
        program=NAME,
        about="Gives address blocks of pools to nodes.",
        former=former_flag.IPAM_CONTROLLER,
    )
    return run(partial(assemble, settings), name=NAME, settings=settings)


async def assemble(settings: Settings, process: Process) -> None:
    """Start everything; returns once the caches are synced and this replica contends for the lease."""
    log = process.log
    now = partial(datetime.now, UTC)
    kube = await process.stack.enter_async_context(KubeClient.connect(settings.kubeconfig))
    manager = Manager(process)
    with_interfaces = settings.address_source == AWS_ENI
    caches = Caches.follow(manager, kube, pools_optional=with_interfaces)
    recorder = manager.event_recorder(kube)
    # Subscribed for the life of the process, so it hears of a block before any controller does.
    index = IndexSet(
        time.monotonic,
        passed_over=partial(_report_passed_over, log, recorder, caches),
        occupied_run=caches.networks.occupied_run,
    )
    caches.blocks.subscribe(index.observe)
    PoolCollector(caches, process.registry)
    DeadNodeCollector(caches, process.registry, after=settings.dead_node_after, now=now)
    history = BlockHistory(caches, span=settings.inspect_history, now=now)
    manager.add_runnable("history", history.run)
    reconcilers = Reconcilers(
        settings=settings,
        client=kube,
        caches=caches,
        index=index,
        recorder=recorder,
        doubtful=doubtful_blocks(process.registry).set,
        now=now,
        clock=time.monotonic,
        log=log,
    )
    manager.each_term(reconcilers.setup)
    view = EniView(settings.cluster_name) if with_interfaces else None
    if view is not None:
        _follow_interfaces(settings, process, manager, view=view, recorder=recorder, now=now)

    pools = caches.pools
    admission = PoolAdmission(
        client=kube,
        known_pools=lambda: pools.items() if pools.synced else None,
        networks=lambda: caches.networks if caches.know_networks else None,
        log=log,
    )
    service = WebhookService(NAME, settings.lease_namespace)
    await start_admission(process, settings, admission.handlers, client=kube, at=service)

    election = Election(process, settings, client=kube, metrics=manager.metrics)
    await manager.start(election)
    start_cluster_inspection(settings, process, caches=caches, election=election, history=history, interfaces=view)


def _follow_interfaces(
    settings: Settings,
    process: Process,
    manager: Manager,
    *,
    view: EniView,
    recorder: Recorder,
    now: Callable[[], datetime],
) -> None:
    """Have each leader look after the nodes' network interfaces."""
    # Late: nothing else needs the AWS library, which takes tens of megabytes.
    from coil.aws.call_metrics import Ec2CallMetrics
    from coil_ipam_controller.eni.leader import EniLeader, connect_ec2

    calls = Ec2CallMetrics()
    for collector in calls.collectors():
        process.registry.register(collector)
    connect = partial(
        connect_ec2,
        region=settings.aws_region,
        ec2_endpoint=settings.ec2_endpoint,
        metadata_endpoint=settings.metadata_endpoint,
        metrics=calls,
        clock=time.monotonic,
        random=random.random,
    )
    EniViewCollector(view, process.registry)
    deps = Deps(
        view=view,
        metrics=EniMetrics(process.registry),
        recorder=recorder,
        subject=event_subject(settings.lease_namespace),
        clock=time.monotonic,
        now=now,
        log=process.log,
    )
    manager.each_term(lambda term: EniLeader(connect, deps, random=random.random).setup(term))


@dataclass(frozen=True, slots=True, kw_only=True)
class Reconcilers:
    """Makes the reconcilers of a term. `index` follows the blocks of `caches`.

    `doubtful` is called with the number of blocks that need an admin. `now` is the wall clock in UTC, `clock` monotonic
    seconds.
    """

    settings: Settings
    client: ApiClient
    caches: Caches
    index: IndexSet
    recorder: Recorder
    doubtful: Callable[[int], None]
    now: Callable[[], datetime]
    clock: Callable[[], float]
    log: FilteringBoundLogger

    def setup(self, term: Term) -> None:
        settings, client, caches, index, log = self.settings, self.client, self.caches, self.index, self.log
        resync, recorder, now, clock = settings.gc_interval, self.recorder, self.now, self.clock
        BlockRequestReconciler(
            client=client, caches=caches, index=index, recorder=recorder, resync=resync, now=now, log=log
        ).setup(term)
        AddressPoolReconciler(client=client, caches=caches, index=index, log=log).setup(term)
        PoolStatusReconciler(
            client=client,
            caches=caches,
            index=index,
            recorder=recorder,
            nearly_full=settings.pool_nearly_full,
            resync=resync,
            now=now,
            log=log,
        ).setup(term)
        OccupiedBlockReconciler(client=client, caches=caches, index=index, resync=resync, log=log).setup(term)
        NodeReconciler(
            client=client, caches=caches, grace=settings.node_grace, resync=resync, clock=clock, log=log
        ).setup(term)
        DeadNodeReconciler(
            caches=caches, recorder=recorder, after=settings.dead_node_after, resync=resync, now=now, log=log
        ).setup(term)
        BlockAuditReconciler(
            client=client,
            caches=caches,
            recorder=recorder,
            doubtful=self.doubtful,
            resync=resync,
            now=now,
            clock=clock,
            log=log,
        ).setup(term)


def _report_passed_over(
    log: FilteringBoundLogger, recorder: Recorder, caches: Caches, planned: PlannedBlock, holder: BlockName
) -> None:
    log.error("index passed over: its addresses are another block's", index=planned.name, holder=holder)
    if (pool := caches.pools.get(planned.pool)) is not None:
        report_passed_over(recorder, pool, planned.name, holder)
