"""EC2 in memory, the only one of the unit tests. `ec2_contract` holds it to the ways of the strict one over HTTP.

    ec2 = MemoryEc2()
    instance = ec2.launch("m5.large", ec2.subnet("10.1.0.0/24"))
    client = MemoryEc2Client(ec2, caller="node-1")

`MemoryEc2` is one account's EC2 in one region; its synchronous methods are those of an administrator, and others who
have the account are further clients. `MemoryEc2Client` is one program's connection to it, an `Ec2`. Everything is
deterministic: addresses are drawn by `faults.random`.

Latency is the caller's `sleep`, half of it before a call takes place and half after: whoever is cancelled meanwhile
cannot know which it was. `gate` is called just before and just after; what it raises is the end of the call.
"""

import asyncio
import itertools
from collections import deque
from collections.abc import Awaitable, Callable, Collection, Mapping
from enum import Enum
from ipaddress import IPv4Address, IPv4Network, IPv6Network, ip_network
from typing import TypeVar

from coil.aws import ec2 as wire
from coil.aws.ec2 import AttachmentId, InstanceId, InstanceLimits, InterfaceRecord, InterfaceRequest, SubnetRecord
from coil.aws.error import Ec2Error, NotSentError, error_of
from coil.eni.interface import InterfaceId, SubnetId
from coil.kernel.family import IPNetwork
from coil.kernel.link import MacAddress
from tests.coil.aws.account_limits import AccountLimits
from tests.coil.aws.faults import Call, Faults
from tests.coil.aws.memory_interface import MemoryInstance, MemoryInterface
from tests.coil.aws.memory_subnet import MemorySubnet

Answer = TypeVar("Answer")

REGION = "eu-central-1"
ZONE = f"{REGION}a"
ACCOUNT = "123456789012"
DEFAULT_GROUP = "sg-default"
UNATTACHED_ADDRESSES = 50
"""Of an interface that no instance has; AWS's own limit is about there."""
INSTANCE_TYPES = {
    "t3.nano": InstanceLimits(interfaces=2, addresses=2),
    "t2.small": InstanceLimits(interfaces=3, addresses=4, prefixes=False),
    "m5.large": InstanceLimits(interfaces=3, addresses=10),
    "m5.xlarge": InstanceLimits(interfaces=4, addresses=15),
    "m5.4xlarge": InstanceLimits(interfaces=8, addresses=30),
}
"""EC2 User Guide, "Maximum IP addresses per network interface"."""


class Moment(Enum):
    BEFORE = "before"
    AFTER = "after"


TAGGING = "CreateTags"

Gate = Callable[[str, Moment], Awaitable[None]]
"""Called with the operation."""


async def _open(action: str, moment: Moment) -> None:
    pass


class MemoryEc2:
    """Shared by any number of `MemoryEc2Client`s. `clock` and `sleep` are the event loop's.

    Without `limits`, there are as many calls as anybody likes.
    """

    def __init__(
        self,
        *,
        types: Mapping[str, InstanceLimits] = INSTANCE_TYPES,
        limits: AccountLimits | None = None,
        clock: Callable[[], float] = lambda: 0.0,
        sleep: Callable[[float], Awaitable[None]] = asyncio.sleep,
    ) -> None:
        self.faults = Faults()
        self.calls: list[Call] = []
        self.gate: Gate = _open
        self.reachable = True
        """Where it is not, calls end without an answer after the client's time to connect."""
        self._types = types
        self._limits = limits
        self._clock = clock
        self._sleep = sleep
        self._numbers = itertools.count(1)
        self._vpcs: dict[str, list[IPNetwork]] = {}
        self._subnets: dict[SubnetId, MemorySubnet] = {}
        self._instances: dict[InstanceId, MemoryInstance] = {}
        self._interfaces: dict[InterfaceId, MemoryInterface] = {}
        self._for_efa: list[InterfaceRecord] = []
        self._attachments: dict[AttachmentId, MemoryInterface] = {}
        self._detaching: dict[AttachmentId, MemoryInterface] = {}
        self._tokens: dict[str, tuple[InterfaceRequest, InterfaceRecord]] = {}
        self._listeners: dict[InstanceId, list[Callable[[], None]]] = {}
        self._history: deque[tuple[float, list[InterfaceRecord]]] = deque()
        """All interfaces since a moment, as long as descriptions lag behind."""

    # --- what an administrator does

    def vpc(self, cidr: str = "10.1.0.0/16") -> str:
        """The id of the VPC with that CIDR, made on first use."""
        network = IPv4Network(cidr)
        for vpc, cidrs in self._vpcs.items():
            if network in cidrs:
                return vpc
        vpc = f"vpc-{next(self._numbers):017x}"
        self._vpcs[vpc] = [network]
        return vpc

    def add_cidr(self, vpc: str, cidr: str) -> None:
        """Associate one more CIDR with the VPC."""
        self._vpcs[vpc].append(ip_network(cidr))
        for instance in self._instances:
            self._notify(instance)

    def subnet(
        self, cidr: str, *, vpc: str = "", ipv6: str = "", tags: Mapping[str, str] | None = None, zone: str = ZONE
    ) -> str:
        """The id of a new subnet, by default of the VPC 10.1.0.0/16; `ipv6` is a /64."""
        made = MemorySubnet(
            id=SubnetId(f"subnet-{next(self._numbers):017x}"),
            vpc=vpc or self.vpc(),
            zone=zone,
            ipv4=IPv4Network(cidr),
            ipv6=IPv6Network(ipv6) if ipv6 else None,
            tags=dict(tags or {}),
        )
        self._subnets[made.id] = made
        return made.id

    def security_group(self, name: str, *, vpc: str = "") -> str:
        """The id of a new security group."""
        return f"sg-{next(self._numbers):017x}"

    def launch(self, instance_type: str, subnet: str, *, device: int = 0) -> str:
        """The id of a new instance with its primary interface, which some services have as another device than 0."""
        instance = MemoryInstance(
            InstanceId(f"i-{next(self._numbers):017x}"), instance_type, self._types[instance_type]
        )
        self._instances[instance.id] = instance
        request = InterfaceRequest(subnet=SubnetId(subnet), groups=(), token="", description="", tags={})
        primary = self._make("RunInstances", request)
        instance.primary = primary
        self._attach_to(instance, primary, device)
        primary.deleted_with_instance = True
        return instance.id

    def terminate(self, instance: str) -> None:
        """Interfaces that are to go with it go, the others become available."""
        for interface in list(self._instances.pop(InstanceId(instance)).devices.values()):
            goes = interface.deleted_with_instance
            self._free(interface)
            if goes:
                self._remove(interface)

    def count(self, action: str = "") -> int:
        """How often an operation was asked for, or all together."""
        return sum(call.action == action or not action for call in self.calls)

    def records(self) -> list[InterfaceRecord]:
        """All interfaces of the account, without a call."""
        self._detach_due()
        return [interface.record for interface in self._interfaces.values()]

    def type_of(self, instance: str) -> str:
        """Of a running instance."""
        return self._instances[InstanceId(instance)].type

    def attach_for_efa(self, instance: str, *, card: int, device: int) -> None:
        """An interface without an address, of a network card. Nothing becomes of it."""
        number = next(self._numbers)
        subnet = self.primary_of(instance).subnet
        self._for_efa.append(
            InterfaceRecord(
                id=InterfaceId(f"eni-{number:017x}"),
                mac=MacAddress(f"02:ef:a0:00:00:{number:02x}"),
                status="in-use",
                subnet=subnet,
                primary=None,
                ranges=frozenset(),
                groups=(DEFAULT_GROUP,),
                tags={},
                instance=InstanceId(instance),
                device_number=device,
                network_card=card,
                attachment=AttachmentId(f"eni-attach-{number:017x}"),
                deleted_with_instance=True,
            )
        )

    def tag(self, interface: str, **tags: str) -> None:
        """Set tags of an interface."""
        self._interfaces[InterfaceId(interface)].tags |= tags

    def primary_of(self, instance: str) -> InterfaceRecord:
        """The interface that a running instance was launched with."""
        primary = self._instances[InstanceId(instance)].primary
        assert primary is not None
        return primary.record

    def subscribe(self, instance: str, listener: Callable[[], None]) -> None:
        """Call it after each change of what is attached to the instance, or of the VPC."""
        self._listeners.setdefault(InstanceId(instance), []).append(listener)

    # --- as EC2 does it

    async def answer(self, action: str, act: Callable[[], Answer], *, caller: str) -> Answer:
        """One call, with what goes wrong with it."""
        if not self.reachable:
            await self._sleep(wire.CONNECT_SECONDS)
            raise NotSentError(action, "ConnectTimeoutError", "Connect timeout on endpoint")
        error = ""
        at = self._clock()
        try:
            if self.faults.latency:
                await self._sleep(self.faults.latency / 2)
            await self.gate(action, Moment.BEFORE)
            self._refuse(action)
            self._detach_due()
            self._note_history()
            answer = act()
            self._note_history()
            await self.gate(action, Moment.AFTER)
            if self.faults.latency:
                await self._sleep(self.faults.latency / 2)
            if self.faults.lost_answers[action] > 0:
                self.faults.lost_answers[action] -= 1
                raise error_of(action, "InternalError", "An internal error has occurred", status=500)
            return answer
        except Ec2Error as refusal:
            error = refusal.code
            raise
        finally:
            self.calls.append(Call(action, error, caller, at))

    def _refuse(self, action: str) -> None:
        limited = self._limits is not None and not self._limits.admit(action)
        if limited or self.faults.random.random() < self.faults.throttled:
            raise error_of(action, "RequestLimitExceeded", "Request limit exceeded.", status=503)
        if waiting := self.faults.refusals.get(action):
            raise error_of(action, waiting.pop(0), "injected")
        if action in self.faults.denied:
            raise _denial(action)

    def describe_interfaces(
        self, instance: InstanceId | None, tags: Mapping[str, str], status: str
    ) -> list[InterfaceRecord]:
        """By the filters that are given."""
        candidates: Collection[MemoryInterface] = self._interfaces.values()
        if instance is not None:
            known = self._instances.get(instance)
            candidates = known.devices.values() if known is not None else ()
        found = [each.record for each in candidates]
        found += [each for each in self._for_efa if each.instance == instance]
        return [each for each in found if tags.items() <= each.tags.items() and (not status or each.status == status)]

    def tell_interfaces(
        self, instance: InstanceId | None, tags: Mapping[str, str], status: str
    ) -> list[InterfaceRecord]:
        """By the filters, as it was a while ago."""
        if not self.faults.describe_lag:
            return self.describe_interfaces(instance, tags, status)
        return [
            each
            for each in self._history[0][1]
            if instance in (None, each.instance)
            and tags.items() <= each.tags.items()
            and (not status or each.status == status)
        ]

    def create(self, request: InterfaceRequest) -> InterfaceRecord:
        """The interface that the token has made already, or a new one."""
        action = "CreateNetworkInterface"
        if request.token in self._tokens:
            before, made = self._tokens[request.token]
            if _asked(before) != _asked(request):
                raise error_of(action, "IdempotentParameterMismatch", "The same client token as another request.")
            return self._interfaces[made.id].record if made.id in self._interfaces else made
        if request.tags and TAGGING in self.faults.denied:
            raise _denial(action)
        interface = self._make(action, request)
        self._tokens[request.token] = (request, interface.record)
        return interface.record

    def attach(self, interface: InterfaceId, instance: InstanceId, device: int) -> AttachmentId:
        """As the device of that number."""
        action = "AttachNetworkInterface"
        found = self._find(action, interface)
        holder = self._instances.get(instance)
        if holder is None:
            raise error_of(action, "InvalidInstanceID.NotFound", f"The instance ID '{instance}' does not exist")
        if found.instance is not None:
            raise error_of(action, "InvalidNetworkInterface.InUse", f"Interface: [{found.id}] in use.")
        if holder.primary is None or found.subnet.zone != holder.primary.subnet.zone:
            raise error_of(
                action,
                "InvalidParameterCombination",
                "You may not attach a network interface to an instance if they are not in the same availability zone",
            )
        if device in holder.devices:
            raise error_of(action, "InvalidParameterValue", f"Instance '{instance}' already has device {device}")
        if len(holder.devices) >= holder.limits.interfaces:
            raise error_of(action, "AttachmentLimitExceeded", f"Interface count exceeds the limit for {instance}")
        if not holder.limits.prefixes and any(each.prefixlen < each.max_prefixlen for each in found.ranges):
            raise error_of(action, "UnsupportedOperation", f"Instances of this type have no prefixes: {found.id}")
        if found.slots_used > holder.limits.addresses:
            raise error_of(action, "PrivateIpAddressLimitExceeded", f"interface: {found.id}")
        return self._attach_to(holder, found, device)

    def delete_with_instance(self, interface: InterfaceId, attachment: AttachmentId) -> None:
        """DeleteOnTermination of the attachment."""
        action = "ModifyNetworkInterfaceAttribute"
        found = self._find(action, interface)
        if found.attachment != attachment:
            raise error_of(action, "InvalidAttachmentID.NotFound", f"The attachment '{attachment}' does not exist")
        found.deleted_with_instance = True

    def detach(self, attachment: AttachmentId) -> None:
        """After `faults.detaching`, until when the interface is in use."""
        action = "DetachNetworkInterface"
        found = self._attachments.get(attachment)
        if found is None:
            raise error_of(action, "InvalidAttachmentID.NotFound", f"The attachment '{attachment}' does not exist")
        if found.device_number == 0 or self._is_primary(found):
            raise error_of(action, "OperationNotPermitted", "The network interface at device index 0 stays.")
        if found.detached_at is not None:
            raise error_of(action, "IncorrectState", f"The attachment '{attachment}' is detaching")
        found.detached_at = self._clock() + self.faults.detaching
        self._detaching[attachment] = found
        self._detach_due()

    def delete(self, interface: InterfaceId) -> None:
        """One that is not attached."""
        action = "DeleteNetworkInterface"
        found = self._find(action, interface)
        if found.instance is not None:
            raise error_of(action, "InvalidParameterValue", f"Network interface '{found.id}' is currently in use.")
        self._remove(found)

    def assign(self, interface: InterfaceId, *, addresses: int = 0, prefixes: int = 0) -> frozenset[IPNetwork]:
        """One of the two, and returns what is new."""
        action = "AssignPrivateIpAddresses"
        found = self._find(action, interface)
        if bool(addresses) == bool(prefixes):
            raise error_of(action, "InvalidParameterCombination", "Addresses or prefixes, one of the two.")
        limits = None if found.instance is None else self._instances[found.instance].limits
        room = limits.addresses if limits is not None else UNATTACHED_ADDRESSES
        if found.slots_used + addresses + prefixes > room:
            raise error_of(
                action, "PrivateIpAddressLimitExceeded", f"Number of private addresses exceeds limit: {found.id}"
            )
        if prefixes and limits is not None and not limits.prefixes:
            raise error_of(action, "UnsupportedOperation", f"Instances of this type have no prefixes: {found.id}")
        if addresses:
            new = set(map(ip_network, self._pick(action, found.subnet, addresses)))
        else:
            new = set(self._pick_prefixes(action, found.subnet, prefixes))
        found.ranges |= new
        self._notify(found.instance)
        return frozenset(new)

    def unassign(self, interface: InterfaceId, ranges: Collection[IPNetwork]) -> None:
        """All of them or none."""
        action = "UnassignPrivateIpAddresses"
        found = self._find(action, interface)
        if unknown := sorted(str(each) for each in ranges if each not in found.ranges or each.version == 6):
            raise error_of(action, "InvalidParameterValue", f"Some of {unknown} are not assigned to {found.id}")
        found.ranges -= set(ranges)
        found.subnet.give_back(ranges)
        self._notify(found.instance)

    def assign_ipv6_prefix(self, interface: InterfaceId) -> IPv6Network:
        """One more."""
        action = "AssignIpv6Addresses"
        found = self._find(action, interface)
        if found.subnet.ipv6 is None:
            raise error_of(action, "InvalidParameterValue", f"The subnet {found.subnet.id} has no IPv6 CIDR block")
        prefix = found.subnet.take_ipv6_prefix(self.faults.random)
        found.ranges.add(prefix)
        self._notify(found.instance)
        return prefix

    def set_groups(self, interface: InterfaceId, groups: Collection[str]) -> None:
        """In place of those that it has."""
        found = self._find("ModifyNetworkInterfaceAttribute", interface)
        found.groups = tuple(sorted(groups))
        self._notify(found.instance)

    def describe_subnets(self, vpc: str, zone: str, tags: Mapping[str, str]) -> list[SubnetRecord]:
        """By the filters."""
        return [
            each.record
            for each in self._subnets.values()
            if (each.vpc, each.zone) == (vpc, zone) and tags.items() <= each.tags.items()
        ]

    def describe_subnet(self, subnet: SubnetId) -> SubnetRecord:
        """By its id."""
        if (found := self._subnets.get(subnet)) is None:
            raise error_of("DescribeSubnets", "InvalidSubnetID.NotFound", f"The subnet ID '{subnet}' does not exist")
        return found.record

    def describe_vpc(self, vpc: str) -> list[IPNetwork]:
        """Its CIDRs, those of IPv4 first."""
        if vpc not in self._vpcs:
            raise error_of("DescribeVpcs", "InvalidVpcID.NotFound", f"The vpc ID '{vpc}' does not exist")
        return sorted(self._vpcs[vpc], key=lambda each: (each.version, int(each.network_address)))

    def describe_type(self, instance_type: str) -> InstanceLimits:
        """By its name."""
        if (found := self._types.get(instance_type)) is None:
            raise error_of("DescribeInstanceTypes", "InvalidInstanceType", f"[{instance_type}] does not exist")
        return found

    # --- inside

    def _note_history(self) -> None:
        lag, now = self.faults.describe_lag, self._clock()
        if not lag:
            self._history.clear()
            return
        records = [interface.record for interface in self._interfaces.values()]
        if not self._history or self._history[-1][1] != records:
            self._history.append((now, records))
        while len(self._history) > 1 and self._history[1][0] <= now - lag:
            self._history.popleft()

    def _notify(self, instance: InstanceId | None) -> None:
        if instance in self._instances:
            for listener in self._listeners.get(instance, ()):
                listener()

    def _find(self, action: str, interface: InterfaceId) -> MemoryInterface:
        if (found := self._interfaces.get(interface)) is None:
            raise error_of(action, "InvalidNetworkInterfaceID.NotFound", f"'{interface}' does not exist")
        return found

    def _make(self, action: str, request: InterfaceRequest) -> MemoryInterface:
        if request.addresses and request.prefixes:
            raise error_of(action, "InvalidParameterCombination", "Addresses or prefixes, not both.")
        subnet = self._subnets.get(request.subnet)
        if subnet is None:
            raise error_of(action, "InvalidSubnetID.NotFound", f"The subnet ID '{request.subnet}' does not exist")
        prefixes = self._pick_prefixes(action, subnet, request.prefixes)
        try:
            primary, *secondary = self._pick(action, subnet, 1 + request.addresses)
        except Ec2Error:
            subnet.give_back(prefixes)
            raise
        number = next(self._numbers)
        interface = MemoryInterface(
            id=InterfaceId(f"eni-{number:017x}"),
            mac=MacAddress(":".join(f"{octet:02x}" for octet in (0x02, 0xCA, *number.to_bytes(4, "big")))),
            subnet=subnet,
            primary=primary,
            ranges={*map(ip_network, secondary), *prefixes},
            groups=tuple(request.groups) or (DEFAULT_GROUP,),
            tags=dict(request.tags),
        )
        self._interfaces[interface.id] = interface
        return interface

    def _attach_to(self, instance: MemoryInstance, interface: MemoryInterface, device: int) -> AttachmentId:
        attachment = AttachmentId(f"eni-attach-{next(self._numbers):017x}")
        interface.instance, interface.device_number, interface.attachment = instance.id, device, attachment
        interface.deleted_with_instance = False
        instance.devices[device] = interface
        self._attachments[attachment] = interface
        self._notify(instance.id)
        return attachment

    def _detach_due(self) -> None:
        for interface in list(self._detaching.values()):
            if interface.detached_at is not None and interface.detached_at <= self._clock():
                self._free(interface)

    def _is_primary(self, interface: MemoryInterface) -> bool:
        holder = self._instances.get(interface.instance) if interface.instance is not None else None
        return holder is not None and holder.primary is interface

    def _free(self, interface: MemoryInterface) -> None:
        assert interface.attachment is not None
        del self._attachments[interface.attachment]
        self._detaching.pop(interface.attachment, None)
        if interface.instance in self._instances:
            assert interface.device_number is not None
            del self._instances[interface.instance].devices[interface.device_number]
        holder, interface.instance = interface.instance, None
        interface.device_number = interface.attachment = interface.detached_at = None
        interface.deleted_with_instance = False
        self._notify(holder)

    def _remove(self, interface: MemoryInterface) -> None:
        del self._interfaces[interface.id]
        interface.subnet.give_back({*interface.ranges, IPv4Network(interface.primary)})

    def _pick(self, action: str, subnet: MemorySubnet, count: int) -> list[IPv4Address]:
        if subnet.free < count:
            raise error_of(
                action, "InsufficientFreeAddressesInSubnet", f"The specified subnet has not enough: {subnet.id}"
            )
        return subnet.take_addresses(count, self.faults.random)

    def _pick_prefixes(self, action: str, subnet: MemorySubnet, count: int) -> list[IPv4Network]:
        taken = subnet.take_prefixes(count, self.faults.random)
        if taken is None:
            raise error_of(
                action, "InsufficientCidrBlocks", f"The specified subnet has not enough free cidr blocks: {subnet.id}"
            )
        return taken


def _asked(request: InterfaceRequest) -> tuple[object, ...]:
    counts = (request.addresses, request.prefixes)
    return request.subnet, tuple(request.groups), sorted(request.tags.items()), counts


def _denial(action: str) -> Ec2Error:
    return error_of(action, "UnauthorizedOperation", "You are not authorized to perform this operation.", status=403)
