"""The floating IPs by which Services are reached from outside: at most one for each Service at any time.

One that a Service asks for by its address is the administrator's: it is bound, and unbound again, and never deleted.
Any other is made for the Service, and has its identity in its description, for a floating IP has no name.
"""

from dataclasses import dataclass
from typing import Final

from structlog.typing import FilteringBoundLogger

from coil.neutron.identity import LONGEST_DESCRIPTION, ClusterId, Identity, Kind, cluster_tag, describe, parse_identity
from coil.neutron.resource import FloatingIp, NetworkId, PortId, ProjectId
from coil.openstack.neutron import Neutron
from coil_raven.balancers import ServiceName

_SEPARATOR: Final = " "


class ForeignAddressError(Exception):
    """The address that a Service asks for is not to be had; the message says why."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Sighting:
    """Who had floating IPs at one moment: the UIDs of the Services that they were made for, and ports, anybody's."""

    uids: frozenset[str]
    ports: frozenset[PortId]


class FloatingIps:
    """Of one term. Everything is looked at before it is changed: nothing is remembered."""

    def __init__(
        self, neutron: Neutron, *, cluster: ClusterId, external: NetworkId | None, log: FilteringBoundLogger
    ) -> None:
        self._neutron = neutron
        self._cluster = cluster
        self._external = external
        self._log = log

    async def ensure(self, service: ServiceName, port: PortId, project: ProjectId, *, wanted: str = "") -> FloatingIp:
        """Have the address `wanted`, or else any, bound to the port of the Service's VIP, and no other. Idempotent.

        Raises OpenStackError, or ForeignAddressError; then the Service has none any more.
        """
        if self._external is None:
            raise ForeignAddressError("no public network is configured, so there are no floating IPs")
        bound = await self._neutron.floating_ips(port=port)
        if wanted:
            return await self._bind(service, port, bound, wanted)
        owned = sorted(await self._owned(service.uid, bound), key=lambda each: each.id)
        await self._let_go([each for each in bound if each not in owned] + owned[1:])
        if owned:
            first = owned[0]
            return first if first.port_id == port else await self._neutron.bind_floating_ip(first.id, port)
        made = await self._neutron.create_floating_ip(
            description=self._description(service), project=project, external=self._external, port=port
        )
        await self._neutron.set_tag("floatingips", made.id, cluster_tag(self._cluster))
        self._log.info(
            "floating IP allocated", service=f"{service.namespace}/{service.name}", ip=made.floating_ip_address
        )
        return made

    async def release(self, uid: str, port: PortId | None) -> None:
        """Delete the Service's own, and unbind what is bound to its VIP's port. Idempotent. Raises OpenStackError."""
        bound = [] if port is None else await self._neutron.floating_ips(port=port)
        others = [each for each in await self._owned(uid, bound) if each not in bound]
        await self._let_go([*bound, *others])

    async def look(self) -> Sighting:
        """Who has one. Raises OpenStackError."""
        found = await self._neutron.floating_ips()
        identities = map(self._identity_of, found)
        return Sighting(
            uids=frozenset(identity.uid for identity in identities if identity is not None),
            ports=frozenset(each.port_id for each in found if each.port_id is not None),
        )

    async def _bind(self, service: ServiceName, port: PortId, bound: list[FloatingIp], wanted: str) -> FloatingIp:
        await self._let_go([each for each in bound if each.floating_ip_address != wanted])
        found = await self._neutron.floating_ips(address=wanted)
        if not found:
            raise ForeignAddressError(f"there is no floating IP {wanted}: an administrator has to create it first")
        (floating_ip, *_) = found
        if floating_ip.floating_network_id != self._external:
            raise ForeignAddressError(f"the floating IP {wanted} is not of the configured public network")
        identity = self._identity_of(floating_ip)
        if identity is not None and identity.uid != service.uid:
            raise ForeignAddressError(f"the floating IP {wanted} is another Service's")
        if floating_ip.port_id not in (None, port):
            raise ForeignAddressError(f"the floating IP {wanted} is bound to the port {floating_ip.port_id}")
        for other in await self._owned(service.uid, bound):
            if other.id != floating_ip.id:
                await self._let_go([other])
        return (
            floating_ip if floating_ip.port_id == port else await self._neutron.bind_floating_ip(floating_ip.id, port)
        )

    async def _let_go(self, floating_ips: list[FloatingIp]) -> None:
        for each in floating_ips:
            if self._identity_of(each) is None:
                if each.port_id is not None:
                    await self._neutron.bind_floating_ip(each.id, None)
            else:
                await self._neutron.delete_floating_ip(each.id)

    async def _owned(self, uid: str, bound: list[FloatingIp]) -> list[FloatingIp]:
        """Those that were made for the Service, bound or not."""
        found = {each.id: each for each in (*bound, *await self._neutron.floating_ips())}
        identity = Identity(self._cluster, Kind.FLOATING_IP, uid)
        return [each for each in found.values() if self._identity_of(each) == identity]

    def _identity_of(self, floating_ip: FloatingIp) -> Identity | None:
        return identity_of_floating_ip(floating_ip, self._cluster)

    def _description(self, service: ServiceName) -> str:
        name = Identity(self._cluster, Kind.FLOATING_IP, service.uid).name
        text = f"{name}{_SEPARATOR}{describe('Service', service.namespace, service.name)}"
        return text[:LONGEST_DESCRIPTION]


def identity_of_floating_ip(floating_ip: FloatingIp, cluster: ClusterId) -> Identity | None:
    """That of this cluster that the description begins with; None for what others have made."""
    identity = parse_identity((floating_ip.description or "").split(_SEPARATOR, 1)[0])
    if identity is None or identity.cluster != cluster or identity.kind is not Kind.FLOATING_IP:
        return None
    return identity
