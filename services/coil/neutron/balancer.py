"""Octavia's objects as its API has them (Load Balancer API v2), reduced to the fields that the suite reads.

Octavia changes one thing of a load balancer at a time: after each call that changes something, the load balancer is
"PENDING_…" until its provider has done it, and refuses further changes.
"""

from typing import Final, NewType

import msgspec

from coil.neutron.resource import PortId, Resource, SubnetId

LoadBalancerId = NewType("LoadBalancerId", str)
ListenerId = NewType("ListenerId", str)
PoolId = NewType("PoolId", str)
MemberId = NewType("MemberId", str)

SOURCE_IP: Final = "SOURCE_IP"
"""The session persistence by the client's address."""


class LoadBalancer(Resource, frozen=True, kw_only=True):
    """`vip_port_id` is the port in Neutron that has `vip_address`."""

    id: LoadBalancerId
    vip_address: str = ""
    vip_port_id: PortId | None = None
    vip_subnet_id: SubnetId | None = None
    provider: str = ""
    provisioning_status: str = ""

    @property
    def pending(self) -> bool:
        """Whether its provider is at work, so that no change is accepted."""
        return self.provisioning_status.startswith("PENDING_")

    @property
    def going(self) -> bool:
        """Whether it is being deleted, or was."""
        return self.provisioning_status in ("PENDING_DELETE", "DELETED")

    @property
    def failed(self) -> bool:
        """Whether its provider has given up. Nothing but a deletion leads out of that."""
        return self.provisioning_status == "ERROR"


class Listener(Resource, frozen=True, kw_only=True):
    """`allowed_cidrs` is None where everybody is admitted."""

    id: ListenerId
    protocol: str
    protocol_port: int
    default_pool_id: PoolId | None = None
    allowed_cidrs: tuple[str, ...] | None = None


class SessionPersistence(msgspec.Struct, frozen=True):
    type: str


class Pool(Resource, frozen=True, kw_only=True):
    id: PoolId
    protocol: str
    lb_algorithm: str
    session_persistence: SessionPersistence | None = None


class Member(Resource, frozen=True, kw_only=True):
    """`subnet_id` is None where none was named."""

    id: MemberId
    address: str
    protocol_port: int
    subnet_id: SubnetId | None = None
