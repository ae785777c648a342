"""One instance's metadata service in memory: what EC2 in memory had a while ago."""

from collections import deque
from collections.abc import Callable
from ipaddress import IPv4Network, IPv6Network

from coil.aws.ec2 import InstanceId, InterfaceRecord
from coil.aws.metadata import InstanceIdentity, MetadataError, MetadataInterface
from tests.coil.aws.memory_ec2 import ACCOUNT, REGION, ZONE, MemoryEc2


class MemoryMetadata:
    """Implements `InstanceMetadata`. `lag` is how old in seconds of `clock` what it says of interfaces is."""

    def __init__(
        self, ec2: MemoryEc2, instance: str, *, lag: float = 0.0, clock: Callable[[], float] = lambda: 0.0
    ) -> None:
        self.reachable = True
        self.tells_interfaces = True
        """Otherwise all that it knows is which instance this is."""
        self.notice: str | None = None
        """Of the instance's end."""
        self.lag = lag
        self._ec2 = ec2
        self._instance = InstanceId(instance)
        self._clock = clock
        self._history: deque[tuple[float, list[MetadataInterface]]] = deque()
        self._note()
        ec2.subscribe(self._instance, self._note)

    async def identity(self) -> InstanceIdentity:
        """See `InstanceMetadata`."""
        self._answer()
        return InstanceIdentity(
            instance_id=self._instance,
            instance_type=self._ec2.type_of(self._instance),
            region=REGION,
            zone=ZONE,
            account=ACCOUNT,
            mac=self._ec2.primary_of(self._instance).mac,
        )

    async def interfaces(self) -> list[MetadataInterface]:
        """See `InstanceMetadata`."""
        self._answer()
        if not self.tells_interfaces:
            raise MetadataError("the metadata service tells no interfaces")
        known_since = self._clock() - self.lag
        while len(self._history) > 1 and self._history[1][0] <= known_since:
            self._history.popleft()
        return self._history[0][1]

    async def end_notice(self) -> str | None:
        """See `InstanceMetadata`."""
        self._answer()
        return self.notice

    def _answer(self) -> None:
        if not self.reachable:
            raise MetadataError("the metadata service does not answer")

    def _note(self) -> None:
        records = self._ec2.describe_interfaces(self._instance, {}, "")
        told = [each for each in records if each.primary is not None]
        described = sorted(map(self._describe, told), key=lambda each: each.device_number)
        self._history.append((self._clock(), described))

    def _describe(self, record: InterfaceRecord) -> MetadataInterface:
        subnet = self._ec2.describe_subnet(record.subnet)
        cidrs = self._ec2.describe_vpc(subnet.vpc)
        addresses = sorted(each for each in record.ranges if each.version == 4 and each.prefixlen == 32)
        prefixes = sorted(each for each in record.ranges if each.version == 4 and each.prefixlen < 32)
        assert record.device_number is not None
        assert record.primary is not None
        return MetadataInterface(
            mac=record.mac,
            interface=record.id,
            device_number=record.device_number,
            subnet=record.subnet,
            subnet_ipv4=subnet.ipv4,
            vpc=subnet.vpc,
            vpc_ipv4s=tuple(each for each in cidrs if isinstance(each, IPv4Network)),
            vpc_ipv6s=tuple(each for each in cidrs if isinstance(each, IPv6Network)),
            local_ipv4s=(record.primary, *(IPv4Network(each).network_address for each in addresses)),
            ipv4_prefixes=tuple(map(IPv4Network, prefixes)),
            ipv6_prefixes=tuple(sorted(each for each in record.ranges if isinstance(each, IPv6Network))),
            groups=record.groups,
        )
