"""What is attached to the instance, against descriptions that are of before a change."""

from dataclasses import replace
from ipaddress import IPv4Address, IPv4Network

from coil.aws.ec2 import AttachmentId, InstanceId, InterfaceRecord
from coil.aws.metadata import MetadataInterface
from coil.eni.interface import InterfaceId, SubnetId
from coil.kernel.family import IPNetwork
from coil.kernel.link import MacAddress
from coild.eni.inventory import SETTLE_SECONDS, Inventory

TAGS = {"cluster": "c", "instance": "i-1"}
A, B, C = (IPv4Network(f"10.0.0.{number}") for number in (10, 11, 12))
LAG = 36.0
LATER = SETTLE_SECONDS + 1.0


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
    made = Inventory(tags=TAGS, version=4, lag=LAG)
    made.describe(records, asked=0.0)
    return made


def ranges(made: Inventory) -> set[IPNetwork]:
    return {network for each in made.interfaces() for network in each.ranges}


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


def test_one_that_is_being_detached_is_gone() -> None:
    assert inventory(record(0), record(1, A, status="detaching")).attached_count == 1


def test_what_ec2_has_confirmed_stands_for_a_while() -> None:
    made = inventory(record(0, A))
    made.assigned(InterfaceId("eni-0"), [B], now=10.0)
    made.unassigned(InterfaceId("eni-0"), [A], now=10.0)
    stale = [record(0, A)]
    made.describe(stale, asked=11.0)
    assert ranges(made) == {B}
    made.describe(stale, asked=10.0 + LATER)
    assert ranges(made) == {A}, "by then EC2 means it"


def test_attached_and_detached_stand_for_a_while() -> None:
    made = inventory(record(0), record(1, A))
    new = replace(record(2, B), device_number=None, attachment=None, instance=None, status="available")
    made.attached(new, 2, AttachmentId("attach-2"), now=10.0)
    made.detached(InterfaceId("eni-1"), now=10.0)
    stale = [record(0), record(1, A)]
    made.describe(stale, asked=11.0)
    assert [each.id for each in made.own()] == ["eni-0", "eni-2"]
    assert ranges(made) == {B}
    made.describe(stale, asked=10.0 + LATER)
    assert [each.id for each in made.own()] == ["eni-0", "eni-1"]


def test_a_description_that_contradicts_what_stands_is_told() -> None:
    made = inventory(record(0, A))
    made.assigned(InterfaceId("eni-0"), [B], now=100.0)
    assert made.describe([record(0, A)], asked=101.0)
    assert not made.describe([record(0, A, B)], asked=102.0)
    made.detached(InterfaceId("eni-0"), now=103.0)
    assert made.describe([record(0, A, B)], asked=104.0)
    assert not made.describe([], asked=105.0)
    assert not made.describe([record(0, A)], asked=103.0 + LATER)


def test_ranges_of_the_other_ip_version_are_no_pods() -> None:
    made = Inventory(tags=TAGS, version=6, lag=LAG)
    made.describe([record(0, A)], asked=0.0)
    assert ranges(made) == set()


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
