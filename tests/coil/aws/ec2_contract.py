"""What the suite relies on in EC2, each refusal with AWS's own code. Run on the one in memory, and on the strict one
with the product's client over HTTP.

Subclasses give a fixture `account` and a fixture `client` that speaks to it.
"""

from collections.abc import Mapping
from ipaddress import IPv4Network, IPv6Network
from typing import Protocol

import pytest

from coil.aws.ec2 import AttachmentId, Ec2, InstanceId, InterfaceRecord, InterfaceRequest
from coil.aws.error import (
    DeniedError,
    Ec2Error,
    GoneError,
    InUseError,
    LimitError,
    SubnetFullError,
    ThrottledError,
    UnavailableError,
)
from coil.eni.interface import InterfaceId, SubnetId
from coil.eni.tag import SUBNET_TAG, SUBNET_VALUE
from tests.coil.aws.faults import Faults

TYPE = "m5.large"
"""Three interfaces with ten addresses each (EC2 User Guide, "Maximum IP addresses per network interface")."""
XEN = "t2.small"
OTHER_ZONE = "eu-central-1b"
TAGS = {"cluster.coil/name": "test", "node.coil/name": "node-1"}


class Account(Protocol):
    """What an administrator does, and what goes wrong."""

    @property
    def faults(self) -> Faults: ...

    def vpc(self, cidr: str = "10.1.0.0/16") -> str: ...

    def subnet(
        self, cidr: str, *, vpc: str = "", ipv6: str = "", tags: dict[str, str] | None = None, zone: str = ...
    ) -> str: ...

    def security_group(self, name: str, *, vpc: str = "") -> str: ...

    def launch(self, instance_type: str, subnet: str) -> str: ...

    def terminate(self, instance: str) -> None: ...

    def count(self, action: str = "") -> int: ...


def request(
    subnet: str, *, token: str = "", addresses: int = 0, prefixes: int = 0, tags: Mapping[str, str] = TAGS
) -> InterfaceRequest:
    """With the same token unless told otherwise."""
    return InterfaceRequest(
        subnet=SubnetId(subnet),
        groups=(),
        token=token or "one",
        description="of a test",
        tags=tags,
        addresses=addresses,
        prefixes=prefixes,
    )


async def attach(
    client: Ec2, subnet: str, instance: str, *, device: int, addresses: int = 0, prefixes: int = 0
) -> InterfaceRecord:
    wanted = request(subnet, token=f"{instance}-{device}", addresses=addresses, prefixes=prefixes)
    made = await client.create_interface(wanted)
    attachment = await client.attach_interface(made.id, InstanceId(instance), device=device)
    await client.delete_with_instance(made.id, attachment)
    [record] = [each for each in await client.interfaces_of(InstanceId(instance)) if each.id == made.id]
    return record


async def primary(client: Ec2, instance: str) -> InterfaceRecord:
    [found] = [each for each in await client.interfaces_of(InstanceId(instance)) if each.device_number == 0]
    return found


class Ec2Contract:
    # --- the way of an interface

    async def test_create_attach_assign_unassign_detach_delete(self, account: Account, client: Ec2) -> None:
        subnet = account.subnet("10.1.0.0/24")
        instance = account.launch(TYPE, subnet)
        record = await attach(client, subnet, instance, device=1, addresses=3)
        assert (record.status, record.device_number, record.instance) == ("in-use", 1, instance)
        assert (len(record.ranges), record.deleted_with_instance, dict(record.tags)) == (3, True, TAGS)
        new = await client.assign_addresses(record.id, 2)
        assert len(new) == 2
        assert not new & record.ranges, "the answer has what the call brought about, and nothing else"
        await client.unassign(record.id, record.ranges)
        [_, after] = sorted(await client.interfaces_of(InstanceId(instance)), key=lambda each: each.device_number or 0)
        assert after.ranges == new
        assert after.attachment is not None
        await client.detach_interface(after.attachment)
        [idle] = await client.find_interfaces(TAGS, status="available")
        assert (idle.id, idle.instance, idle.device_number, idle.attachment) == (record.id, None, None, None)
        assert idle.ranges == new, "an interface keeps its addresses without an instance"
        await client.delete_interface(idle.id)
        assert await client.find_interfaces(TAGS) == []

    async def test_a_new_instance_has_its_primary_interface(self, account: Account, client: Ec2) -> None:
        subnet = account.subnet("10.1.0.0/24")
        instances = [account.launch(TYPE, subnet) for _ in range(2)]
        first, second = [await primary(client, instance) for instance in instances]
        assert (set(first.ranges), first.subnet, first.status, first.instance) == (
            set(),
            subnet,
            "in-use",
            instances[0],
        )
        assert first.primary is not None
        assert first.primary in IPv4Network("10.1.0.0/24")
        for name in ("id", "mac", "primary", "attachment"):
            assert getattr(first, name) != getattr(second, name)

    async def test_prefixes_are_aligned_and_free(self, account: Account, client: Ec2) -> None:
        subnet = account.subnet("10.1.0.0/24")
        instance = account.launch(TYPE, subnet)
        record = await attach(client, subnet, instance, device=1, prefixes=2)
        new = await client.assign_prefixes(record.id, 3)
        everything = record.ranges | new
        assert len(everything) == 5
        assert all(isinstance(each, IPv4Network) and each.prefixlen == 28 for each in everything)
        assert record.primary is not None
        assert not any(record.primary in each for each in everything)
        singles = await client.assign_addresses(record.id, 4)
        assert not any(single.overlaps(each) for single in singles for each in everything)
        await client.unassign(record.id, new | singles)
        [after] = [each for each in await client.interfaces_of(InstanceId(instance)) if each.id == record.id]
        assert after.ranges == record.ranges
        assert account.count("UnassignPrivateIpAddresses") == 2, "addresses and prefixes are two calls"

    async def test_limits_and_networks_are_told(self, account: Account, client: Ec2) -> None:
        subnet = account.subnet("10.1.0.0/28", tags={"use": "pods"})
        limits = await client.instance_limits(TYPE)
        assert (limits.interfaces, limits.addresses) == (3, 10)
        found = await client.subnet(SubnetId(subnet))
        assert (found.vpc, str(found.ipv4), found.tags) == (account.vpc(), "10.1.0.0/28", {"use": "pods"})
        assert [str(each) for each in await client.vpc_cidrs(found.vpc)] == ["10.1.0.0/16"]

    async def test_interfaces_are_found_by_all_of_the_tags(self, account: Account, client: Ec2) -> None:
        subnet = account.subnet("10.1.0.0/24")
        other = {**TAGS, "node.coil/name": "node-2"}
        one = await client.create_interface(request(subnet, token="first"))
        two = await client.create_interface(request(subnet, token="second", tags=other))
        common = {"cluster.coil/name": "test"}
        assert {each.id for each in await client.find_interfaces(common)} == {one.id, two.id}
        assert [each.id for each in await client.find_interfaces(other)] == [two.id]
        assert await client.find_interfaces(common, status="in-use") == []
        assert await client.find_interfaces({**common, "else": ""}) == []

    async def test_pages(self, account: Account, client: Ec2, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr("coil.aws.ec2.PAGE_SIZE", 5)
        subnet = account.subnet("10.1.0.0/24")
        for number in range(12):
            await client.create_interface(request(subnet, token=str(number)))
        assert len({each.id for each in await client.find_interfaces(TAGS)}) == 12
        assert account.count("DescribeNetworkInterfaces") == 3

    async def test_subnets_are_found_by_vpc_zone_and_tag(self, account: Account, client: Ec2) -> None:
        tags = {SUBNET_TAG: SUBNET_VALUE}
        plain = await client.subnet(SubnetId(account.subnet("10.1.0.0/24")))
        tagged = {account.subnet("10.1.1.0/24", tags=tags), account.subnet("10.1.2.0/28", tags=tags)}
        account.subnet("10.2.1.0/24", vpc=account.vpc("10.2.0.0/16"), tags=tags)
        found = await client.find_subnets(account.vpc(), plain.zone, tags)
        assert {each.id for each in found} == tagged
        assert {str(each.ipv4): each.free for each in found} == {"10.1.1.0/24": 251, "10.1.2.0/28": 11}
        elsewhere = account.subnet("10.1.3.0/24", tags=tags, zone=OTHER_ZONE)
        assert {each.id for each in await client.find_subnets(account.vpc(), plain.zone, tags)} == tagged
        assert {each.id for each in await client.find_subnets(account.vpc(), OTHER_ZONE, tags)} == {elsewhere}
        assert await client.find_subnets(account.vpc(), "another zone", tags) == []

    async def test_security_groups_are_replaced(self, account: Account, client: Ec2) -> None:
        found = await primary(client, account.launch(TYPE, account.subnet("10.1.0.0/24")))
        [group] = found.groups
        other = account.security_group("other")
        await client.set_groups(found.id, [other, group])
        assert set((await primary(client, str(found.instance))).groups) == {group, other}
        await client.set_groups(found.id, [other])
        assert (await primary(client, str(found.instance))).groups == (other,)

    async def test_an_ipv6_prefix_is_of_the_subnet_and_nobody_elses(self, account: Account, client: Ec2) -> None:
        subnet = account.subnet("10.1.0.0/24", ipv6="2001:db8:0:1::/64")
        found = [await primary(client, account.launch(TYPE, subnet)) for _ in range(2)]
        prefixes = [await client.assign_ipv6_prefix(each.id) for each in found]
        assert len(set(prefixes)) == 2
        assert all(each.prefixlen == 80 and each.subnet_of(IPv6Network("2001:db8:0:1::/64")) for each in prefixes)
        assert (await primary(client, str(found[0].instance))).ranges == {prefixes[0]}

    async def test_a_subnet_without_ipv6_has_no_prefix_to_give(self, account: Account, client: Ec2) -> None:
        found = await primary(client, account.launch(TYPE, account.subnet("10.1.0.0/24")))
        with pytest.raises(Ec2Error, match="InvalidParameterValue"):
            await client.assign_ipv6_prefix(found.id)

    # --- refusals

    async def test_a_token_makes_one_interface_and_is_good_for_one_request(self, account: Account, client: Ec2) -> None:
        subnet = account.subnet("10.1.0.0/24")
        account.faults.lost_answers["CreateNetworkInterface"] = 1
        with pytest.raises(UnavailableError, match="InternalError"):
            await client.create_interface(request(subnet))
        first = await client.create_interface(request(subnet))
        assert (await client.create_interface(request(subnet))).id == first.id
        assert len(await client.find_interfaces(TAGS)) == 1
        with pytest.raises(Ec2Error, match="IdempotentParameterMismatch"):
            await client.create_interface(request(subnet, addresses=1))

    async def test_a_full_subnet(self, account: Account, client: Ec2) -> None:
        subnet = account.subnet("10.1.0.0/28")
        instance = account.launch(TYPE, subnet)
        one = await primary(client, instance)
        # 16 addresses, of which AWS has 5 and the instance 1.
        with pytest.raises(LimitError, match="PrivateIpAddressLimitExceeded"):
            await client.assign_addresses(one.id, 10)
        await client.assign_addresses(one.id, 8)
        with pytest.raises(SubnetFullError, match="InsufficientFreeAddressesInSubnet"):
            await client.create_interface(request(subnet, addresses=2))
        with pytest.raises(SubnetFullError, match="InsufficientCidrBlocks"):
            await client.assign_prefixes(one.id, 1)
        assert (await client.create_interface(request(subnet, addresses=1))).ranges, "what was refused took nothing"

    async def test_a_fragmented_subnet_has_addresses_and_no_prefix(self, account: Account, client: Ec2) -> None:
        subnet = account.subnet("10.1.0.0/27")
        instance = account.launch(TYPE, subnet)
        # The reserved ones touch both blocks of the subnet.
        with pytest.raises(SubnetFullError, match="InsufficientCidrBlocks"):
            await client.create_interface(request(subnet, prefixes=1))
        assert len(await client.assign_addresses((await primary(client, instance)).id, 9)) == 9

    async def test_no_address_has_two_owners_and_none_is_reserved(self, account: Account, client: Ec2) -> None:
        subnet = account.subnet("10.1.0.0/26")
        for token in "abcd":
            await client.create_interface(request(subnet, token=token, addresses=9))
        records = await client.find_interfaces(TAGS)
        addresses = [str(each.primary) for each in records]
        addresses += [str(network.network_address) for each in records for network in each.ranges]
        assert len(set(addresses)) == len(addresses) == 40
        assert not {f"10.1.0.{number}" for number in (0, 1, 2, 3, 63)} & set(addresses)

    async def test_what_is_given_back_may_be_had_again(self, account: Account, client: Ec2) -> None:
        subnet = account.subnet("10.1.0.0/28")
        for token in ("one", "two"):
            made = await client.create_interface(request(subnet, token=token, addresses=10))
            with pytest.raises(SubnetFullError):
                await client.create_interface(request(subnet, token=f"{token} more"))
            await client.delete_interface(made.id)

    async def test_no_more_interfaces_than_the_type_allows(self, account: Account, client: Ec2) -> None:
        subnet = account.subnet("10.1.0.0/24")
        instance = account.launch(TYPE, subnet)
        await attach(client, subnet, instance, device=1)
        await attach(client, subnet, instance, device=2)
        with pytest.raises(LimitError, match="AttachmentLimitExceeded"):
            await attach(client, subnet, instance, device=3)

    async def test_an_interface_is_attached_once_and_a_device_number_given_once(
        self, account: Account, client: Ec2
    ) -> None:
        subnet = account.subnet("10.1.0.0/24")
        instance = account.launch(TYPE, subnet)
        record = await attach(client, subnet, instance, device=1)
        with pytest.raises(InUseError, match=r"InvalidNetworkInterface\.InUse"):
            await client.attach_interface(record.id, InstanceId(instance), device=2)
        other = await client.create_interface(request(subnet, token="other"))
        with pytest.raises(Ec2Error, match="InvalidParameterValue"):
            await client.attach_interface(other.id, InstanceId(instance), device=1)

    async def test_an_interface_of_another_zone_is_not_attached(self, account: Account, client: Ec2) -> None:
        here, elsewhere = account.subnet("10.1.0.0/24"), account.subnet("10.1.1.0/24", zone=OTHER_ZONE)
        instance = account.launch(TYPE, here)
        with pytest.raises(Ec2Error, match="InvalidParameterCombination"):
            await attach(client, elsewhere, instance, device=1)
        [left] = await client.find_interfaces(TAGS)
        assert (left.zone, left.instance) == (OTHER_ZONE, None)
        assert (await primary(client, instance)).zone == (await client.subnet(SubnetId(here))).zone

    async def test_an_interface_with_more_addresses_than_the_type_allows_is_not_attached(
        self, account: Account, client: Ec2
    ) -> None:
        subnet = account.subnet("10.1.0.0/24")
        instance = account.launch(TYPE, subnet)
        big = await client.create_interface(request(subnet, addresses=10))
        with pytest.raises(LimitError, match="PrivateIpAddressLimitExceeded"):
            await client.attach_interface(big.id, InstanceId(instance), device=1)

    async def test_a_type_with_the_hypervisor_xen_has_no_prefixes(self, account: Account, client: Ec2) -> None:
        """EC2 documents no code for this: whoever asks is to know the type."""
        assert (await client.instance_limits(TYPE)).prefixes
        assert not (await client.instance_limits(XEN)).prefixes
        subnet = account.subnet("10.1.0.0/24")
        instance = account.launch(XEN, subnet)
        own = await primary(client, instance)
        with pytest.raises(Ec2Error, match="UnsupportedOperation"):
            await client.assign_prefixes(own.id, 1)
        with pytest.raises(Ec2Error, match="UnsupportedOperation"):
            await attach(client, subnet, instance, device=1, prefixes=1)
        assert len(await client.assign_addresses(own.id, 1)) == 1

    async def test_what_is_in_use_stays(self, account: Account, client: Ec2) -> None:
        subnet = account.subnet("10.1.0.0/24")
        instance = account.launch(TYPE, subnet)
        record = await attach(client, subnet, instance, device=1)
        with pytest.raises(Ec2Error, match="currently in use"):
            await client.delete_interface(record.id)
        assert record.primary is not None
        with pytest.raises(Ec2Error, match="InvalidParameterValue"):
            await client.unassign(record.id, [IPv4Network(record.primary)])
        own = await primary(client, instance)
        assert own.attachment is not None
        with pytest.raises(Ec2Error, match="OperationNotPermitted"):
            await client.detach_interface(own.attachment)

    async def test_of_several_ranges_all_are_taken_away_or_none(self, account: Account, client: Ec2) -> None:
        subnet = account.subnet("10.1.0.0/24")
        made = await client.create_interface(request(subnet, addresses=2))
        with pytest.raises(Ec2Error, match="InvalidParameterValue"):
            await client.unassign(made.id, [*made.ranges, IPv4Network("10.1.9.9/32")])
        [after] = await client.find_interfaces(TAGS)
        assert after.ranges == made.ranges

    async def test_what_is_gone_is_told_apart(self, account: Account, client: Ec2) -> None:
        nobody = InterfaceId("eni-0123456789abcdef0")
        with pytest.raises(GoneError):
            await client.delete_interface(nobody)
        with pytest.raises(GoneError):
            await client.assign_addresses(nobody, 1)
        with pytest.raises(GoneError):
            await client.detach_interface(AttachmentId("eni-attach-0123456789abcdef0"))
        with pytest.raises(GoneError):
            await client.create_interface(request("subnet-0123456789abcdef0"))
        assert await client.interfaces_of(InstanceId("i-0123456789abcdef0")) == []

    async def test_throttling_and_an_answer_that_is_lost(self, account: Account, client: Ec2) -> None:
        subnet = account.subnet("10.1.0.0/24")
        instance = account.launch(TYPE, subnet)
        account.faults.throttled = 1.0
        with pytest.raises(ThrottledError):
            await client.interfaces_of(InstanceId(instance))
        account.faults.throttled = 0.0
        own = await primary(client, instance)
        account.faults.lost_answers["AssignPrivateIpAddresses"] = 1
        with pytest.raises(UnavailableError):
            await client.assign_addresses(own.id, 2)
        assert len((await primary(client, instance)).ranges) == 2, "it took place"

    async def test_an_injected_refusal_is_good_for_one_call(self, account: Account, client: Ec2) -> None:
        subnet = account.subnet("10.1.0.0/24")
        account.faults.refusals["CreateNetworkInterface"] = ["UnauthorizedOperation"]
        with pytest.raises(Ec2Error, match="UnauthorizedOperation"):
            await client.create_interface(request(subnet))
        assert await client.find_interfaces(TAGS) == []
        await client.create_interface(request(subnet))

    async def test_who_may_not_tag_creates_nothing_that_has_tags(self, account: Account, client: Ec2) -> None:
        """EC2 User Guide, "Grant permission to tag resources during creation"."""
        subnet = account.subnet("10.1.0.0/24")
        account.faults.denied = {"CreateTags"}
        with pytest.raises(DeniedError, match="CreateNetworkInterface: UnauthorizedOperation"):
            await client.create_interface(request(subnet, token="tagged"))
        assert await client.find_interfaces({}) == []
        plain = await client.create_interface(request(subnet, token="plain", tags={}))
        assert [each.id for each in await client.find_interfaces({})] == [plain.id]
        account.faults.denied = {"DeleteNetworkInterface"}
        with pytest.raises(DeniedError):
            await client.delete_interface(plain.id)
        account.faults.denied = set()
        await client.create_interface(request(subnet, token="tagged"))

    async def test_descriptions_may_lag_behind_what_calls_have_changed(self, account: Account, client: Ec2) -> None:
        subnet = account.subnet("10.1.0.0/24")
        instance = account.launch(TYPE, subnet)
        second = await attach(client, subnet, instance, device=1, addresses=2)
        account.faults.describe_lag = 60.0
        before = {each.id: each for each in await client.interfaces_of(InstanceId(instance))}
        assert before[second.id] == second
        new = await client.assign_addresses(second.id, 1)
        await client.unassign(second.id, second.ranges)
        third = await client.create_interface(request(subnet, token="third"))
        attachment = await client.attach_interface(third.id, InstanceId(instance), device=2)
        assert second.attachment is not None
        await client.detach_interface(second.attachment)
        assert {each.id: each for each in await client.interfaces_of(InstanceId(instance))} == before
        assert [each.id for each in await client.find_interfaces(TAGS)] == [second.id]
        assert await client.find_interfaces(TAGS, status="available") == []
        with pytest.raises(InUseError):
            await client.attach_interface(third.id, InstanceId(instance), device=1)
        account.faults.describe_lag = 0.0
        now = {each.device_number: each for each in await client.interfaces_of(InstanceId(instance))}
        assert now.keys() == {0, 2}
        assert (now[2].id, now[2].attachment) == (third.id, attachment)
        [idle] = await client.find_interfaces(TAGS, status="available")
        assert (idle.id, idle.ranges) == (second.id, new)

    # --- the end of an instance

    async def test_an_interface_goes_with_it_only_if_it_was_told_to(self, account: Account, client: Ec2) -> None:
        subnet = account.subnet("10.1.0.0/24")
        instance = account.launch(TYPE, subnet)
        await attach(client, subnet, instance, device=1)
        other = await client.create_interface(request(subnet, token="other"))
        await client.attach_interface(other.id, InstanceId(instance), device=2)
        account.terminate(instance)
        [left] = await client.find_interfaces(TAGS)
        assert (left.id, left.status, left.instance) == (other.id, "available", None)
