"""The reconcilers of one term of leadership, which is what they remember things for: made at its beginning."""

from collections.abc import Callable
from dataclasses import dataclass

from coil_ipam_controller.address_pool_reconciler import AddressPoolReconciler
from coil_ipam_controller.block_audit_reconciler import BlockAuditReconciler
from coil_ipam_controller.block_request_reconciler import BlockRequestReconciler
from coil_ipam_controller.dead_node import DeadNodeReconciler
from coil_ipam_controller.deps import Deps, Policy
from coil_ipam_controller.node_reconciler import NodeReconciler
from coil_ipam_controller.pool_status_reconciler import PoolStatusReconciler


@dataclass(frozen=True, slots=True, kw_only=True)
class Reconcilers:
    requests: BlockRequestReconciler
    pools: AddressPoolReconciler
    statuses: PoolStatusReconciler
    nodes: NodeReconciler
    dead_nodes: DeadNodeReconciler
    audit: BlockAuditReconciler

    @classmethod
    def assemble(cls, place: Deps, policy: Policy, *, doubtful: Callable[[int], None]) -> "Reconcilers":
        """`doubtful` hears how many blocks somebody has to look at."""
        client, view, log = place.client, place.view, place.log
        return cls(
            requests=BlockRequestReconciler(
                client=client, view=view, book=place.book, recorder=place.recorder, now=place.now, log=log
            ),
            pools=AddressPoolReconciler(client=client, view=view, book=place.book, log=log),
            statuses=PoolStatusReconciler(
                client=client,
                view=view,
                book=place.book,
                recorder=place.recorder,
                nearly_full=policy.pool_nearly_full,
                now=place.now,
                log=log,
            ),
            nodes=NodeReconciler(client=client, view=view, grace=policy.node_grace, clock=place.clock, log=log),
            dead_nodes=DeadNodeReconciler(
                view=view, recorder=place.recorder, after=policy.dead_node_after, now=place.now, log=log
            ),
            audit=BlockAuditReconciler(
                client=client,
                view=view,
                recorder=place.recorder,
                now=place.now,
                clock=place.clock,
                doubtful=doubtful,
                log=log,
            ),
        )
