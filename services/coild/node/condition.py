"""What the Node's conditions say of the pod network, whatever the source of its addresses. Pure."""

from collections.abc import Sequence
from typing import Final

from coil.crd.condition_text import fit_sentences
from coil.crd.node_condition import NETWORK_UNAVAILABLE, STATE_REMOVED, TRAFFIC_DROPPED
from coild.model.node_condition import NodeCondition

FORWARD_DROPPED: Final = "ForwardDropped"
FORWARD_ACCEPTED: Final = "ForwardAccepted"
REMOVED_OFTEN: Final = "RemovedRepeatedly"
LEFT_ALONE: Final = "LeftAlone"
POD_NETWORK_READY: Final = "CoildIsUp"


def describe_dropped(reasons: Sequence[str]) -> NodeCondition:
    """A sentence for each packet filter that drops packets of pods. Those that do not fit are counted."""
    return NodeCondition(
        type=TRAFFIC_DROPPED,
        status=bool(reasons),
        reason=FORWARD_DROPPED if reasons else FORWARD_ACCEPTED,
        message=fit_sentences(reasons) if reasons else "no packet filter of others drops what pods send or receive",
    )


def describe_removed(message: str | None) -> NodeCondition:
    """`message` says what is removed again and again, and what to do; None if nothing is."""
    return NodeCondition(
        type=STATE_REMOVED,
        status=message is not None,
        reason=LEFT_ALONE if message is None else REMOVED_OFTEN,
        message=message or "nobody keeps removing rules and routes of Coil",
    )


def describe_available() -> NodeCondition:
    """coild serves the plugin: pods can be connected."""
    return NodeCondition(
        type=NETWORK_UNAVAILABLE, status=False, reason=POD_NETWORK_READY, message="coild connects pods on this node"
    )
