"""What is attached to the instance, against descriptions that are of before a change."""

from dataclasses import replace
from ipaddress import IPv4Address, IPv4Network

import pytest

from coil.aws.ec2 import AttachmentId, InstanceId, InterfaceRecord
from coil.aws.metadata import MetadataInterface
from coil.eni.interface import InterfaceId, SubnetId
from coil.kernel.family import IPNetwork
from coil.kernel.link import MacAddress
from coild.eni.inventory import Inventory
from coild.eni.own_writes import DESCRIBE_LAG_SECONDS

TAGS = {"cluster": "c", "instance": "i-1"}
A, B, C = (IPv4Network(f"10.0.0.{number}") for number in (10, 11, 12))
LAG = 36.0
GONE_SECONDS = DESCRIBE_LAG_SECONDS / 2
LATER = DESCRIBE_LAG_SECONDS + 1.0


def record(
    device: int, *ranges: IPNetwork, tags: dict[str, str] | None = None, status: str = "in-use"
) -> InterfaceRecord:
    return InterfaceRecord(
        id=InterfaceId(f"eni-{device}"),
        mac=MacAddress(f"02:00:00:00:00:{device:02x}"),
        status=status,
        subnet=SubnetId("subnet-1"),
        primary=IPv4Address(f"10.0.0.{device + 1}"),
        ranges=frozenset(ranges),
        groups=("sg-1",),
        tags=TAGS if tags is None else tags,
        instance=InstanceId("i-1"),
        device_number=device,
        attachment=AttachmentId(f"attach-{device}"),
        deleted_with_instance=True,
    )


def told(found: InterfaceRecord) -> MetadataInterface:
    assert found.primary is not None
    return MetadataInterface(
        mac=found.mac,
        interface=found.id,
        device_number=found.device_number or 0,
        subnet=found.subnet,
        subnet_ipv4=IPv4Network("10.0.0.0/24"),
        vpc="vpc-1",
        vpc_ipv4s=(),
        vpc_ipv6s=(),
        local_ipv4s=(found.primary, *(IPv4Address(each.network_address) for each in sorted(found.ranges, key=str))),
        ipv4_prefixes=(),
        ipv6_prefixes=(),
        groups=found.groups,
    )


def inventory(*records: InterfaceRecord) -> Inventory:
    made = Inventory(tags=TAGS, primary_mac=record(0).mac, version=4, lag=LAG)
    made.describe(records, asked=0.0)
    return made


NOTHING: frozenset[IPNetwork] = frozenset()


def ranges(made: Inventory) -> frozenset[IPNetwork]:
    return frozenset(network for each in made.interfaces() for network in each.ranges)


def some(*networks: IPNetwork) -> frozenset[IPNetwork]:
    return frozenset(networks)


def due(made: Inventory) -> float | None:
    """When the next description tells more."""
    return made.next_look


def test_whose_an_interface_is() -> None:
    primary, foreign, own = record(0, tags={}), record(1, tags={"cluster": "c"}), record(3)
    made = inventory(primary, foreign, own)
    assert [each.id for each in made.own()] == [primary.id, own.id]
    assert (made.foreign, made.attached_count, made.lowest_free_device()) == (1, 3, 2)
    assert made.find(foreign.id) is None
    assert made.primary == primary


def test_interfaces_of_other_network_cards_are_left_out() -> None:
    """An interface for EFA may have the primary one's number, on another card, and takes nobody's place."""
    elsewhere = [replace(record(device, tags={}), network_card=device + 1) for device in (0, 1)]
    primary = replace(record(0, A), id=InterfaceId("eni-primary"))
    made = inventory(*elsewhere, primary)
    assert made.primary == primary
    assert (made.foreign, made.attached_count, made.lowest_free_device()) == (0, 1, 1)


def test_one_without_an_address_takes_a_place_and_metadata_do_not_tell_it() -> None:
    own = record(0, A)
    made = inventory(own, replace(record(1, tags={}), primary=None))
    assert (made.foreign, made.lowest_free_device(), len(made.interfaces())) == (1, 2, 1)
    assert made.trace([told(own)], now=LAG + 1)


def test_one_that_is_being_detached_is_not_counted() -> None:
    assert inventory(record(0), record(1, A, status="detaching")).attached_count == 1


def test_what_ec2_has_confirmed_stands_for_as_long_as_descriptions_may_lag() -> None:
    made = inventory(record(0, A))
    made.assigned(InterfaceId("eni-0"), [B], now=10.0)
    made.unassigned(InterfaceId("eni-0"), [A], now=10.0)
    stale = [record(0, A)]
    for asked in (11.0, 40.0, 9.0 + DESCRIBE_LAG_SECONDS):
        made.describe(stale, asked=asked)
        assert (ranges(made), made.doubted) == (some(B), NOTHING)
    made.describe(stale, asked=10.0 + LATER)
    assert (ranges(made), made.doubted) == (some(A, B), some(B)), "by then EC2 means it, and is asked a second time"
    made.describe(stale, asked=10.0 + LATER + GONE_SECONDS)
    assert ranges(made) == some(A)


def test_attached_and_detached_stand_as_well() -> None:
    made = inventory(record(0), record(1, A))
    new = replace(record(2, B), device_number=None, attachment=None, instance=None, status="available")
    made.attached(new, 2, AttachmentId("attach-2"), now=10.0)
    made.detached(InterfaceId("eni-1"), now=10.0)
    stale = [record(0), record(1, A)]
    made.describe(stale, asked=11.0)
    assert [each.id for each in made.own()] == ["eni-0", "eni-2"]
    assert ranges(made) == some(B)
    made.describe(stale, asked=10.0 + LATER)
    made.describe(stale, asked=10.0 + LATER + GONE_SECONDS)
    assert [each.id for each in made.own()] == ["eni-0", "eni-1"]


def test_flag_and_groups_stand_as_well() -> None:
    stale = replace(record(1), deleted_with_instance=False)
    made = inventory(record(0), stale)
    made.flagged(stale, now=10.0)
    made.grouped(made.own()[1], ["sg-2"], now=11.0)
    made.describe([record(0), stale], asked=12.0)
    assert (made.own()[1].deleted_with_instance, made.own()[1].groups) == (True, ("sg-2",))
    made.describe([record(0), stale], asked=11.0 + LATER)
    assert made.own()[1] == stale


@pytest.mark.parametrize("way", ["range", "interface", "detaching"])
def test_what_one_description_lacks_is_doubted_and_gone_when_a_second_one_lacks_it(way: str) -> None:
    made = inventory(record(0), record(1, A, B))
    lacking = {
        "range": [record(0), record(1, B)],
        "interface": [record(0)],
        "detaching": [record(0), record(1, A, B, status="detaching")],
    }[way]
    left = some(B) if way == "range" else NOTHING
    made.describe(lacking, asked=100.0)
    assert ranges(made) == some(A, B)
    assert made.doubted == some(A, B) - left
    assert due(made) == 100.0 + GONE_SECONDS
    made.describe(lacking, asked=99.0 + GONE_SECONDS)
    assert ranges(made) == some(A, B), "not yet"
    made.describe(lacking, asked=100.0 + GONE_SECONDS)
    assert (ranges(made), made.doubted) == (left, NOTHING)
    assert due(made) is None
    made.describe([record(0), record(1, A, B)], asked=1000.0)
    assert (ranges(made), made.doubted) == (some(A, B), NOTHING)


def test_what_was_missing_is_trusted_again_when_no_description_can_be_of_before_that() -> None:
    made = inventory(record(0, A))
    made.describe([record(0)], asked=100.0)
    made.describe([record(0, A)], asked=110.0)
    assert (made.doubted, due(made)) == (some(A), 100.0 + DESCRIBE_LAG_SECONDS)
    made.describe([record(0, A)], asked=100.0 + DESCRIBE_LAG_SECONDS)
    assert (ranges(made), made.doubted, due(made)) == (some(A), NOTHING, None)


def test_of_what_the_node_has_changed_since_it_is_not_known_to_be_missing() -> None:
    made = inventory(record(0, A))
    made.describe([record(0)], asked=100.0)
    made.unassigned(InterfaceId("eni-0"), [A], now=110.0)
    made.assigned(InterfaceId("eni-0"), [A], now=120.0)
    made.describe([record(0)], asked=140.0)
    assert (ranges(made), made.doubted) == (some(A), NOTHING)
    made.describe([record(0, A)], asked=120.0 + LATER)
    assert ranges(made) == some(A)


def test_a_description_that_contradicts_what_stands_is_repeated_when_none_can_be_of_before() -> None:
    made = inventory(record(0, A))
    made.unassigned(InterfaceId("eni-0"), [A], now=100.0)
    made.describe([record(0, A)], asked=101.0)
    assert due(made) == 100.0 + DESCRIBE_LAG_SECONDS
    made.describe([record(0)], asked=102.0)
    assert due(made) is None


def test_that_ec2_does_not_know_an_interface_is_worth_a_description_that_lacks_it() -> None:
    made = inventory(record(0), record(1, A))
    made.missed(InterfaceId("eni-1"), now=100.0)
    assert (made.doubted, made.doubted_interfaces) == (some(A), frozenset({InterfaceId("eni-1")}))
    made.describe([record(0)], asked=101.0)
    assert ranges(made) == some(A)
    made.describe([record(0)], asked=100.0 + GONE_SECONDS)
    assert ranges(made) == NOTHING
    made = inventory(record(0), record(1, A))
    for now in (100.0, 100.0 + GONE_SECONDS):
        made.missed(InterfaceId("eni-1"), now=now)
    assert ranges(made) == NOTHING


class TestEarlierProcess:
    """What it has noted counts like what this one knows; what it has not noted, it may have given back."""

    def resumed(self, *, age: float) -> Inventory:
        noted = replace(record(1, A, B), attachment=None, groups=())
        made = Inventory(tags=TAGS, primary_mac=record(0).mac, version=4, lag=LAG)
        made.resume([replace(record(0), attachment=None, groups=()), noted], written=1000.0 - age, now=1000.0)
        return made

    def test_what_it_has_just_written_stands(self) -> None:
        made = self.resumed(age=20.0)
        made.describe([record(0)], asked=1001.0)
        assert (ranges(made), made.doubted) == (some(A, B), NOTHING)
        for asked in (980.0 + LATER, 980.0 + LATER + GONE_SECONDS):
            assert ranges(made) == some(A, B)
            made.describe([record(0)], asked=asked)
        assert ranges(made) == NOTHING

    def test_what_it_has_written_long_ago_is_doubted_if_it_is_missing(self) -> None:
        made = self.resumed(age=100.0)
        made.describe([record(0), record(1, B)], asked=1001.0)
        assert (ranges(made), made.doubted) == (some(A, B), some(A))
        made.describe([record(0), record(1, B)], asked=1001.0 + GONE_SECONDS)
        assert ranges(made) == some(B)

    def test_what_only_ec2_tells_is_doubted_until_that_cannot_be_of_before(self) -> None:
        made = self.resumed(age=100.0)
        told = [record(0), record(1, A, B, C)]
        made.describe(told, asked=1001.0)
        assert (ranges(made), made.doubted, made.unproven) == (some(A, B, C), some(C), some(C))
        assert due(made) == 1000.0 + DESCRIBE_LAG_SECONDS
        made.describe(told, asked=1000.0 + DESCRIBE_LAG_SECONDS)
        assert (made.doubted, made.unproven) == (NOTHING, NOTHING)

    def test_what_ec2_tells_replaces_what_the_journal_does_not_know(self) -> None:
        made = self.resumed(age=20.0)
        made.describe([record(0), record(1, A, B)], asked=1001.0)
        assert made.own()[1] == record(1, A, B)


def test_ranges_of_the_other_ip_version_are_no_pods() -> None:
    made = Inventory(tags=TAGS, primary_mac=record(0).mac, version=6, lag=LAG)
    made.describe([record(0, A)], asked=0.0)
    assert ranges(made) == NOTHING


def test_what_the_metadata_service_tells_late_is_known() -> None:
    made = inventory(record(0, A))
    before = [told(record(0, A))]
    made.assigned(InterfaceId("eni-0"), [B], now=10.0)
    made.assigned(InterfaceId("eni-0"), [C], now=20.0)
    assert made.trace(before, now=21.0)
    assert made.trace([told(record(0, A, B))], now=21.0)
    assert not made.trace(before, now=21.0), "it does not go back: somebody has taken B"
    assert not made.trace([told(record(0, A, C))], now=21.0)
    assert made.trace([told(record(0, A, B, C))], now=21.0)
    assert not made.trace([told(replace(record(0, A, B, C), groups=("sg-2",)))], now=21.0)
    assert not made.trace([told(record(0, A, B, C)), told(record(1, tags={}))], now=21.0)


def test_what_is_past_for_too_long_does_not_explain_what_metadata_tell() -> None:
    made = inventory(record(0, A))
    before, after = [told(record(0, A))], [told(record(0, A, B))]
    made.assigned(InterfaceId("eni-0"), [B], now=10.0)
    assert made.trace(before, now=10.0 + LAG)
    assert not made.trace(before, now=11.0 + LAG)
    assert made.trace(after, now=1000.0)
