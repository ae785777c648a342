"""Routes to pods that others took out of the pod table. Pure. Part of `coild.pods.pod_service`.

What was taken out is put back; what somebody has put in its place is left to him, and told of. So a mistake of ours
never takes an address away from whoever has it.
"""

from collections.abc import Collection
from dataclasses import dataclass

from coil.kernel.route import Route


@dataclass(frozen=True, slots=True)
class LostRoutes:
    """`missing` have a free place; `contested` are those whose destination has another route."""

    missing: tuple[Route, ...] = ()
    contested: tuple[Route, ...] = ()


def find_lost(wanted: Collection[Route], table: Collection[Route]) -> LostRoutes:
    """Which of the wanted routes the table does not have, whatever the metric and the protocol.

    Takes time by the length of both.
    """
    there = {(route.destination, route.device) for route in table}
    taken = {route.destination for route in table}
    lost = [route for route in wanted if (route.destination, route.device) not in there]
    return LostRoutes(
        missing=tuple(route for route in lost if route.destination not in taken),
        contested=tuple(route for route in lost if route.destination in taken),
    )
