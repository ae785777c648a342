"""What is looked at in OpenStack before anything is made there, and with which exit code a finding ends the process.

    3  credentials    4  extensions or provider missing    5  public network absent    6  router absent
    7  VIP subnet wrong    8  supernet overlaps

Flags that cannot be read end it with code 2, as in every program of Coil. docs/neutron.md has the same table.

OpenStack that does not answer is no finding: the check is repeated, and coil-raven is not ready meanwhile.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from enum import IntEnum
from ipaddress import ip_network
from typing import Final

from coil.kernel.family import IPNetwork
from coil.neutron.identity import ClusterId, parse_identity
from coil.neutron.provider import Provider
from coil.neutron.resource import NetworkId, Router
from coil.neutron.supernet import Supernet, overlap
from coil.neutron.vip_range import VipRange
from coil.openstack.error import DeniedError, UnauthenticatedError
from coil.openstack.neutron import Neutron, own
from coil.openstack.octavia import Octavia
from coil_raven.vip_subnets import VipSubnetError, check_subnet, vip_subnet_name

REQUIRED_EXTENSIONS: Final = frozenset({"router", "security-group", "binding", "net-mtu", "standard-attr-tag"})
POOL_EXTENSIONS: Final = frozenset({"standard-attr-revisions", "revision-if-match"})
"""Beside those, for ports that wait for pods: without them one port could be given to two pods."""


class Finding(IntEnum):
    """The values are exit codes."""

    CREDENTIALS = 3
    EXTENSIONS = 4
    PUBLIC_NETWORK = 5
    ROUTER = 6
    VIP_SUBNET = 7
    SUPERNET = 8


class StartError(Exception):
    """OpenStack is not as it has to be. The message says what is wrong and who can change it."""

    def __init__(self, finding: Finding, message: str) -> None:
        super().__init__(message)
        self.finding = finding


@dataclass(frozen=True, slots=True, kw_only=True)
class Surroundings:
    """What is there already. `public` is None where none is configured, `router` where one is to be created."""

    public: NetworkId | None
    router: Router | None


async def check_start(
    neutron: Neutron,
    *,
    cluster: ClusterId,
    public_network: str,
    router: str,
    supernets: Sequence[Supernet],
    pools: bool,
) -> Surroundings:
    """Look at everything in its order. Changes nothing. Raises StartError, or OpenStackError if nothing can be said.

    `pools`: whether ports are to wait for pods.
    """
    try:
        extensions = await neutron.extensions()
    except (UnauthenticatedError, DeniedError) as error:
        raise StartError(Finding.CREDENTIALS, f"OpenStack does not accept the credentials: {error}") from None
    if missing := (REQUIRED_EXTENSIONS | (POOL_EXTENSIONS if pools else frozenset())) - extensions:
        raise StartError(Finding.EXTENSIONS, f"Neutron lacks the API extensions {', '.join(sorted(missing))}")
    public = await _public(neutron, public_network)
    found = await _router(neutron, router)
    await _check_overlaps(neutron, cluster, found, supernets)
    return Surroundings(public=public, router=found)


async def check_services(
    neutron: Neutron,
    octavia: Octavia,
    *,
    cluster: ClusterId,
    ranges: Sequence[VipRange],
    provider: Provider,
    supernets: Sequence[Supernet],
) -> None:
    """Look at what load balancers for Services need. Raises like `check_start`."""
    try:
        providers = await octavia.providers()
    except (UnauthenticatedError, DeniedError) as error:
        raise StartError(Finding.CREDENTIALS, f"Octavia does not accept the credentials: {error}") from None
    if provider.name not in providers:
        known = ", ".join(sorted(providers)) or "none"
        raise StartError(Finding.EXTENSIONS, f"Octavia lacks the provider {provider.name!r}; it has {known}")
    if (pair := overlap([each.network for each in supernets], [each.subnet for each in ranges])) is not None:
        raise StartError(Finding.SUPERNET, f"the supernet {pair[0]} overlaps {pair[1]}, the subnet of cluster IPs")
    for each in ranges:
        name = vip_subnet_name(cluster, each.services.version)
        for subnet in own(await neutron.subnets(name=name), name):
            try:
                check_subnet(subnet, each.services)
            except VipSubnetError as error:
                raise StartError(Finding.VIP_SUBNET, str(error)) from None


async def _public(neutron: Neutron, name: str) -> NetworkId | None:
    """The external network of that name; or, where it is a CIDR, the one that has a subnet with it, as in Kuryr."""
    if not name:
        return None
    try:
        cidr = ip_network(name)
    except ValueError:
        found = own(await neutron.networks(name=name, external=True), name)
        described = f"the name {name!r}"
    else:
        having = {subnet.network_id for subnet in await neutron.subnets() if subnet.network == cidr}
        found = [each for each in await neutron.networks(external=True) if each.id in having]
        described = f"a subnet {cidr}"
    if len(found) != 1:
        count = "no external network" if not found else f"{len(found)} external networks"
        raise StartError(Finding.PUBLIC_NETWORK, f"Neutron has {count} with {described}, and it takes one")
    return NetworkId(found[0].id)


async def _router(neutron: Neutron, name: str) -> Router | None:
    if not name:
        return None
    found: list[Router] = own(await neutron.routers(name=name), name)
    if len(found) != 1:
        count = "no router" if not found else f"{len(found)} routers"
        raise StartError(Finding.ROUTER, f"Neutron has {count} with the name {name!r}, and it takes one")
    return found[0]


async def _check_overlaps(
    neutron: Neutron, cluster: ClusterId, router: Router | None, supernets: Sequence[Supernet]
) -> None:
    """Nothing else on the router may have addresses of the supernets: it could not tell where they are."""
    if router is None:
        return
    ports = await neutron.ports(device_id=router.id)
    connected = {fixed.subnet_id for port in ports for fixed in port.fixed_ips}
    foreign: list[IPNetwork] = []
    for subnet in await neutron.subnets():
        identity = parse_identity(subnet.name)
        if subnet.id in connected and (identity is None or identity.cluster != cluster):
            foreign.append(subnet.network)
    if (pair := overlap([supernet.network for supernet in supernets], foreign)) is not None:
        raise StartError(
            Finding.SUPERNET,
            f"the supernet {pair[0]} overlaps {pair[1]}, which the router {router.name!r} connects already",
        )
