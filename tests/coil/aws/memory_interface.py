"""What EC2 in memory has of each interface and instance."""

from dataclasses import dataclass, field
from ipaddress import IPv4Address

from coil.aws.ec2 import AttachmentId, InstanceId, InstanceLimits, InterfaceRecord
from coil.eni.interface import InterfaceId
from coil.kernel.family import IPNetwork
from coil.kernel.link import MacAddress
from tests.coil.aws.memory_subnet import MemorySubnet


@dataclass(slots=True, kw_only=True)
class MemoryInterface:
    """An interface, attached or not."""

    id: InterfaceId
    mac: MacAddress
    subnet: MemorySubnet
    primary: IPv4Address
    ranges: set[IPNetwork]
    groups: tuple[str, ...]
    tags: dict[str, str]
    instance: InstanceId | None = None
    device_number: int | None = None
    attachment: AttachmentId | None = None
    deleted_with_instance: bool = False
    detached_at: float | None = None
    """When that will be, once it was asked for."""

    @property
    def slots_used(self) -> int:
        """Of the IPv4 addresses that EC2 allows it."""
        return 1 + sum(each.version == 4 for each in self.ranges)

    @property
    def status(self) -> str:
        """In EC2's words."""
        if self.instance is None:
            return "available"
        return "in-use" if self.detached_at is None else "detaching"

    @property
    def record(self) -> InterfaceRecord:
        """As it is described."""
        return InterfaceRecord(
            id=self.id,
            mac=self.mac,
            status=self.status,
            subnet=self.subnet.id,
            primary=self.primary,
            ranges=frozenset(self.ranges),
            groups=self.groups,
            tags=dict(self.tags),
            zone=self.subnet.zone,
            instance=self.instance,
            device_number=self.device_number,
            attachment=self.attachment,
            deleted_with_instance=self.deleted_with_instance,
        )


@dataclass(slots=True)
class MemoryInstance:
    """A running instance, and its interfaces by device number."""

    id: InstanceId
    type: str
    limits: InstanceLimits
    devices: dict[int, MemoryInterface] = field(default_factory=dict)
    primary: MemoryInterface | None = None
    """The one that it was launched with."""
