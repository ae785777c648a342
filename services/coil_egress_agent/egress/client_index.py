"""Which addresses clients have. Written by the cache's listener, read by `peer_sync` and metrics.

Addresses are told by EgressClientSlices, and reused: the slice of one node may still have the address of a pod that is
gone when another tells that its next pod has it. So an address has a set of holders, known by their UIDs, and is wanted
while there is one.
"""

from collections.abc import Collection, Iterator

from prometheus_client import CollectorRegistry
from prometheus_client.core import GaugeMetricFamily, Metric
from prometheus_client.registry import Collector

from coil.crd.egress_client_slice import EgressClientSlice
from coil.egress.client_pod import EgressRef, parse_client_addresses
from coil.kernel.family import Family, IPAddress


class ClientIndex:
    """`own` are the router pod's addresses: only addresses of their families are wanted, and none of themselves."""

    def __init__(self, own: Collection[IPAddress]) -> None:
        self._own = frozenset(own)
        self._families = {Family.of(address) for address in own}
        self._slices: dict[str, frozenset[IPAddress]] = {}
        self._pods: dict[str, int] = {}
        self._holders: dict[IPAddress, set[str]] = {}

    def __contains__(self, address: IPAddress) -> bool:
        """Whether a client has the address."""
        return address in self._holders

    def __iter__(self) -> Iterator[IPAddress]:
        """The addresses that clients have. Not across an await."""
        return iter(self._holders)

    def __len__(self) -> int:
        return len(self._holders)

    @property
    def pods(self) -> int:
        """How many clients there are, as the slices count them."""
        return sum(self._pods.values())

    def observe(self, old: EgressClientSlice | None, new: EgressClientSlice | None) -> set[IPAddress]:
        """A listener of a cache of the Egress's slices; `old` and `new` are of one UID. Returns the addresses that have
        got their first holder, or lost their last one.
        """
        [uid] = {slice_.metadata.uid for slice_ in (old, new) if slice_ is not None}
        before = self._slices.pop(uid, frozenset())
        self._pods.pop(uid, None)
        after: frozenset[IPAddress] = frozenset()
        if new is not None:
            after = self._slices[uid] = self._wanted(parse_client_addresses(new.addresses))
            self._pods[uid] = new.pods
        return self._hold(uid, after - before) | self._let_go(uid, before - after)

    def _wanted(self, addresses: Collection[IPAddress]) -> frozenset[IPAddress]:
        return frozenset(
            address for address in addresses if Family.of(address) in self._families and address not in self._own
        )

    def _hold(self, uid: str, addresses: frozenset[IPAddress]) -> set[IPAddress]:
        """Returns those that nobody held before."""
        new = {address for address in addresses if address not in self._holders}
        for address in addresses:
            self._holders.setdefault(address, set()).add(uid)
        return new

    def _let_go(self, uid: str, addresses: frozenset[IPAddress]) -> set[IPAddress]:
        """Returns those that nobody holds any more."""
        for address in addresses:
            self._holders[address].discard(uid)
        left = {address for address in addresses if not self._holders[address]}
        for address in left:
            del self._holders[address]
        return left


class ClientCollector(Collector):
    """Coil's own figure, read from the index at the moment of a scrape."""

    def __init__(self, index: ClientIndex, egress: EgressRef, registry: CollectorRegistry) -> None:
        self._index = index
        self._egress = egress
        registry.register(self)

    def describe(self) -> Iterator[Metric]:
        # Without it, registration would scrape.
        return iter([_family()])

    def collect(self) -> Iterator[Metric]:
        count = _family()
        count.add_metric([self._egress.namespace, self._egress.name], self._index.pods)
        return iter([count])


def _family() -> GaugeMetricFamily:
    return GaugeMetricFamily(
        "coil_egress_client_pod_count",
        "Pods that are annotated for this Egress and allowed to use it.",
        labels=["namespace", "egress"],
    )
