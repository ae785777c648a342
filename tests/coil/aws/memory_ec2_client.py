"""One program's connection to the EC2 in memory."""

from collections.abc import Callable, Collection, Iterator, Mapping
from functools import partial
from ipaddress import IPv6Network
from typing import TypeVar

from coil.aws import ec2 as wire
from coil.aws.call_budget import CallBudget
from coil.aws.ec2 import AttachmentId, InstanceId, InstanceLimits, InterfaceRecord, InterfaceRequest, SubnetRecord
from coil.aws.error import Ec2Error
from coil.eni.interface import InterfaceId, SubnetId
from coil.kernel.family import IPNetwork
from tests.coil.aws.memory_ec2 import MemoryEc2

Answer = TypeVar("Answer")
Record = TypeVar("Record")


class MemoryEc2Client:
    """Implements `Ec2`. `caller` is its name in the log of calls."""

    def __init__(self, ec2: MemoryEc2, *, caller: str = "", budget: CallBudget | None = None) -> None:
        self._ec2 = ec2
        self._caller = caller
        self._budget = budget

    async def interfaces_of(self, instance: InstanceId) -> list[InterfaceRecord]:
        """See `Ec2`."""
        return await self._pages("DescribeNetworkInterfaces", lambda: self._ec2.tell_interfaces(instance, {}, ""))

    async def find_interfaces(self, tags: Mapping[str, str], *, status: str = "") -> list[InterfaceRecord]:
        """See `Ec2`."""
        return await self._pages("DescribeNetworkInterfaces", lambda: self._ec2.tell_interfaces(None, tags, status))

    async def create_interface(self, request: InterfaceRequest) -> InterfaceRecord:
        """See `Ec2`."""
        return await self._call("CreateNetworkInterface", lambda: self._ec2.create(request))

    async def attach_interface(self, interface: InterfaceId, instance: InstanceId, *, device: int) -> AttachmentId:
        """See `Ec2`."""
        return await self._call("AttachNetworkInterface", lambda: self._ec2.attach(interface, instance, device))

    async def delete_with_instance(self, interface: InterfaceId, attachment: AttachmentId) -> None:
        """See `Ec2`."""
        await self._call(
            "ModifyNetworkInterfaceAttribute", lambda: self._ec2.delete_with_instance(interface, attachment)
        )

    async def detach_interface(self, attachment: AttachmentId) -> None:
        """See `Ec2`."""
        await self._call("DetachNetworkInterface", lambda: self._ec2.detach(attachment))

    async def delete_interface(self, interface: InterfaceId) -> None:
        """See `Ec2`."""
        await self._call("DeleteNetworkInterface", lambda: self._ec2.delete(interface))

    async def assign_addresses(self, interface: InterfaceId, count: int) -> frozenset[IPNetwork]:
        """See `Ec2`."""
        return await self._call("AssignPrivateIpAddresses", lambda: self._ec2.assign(interface, addresses=count))

    async def assign_prefixes(self, interface: InterfaceId, count: int) -> frozenset[IPNetwork]:
        """See `Ec2`."""
        return await self._call("AssignPrivateIpAddresses", lambda: self._ec2.assign(interface, prefixes=count))

    async def unassign(self, interface: InterfaceId, ranges: Collection[IPNetwork]) -> None:
        """See `Ec2`."""
        for group in _kinds(ranges):
            await self._call("UnassignPrivateIpAddresses", partial(self._ec2.unassign, interface, group))

    async def assign_ipv6_prefix(self, interface: InterfaceId) -> IPv6Network:
        """See `Ec2`."""
        return await self._call("AssignIpv6Addresses", lambda: self._ec2.assign_ipv6_prefix(interface))

    async def set_groups(self, interface: InterfaceId, groups: Collection[str]) -> None:
        """See `Ec2`."""
        await self._call("ModifyNetworkInterfaceAttribute", lambda: self._ec2.set_groups(interface, groups))

    async def subnet(self, subnet: SubnetId) -> SubnetRecord:
        """See `Ec2`."""
        return await self._call("DescribeSubnets", lambda: self._ec2.describe_subnet(subnet))

    async def find_subnets(self, vpc: str, zone: str, tags: Mapping[str, str]) -> list[SubnetRecord]:
        """See `Ec2`."""
        return await self._pages("DescribeSubnets", lambda: self._ec2.describe_subnets(vpc, zone, tags))

    async def vpc_cidrs(self, vpc: str) -> list[IPNetwork]:
        """See `Ec2`."""
        return await self._call("DescribeVpcs", lambda: self._ec2.describe_vpc(vpc))

    async def instance_limits(self, instance_type: str) -> InstanceLimits:
        """See `Ec2`."""
        return await self._call("DescribeInstanceTypes", lambda: self._ec2.describe_type(instance_type))

    async def _pages(self, action: str, describe: Callable[[], list[Record]]) -> list[Record]:
        found: list[Record] = []
        while True:
            # What comes and goes between two pages is seen, or not: as it is with EC2.
            everything = await self._call(action, describe)
            found += everything[len(found) : len(found) + wire.PAGE_SIZE]
            if len(found) >= len(everything):
                return found

    async def _call(self, action: str, act: Callable[[], Answer]) -> Answer:
        if self._budget is None:
            return await self._ec2.answer(action, act, caller=self._caller)
        await self._budget.enter(action)
        try:
            answer = await self._ec2.answer(action, act, caller=self._caller)
        except Ec2Error as error:
            self._budget.note(error)
            raise
        self._budget.note(None)
        return answer


def _kinds(ranges: Collection[IPNetwork]) -> Iterator[list[IPNetwork]]:
    """Addresses and prefixes apart, as one call takes one of the two."""
    addresses = [each for each in ranges if each.prefixlen == each.max_prefixlen]
    prefixes = [each for each in ranges if each.prefixlen < each.max_prefixlen]
    return filter(None, (addresses, prefixes))
