"""The conditions of this node that are coild's: what they say, and the patch by which the Node object says it. Pure.

`coild.eni.node_object` writes them. The chart's policy `coild-own-node` allows these types and no others.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any, Final

from coil.eni.pod_limit import explain_excess

ADDRESSES_AVAILABLE: Final = "CoilAddressesAvailable"
"""Whether a new pod would get an address."""
TRAFFIC_DIVERTED: Final = "CoilPodTrafficDiverted"
"""Whether routing of others catches what pods send (`coil.eni.diversion`)."""
POD_LIMIT_TOO_HIGH: Final = "CoilPodLimitTooHigh"
"""Whether the Node allows more pods than can have addresses (`coil.eni.pod_limit`)."""
AVAILABLE: Final = "AddressesAvailable"
SHORTAGE: Final = "NoAddresses"
FOREIGN_ROUTING: Final = "ForeignRouting"
NO_FOREIGN_ROUTING: Final = "NoForeignRouting"
BEYOND_ADDRESSES: Final = "PodLimitExceedsAddresses"
WITHIN_ADDRESSES: Final = "PodLimitWithinAddresses"
LONGEST_MESSAGE: Final = 1024


@dataclass(frozen=True, slots=True, kw_only=True)
class NodeCondition:
    """One of the types above, as it is to be."""

    type: str
    status: bool
    reason: str
    message: str


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
        message=_fit(diversions) if diversions else "no rule or route of others catches what pods send",
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


def _fit(sentences: Sequence[str]) -> str:
    for count in range(len(sentences), 0, -1):
        more = [f"and {len(sentences) - count} more"] if count < len(sentences) else []
        text = "; ".join([*sentences[:count], *more])
        if len(text) <= LONGEST_MESSAGE:
            return text
    return sentences[0][:LONGEST_MESSAGE]


def plan_conditions(
    known: Sequence[Mapping[str, Any]], wanted: Sequence[NodeCondition], *, now: datetime
) -> list[dict[str, Any]]:
    """The JSON patch of `nodes/status` that has `known`, the object's list of conditions, tell what is wanted; empty if
    it does.

    The patch fails if the list has changed meanwhile, so that none of those that it replaces is where it was.
    """
    moment = now.astimezone(UTC).strftime("%Y-%m-%dT%H:%M:%SZ")
    places = {each.get("type"): (index, each) for index, each in enumerate(known)}
    patch: list[dict[str, Any]] = []
    new: list[dict[str, Any]] = []
    for condition in wanted:
        index, before = places.get(condition.type, (None, None))
        document = _document(condition, before, moment)
        if index is None:
            new.append(document)
        elif before is None or any(before.get(key) != document[key] for key in ("status", "reason", "message")):
            path = f"/status/conditions/{index}"
            patch += [
                {"op": "test", "path": f"{path}/type", "value": condition.type},
                {"op": "replace", "path": path, "value": document},
            ]
    if new and not known:
        return [{"op": "add", "path": "/status/conditions", "value": new}]
    return [*patch, *({"op": "add", "path": "/status/conditions/-", "value": document} for document in new)]


def _document(condition: NodeCondition, before: Mapping[str, Any] | None, moment: str) -> dict[str, Any]:
    status = "True" if condition.status else "False"
    same = before is not None and before.get("status") == status
    return {
        "type": condition.type,
        "status": status,
        "reason": condition.reason,
        "message": condition.message,
        "lastHeartbeatTime": moment,
        "lastTransitionTime": before.get("lastTransitionTime", moment) if before is not None and same else moment,
    }
