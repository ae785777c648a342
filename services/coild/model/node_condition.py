"""The conditions of this node that are coild's, and the patch by which the Node object tells them. Pure.

`coild.node.node_object` writes them. The chart's policy `coild-own-node` allows certain types and no others.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any


@dataclass(frozen=True, slots=True, kw_only=True)
class NodeCondition:
    """A condition as it is to be."""

    type: str
    status: bool
    reason: str
    message: str


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
