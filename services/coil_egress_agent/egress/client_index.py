"""Which client pods hold which addresses. Written by the caches' listeners, read by `peer_sync` and metrics.

Addresses are told by the pods' own objects, and earlier by the nodes' EgressClientSlices. They are reused: the object
of a pod that is gone may still exist when the next pod has its address, and events of different objects come in any
order. So an address has a set of holders, known by their UIDs, and is wanted while there is one.
"""

from collections.abc import Collection, Iterator
from dataclasses import dataclass

from prometheus_client import CollectorRegistry
from prometheus_client.core import GaugeMetricFamily, Metric
from prometheus_client.registry import Collector

from coil.crd.builtin import Pod
from coil.crd.egress_client_slice import EgressClientSlice
from coil.egress.client_pod import EgressRef, client_addresses, parse_client_addresses
from coil.kernel.family import Family, IPAddress
from coil.kernel.tunnel import tunnel_name


@dataclass(frozen=True, slots=True)
class ClientPod:
    """A pod that may be served."""

    namespace: str
    name: str
    addresses: frozenset[IPAddress]


class ClientIndex:
    """`own` are the router pod's addresses: only addresses of their families are wanted, and none of themselves."""

    def __init__(self, own: Collection[IPAddress]) -> None:
        self._own = frozenset(own)
        self._families = {Family.of(address) for address in own}
        self._pods: dict[str, ClientPod] = {}
        self._slices: dict[str, frozenset[IPAddress]] = {}
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
    def pods(self) -> Collection[ClientPod]:
        """The clients, also those without an address yet. Not across an await."""
        return self._pods.values()

    def observe(self, old: Pod | None, new: Pod | None) -> set[IPAddress]:
        """A listener of a cache of clients; `old` and `new` are of one UID. Returns the addresses that have got their
        first holder, or lost their last one.
        """
        [uid] = {pod.metadata.uid for pod in (old, new) if pod is not None}
        known = self._pods.pop(uid, None)
        before = known.addresses if known is not None else frozenset()
        after: frozenset[IPAddress] = frozenset()
        if new is not None:
            after = self._wanted(client_addresses(new))
            self._pods[uid] = ClientPod(new.metadata.namespace, new.metadata.name, after)
        return self._hold(uid, after - before) | self._let_go(uid, before - after)

    def observe_slice(self, old: EgressClientSlice | None, new: EgressClientSlice | None) -> set[IPAddress]:
        """A listener of a cache of the Egress's slices; as `observe`."""
        [uid] = {slice_.metadata.uid for slice_ in (old, new) if slice_ is not None}
        before = self._slices.pop(uid, frozenset())
        after: frozenset[IPAddress] = frozenset()
        if new is not None:
            after = self._slices[uid] = self._wanted(parse_client_addresses(new.addresses))
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
    """Coil's own two families, read from the index at the moment of a scrape."""

    def __init__(self, index: ClientIndex, egress: EgressRef, registry: CollectorRegistry) -> None:
        self._index = index
        self._egress = egress
        registry.register(self)

    def describe(self) -> Iterator[Metric]:
        # Without it, registration would scrape.
        return iter(_families())

    def collect(self) -> Iterator[Metric]:
        count, info = _families()
        labels = [self._egress.namespace, self._egress.name]
        count.add_metric(labels, len(self._index.pods))
        for pod in self._index.pods:
            for address in pod.addresses:
                info.add_metric([*labels, pod.namespace, pod.name, str(address), tunnel_name(address)], 1)
        return iter((count, info))


def _families() -> tuple[GaugeMetricFamily, GaugeMetricFamily]:
    return (
        GaugeMetricFamily(
            "coil_egress_client_pod_count",
            "Pods that are annotated for this Egress and allowed to use it.",
            labels=["namespace", "egress"],
        ),
        GaugeMetricFamily(
            "coil_egress_client_pod_info",
            "1 for each address of a client, with the link of its tunnel.",
            labels=["namespace", "egress", "pod_namespace", "pod", "pod_ip", "interface"],
        ),
    )
