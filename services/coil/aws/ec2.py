"""EC2's API as a node uses it: typed answers, errors that can be told apart, and no retries but the caller's.

`Ec2` is the interface, `BotocoreEc2` the implementation over aiobotocore. Calls that change something are either
idempotent by a token (`create_interface`) or described again by the caller before they are repeated: the answer to one
that took place may have been lost.
"""

import asyncio
import time
from collections.abc import AsyncIterator, Callable, Collection, Mapping, Sequence
from contextlib import AbstractAsyncContextManager, AsyncExitStack, asynccontextmanager
from dataclasses import dataclass
from ipaddress import IPv4Address, IPv4Network, IPv6Network, ip_network
from typing import Any, NewType, Protocol, TypeVar

from aiobotocore.config import AioConfig
from aiobotocore.session import get_session
from aiohttp import ClientConnectorError
from botocore.exceptions import (
    BotoCoreError,
    ClientError,
    ConnectTimeoutError,
    EndpointConnectionError,
    NoCredentialsError,
)
from botocore.parsers import ResponseParserError

from coil.aws.call_budget import CallBudget
from coil.aws.call_metrics import Ec2CallMetrics
from coil.aws.error import Ec2Error, NotSentError, UnavailableError, error_of
from coil.aws.library_data import LibraryFiles
from coil.eni.interface import InterfaceId, NetworkInterface, SubnetId
from coil.eni.tag import is_managed
from coil.kernel.family import IPNetwork
from coil.kernel.link import MacAddress

InstanceId = NewType("InstanceId", str)
AttachmentId = NewType("AttachmentId", str)
Record = TypeVar("Record")
Parsed = TypeVar("Parsed")

CALL_SECONDS = 20.0
"""For one answer; EC2 usually takes well below one."""
CONNECT_SECONDS = 5.0
PAGE_SIZE = 200
MOST_PAGES = 500
"""An answer that goes on for longer than that has no end."""


@dataclass(frozen=True, slots=True, kw_only=True)
class InterfaceRecord:
    """An interface as EC2 has it. `device_number` and `attachment` are None while it is not attached, `primary` if it
    has no IPv4 address: for EFA only, or in a subnet of IPv6 only. Device numbers are of one `network_card`. `zone` is
    the availability zone of its subnet; empty where it was not told.
    """

    id: InterfaceId
    mac: MacAddress
    status: str
    subnet: SubnetId
    primary: IPv4Address | None
    ranges: frozenset[IPNetwork]
    groups: tuple[str, ...]
    tags: Mapping[str, str]
    zone: str = ""
    instance: InstanceId | None = None
    device_number: int | None = None
    network_card: int = 0
    attachment: AttachmentId | None = None
    deleted_with_instance: bool = False

    def attached(self, *, is_primary: bool) -> NetworkInterface | None:
        """As the node's ledger knows it; None while it is not attached, and without an IPv4 address."""
        if self.device_number is None or self.primary is None:
            return None
        return NetworkInterface(
            id=self.id,
            mac=self.mac,
            device_number=self.device_number,
            subnet=self.subnet,
            primary=self.primary,
            ranges=self.ranges,
            is_primary=is_primary,
            # The primary one is the instance's: nothing works without it.
            managed=is_primary or is_managed(self.tags),
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class SubnetRecord:
    """A subnet; `free` counts single addresses, which need not make up a prefix."""

    id: SubnetId
    vpc: str
    zone: str
    ipv4: IPv4Network
    free: int
    tags: Mapping[str, str]


@dataclass(frozen=True, slots=True, kw_only=True)
class InstanceLimits:
    """What EC2 allows an instance's type: interfaces of its first network card, and IPv4 addresses of each; and whether
    `prefixes` can take their place.
    """

    interfaces: int
    addresses: int
    prefixes: bool = True


@dataclass(frozen=True, slots=True, kw_only=True)
class InterfaceRequest:
    """An interface to be created: so many secondary addresses, or prefixes in their place.

    With the same `token`, EC2 creates one interface however often it is asked.
    """

    subnet: SubnetId
    groups: Sequence[str]
    token: str
    description: str
    tags: Mapping[str, str]
    addresses: int = 0
    prefixes: int = 0


class Ec2(Protocol):
    """All calls raise Ec2Error, and have no effect that was not asked for. Cancelled, a call may have taken place.

    An answer that is not understood is none (UnavailableError).
    """

    async def interfaces_of(self, instance: InstanceId) -> list[InterfaceRecord]:
        """Those that are attached to the instance, or are being so."""

    async def find_interfaces(self, tags: Mapping[str, str], *, status: str = "") -> list[InterfaceRecord]:
        """Those with all of these tags, and of that status if one is given."""

    async def create_interface(self, request: InterfaceRequest) -> InterfaceRecord: ...

    async def attach_interface(self, interface: InterfaceId, instance: InstanceId, *, device: int) -> AttachmentId: ...

    async def delete_with_instance(self, interface: InterfaceId, attachment: AttachmentId) -> None:
        """Have EC2 delete the interface when the instance is terminated. Idempotent."""

    async def detach_interface(self, attachment: AttachmentId) -> None: ...

    async def delete_interface(self, interface: InterfaceId) -> None: ...

    async def assign_addresses(self, interface: InterfaceId, count: int) -> frozenset[IPNetwork]:
        """So many more secondary addresses; returns them. Not idempotent."""

    async def assign_prefixes(self, interface: InterfaceId, count: int) -> frozenset[IPNetwork]:
        """So many more /28; returns them. Not idempotent."""

    async def unassign(self, interface: InterfaceId, ranges: Collection[IPNetwork]) -> None:
        """Take addresses and prefixes of IPv4 away."""

    async def assign_ipv6_prefix(self, interface: InterfaceId) -> IPv6Network:
        """One more /80; returns it. Not idempotent."""

    async def set_groups(self, interface: InterfaceId, groups: Collection[str]) -> None:
        """Have the interface in these security groups, and in no other. Idempotent."""

    async def subnet(self, subnet: SubnetId) -> SubnetRecord: ...

    async def find_subnets(self, vpc: str, zone: str, tags: Mapping[str, str]) -> list[SubnetRecord]:
        """Those of the VPC in that availability zone with all of these tags."""

    async def vpc_cidrs(self, vpc: str) -> list[IPNetwork]:
        """The CIDRs that the VPC has now, those of IPv4 first."""

    async def instance_limits(self, instance_type: str) -> InstanceLimits: ...


class LazyClient:
    """The library's client, made by `make` when it is first needed.

    The library looks for credentials once for each client, and without any the client is of no use for good: it is to
    be discarded, and the next one will look again. An async context manager, which closes the present one.
    """

    def __init__(self, make: Callable[[], AbstractAsyncContextManager[Any]]) -> None:
        self._make = make
        self._stack = AsyncExitStack()
        self._client: Any = None
        self._turn = asyncio.Lock()

    async def __aenter__(self) -> "LazyClient":
        return self

    async def __aexit__(self, *error: object) -> None:
        await self._stack.aclose()

    async def get(self) -> Any:
        """The client. Whatever the library raises; then nothing is left."""
        async with self._turn:
            if self._client is None:
                self._client = await self._stack.enter_async_context(self._make())
            return self._client

    async def discard(self, client: Any) -> None:
        """Make another one next time, unless that has been done already."""
        async with self._turn:
            if self._client is client:
                self._client = None
                await self._stack.aclose()


def open_session() -> Any:
    """The library's session, which creates clients. Nothing is read yet."""
    session = get_session()
    loader = session.get_component("data_loader")
    loader.file_loader = LibraryFiles(loader.file_loader, METHODS)
    return session


class BotocoreEc2:
    """Implements `Ec2`. Make one with `connect`."""

    def __init__(self, client: LazyClient, budget: CallBudget, metrics: Ec2CallMetrics | None = None) -> None:
        self._client = client
        self._budget = budget
        self._metrics = metrics or Ec2CallMetrics()

    @classmethod
    @asynccontextmanager
    async def connect(
        cls,
        *,
        region: str,
        budget: CallBudget,
        endpoint: str | None = None,
        metrics: Ec2CallMetrics | None = None,
    ) -> AsyncIterator["BotocoreEc2"]:
        """With the credentials that the environment has, by default the instance's role; nothing is asked yet.

        `endpoint` is a URL in place of AWS's own. Without `metrics` the calls are counted for nobody.
        """
        config = AioConfig(
            connect_timeout=CONNECT_SECONDS,
            read_timeout=CALL_SECONDS,
            # Retries are the budget's affair: it knows of all calls.
            retries={"total_max_attempts": 1},
        )
        session = open_session()

        def make() -> AbstractAsyncContextManager[Any]:
            client: AbstractAsyncContextManager[Any] = session.create_client(
                "ec2", region_name=region, endpoint_url=endpoint, config=config
            )
            return client

        async with LazyClient(make) as client:
            yield cls(client, budget, metrics)

    async def interfaces_of(self, instance: InstanceId) -> list[InterfaceRecord]:
        """See `Ec2`."""
        return await self._find_interfaces([{"Name": "attachment.instance-id", "Values": [instance]}])

    async def find_interfaces(self, tags: Mapping[str, str], *, status: str = "") -> list[InterfaceRecord]:
        """See `Ec2`."""
        filters = _tag_filters(tags)
        if status:
            filters.append({"Name": "status", "Values": [status]})
        return await self._find_interfaces(filters)

    async def create_interface(self, request: InterfaceRequest) -> InterfaceRecord:
        """See `Ec2`."""
        counts = {
            "SecondaryPrivateIpAddressCount": request.addresses,
            "Ipv4PrefixCount": request.prefixes,
        }
        answer = await self._call(
            "CreateNetworkInterface",
            SubnetId=request.subnet,
            Groups=list(request.groups),
            ClientToken=request.token,
            Description=request.description,
            TagSpecifications=[
                {
                    "ResourceType": "network-interface",
                    "Tags": [{"Key": key, "Value": value} for key, value in sorted(request.tags.items())],
                }
            ],
            **{name: count for name, count in counts.items() if count},
        )
        return _parse("CreateNetworkInterface", lambda: _interface(answer["NetworkInterface"]))

    async def attach_interface(self, interface: InterfaceId, instance: InstanceId, *, device: int) -> AttachmentId:
        """See `Ec2`."""
        answer = await self._call(
            "AttachNetworkInterface", NetworkInterfaceId=interface, InstanceId=instance, DeviceIndex=device
        )
        return _parse("AttachNetworkInterface", lambda: AttachmentId(answer["AttachmentId"]))

    async def delete_with_instance(self, interface: InterfaceId, attachment: AttachmentId) -> None:
        """See `Ec2`."""
        await self._call(
            "ModifyNetworkInterfaceAttribute",
            NetworkInterfaceId=interface,
            Attachment={"AttachmentId": attachment, "DeleteOnTermination": True},
        )

    async def detach_interface(self, attachment: AttachmentId) -> None:
        """See `Ec2`."""
        await self._call("DetachNetworkInterface", AttachmentId=attachment)

    async def delete_interface(self, interface: InterfaceId) -> None:
        """See `Ec2`."""
        await self._call("DeleteNetworkInterface", NetworkInterfaceId=interface)

    async def assign_addresses(self, interface: InterfaceId, count: int) -> frozenset[IPNetwork]:
        """See `Ec2`."""
        answer = await self._call(
            "AssignPrivateIpAddresses", NetworkInterfaceId=interface, SecondaryPrivateIpAddressCount=count
        )
        return _parse_ranges("AssignPrivateIpAddresses", answer, "AssignedPrivateIpAddresses", "PrivateIpAddress")

    async def assign_prefixes(self, interface: InterfaceId, count: int) -> frozenset[IPNetwork]:
        """See `Ec2`."""
        answer = await self._call("AssignPrivateIpAddresses", NetworkInterfaceId=interface, Ipv4PrefixCount=count)
        return _parse_ranges("AssignPrivateIpAddresses", answer, "AssignedIpv4Prefixes", "Ipv4Prefix")

    async def unassign(self, interface: InterfaceId, ranges: Collection[IPNetwork]) -> None:
        """See `Ec2`."""
        addresses = sorted(str(each.network_address) for each in ranges if each.prefixlen == each.max_prefixlen)
        prefixes = sorted(str(each) for each in ranges if each.prefixlen < each.max_prefixlen)
        # EC2 takes one of the two in a call.
        for name, values in (("PrivateIpAddresses", addresses), ("Ipv4Prefixes", prefixes)):
            if values:
                await self._call("UnassignPrivateIpAddresses", NetworkInterfaceId=interface, **{name: values})

    async def assign_ipv6_prefix(self, interface: InterfaceId) -> IPv6Network:
        """See `Ec2`."""
        answer = await self._call("AssignIpv6Addresses", NetworkInterfaceId=interface, Ipv6PrefixCount=1)
        return _parse("AssignIpv6Addresses", lambda: IPv6Network(_only(answer["AssignedIpv6Prefixes"])))

    async def set_groups(self, interface: InterfaceId, groups: Collection[str]) -> None:
        """See `Ec2`."""
        await self._call("ModifyNetworkInterfaceAttribute", NetworkInterfaceId=interface, Groups=sorted(groups))

    async def subnet(self, subnet: SubnetId) -> SubnetRecord:
        """See `Ec2`."""
        answer = await self._call("DescribeSubnets", SubnetIds=[subnet])
        return _parse("DescribeSubnets", lambda: _subnet(_only(answer["Subnets"])))

    async def find_subnets(self, vpc: str, zone: str, tags: Mapping[str, str]) -> list[SubnetRecord]:
        """See `Ec2`."""
        filters = [{"Name": "vpc-id", "Values": [vpc]}, {"Name": "availability-zone", "Values": [zone]}]
        found = await self._pages("DescribeSubnets", "Subnets", _subnet_of_ipv4, filters + _tag_filters(tags))
        return [each for each in found if each is not None]

    async def vpc_cidrs(self, vpc: str) -> list[IPNetwork]:
        """See `Ec2`."""
        answer = await self._call("DescribeVpcs", VpcIds=[vpc])
        return _parse("DescribeVpcs", lambda: _cidrs(_only(answer["Vpcs"])))

    async def instance_limits(self, instance_type: str) -> InstanceLimits:
        """See `Ec2`."""
        answer = await self._call("DescribeInstanceTypes", InstanceTypes=[instance_type])
        return _parse("DescribeInstanceTypes", lambda: _limits(_only(answer["InstanceTypes"])))

    async def _find_interfaces(self, filters: list[dict[str, Any]]) -> list[InterfaceRecord]:
        return await self._pages("DescribeNetworkInterfaces", "NetworkInterfaces", _interface, filters)

    async def _pages(
        self, call: str, field: str, parse: Callable[[Mapping[str, Any]], Record], filters: list[dict[str, Any]]
    ) -> list[Record]:
        found: list[Record] = []
        token: dict[str, str] = {}
        for _ in range(MOST_PAGES):
            answer = await self._call(call, Filters=filters, MaxResults=PAGE_SIZE, **token)
            found += _parse(call, lambda: [parse(each) for each in answer[field]])  # noqa: B023 - called at once
            if not (following := answer.get("NextToken")):
                return found
            token = {"NextToken": following}
        raise UnavailableError(call, "EndlessAnswer", f"more than {MOST_PAGES} pages")

    async def _call(self, call: str, **arguments: Any) -> dict[str, Any]:
        await self._budget.enter(call)
        begun = time.monotonic()
        try:
            answer = await self._ask(call, arguments)
        except Ec2Error as error:
            self._metrics.observe(call, time.monotonic() - begun, code=error.code)
            self._budget.note(error)
            raise
        self._metrics.observe(call, time.monotonic() - begun, code=None)
        self._budget.note(None)
        return answer

    async def _ask(self, call: str, arguments: Mapping[str, Any]) -> dict[str, Any]:
        client: Any = None
        try:
            async with asyncio.timeout(CONNECT_SECONDS + CALL_SECONDS):
                client = await self._client.get()
                answer: dict[str, Any] = await getattr(client, METHODS[call])(**arguments)
                return answer
        except ClientError as error:
            said = error.response.get("Error", {})
            status = error.response.get("ResponseMetadata", {}).get("HTTPStatusCode", 400)
            raise error_of(call, said.get("Code", ""), said.get("Message", ""), status=status) from error
        except NoCredentialsError as error:
            await self._client.discard(client)
            raise NotSentError(call, type(error).__name__, str(error)) from error
        except (BotoCoreError, ResponseParserError, ValueError, OSError, TimeoutError) as error:
            # ValueError: of an endpoint that is none, for one.
            kind = NotSentError if _without_connection(error) else UnavailableError
            raise kind(call, type(error).__name__, str(error)) from error


METHODS = {
    "AssignIpv6Addresses": "assign_ipv6_addresses",
    "AssignPrivateIpAddresses": "assign_private_ip_addresses",
    "AttachNetworkInterface": "attach_network_interface",
    "CreateNetworkInterface": "create_network_interface",
    "DeleteNetworkInterface": "delete_network_interface",
    "DescribeInstanceTypes": "describe_instance_types",
    "DescribeNetworkInterfaces": "describe_network_interfaces",
    "DescribeSubnets": "describe_subnets",
    "DescribeVpcs": "describe_vpcs",
    "DetachNetworkInterface": "detach_network_interface",
    "ModifyNetworkInterfaceAttribute": "modify_network_interface_attribute",
    "UnassignPrivateIpAddresses": "unassign_private_ip_addresses",
}
"""The operations, which are also the actions of an IAM policy (`ec2:` before them), and the library's methods."""


def _without_connection(error: Exception) -> bool:
    """Whether there was no connection over which the call could have gone. The library calls one that ended in the
    middle by the same name as one that did not come about; what it was made from tells them apart.
    """
    cause = error.__context__
    made = isinstance(error, EndpointConnectionError) and isinstance(cause, ClientConnectorError)
    return made or isinstance(error, ConnectTimeoutError)


def _parse(call: str, read: Callable[[], Parsed]) -> Parsed:
    """What `read` makes of an answer; one that is not understood does not say whether the call has taken place."""
    try:
        return read()
    except (LookupError, TypeError, ValueError, AttributeError) as error:
        raise UnavailableError(call, "UnexpectedAnswer", f"{type(error).__name__}: {error}") from error


def _parse_ranges(call: str, answer: Mapping[str, Any], field: str, name: str) -> frozenset[IPNetwork]:
    """What was assigned: something, or whoever asked would ask again at once."""
    ranges = _parse(call, lambda: frozenset(ip_network(entry[name]) for entry in answer[field]))
    if not ranges:
        raise UnavailableError(call, "UnexpectedAnswer", f"{field} is empty")
    return ranges


def _only(found: Sequence[Parsed]) -> Parsed:
    if len(found) != 1:
        raise ValueError(f"{len(found)} in place of one")
    return found[0]


def _cidrs(vpc: Mapping[str, Any]) -> list[IPNetwork]:
    states = {"associated", "associating"}
    ipv4 = [
        IPv4Network(each["CidrBlock"])
        for each in vpc.get("CidrBlockAssociationSet", ())
        if each["CidrBlockState"]["State"] in states
    ]
    ipv6 = [
        IPv6Network(each["Ipv6CidrBlock"])
        for each in vpc.get("Ipv6CidrBlockAssociationSet", ())
        if each["Ipv6CidrBlockState"]["State"] in states
    ]
    return [*sorted(ipv4), *sorted(ipv6)]


def _limits(described: Mapping[str, Any]) -> InstanceLimits:
    network = described["NetworkInfo"]
    first = next((card for card in network.get("NetworkCards", ()) if card["NetworkCardIndex"] == 0), network)
    return InstanceLimits(
        interfaces=int(first["MaximumNetworkInterfaces"]),
        addresses=int(network["Ipv4AddressesPerInterface"]),
        # For types built on the Nitro System (EC2 User Guide, "Prefix delegation for Amazon EC2 network interfaces"),
        # bare metal ones among them, which have no hypervisor. All others have Xen.
        prefixes=described.get("Hypervisor") != "xen",
    )


def _interface(document: Mapping[str, Any]) -> InterfaceRecord:
    own = document.get("PrivateIpAddress")
    secondary = [entry for entry in document.get("PrivateIpAddresses", ()) if not entry.get("Primary")]
    singles = {entry["PrivateIpAddress"] for entry in secondary} - {own}
    ranges: set[IPNetwork] = set(map(IPv4Network, singles))
    ranges |= {IPv4Network(entry["Ipv4Prefix"]) for entry in document.get("Ipv4Prefixes", ())}
    ranges |= {IPv6Network(entry["Ipv6Prefix"]) for entry in document.get("Ipv6Prefixes", ())}
    attachment = document.get("Attachment") or {}
    return InterfaceRecord(
        id=InterfaceId(document["NetworkInterfaceId"]),
        mac=MacAddress(document["MacAddress"].lower()),
        status=document["Status"],
        subnet=SubnetId(document["SubnetId"]),
        primary=IPv4Address(own) if own else None,
        ranges=frozenset(ranges),
        groups=tuple(group["GroupId"] for group in document.get("Groups", ())),
        tags=_tags(document.get("TagSet", ())),
        zone=document.get("AvailabilityZone", ""),
        instance=InstanceId(attachment["InstanceId"]) if attachment.get("InstanceId") else None,
        device_number=attachment.get("DeviceIndex"),
        network_card=attachment.get("NetworkCardIndex") or 0,
        attachment=AttachmentId(attachment["AttachmentId"]) if attachment.get("AttachmentId") else None,
        deleted_with_instance=bool(attachment.get("DeleteOnTermination")),
    )


def _subnet(document: Mapping[str, Any]) -> SubnetRecord:
    return SubnetRecord(
        id=SubnetId(document["SubnetId"]),
        vpc=document["VpcId"],
        zone=document["AvailabilityZone"],
        ipv4=IPv4Network(document["CidrBlock"]),
        free=document["AvailableIpAddressCount"],
        tags=_tags(document.get("Tags", ())),
    )


def _subnet_of_ipv4(document: Mapping[str, Any]) -> SubnetRecord | None:
    """None for a subnet of IPv6 only."""
    return _subnet(document) if document.get("CidrBlock") else None


def _tag_filters(tags: Mapping[str, str]) -> list[dict[str, Any]]:
    return [{"Name": f"tag:{key}", "Values": [value]} for key, value in sorted(tags.items())]


def _tags(entries: Sequence[Mapping[str, str]]) -> dict[str, str]:
    return {entry["Key"]: entry["Value"] for entry in entries}
