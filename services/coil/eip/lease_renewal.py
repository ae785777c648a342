"""The node's side of the fence: what a renewal writes, until when its term may be acted for, and when it ends. Pure.

Place in the flow: `coil_egress_agent.eip.lease_renewer` reads and writes the Lease and tells the time; this module
decides. The proof of the fence (tests/coil/eip/test_fence_property.py) runs the same class among lost answers, stale
caches and clocks of different speed. What the controller does at the same time is in `coil.eip.gateway_lease`.

Invariants:
* Only an acknowledged write extends the time, and it counts from when it was *sent*. An answer that arrives after its
  own time is up changes nothing.
* A term is acted for only while that time lasts. One that was revoked is never resumed, and no term is claimed that
  this node, its Lease or a gateway's status has named for an earlier holder.
* The kernel's timeouts are refreshed only for the term whose addresses the kernel holds.

Times are seconds of one clock of the node that counts suspension.
"""

import math
from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass

from coil.crd.egress_gateway import EgressGateway, EipEntry
from coil.crd.names import NodeName
from coil.eip.gateway_lease import FENCE, GatewayLease

RELEASED = "not needed any more"
"""Why a term ends that the node itself gives back."""


@dataclass(frozen=True, slots=True, kw_only=True)
class LeaseWrite:
    """What to do about a Lease. `lease` is to be written over the version it names, or created if that is ""; None:
    nothing. `ended` says why the term that was held until now is over; "" if it is not.
    """

    lease: GatewayLease | None
    ended: str = ""


class LeaseRenewal:
    """See the module. Not idempotent: call `renew` and `release` once for each write that is about to be sent."""

    def __init__(self, node: NodeName, *, fence: float = FENCE) -> None:
        self.node = node
        self.fence = fence
        self.highest_term = 0
        """The highest term ever seen or asked for."""
        self.applied: Mapping[str, int] = {}
        """The revisions that this process or one before it has applied, by the gateways' UIDs, as of the last write."""
        self._term: int | None = None
        self._until = -math.inf

    @property
    def begun_term(self) -> int | None:
        """The term that has begun and was not ended yet, even if its time has run out."""
        return self._term

    def term(self, now: float) -> int | None:
        """The term that may be acted for."""
        return self._term if now < self._until else None

    def remaining(self, now: float) -> float:
        """Seconds for which `term` may be acted for without a further renewal; 0 if there is none."""
        return max(0.0, self._until - now) if self._term is not None else 0.0

    def kernel_timeout(self, now: float, *, held_for: int | None) -> float:
        """Seconds for which the kernel may answer for the addresses that it holds for the term `held_for`; None: it
        holds none, or it is unknown for which term.
        """
        return self.remaining(now) if held_for is not None and held_for == self.term(now) else 0.0

    def renew(
        self, lease: GatewayLease | None, *, known_term: int, applied: Mapping[str, int], gateways: Collection[str]
    ) -> LeaseWrite:
        """The write that claims or renews `lease`, None where there is none. Nothing is to be written over a Lease that
        another node holds.

        `known_term` is the highest that a gateway's status names for the node; `applied` has the revisions that this
        process has applied and `gateways` all gateways that exist, both by UID.
        """
        holder = lease.holder if lease is not None else ""
        if holder not in ("", self.node):
            return LeaseWrite(lease=None, ended=self.end(f"the Lease names {holder}"))
        ended = "" if holder else self.end("the Lease was deleted" if lease is None else "revoked")
        term = claim_term(lease, self.node, known=max(self.highest_term, known_term))
        # Counted from the asking: were the answer lost and the Lease deleted by hand, the term would be used twice.
        self.highest_term = max(self.highest_term, known_term, term)
        if term != self._term:
            ended = self.end("the term was changed by another writer") or ended
        return LeaseWrite(lease=self._written(lease, self.node, term, applied, gateways), ended=ended)

    def release(
        self, lease: GatewayLease | None, *, applied: Mapping[str, int], gateways: Collection[str]
    ) -> LeaseWrite:
        """The write that gives `lease` back: without a holder, in the same term. Only for when the kernel holds no
        address any more.
        """
        ended = self.end(RELEASED)
        if lease is not None:
            self.highest_term = max(self.highest_term, lease.term)
        if lease is None or lease.holder != self.node:
            return LeaseWrite(lease=None, ended=ended)
        return LeaseWrite(lease=self._written(lease, "", lease.term, applied, gateways), ended=ended)

    def acknowledge(self, term: int, *, sent: float, now: float) -> bool:
        """A renewal of `term` that was sent at `sent` has taken place; whether a term begins to be held by it."""
        until = sent + self.fence
        if until <= now or term < self.highest_term:
            return False  # too late: the next one may be in time
        begins = self.term(now) != term
        self._until = until if begins else max(self._until, until)
        self._term = term
        return begins

    def expire(self, now: float) -> str:
        """Why the term that has begun is over by now; "" if it is not, or none has begun."""
        return self.end("not renewed in time") if now >= self._until else ""

    def end(self, reason: str) -> str:
        """Act for no term any longer. Returns `reason` if one had begun, otherwise ""."""
        if self._term is None:
            return ""
        self._term = None
        self._until = -math.inf
        return reason

    def _written(
        self,
        lease: GatewayLease | None,
        holder: str,
        term: int,
        applied: Mapping[str, int],
        gateways: Collection[str],
    ) -> GatewayLease:
        merged = merge_applied(lease, applied)
        self.applied = {uid: revision for uid, revision in merged.items() if uid in gateways}
        return GatewayLease(
            node=self.node,
            version="" if lease is None else lease.version,
            holder=holder,
            term=term,
            fence=self.fence,
            applied=self.applied,
        )


def claim_term(lease: GatewayLease | None, node: NodeName, *, known: int) -> int:
    """The term that the agent on `node` writes over `lease`, None for a Lease that it creates.

    Its own term goes on; one that was revoked, or that another node had, ends and a new one begins. `known` is the
    highest term that any gateway's status names for the node, or that this process has ever *asked* for, whether or
    not it was answered: a Lease that was deleted by hand must not count from the beginning, or a term would be used
    twice.
    """
    if lease is not None and lease.holder == node and lease.term >= known:
        return lease.term
    return max(0 if lease is None else lease.term, known) + 1


def merge_applied(lease: GatewayLease | None, own: Mapping[str, int]) -> dict[str, int]:
    """What this process has applied together with what an earlier one has: a revision is never taken back."""
    merged = {} if lease is None else dict(lease.applied)
    for uid, revision in own.items():
        merged[uid] = max(revision, merged.get(uid, 0))
    return merged


def held_entries(
    gateway: EgressGateway, node: NodeName, *, term: int, applied: Mapping[str, int]
) -> tuple[EipEntry, ...]:
    """The entries with addresses that `node` is to have on its device, for as long as `term` may be acted for.

    None of another term, none that leave, and none at all by a status older than one that was applied already: a cache
    may lag behind what an earlier process of the agent has seen. `applied` is by UID.
    """
    if gateway.status.revision < applied.get(gateway.metadata.uid, 0):
        return ()
    return tuple(
        entry
        for listed in gateway.status.node_list
        if listed.name == node and listed.term == term
        for entry in listed.eips
        if not entry.leaving and (entry.ipv4 or entry.ipv6)
    )


def known_term(gateways: Iterable[EgressGateway], node: NodeName) -> int:
    """The highest term that a status names for `node`; see `claim_term`."""
    return max(
        (listed.term for gateway in gateways for listed in gateway.status.node_list if listed.name == node), default=0
    )
