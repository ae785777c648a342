"""coild on a real kernel without an API server: its CNI service, behind its socket, with addresses from a short list.

Host and pods are throwaway namespaces. What the kernel holds is told by iproute2.
"""

from collections.abc import AsyncIterator, Callable, Iterable, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass
from ipaddress import IPv4Address, IPv6Address
from pathlib import Path
from typing import Any

from prometheus_client import CollectorRegistry

from coil.cnirpc.call_metric import CallMetrics
from coil.cnirpc.server import serve_cni
from coil.crd.names import PoolName
from coil.ipam.attachment import AttachmentKey
from coil.kernel.family import IPAddress
from coil.netlink.host import HostNetwork
from coil.podnet.gateway import LINK_LOCAL
from coil.podnet.plan import DEFAULT_POLICY, plan_forwarding, plan_rules
from coild.cni.plugin_socket import LIMITS
from coild.cni.service import CniService
from coild.model.address_source import AddressUnavailableError, HeldAddresses, PodAddresses, PodName
from coild.model.keyed_executor import KeyedExecutor
from coild.model.pod_egress import NoEgress
from coild.pods.pod_service import PodNetworkOptions, PodService
from integration.netns.netns import Netns
from tests.coild.scene import LOG, ListRecorder

ADDRESSES = 16
POOL = PoolName("default")
_FIRST = IPv4Address("10.64.0.1"), IPv6Address("fd64::1")
_ANSWERED = "coil_cni_operation_duration_seconds_count"
_SYSCTL_FOLDERS = [f"net/{family}/conf/{name}" for family in ("ipv4", "ipv6") for name in ("all", "default", "lo")]


class ListedAddresses:
    """An `AddressSource` of sixteen pairs of addresses."""

    def __init__(self) -> None:
        self._held: dict[AttachmentKey, PodAddresses] = {}

    def recognizes(self, pool: PoolName, address: IPAddress) -> bool:
        return pool == POOL

    async def recover(self, held: Iterable[HeldAddresses]) -> None:
        self._held = {each.key: each.addresses for each in held}

    def holding(self, key: AttachmentKey) -> PodAddresses | None:
        return self._held.get(key)

    async def acquire(self, key: AttachmentKey, pod: PodName, *, timeout: float) -> PodAddresses:
        if key not in self._held:
            pairs = [PodAddresses(POOL, _FIRST[0] + number, _FIRST[1] + number) for number in range(ADDRESSES)]
            free = [pair for pair in pairs if pair not in self._held.values()]
            if not free:
                raise AddressUnavailableError(f"{ADDRESSES} pods have all addresses")
            self._held[key] = free[0]
        return self._held[key]

    def revoke(self, key: AttachmentKey) -> None:
        self._held.pop(key, None)

    def release(self, key: AttachmentKey) -> None:
        self._held.pop(key, None)

    def held(self) -> frozenset[AttachmentKey]:
        return frozenset(self._held)

    async def collect(self) -> None:
        pass


@dataclass(frozen=True)
class Daemon:
    """coild, at work."""

    socket: Path
    host: Netns
    pods: Sequence[Netns]
    service: PodService
    source: ListedAddresses
    turns: KeyedExecutor
    registry: CollectorRegistry

    @classmethod
    @asynccontextmanager
    async def start(cls, new_netns: Callable[[], Netns], socket: Path, *, pods: int) -> AsyncIterator["Daemon"]:
        """With so many namespaces for pods that it does not know of."""
        host = new_netns()
        async with HostNetwork(host.path) as network:
            await network.ensure_sysctls(plan_forwarding())
            await network.ensure_rules(plan_rules())
            source, turns = ListedAddresses(), KeyedExecutor(LOG)
            service = PodService(
                source=source,
                network=network,
                egress=NoEgress(),
                turns=turns,
                options=PodNetworkOptions(mtu=1400, gateways=LINK_LOCAL, policy=DEFAULT_POLICY, compat_calico=False),
                acquire_timeout=1.0,
                recorder=ListRecorder(),
                log=LOG,
            )
            await service.recover()
            registry = CollectorRegistry()
            calls = CallMetrics(registry)
            async with serve_cni(CniService(service), path=socket, limits=LIMITS, grace=1.0, metrics=calls):
                yield cls(socket, host, [new_netns() for _ in range(pods)], service, source, turns, registry)

    @property
    def answered(self) -> int:
        """How many calls of the CNI service have come to their end."""
        samples = [sample for metric in self.registry.collect() for sample in metric.samples]
        return sum(int(sample.value) for sample in samples if sample.name == _ANSWERED)

    @property
    def books(self) -> list[str]:
        """Every attachment that coild knows of, and every address that it holds."""
        sites = self.service.sites(lambda _: None)
        return [*(f"attached: {site.key}" for site in sites), *(f"held: {key}" for key in self.source.held())]

    def kernel(self) -> dict[str, Any]:
        """Links, addresses, routes, rules, neighbours and sysctls of the host's and the pods' namespaces."""
        return {netns.name: {**netns.state(), "sysctls": _sysctls(netns)} for netns in (self.host, *self.pods)}


def _sysctls(netns: Netns) -> dict[str, str]:
    def read() -> dict[str, str]:
        paths = [path for folder in _SYSCTL_FOLDERS for path in Path("/proc/sys", folder).iterdir()]
        # stable_secret cannot be read until it is written.
        return {str(path): path.read_text() for path in paths if path.name != "stable_secret"}

    return netns.call(read)
