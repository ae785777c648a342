"""coild on a real kernel without an API server: its CNI service, behind its socket, with addresses from a short list.

Host and pods are throwaway namespaces. What the kernel holds is told by iproute2.
"""

from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from prometheus_client import CollectorRegistry

from coil.cnirpc.call_gate import CallMetrics
from coil.cnirpc.server import serve_cni
from coil.kernel.family import Family
from coil.netlink.host import HostNetwork
from coil.podnet.plan import DEFAULT_POLICY, LINK_LOCAL
from coild.cni.service import LIMITS, CniService
from coild.model.attachment import NoEgress, NoHostPorts
from coild.model.keyed_executor import KeyedExecutor
from coild.pods.engine import PodEngine
from coild.pods.veth import VethWiring
from integration.netns.netns import Netns
from tests.coild.listed_source import ListedSource
from tests.coild.scene import LOG, ListRecorder

ADDRESSES = 16
_ANSWERED = "coil_cni_operation_duration_seconds_count"
_SYSCTL_FOLDERS = [f"net/{family}/conf/{name}" for family in ("ipv4", "ipv6") for name in ("all", "default", "lo")]


@dataclass(frozen=True)
class Daemon:
    """coild, at work."""

    socket: Path
    host: Netns
    pods: Sequence[Netns]
    service: PodEngine
    source: ListedSource
    executor: KeyedExecutor
    registry: CollectorRegistry

    @classmethod
    @asynccontextmanager
    async def start(cls, new_netns: Callable[[], Netns], socket: Path, *, pods: int) -> AsyncIterator["Daemon"]:
        """With so many namespaces for pods that it does not know of."""
        host = new_netns()
        async with HostNetwork(host.path) as network:
            wiring = VethWiring(network, mtu=1400, gateways=LINK_LOCAL, policy=DEFAULT_POLICY, log=LOG)
            await wiring.prepare()
            # Else the first pod changes it, for good.
            await network.ensure_forwarding(tuple(Family))
            source, executor = ListedSource(wiring, tag="default", size=ADDRESSES), KeyedExecutor(LOG)
            service = PodEngine(
                source=source,
                egress=NoEgress(),
                host_ports=NoHostPorts(),
                executor=executor,
                acquire_timeout=1.0,
                recorder=ListRecorder(),
                log=LOG,
            )
            await service.recover()
            registry = CollectorRegistry()
            calls = CallMetrics(registry)
            async with serve_cni(CniService(service), path=socket, limits=LIMITS, grace=1.0, metrics=calls):
                yield cls(socket, host, [new_netns() for _ in range(pods)], service, source, executor, registry)

    @property
    def answered(self) -> int:
        """How many calls of the CNI service have come to their end."""
        samples = [sample for metric in self.registry.collect() for sample in metric.samples]
        return sum(int(sample.value) for sample in samples if sample.name == _ANSWERED)

    @property
    def records(self) -> list[str]:
        """Every attachment that coild knows of, and every address that it holds."""
        attached = self.service.attachments()
        return [
            *(f"attached: {attachment.key}" for attachment in attached),
            *(f"held: {key}" for key in self.source.held()),
        ]

    def kernel(self) -> dict[str, Any]:
        """Links, addresses, routes, rules, neighbours and sysctls of the host's and the pods' namespaces."""
        return {netns.name: {**netns.state(), "sysctls": _sysctls(netns)} for netns in (self.host, *self.pods)}


def _sysctls(netns: Netns) -> dict[str, str]:
    def read() -> dict[str, str]:
        paths = [path for folder in _SYSCTL_FOLDERS for path in Path("/proc/sys", folder).iterdir()]
        # stable_secret cannot be read until it is written.
        return {str(path): path.read_text() for path in paths if path.name != "stable_secret"}

    return netns.call(read)
