"""What is done in a pod's namespace for its egress: tunnels for a client, sysctls for a router pod. And who may send to
the tunnels, which is not in the namespace.

The namespace is the one that the runtime names in an ADD. Later it is found from the pod's veth, by the alias that its
host's end carries: paths and names of links are used again, and a namespace that is not certainly the pod's is none.
"""

from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from typing import TypeAlias

from coil.egress.client_plan import GatewayProblem
from coil.egress.gateway import ClientSpec
from coil.kernel.family import Family
from coil.kernel.link import Sysctl
from coil.kernel.tunnel import catch_all
from coil.nat.client import ClientChanges
from coil.netlink.host import NetnsPath
from coil.netlink.namespace import Namespace
from coil.podnet.host_link import PodAlias
from coild.egress.client_filter import TunnelFilter
from coild.model.pod_network import PodNetwork

FOU_MODULES = {Family.IPV4: "fou", Family.IPV6: "fou6"}


SyncTunnels: TypeAlias = Callable[[ClientSpec, NetnsPath | Namespace], Awaitable[ClientChanges]]
"""`coil.nat.client.ClientNetwork.sync`, with its promises and exceptions."""


@dataclass(frozen=True, slots=True)
class PodTunnelSpec:
    """What is to be ours in a namespace; what is None is left as it is."""

    spec: ClientSpec | None = None
    sysctls: tuple[Sysctl, ...] | None = None


class VethGoneError(Exception):
    """There is no veth with the pod's alias any more."""


@dataclass(frozen=True, slots=True)
class PodTunnels:
    """Raises `coil.nat.NAT_ERRORS`; what was done by then stays, and every call may be repeated."""

    network: PodNetwork
    sync_tunnels: SyncTunnels
    senders: TunnelFilter

    async def clients(self) -> frozenset[PodAlias]:
        """The pods that have something of ours: it begins with the flow-based links, which go last (`coil.nat`).

        Costs one dump of links and a question for each pod. Raises NetlinkError.
        """
        return await self.network.pods_with_link([catch_all(family).name for family in Family])

    async def make(self, wanted: PodTunnelSpec, where: NetnsPath | PodAlias) -> tuple[GatewayProblem, ...]:
        """Make the namespace so; returns what cannot be made. Idempotent. For an alias it may raise VethGoneError."""
        if not isinstance(where, PodAlias):
            return await self._make(wanted, where)
        namespace = await self.network.open_pod_namespace(where)
        if namespace is None:
            raise VethGoneError
        with namespace:
            return await self._make(wanted, namespace)

    async def _make(self, wanted: PodTunnelSpec, netns: NetnsPath | Namespace) -> tuple[GatewayProblem, ...]:
        if wanted.sysctls is not None:
            await self.network.ensure_pod_sysctls(wanted.sysctls, netns)
        if wanted.spec is not None and wanted.spec.gateways:
            # Nothing else asks for these, and only on nodes where a pod needs them.
            families = {Family.of(address) for gateway in wanted.spec.gateways for address in gateway.addresses}
            await self.network.ensure_modules([FOU_MODULES[family] for family in sorted(families)])
        return (await self.sync_tunnels(wanted.spec, netns)).problems if wanted.spec is not None else ()
