"""What the Node's conditions say of the pod network, whatever the source of its addresses. Pure.

The chart's policy `coild-own-node` allows these types, and those of `coild.eni.node_condition`.
"""

from collections.abc import Sequence
from typing import Final

from coild.model.node_condition import NodeCondition, fit_sentences

TRAFFIC_DROPPED: Final = "CoilPodTrafficDropped"
"""Whether a packet filter of others drops what pods send or receive (`coil.kernel.packet_filter`)."""
FORWARD_DROPPED: Final = "ForwardDropped"
FORWARD_ACCEPTED: Final = "ForwardAccepted"
STATE_REMOVED: Final = "CoilNodeStateRemoved"
"""Whether somebody keeps removing rules and routes of Coil (`coild.node.state_watch`)."""
REMOVED_OFTEN: Final = "RemovedRepeatedly"
LEFT_ALONE: Final = "LeftAlone"
NETWORK_UNAVAILABLE: Final = "NetworkUnavailable"
"""Kubernetes' own. While it is true, the node has the taint node.kubernetes.io/network-unavailable; cloud providers set
it so for a new node.
"""
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
