"""What the Node's conditions say of a node whose pods have addresses of its interfaces. Pure."""

from collections.abc import Sequence
from typing import Final

from coil.crd.condition_text import LONGEST_MESSAGE, fit_sentences
from coil.crd.node_condition import ADDRESSES_AVAILABLE, POD_LIMIT_TOO_HIGH, TRAFFIC_DIVERTED
from coil.eni.pod_limit import explain_excess
from coild.model.node_condition import NodeCondition

AVAILABLE: Final = "AddressesAvailable"
SHORTAGE: Final = "NoAddresses"
FOREIGN_ROUTING: Final = "ForeignRouting"
NO_FOREIGN_ROUTING: Final = "NoForeignRouting"
BEYOND_ADDRESSES: Final = "PodLimitExceedsAddresses"
WITHIN_ADDRESSES: Final = "PodLimitWithinAddresses"


def describe_addresses(obstacle: str | None) -> NodeCondition:
    """`obstacle` is why a new pod would get no address; None if it would."""
    return NodeCondition(
        type=ADDRESSES_AVAILABLE,
        status=obstacle is None,
        reason=AVAILABLE if obstacle is None else SHORTAGE,
        message="pods can get addresses" if obstacle is None else obstacle[:LONGEST_MESSAGE],
    )


def describe_diversions(diversions: Sequence[str]) -> NodeCondition:
    """A sentence for each rule and route of others that catches what pods send. Those that do not fit are counted."""
    return NodeCondition(
        type=TRAFFIC_DIVERTED,
        status=bool(diversions),
        reason=FOREIGN_ROUTING if diversions else NO_FOREIGN_ROUTING,
        message=fit_sentences(diversions) if diversions else "no rule or route of others catches what pods send",
    )


def describe_pod_limit(*, pods_limit: int, ip_max: int) -> NodeCondition:
    """Of the pods that the Node allows, and the addresses that they can have at most."""
    excess = explain_excess(pods_limit=pods_limit, ip_max=ip_max)
    return NodeCondition(
        type=POD_LIMIT_TOO_HIGH,
        status=excess is not None,
        reason=WITHIN_ADDRESSES if excess is None else BEYOND_ADDRESSES,
        message=excess or f"the Node allows {pods_limit} pods, and {ip_max} can have an address",
    )
