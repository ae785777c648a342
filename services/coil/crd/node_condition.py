"""The conditions of a Node that tell of its pod network. coild writes them; the chart's check and `kubectl coil` read
them.

The chart's policy `coild-own-node` allows coild these types and no others.
"""

from collections.abc import Mapping
from typing import Final

ADDRESSES_AVAILABLE: Final = "CoilAddressesAvailable"
"""Whether a new pod would get an address of the node's network interfaces."""
TRAFFIC_DIVERTED: Final = "CoilPodTrafficDiverted"
"""Whether routing of others catches what pods send (`coil.eni.diversion`)."""
POD_LIMIT_TOO_HIGH: Final = "CoilPodLimitTooHigh"
"""Whether the Node allows more pods than can have addresses (`coil.eni.pod_limit`)."""
TRAFFIC_DROPPED: Final = "CoilPodTrafficDropped"
"""Whether a packet filter of others drops what pods send or receive (`coil.kernel.packet_filter`)."""
STATE_REMOVED: Final = "CoilNodeStateRemoved"
"""Whether another program keeps removing rules and routes of Coil."""
NETWORK_UNAVAILABLE: Final = "NetworkUnavailable"
"""Kubernetes' own. While it is true, the node has the taint node.kubernetes.io/network-unavailable; cloud providers set
it so for a new node.
"""

FAULTS: Final[Mapping[str, str]] = {
    ADDRESSES_AVAILABLE: "False",
    STATE_REMOVED: "True",
    POD_LIMIT_TOO_HIGH: "True",
    TRAFFIC_DIVERTED: "True",
    TRAFFIC_DROPPED: "True",
    NETWORK_UNAVAILABLE: "True",
}
"""The status of each with which it tells of a fault; docs/troubleshooting.md explains them."""

LIMITS: Final = frozenset({ADDRESSES_AVAILABLE, POD_LIMIT_TOO_HIGH})
"""Those of them that tell what the node cannot have more of. The pods that it has are well."""
