"""What the kernel does with a packet under a client's plan: rules in their order, the longest prefix in each table."""

from coil.egress.client_plan import ClientPlan
from coil.kernel.family import Family, IPAddress
from coil.kernel.link import LinkName
from coil.kernel.route import RouteTable, RouteType

MAIN = "main"
NOWHERE = "unreachable"


def lookup(plan: ClientPlan, address: IPAddress, *, mark: int = 0) -> LinkName | str:
    """The link that a packet to `address` leaves by; "main" if that is the main table's business; "unreachable"."""
    rules = [rule for rule in plan.rules if rule.family is Family.of(address)]
    for rule in sorted(rules, key=lambda rule: rule.priority):
        if rule.destination is not None and address not in rule.destination:
            continue
        if rule.mark is not None and rule.mark != mark:
            continue
        if rule.table == RouteTable.MAIN:
            return MAIN
        matches = [route for route in plan.routes if route.table == rule.table and address in route.destination]
        best = max(matches, key=lambda route: route.destination.prefixlen, default=None)
        if best is not None and best.type is RouteType.UNREACHABLE:
            return NOWHERE
        if best is not None and best.type is not RouteType.THROW:
            assert best.device is not None
            return best.device
    return MAIN
