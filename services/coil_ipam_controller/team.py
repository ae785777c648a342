"""The reconcilers of one term of leadership, which is what they remember things for: made at its beginning."""

from collections.abc import Callable
from dataclasses import dataclass

from coil_ipam_controller.address_pool_controller import AddressPoolController
from coil_ipam_controller.block_audit_controller import BlockAuditController
from coil_ipam_controller.block_request_controller import BlockRequestController
from coil_ipam_controller.dead_node import DeadNodeController
from coil_ipam_controller.node_controller import NodeController
from coil_ipam_controller.pool_status_controller import PoolStatusController
from coil_ipam_controller.workplace import Policy, Workplace


@dataclass(frozen=True, slots=True, kw_only=True)
class Team:
    requests: BlockRequestController
    pools: AddressPoolController
    statuses: PoolStatusController
    nodes: NodeController
    dead_nodes: DeadNodeController
    audit: BlockAuditController

    @classmethod
    def assemble(cls, place: Workplace, policy: Policy, *, doubtful: Callable[[int], None]) -> "Team":
        """`doubtful` hears how many blocks somebody has to look at."""
        client, view, log = place.client, place.view, place.log
        return cls(
            requests=BlockRequestController(
                client=client, view=view, book=place.book, recorder=place.recorder, now=place.now, log=log
            ),
            pools=AddressPoolController(client=client, view=view, book=place.book, log=log),
            statuses=PoolStatusController(
                client=client,
                view=view,
                book=place.book,
                recorder=place.recorder,
                nearly_full=policy.pool_nearly_full,
                now=place.now,
                log=log,
            ),
            nodes=NodeController(client=client, view=view, grace=policy.node_grace, clock=place.clock, log=log),
            dead_nodes=DeadNodeController(
                view=view, recorder=place.recorder, after=policy.dead_node_after, now=place.now, log=log
            ),
            audit=BlockAuditController(
                client=client,
                view=view,
                recorder=place.recorder,
                now=place.now,
                clock=place.clock,
                doubtful=doubtful,
                log=log,
            ),
        )
