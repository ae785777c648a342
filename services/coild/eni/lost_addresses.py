"""Tells pods whose addresses are not the node's any more, each of them once, and when EC2 says so and not before."""

from collections.abc import Collection
from dataclasses import dataclass, field

from structlog.typing import FilteringBoundLogger

from coil.eni.ledger import Allocation
from coil.reconcile.event_recorder import EventSubject, Recorder
from coild.eni.store import EniStore


@dataclass(slots=True, kw_only=True)
class LostAddresses:
    """One per process."""

    store: EniStore
    recorder: Recorder
    log: FilteringBoundLogger
    _untold: list[Allocation] = field(default_factory=list)

    def found(self, lost: Collection[Allocation], *, final: bool) -> None:
        """These were missing in a picture; `final`: it is EC2's. Those that are back since are not lost."""
        self._untold += lost
        if not final:
            return
        still = self.store.lost()
        for allocation in self._untold:
            if allocation.key in still:
                self._tell(allocation)
        self._untold.clear()

    def _tell(self, allocation: Allocation) -> None:
        pod = self.store.journal.holder(allocation.key).pod
        address = str(allocation.address)
        self.log.error("address lost", address=address, pod=pod.full_name if pod is not None else "unknown")
        if pod is not None:
            self.recorder.warn(
                EventSubject("v1", "Pod", pod.name, pod.namespace, pod.uid),
                reason="AddressLost",
                message=f"{address} is not assigned to this node any more in EC2; the pod has to be replaced",
            )
