"""Route export: one route per address block in a table that a routing daemon reads and announces to the other
nodes.
"""

from collections.abc import Iterable

from coil.kernel.family import IPNetwork
from coil.kernel.link import LOOPBACK
from coil.kernel.route import Route, link_scope
from coil.podnet.plan import DEFAULT_POLICY, RoutePolicy


def plan_export(blocks: Iterable[IPNetwork], policy: RoutePolicy = DEFAULT_POLICY) -> frozenset[Route]:
    """The exported routes of the node's blocks. They lead to lo: the table is for reading, no rule looks
    packets up in it.
    """
    return frozenset(
        Route(
            destination=block,
            device=LOOPBACK,
            table=policy.export_table,
            protocol=policy.protocol,
            scope=link_scope(block),
        )
        for block in blocks
    )
