"""Neutron's objects as its API has them (Networking API v2.0), reduced to the fields that the suite reads.

Structs are frozen: an object that was listed is a fact that was observed.
"""

from ipaddress import IPv4Network, IPv6Network, ip_address, ip_network
from typing import Final, NewType

import msgspec

from coil.kernel.family import IPAddress

NetworkId = NewType("NetworkId", str)
SubnetId = NewType("SubnetId", str)
RouterId = NewType("RouterId", str)
PortId = NewType("PortId", str)
SecurityGroupId = NewType("SecurityGroupId", str)
FloatingIpId = NewType("FloatingIpId", str)
ProjectId = NewType("ProjectId", str)

OWNER_ROUTER_INTERFACES: Final = frozenset(
    {
        "network:router_interface",
        "network:router_interface_distributed",
        "network:ha_router_replicated_interface",
    }
)
"""The device_owners of a router's ports on a subnet (neutron-lib, `constants.ROUTER_INTERFACE_OWNERS`)."""
OWNER_ROUTER_SNAT: Final = "network:router_centralized_snat"
"""Of a port that a distributed router with a gateway has on a subnet beside its interface, and that goes with that."""
AUTO_DELETED_OWNERS: Final = frozenset({"network:dhcp", "network:distributed", "network:floatingip_agent_gateway"})
"""Of ports that Neutron makes on a network, and deletes with it (neutron, `common/_constants.AUTO_DELETE_PORT_OWNERS`).

ML2/OVN makes a `network:distributed` on every network, for metadata.
"""


class Resource(msgspec.Struct, frozen=True, kw_only=True):
    """The base of everything that is decoded from Neutron. Unknown fields are skipped."""

    id: str
    name: str = ""
    description: str | None = None
    project_id: str = ""
    tags: tuple[str, ...] = ()


class Network(Resource, frozen=True, kw_only=True):
    """`segmentation_id` is None where there is none, or the account may not see it. `mtu` is in bytes."""

    id: NetworkId
    mtu: int = 0
    external: bool = msgspec.field(name="router:external", default=False)
    segmentation_id: int | None = msgspec.field(name="provider:segmentation_id", default=None)


class AllocationPool(msgspec.Struct, frozen=True):
    """Neutron takes addresses from `start` to `end`, both of them included."""

    start: str
    end: str


class Subnet(Resource, frozen=True, kw_only=True):
    id: SubnetId
    network_id: NetworkId
    cidr: str
    ip_version: int
    gateway_ip: str | None = None
    dns_nameservers: tuple[str, ...] = ()
    allocation_pools: tuple[AllocationPool, ...] = ()

    @property
    def network(self) -> IPv4Network | IPv6Network:
        return ip_network(self.cidr)

    @property
    def gateway(self) -> IPAddress | None:
        return None if not self.gateway_ip else ip_address(self.gateway_ip)


class ExternalGateway(msgspec.Struct, frozen=True):
    network_id: NetworkId


class Router(Resource, frozen=True, kw_only=True):
    id: RouterId
    external_gateway_info: ExternalGateway | None = None


class FixedIp(msgspec.Struct, frozen=True):
    subnet_id: SubnetId
    ip_address: str


class Port(Resource, frozen=True, kw_only=True):
    """`vif_type` is "" where the account may not see it, "unbound" without a host, and "binding_failed" where no agent
    on the host could bind it. `revision_number` grows with each change (extension standard-attr-revisions).
    """

    id: PortId
    network_id: NetworkId
    mac_address: str
    fixed_ips: tuple[FixedIp, ...] = ()
    status: str = ""
    device_id: str = ""
    device_owner: str = ""
    host_id: str = msgspec.field(name="binding:host_id", default="")
    vif_type: str = msgspec.field(name="binding:vif_type", default="")
    security_groups: frozenset[SecurityGroupId] = frozenset()
    revision_number: int = 0

    @property
    def active(self) -> bool:
        """Whether Neutron knows that the port's interface is plugged in."""
        return self.status == "ACTIVE"

    @property
    def binding_failed(self) -> bool:
        return self.vif_type == "binding_failed"

    @property
    def unbound(self) -> bool:
        """Whether it is on no host. An account that may not see hosts never knows."""
        return self.vif_type == "unbound"


class SecurityGroupRule(msgspec.Struct, frozen=True, kw_only=True):
    """What one rule allows: one of `remote_ip_prefix`, `remote_group_id` and `remote_address_group_id` is who; with
    none of them, it is anybody.

    Two rules that allow the same are equal, whatever their `id`.
    """

    id: str = ""
    direction: str
    ethertype: str
    protocol: str | None = None
    port_range_min: int | None = None
    port_range_max: int | None = None
    remote_ip_prefix: str | None = None
    remote_group_id: SecurityGroupId | None = None
    remote_address_group_id: str | None = None
    description: str | None = None

    def allows(self) -> tuple[object, ...]:
        """What tells two rules apart, for comparing."""
        return (
            self.direction,
            self.ethertype,
            self.protocol,
            self.port_range_min,
            self.port_range_max,
            self.remote_ip_prefix,
            self.remote_group_id,
            self.remote_address_group_id,
        )


class SecurityGroup(Resource, frozen=True, kw_only=True):
    id: SecurityGroupId
    security_group_rules: tuple[SecurityGroupRule, ...] = ()


class FloatingIp(Resource, frozen=True, kw_only=True):
    """`port_id` is None while it is bound to nothing."""

    id: FloatingIpId
    floating_ip_address: str
    floating_network_id: NetworkId
    port_id: PortId | None = None
