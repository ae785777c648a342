"""What comes of answers that nobody expects: they are errors like any other, and end no process."""

from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from typing import Any

import pytest
from botocore.parsers import ResponseParserError

from coil.aws.call_budget import CallBudget, Rate
from coil.aws.ec2 import MOST_PAGES, BotocoreEc2, InstanceId, InstanceLimits, InterfaceRequest, LazyClient
from coil.aws.error import LONGEST_MESSAGE, DeniedError, SubnetFullError, ThrottledError, UnavailableError, error_of
from coil.eni.interface import InterfaceId, SubnetId

INTERFACE = InterfaceId("eni-1")
REQUEST = InterfaceRequest(subnet=SubnetId("subnet-1"), groups=(), token="t", description="", tags={})
EFA_ONLY: dict[str, Any] = {
    "NetworkInterfaceId": "eni-2",
    "MacAddress": "06:00:00:00:00:02",
    "Status": "in-use",
    "SubnetId": "subnet-1",
    "Attachment": {"InstanceId": "i-1", "DeviceIndex": 1, "AttachmentId": "eni-attach-2"},
}


class Library:
    """A client that answers each call with the same."""

    def __init__(self, answer: dict[str, Any] | Exception) -> None:
        self._answer = answer
        self.calls = 0
        self.asked: list[dict[str, Any]] = []

    @asynccontextmanager
    async def make(self) -> AsyncIterator["Library"]:
        yield self

    def __getattr__(self, name: str) -> Callable[..., Awaitable[dict[str, Any]]]:
        async def call(**arguments: Any) -> dict[str, Any]:
            self.calls += 1
            self.asked.append(arguments)
            if isinstance(self._answer, Exception):
                raise self._answer
            return self._answer

        return call


@asynccontextmanager
async def answering(answer: dict[str, Any] | Exception) -> AsyncIterator[tuple[BotocoreEc2, Library]]:
    library = Library(answer)
    budget = CallBudget({}, default=Rate(10**6, 1.0), clock=lambda: 0.0, random=lambda: 0.5)
    async with LazyClient(library.make) as client:
        yield BotocoreEc2(client, budget), library


CALLS: dict[str, Callable[[BotocoreEc2], Awaitable[object]]] = {
    "interfaces_of": lambda ec2: ec2.interfaces_of(InstanceId("i-1")),
    "create_interface": lambda ec2: ec2.create_interface(REQUEST),
    "attach_interface": lambda ec2: ec2.attach_interface(INTERFACE, InstanceId("i-1"), device=1),
    "assign_addresses": lambda ec2: ec2.assign_addresses(INTERFACE, 1),
    "assign_prefixes": lambda ec2: ec2.assign_prefixes(INTERFACE, 1),
    "assign_ipv6_prefix": lambda ec2: ec2.assign_ipv6_prefix(INTERFACE),
    "subnet": lambda ec2: ec2.subnet(SubnetId("subnet-1")),
    "find_subnets": lambda ec2: ec2.find_subnets("vpc-1", "a", {}),
    "vpc_cidrs": lambda ec2: ec2.vpc_cidrs("vpc-1"),
    "instance_limits": lambda ec2: ec2.instance_limits("x1.unknown"),
}
SENSELESS: dict[str, Any] = {
    "NetworkInterfaces": [{"NetworkInterfaceId": "eni-1"}],
    "NetworkInterface": {"NetworkInterfaceId": "eni-1", "MacAddress": None},
    "AssignedPrivateIpAddresses": [{"PrivateIpAddress": "no address"}],
    "AssignedIpv4Prefixes": [{"Ipv4Prefix": "10.0.0.1/28"}],
    "AssignedIpv6Prefixes": [],
    "Subnets": [{"SubnetId": "subnet-1", "CidrBlock": "10.0.0.0/24"}],
    "Vpcs": [],
    "InstanceTypes": [],
}


@pytest.mark.parametrize("answer", [{}, SENSELESS, ResponseParserError("not XML")], ids=["nothing", "nonsense", "html"])
@pytest.mark.parametrize("call", CALLS)
async def test_an_answer_that_is_not_understood_is_none(call: str, answer: dict[str, Any] | Exception) -> None:
    async with answering(answer) as (ec2, _):
        with pytest.raises(UnavailableError):
            await CALLS[call](ec2)


@pytest.mark.parametrize("field", ["AssignedPrivateIpAddresses", "AssignedIpv4Prefixes"])
async def test_an_assignment_of_nothing_is_not_a_success(field: str) -> None:
    # Whoever asked would ask again at once, for ever.
    async with answering({field: []}) as (ec2, _):
        with pytest.raises(UnavailableError):
            await (ec2.assign_addresses if "Private" in field else ec2.assign_prefixes)(INTERFACE, 1)


async def test_interfaces_are_asked_for_by_what_they_are_and_not_by_their_ids() -> None:
    """One id that EC2 does not know, and it describes none of the others."""
    async with answering({"NetworkInterfaces": []}) as (ec2, library):
        assert await ec2.interfaces_of(InstanceId("i-1")) == []
        assert await ec2.find_interfaces({"cluster": "blue"}, status="available") == []
    filters = [{each["Name"] for each in asked["Filters"]} for asked in library.asked]
    assert filters == [{"attachment.instance-id"}, {"tag:cluster", "status"}]
    assert all("NetworkInterfaceIds" not in asked for asked in library.asked)


async def test_an_answer_without_an_end_is_given_up() -> None:
    async with answering({"NetworkInterfaces": [], "NextToken": "again"}) as (ec2, library):
        with pytest.raises(UnavailableError, match="pages"):
            await ec2.find_interfaces({})
        assert library.calls == MOST_PAGES


async def test_an_interface_without_an_ipv4_address_hides_no_other() -> None:
    async with answering({"NetworkInterfaces": [EFA_ONLY]}) as (ec2, _):
        [found] = await ec2.interfaces_of(InstanceId("i-1"))
    assert (found.device_number, found.primary, found.attached(is_primary=False)) == (1, None, None)


async def test_a_subnet_of_ipv6_only_hides_no_other() -> None:
    usable = {
        **{"SubnetId": "subnet-1", "VpcId": "vpc-1", "AvailabilityZone": "a"},
        **{"CidrBlock": "10.0.0.0/24", "AvailableIpAddressCount": 9},
    }
    async with answering({"Subnets": [{"SubnetId": "subnet-6", "Ipv6Native": True}, usable]}) as (ec2, _):
        assert [each.id for each in await ec2.find_subnets("vpc-1", "a", {})] == ["subnet-1"]


def test_what_is_told_of_a_refusal_is_short() -> None:
    cipher = "You are not authorized. Encoded authorization failure message: " + 4000 * "x"
    denied = error_of("AssignPrivateIpAddresses", "UnauthorizedOperation", cipher)
    assert isinstance(denied, DeniedError)
    assert str(denied) == "AssignPrivateIpAddresses: UnauthorizedOperation: You are not authorized."
    assert len(str(error_of("X", "Y", 4000 * "z"))) < LONGEST_MESSAGE + 20


def test_a_full_subnet_has_a_second_word_that_says_nothing() -> None:
    said = "There aren't sufficient free Ipv4 addresses or prefixes"
    assert isinstance(error_of("CreateNetworkInterface", "InvalidParameterValue", said), SubnetFullError)
    other = error_of("CreateNetworkInterface", "InvalidParameterValue", "Invalid id")
    assert not isinstance(other, SubnetFullError)


@pytest.mark.parametrize(
    ("code", "status"), [("RequestThrottled", 400), ("TooManyRequestsException", 400), ("SlowDown", 503), ("New", 429)]
)
def test_every_word_for_too_many_calls_is_known(code: str, status: int) -> None:
    assert isinstance(error_of("DescribeVpcs", code, "", status=status), ThrottledError)


@pytest.mark.parametrize(
    ("described", "prefixes"),
    [({"Hypervisor": "nitro"}, True), ({"Hypervisor": "xen"}, False), ({"BareMetal": True}, True)],
)
async def test_the_hypervisor_decides_on_prefixes(described: dict[str, Any], prefixes: bool) -> None:
    network = {"MaximumNetworkInterfaces": 3, "Ipv4AddressesPerInterface": 10}
    async with answering({"InstanceTypes": [{"NetworkInfo": network, **described}]}) as (ec2, _):
        assert await ec2.instance_limits("any") == InstanceLimits(interfaces=3, addresses=10, prefixes=prefixes)


async def test_the_limit_of_interfaces_is_that_of_the_first_network_card() -> None:
    cards = [{"NetworkCardIndex": index, "MaximumNetworkInterfaces": 15 - index} for index in range(4)]
    network = {"MaximumNetworkInterfaces": 60, "Ipv4AddressesPerInterface": 50, "NetworkCards": cards}
    async with answering({"InstanceTypes": [{"NetworkInfo": network}]}) as (ec2, _):
        assert await ec2.instance_limits("p4d.24xlarge") == InstanceLimits(interfaces=15, addresses=50)
