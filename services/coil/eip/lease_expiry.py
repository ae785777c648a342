"""The controller's side of the fence: which node's Lease has lapsed, and when to look next. See
`coil.eip.gateway_lease` and, for the node's side, `coil.eip.lease_renewal`.

Times are seconds of the controller's own monotonic clock. Observations may be late, early, repeated or out of order:
that delays a revocation, and never causes one that is not guarded by the version that was seen.
"""

from collections.abc import Collection
from dataclasses import dataclass

from coil.crd.names import NodeName
from coil.eip.gateway_lease import MARGIN, UNKNOWN_FENCE, GatewayLease


@dataclass(frozen=True, slots=True, kw_only=True)
class Lapse:
    """A Lease that was silent for too long. To revoke it, replace `lease` with holder "" and the same term, guarded
    by its version. Where there is none, create one with holder "" and `term`. A Conflict means that the agent lives.
    """

    node: NodeName
    term: int
    lease: GatewayLease | None


@dataclass(frozen=True, slots=True)
class _Sighting:
    lapse: Lapse
    deadline: float


class LeaseExpiry:
    """See the module. Small: it knows the nodes that have a Lease, which are those that some gateway selects."""

    def __init__(self, *, margin: float = MARGIN) -> None:
        self._margin = margin
        self._sightings: dict[NodeName, _Sighting] = {}

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
        sighting = self._sightings.get(node)
        fence = UNKNOWN_FENCE
        if sighting is not None:
            if sighting.lapse.lease is None:
                return
            term, fence = max(term, sighting.lapse.term), sighting.lapse.lease.fence
        lapse = Lapse(node=node, term=term, lease=None)
        self._sightings[node] = _Sighting(lapse, now + fence + self._margin)

    def retain(self, nodes: Collection[NodeName]) -> None:
        """Forget all but these: what no gateway selects and no status lists needs no Lease."""
        for node in self._sightings.keys() - set(nodes):
            del self._sightings[node]

    def lease(self, node: NodeName) -> GatewayLease | None:
        """What is known of its Lease; None: there is none."""
        sighting = self._sightings.get(node)
        return None if sighting is None else sighting.lapse.lease

    def lapsed(self, now: float) -> tuple[Lapse, ...]:
        """What is to be revoked, after a live read (`confirm`)."""
        return tuple(
            sighting.lapse
            for _, sighting in sorted(self._sightings.items())
            if _live(sighting) and sighting.deadline <= now
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
            self._sightings[lapse.node] = _Sighting(lapse, answered + self._margin)
            return False
        return True

    def next_deadline(self) -> float | None:
        """When `lapsed` may next have something, unless something is observed before. None: never."""
        return min((sighting.deadline for sighting in self._sightings.values() if _live(sighting)), default=None)

    def _see(self, lease: GatewayLease, now: float) -> None:
        lapse = Lapse(node=lease.node, term=lease.term, lease=lease)
        self._sightings[lease.node] = _Sighting(lapse, now + lease.fence + self._margin)


def _live(sighting: _Sighting) -> bool:
    """Whether there is something to revoke."""
    return sighting.lapse.lease is None or sighting.lapse.lease.held


def _order(lease: GatewayLease) -> tuple[int, bool]:
    """What has a lower one is older: terms ascend, and one that was revoked is never held again."""
    return lease.term, not lease.held
