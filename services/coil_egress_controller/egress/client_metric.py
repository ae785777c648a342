"""Which pods are clients of which Egress, as a metric of Coil's. Router pods, which served it in Coil in Go, know their
clients by addresses only.
"""

from collections.abc import Iterator

from prometheus_client import CollectorRegistry
from prometheus_client.core import GaugeMetricFamily, Metric
from prometheus_client.registry import Collector

from coil.egress.client_pod import client_addresses
from coil.kernel.tunnel import tunnel_name
from coil.reconcile.cache import Cache
from coil_egress_controller.egress.client_slice_reconciler import ClientPod, client_keys


class ClientPodCollector(Collector):
    """Read from the cache at the moment of a scrape."""

    def __init__(self, pods: Cache[ClientPod], registry: CollectorRegistry) -> None:
        self._pods = pods
        registry.register(self)

    def describe(self) -> Iterator[Metric]:
        # Without it, registration would scrape.
        return iter([_family()])

    def collect(self) -> Iterator[Metric]:
        info = _family()
        for pod in self._pods.items():
            of_pod = [pod.metadata.namespace, pod.metadata.name]
            for key in client_keys(pod):
                namespace, egress, _node = key.split("/")
                for address in sorted(client_addresses(pod), key=str):
                    info.add_metric([*of_pod, str(address), tunnel_name(address), egress, namespace], 1)
        return iter([info])


def _family() -> GaugeMetricFamily:
    return GaugeMetricFamily(
        "coil_egress_client_pod_info",
        "1 for each address of a client, with the link of its tunnel in router pods.",
        labels=["namespace", "pod", "pod_ip", "interface", "egress", "egress_namespace"],
    )
