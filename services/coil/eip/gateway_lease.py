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
  and takes nothing that was decided for an earlier one (`held_entries`).
* A planned move waits for the agent's word instead: `applied` says up to which revision of a gateway's status the
  agent has taken off what leaves. It is kept by the gateway's UID, because a gateway that is made again under its old
  name counts from the beginning.

What an agent must keep to: whatever `held_entries` does not grant for the term of a renewal is taken off before that
renewal refreshes the kernel's timeouts, including what an earlier process has left (`coil.eip.lease_renewal`).
"""

import math
from collections.abc import Collection, Mapping
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
LONGEST_FENCE: Final = 60.0
"""What an agent may be set to at most, and what the controller believes at most: a node that says more would keep its
addresses for as long after it is gone.
"""
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
    if not (text.isascii() and text.isdigit() and len(text) < 10):
        return UNKNOWN_FENCE
    return min(int(text) / 1000, LONGEST_FENCE)


def _parse_applied(text: str) -> dict[str, int]:
    try:
        return msgspec.json.decode(text, type=dict[str, int]) if text else {}
    except msgspec.DecodeError:
        return {}


@dataclass(frozen=True, slots=True, kw_only=True)
class Lapse:
    """A Lease that was silent for too long. To revoke it, replace `lease` with holder "" and the same term, guarded
    by its version. Where there is none, create one with holder "" and `term`. A Conflict means that the agent lives.
    """

    node: NodeName
    term: int
    lease: GatewayLease | None


@dataclass(frozen=True, slots=True)
class _Observation:
    lapse: Lapse
    deadline: float


class LeaseExpiry:
    """See the module. Small: it knows the nodes that have a Lease, which are those that some gateway selects."""

    def __init__(self, *, margin: float = MARGIN) -> None:
        self._margin = margin
        self._observations: dict[NodeName, _Observation] = {}

    def observe(self, lease: GatewayLease, now: float) -> None:
        """A Lease as it was read or written, from a watch, a live read, or the answer to a revocation.

        Ignored: the version that is known, and what is older than what is known.
        """
        known = self.lease(lease.node)
        if known is not None and (known.version == lease.version or _order(lease) < _order(known)):
            return
        self._see(lease, now)

    def miss(self, node: NodeName, *, term: int, now: float) -> None:
        """There is no Lease though a status lists addresses for `node` in `term`: deleted, or never made.

        Its addresses are held until the node's fence has passed. Told again, it changes nothing.
        """
        observation = self._observations.get(node)
        fence = UNKNOWN_FENCE
        if observation is not None:
            if observation.lapse.lease is None:
                return
            term, fence = max(term, observation.lapse.term), observation.lapse.lease.fence
        lapse = Lapse(node=node, term=term, lease=None)
        self._observations[node] = _Observation(lapse, now + fence + self._margin)

    def retain(self, nodes: Collection[NodeName]) -> None:
        """Forget all but these: what no gateway selects and no status lists needs no Lease."""
        for node in self._observations.keys() - set(nodes):
            del self._observations[node]

    def lease(self, node: NodeName) -> GatewayLease | None:
        """What is known of its Lease; None: there is none."""
        observation = self._observations.get(node)
        return None if observation is None else observation.lapse.lease

    def lapsed(self, now: float) -> tuple[Lapse, ...]:
        """What is to be revoked, after a live read (`confirm`)."""
        return tuple(
            observation.lapse
            for _, observation in sorted(self._observations.items())
            if _live(observation) and observation.deadline <= now
        )

    def confirm(self, lapse: Lapse, live: GatewayLease | None, *, asked: float, answered: float) -> bool:
        """Whether `lapse` is still to be revoked after a live read, asked and answered at these times.

        Not when the Lease has changed, which is observed here. Not yet when the answer took longer than the margin:
        then an API server that is slow, not the node, may be why the Lease is silent, and it is looked at again later.
        """
        if live is None:
            if lapse.lease is not None:
                self.miss(lapse.node, term=lapse.term, now=answered)
                return False
        elif lapse.lease is None or live.version != lapse.lease.version:
            # Even if it seems older: what was deleted and made again between two events of a watch counts anew.
            self._see(live, answered)
            return False
        if answered - asked > self._margin:
            self._observations[lapse.node] = _Observation(lapse, answered + self._margin)
            return False
        return True

    def next_deadline(self) -> float | None:
        """When `lapsed` may next have something, unless something is observed before. None: never."""
        return min(
            (observation.deadline for observation in self._observations.values() if _live(observation)), default=None
        )

    def _see(self, lease: GatewayLease, now: float) -> None:
        lapse = Lapse(node=lease.node, term=lease.term, lease=lease)
        self._observations[lease.node] = _Observation(lapse, now + lease.fence + self._margin)


def _live(observation: _Observation) -> bool:
    """Whether there is something to revoke."""
    return observation.lapse.lease is None or observation.lapse.lease.held


def _order(lease: GatewayLease) -> tuple[int, bool]:
    """What has a lower one is older: terms ascend, and one that was revoked is never held again."""
    return lease.term, not lease.held
