"""How long a node may hold its floating addresses, and when they are free for another: the arithmetic of the Leases.

The Lease `coil-eip-<node>` is a fencing token. The agent on the node renews it; the controller watches it, revokes it
when it is silent, and only then places the node's addresses elsewhere. Why never two nodes hold one address:

* Every write of a Lease is guarded by the resource version that was read. Of a renewal and a revocation that meet, one
  is refused, so a revocation that was acknowledged comes after every renewal that ever will be.
* A renewal is good for `fence` seconds from when it was *sent*, by the agent's clock, and only once acknowledged. The
  controller counts `fence` and MARGIN from when it *received* the last change, by its own. Sending comes before
  receiving, so the agent's time is up first, whatever the clocks show, unless they differ by more than MARGIN in that
  time. No clock is ever compared with another.
* `leaseTransitions` is the *term*. One that was revoked is never resumed: whoever acquires the Lease begins another,
  and takes nothing that was decided for an earlier one (`holding`).
* A planned move waits for the agent's word instead: `applied` says up to which revision of a gateway's status the
  agent has taken off what leaves. It is kept by the gateway's UID, because a gateway that is made again under its old
  name counts from the beginning.

What an agent must keep to: whatever `holding` does not grant for the term of a renewal is taken off before that renewal
refreshes the kernel's timeouts, including what an earlier process has left (`coil.eip.lease_renewal`).
"""

import math
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Final

import msgspec

from coil.crd.names import EIP_GROUP, NodeName

LEASE_PREFIX: Final = "coil-eip-"
LEASE_LABELS: Final = {"coil.cybozu.com/component": "eip-gateway"}
"""On every such Lease: what the controller selects in its watch."""

ANNOTATION_APPLIED: Final = f"{EIP_GROUP}/applied"
ANNOTATION_FENCE: Final = f"{EIP_GROUP}/fence"

FENCE: Final = 0.6
"""Seconds for which a renewal is good, unless set otherwise."""
MARGIN: Final = 0.1
"""Seconds that the controller waits longer than the agent may hold: for clocks of different speed."""
UNKNOWN_FENCE: Final = 10.0
"""Where a Lease does not say it, or there is no Lease left to say it."""


@dataclass(frozen=True, slots=True, kw_only=True)
class GatewayLease:
    """A node's Lease as it was read. `version` is its resource version: what a write is guarded by.

    `applied` has revisions by the UID of the EgressGateway.
    """

    node: NodeName
    version: str
    holder: str
    term: int
    fence: float = UNKNOWN_FENCE
    applied: Mapping[str, int] = field(default_factory=dict)

    @property
    def held(self) -> bool:
        """Not revoked; whether it has lapsed only time can tell."""
        return bool(self.holder)


def lease_name(node: NodeName) -> str:
    return f"{LEASE_PREFIX}{node}"


def parse_gateway_lease(
    *, name: str, version: str, holder: str, transitions: int, annotations: Mapping[str, str]
) -> GatewayLease | None:
    """From the fields of a Lease; None when it is not a node's. Annotations that cannot be read count as absent."""
    node = name.removeprefix(LEASE_PREFIX)
    if not node or node == name:
        return None
    return GatewayLease(
        node=NodeName(node),
        version=version,
        holder=holder,
        term=transitions,
        fence=_parse_fence(annotations.get(ANNOTATION_FENCE, "")),
        applied=_parse_applied(annotations.get(ANNOTATION_APPLIED, "")),
    )


def render_annotations(*, fence: float, applied: Mapping[str, int]) -> dict[str, str]:
    """What the agent writes with a renewal: seconds become whole milliseconds, rounded up."""
    text = msgspec.json.encode(dict(sorted(applied.items()))).decode()
    return {ANNOTATION_FENCE: str(math.ceil(round(fence * 1000, 6))), ANNOTATION_APPLIED: text}


def _parse_fence(text: str) -> float:
    # Nothing is gained by a fence of more digits, and `int` refuses too many.
    return int(text) / 1000 if text.isascii() and text.isdigit() and len(text) < 10 else UNKNOWN_FENCE


def _parse_applied(text: str) -> dict[str, int]:
    try:
        return msgspec.json.decode(text, type=dict[str, int]) if text else {}
    except msgspec.DecodeError:
        return {}
