"""A node's interfaces as the provisioner keeps them: what it asks EC2 for, what it makes of the answers, or of none."""

import asyncio
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import replace
from ipaddress import IPv4Network, ip_network
from pathlib import Path

import pytest

from coil.aws.ec2 import InstanceId, InterfaceRecord, InterfaceRequest
from coil.eni.interface import SubnetId
from coil.eni.subnet_choice import FULL_SECONDS
from coil.eni.surplus import SURPLUS_SECONDS
from coil.eni.tag import CLUSTER_TAG, CREATED_TAG, INSTANCE_TAG, NO_MANAGE_TAG, SUBNET_TAG, SUBNET_VALUE
from coil.eni.warm_pool import WarmTargets
from coild.eni.settings import EniSettings
from coild.model.attachment import AddressUnavailableError
from tests.coil.aws.memory_ec2 import Moment
from tests.coil.aws.memory_ec2_client import MemoryEc2Client
from tests.coild.eni.provisioner_scene import CLUSTER, NODE, Scene

ANOTHERS = {CLUSTER_TAG: "another"}


@pytest.fixture
def journal(tmp_path: Path) -> Path:
    return tmp_path / "eni.journal"


def warm(targets: WarmTargets, **more: object) -> EniSettings:
    return replace(EniSettings(cluster=CLUSTER, targets=targets), **more)  # type: ignore[arg-type]


async def fill(scene: Scene, *, leave: int) -> None:
    """Have somebody else's interfaces take the addresses of the node's subnet, but for so many."""
    subnet = SubnetId(scene.subnet)
    while (more := (await scene.admin.subnet(subnet)).free - leave) > 0:
        request = InterfaceRequest(
            subnet=subnet, groups=(), token="", description="", tags=ANOTHERS, addresses=min(more, 40) - 1
        )
        await scene.admin.create_interface(request)


class TestPool:
    async def test_a_fresh_node_has_what_is_to_be_warm_with_one_call(self, journal: Path) -> None:
        scene = Scene(journal)
        await scene.boot()
        await scene.rest(5.0)
        assert (scene.addresses, scene.free) == (3, 3)
        assert scene.count() == 1
        assert scene.node.store.shortage is None
        assert scene.source == "ec2"
        scene.check_settled()
        await scene.kill()

    async def test_pods_that_come_at_once_are_served_by_few_calls(self, journal: Path) -> None:
        scene = Scene(journal)
        scene.ec2.faults.latency = 0.5
        await scene.boot()
        await scene.rest(10.0)
        before = scene.count()
        addresses = await scene.add_many([f"pod-{number}" for number in range(20)])
        assert len(set(addresses)) == 20
        await scene.rest(30.0)
        # The rest of the primary interface, one interface with what was missing then, and what has to stay warm.
        assert scene.count() - before <= 7
        scene.check_settled()
        await scene.kill()

    async def test_what_nobody_waits_for_is_fetched_together(self, journal: Path) -> None:
        scene = Scene(journal, settings=warm(WarmTargets(ips=4)))
        await scene.boot()
        await scene.rest(10.0)
        before = scene.count()
        for number in range(4):
            await scene.add(f"pod-{number}", within=0.0)
            await scene.rest(0.3)
        await scene.rest(10.0)
        assert (scene.count() - before, scene.free) == (1, 4)
        await scene.kill()

    async def test_an_interface_has_tags_groups_the_lowest_free_device_and_ends_with_the_instance(
        self, journal: Path
    ) -> None:
        scene = Scene(journal, settings=warm(WarmTargets(ips=12)))
        [primary] = scene.records()
        await scene.boot()
        await scene.rest(10.0)
        _, second = scene.records()
        assert second.tags.items() >= scene.own_tags().items()
        assert second.tags[CREATED_TAG].endswith("Z")
        assert (second.groups, second.device_number, second.deleted_with_instance) == (primary.groups, 1, True)
        assert len(second.ranges) == 3
        scene.check_settled()
        scene.ec2.terminate(scene.instance)
        assert scene.ec2.records() == []
        await scene.kill()

    async def test_an_address_is_given_once_its_link_is_up(self, journal: Path) -> None:
        scene = Scene(journal, settings=warm(WarmTargets(ips=0)), delay=7.0)
        await scene.boot()
        await scene.rest(1.0)
        await scene.add_many([f"pod-{number}" for number in range(9)])
        started = scene.ec2.count()
        with pytest.raises(AddressUnavailableError):
            await scene.add("late", within=5.0)
        assert len(scene.records()) == 2
        assert await scene.add("late", within=5.0)
        assert scene.ec2.count() > started
        scene.check_settled()
        await scene.kill()

    async def test_what_is_too_many_goes_back_after_a_while_and_not_before(self, journal: Path) -> None:
        scene = Scene(journal)
        await scene.boot()
        await scene.add_many([f"pod-{number}" for number in range(14)])
        await scene.rest(30.0)
        assert (len(scene.records()), scene.addresses) == (2, 17)
        for number in range(14):
            scene.delete(f"pod-{number}")
        await scene.rest(SURPLUS_SECONDS)
        assert scene.addresses == 17, "they have cooled down, and have been too many since then"
        await scene.rest(100.0)
        assert (len(scene.records()), scene.addresses) == (1, 3)
        scene.check_settled()
        await scene.kill()

    async def test_after_which_while_is_an_admins_to_say(self, journal: Path) -> None:
        scene = Scene(journal, settings=warm(WarmTargets(ips=3), unneeded=60.0))
        await scene.boot()
        await scene.add_many([f"pod-{number}" for number in range(5)])
        for number in range(5):
            scene.delete(f"pod-{number}")
        await scene.rest(60.0)
        assert scene.addresses == 8, "they have cooled down, and have been too many since then"
        await scene.rest(60.0)
        assert scene.addresses == 3
        scene.check_settled()
        await scene.kill()

    async def test_a_steady_load_makes_no_calls(self, journal: Path) -> None:
        scene = Scene(journal, settings=warm(WarmTargets(ips=2)))
        await scene.boot()
        await scene.add_many([f"pod-{number}" for number in range(8)])
        for _ in range(4):  # until there is one for each that cools down
            for number in range(8):
                scene.delete(f"pod-{number}")
                await scene.add(f"pod-{number}")
                await scene.rest(8.0)
        before = scene.count()
        for _ in range(12):
            for number in range(8):
                scene.delete(f"pod-{number}")
                await scene.add(f"pod-{number}")
                await scene.rest(8.0)
        assert scene.count() == before
        scene.check_settled()
        await scene.kill()

    async def test_no_more_than_the_instance_may_have_and_the_reason_is_told(self, journal: Path) -> None:
        scene = Scene(journal, instance_type="t3.nano")
        await scene.boot()
        await scene.add_many(["a", "b"])
        with pytest.raises(AddressUnavailableError, match="2 interfaces"):
            await scene.add("c", within=20.0)
        calls = scene.count()
        await scene.rest(600.0)
        assert scene.count() == calls
        scene.check_settled()
        await scene.kill()

    async def test_interfaces_as_a_whole(self, journal: Path) -> None:
        scene = Scene(journal, settings=warm(WarmTargets()))
        await scene.boot()
        await scene.add("a")
        await scene.rest(20.0)
        assert (len(scene.records()), scene.addresses) == (2, 18)
        scene.delete("a")
        await scene.rest(SURPLUS_SECONDS + 280.0)
        assert (len(scene.records()), scene.addresses) == (1, 9)
        scene.check_settled()
        await scene.kill()

    async def test_ipv6_is_one_prefix_of_the_primary_interface(self, journal: Path) -> None:
        scene = Scene(journal, settings=warm(WarmTargets(ips=3), version=6))
        subnet = scene.ec2.subnet("10.1.8.0/24", ipv6="2001:db8:0:1::/64")
        scene.be(scene.ec2.launch("m5.large", subnet))
        await scene.boot()
        addresses = await scene.add_many([f"pod-{number}" for number in range(30)])
        assert all(address.startswith("2001:db8:0:1") for address in addresses)
        await scene.rest(300.0)
        assert scene.count() == 1
        await scene.kill()


class TestDemand:
    """A pod that waits is served, whatever the targets are."""

    @pytest.mark.parametrize(
        "targets",
        [
            WarmTargets(interfaces=0),
            WarmTargets(ips=0),
            WarmTargets(interfaces=0, ips=0),
            WarmTargets(minimum=2),
            WarmTargets(ips=0, minimum=2),
            WarmTargets(interfaces=0, ips=0, minimum=2),
        ],
        ids=str,
    )
    async def test_a_node_grows_with_its_pods_up_to_what_it_can_have(self, journal: Path, targets: WarmTargets) -> None:
        scene = Scene(journal, settings=warm(targets))
        await scene.boot()
        await scene.rest(5.0)
        most = scene.provisioner.status.addresses_most
        assert most == 27
        addresses = [await scene.add(f"pod-{number}", within=20.0) for number in range(most)]
        assert len(set(addresses)) == most
        with pytest.raises(AddressUnavailableError, match="the instance may have 3 interfaces"):
            await scene.add("one too many", within=20.0)
        scene.check_settled()
        await scene.kill()

    async def test_what_is_on_its_way_for_a_pod_is_kept_until_its_next_attempt(self, journal: Path) -> None:
        """EC2 takes longer than one ADD waits. The interface that is there by then is not deleted as a surplus one."""
        scene = Scene(journal, settings=warm(WarmTargets(ips=0), unneeded=0.0))
        await scene.boot()
        await scene.add_many([f"pod-{number}" for number in range(9)])
        scene.ec2.faults.refusals["AttachNetworkInterface"] = ["RequestLimitExceeded"] * 5
        with pytest.raises(AddressUnavailableError, match="RequestLimitExceeded"):
            await scene.add("sandbox-1", within=10.0, pod="web")
        await scene.rest(30.0)
        assert await scene.add("sandbox-2", within=0.0, pod="web")
        calls = scene.calls()
        assert (calls["CreateNetworkInterface"], calls["DeleteNetworkInterface"]) == (1, 0)
        scene.check_settled()
        await scene.kill()

    async def test_a_pod_that_does_not_come_again_is_forgotten(self, journal: Path) -> None:
        scene = Scene(journal, settings=warm(WarmTargets(ips=0), unneeded=0.0))
        await scene.boot()
        await scene.rest(5.0)
        scene.ec2.faults.refusals["AssignPrivateIpAddresses"] = ["RequestLimitExceeded"] * 4
        with pytest.raises(AddressUnavailableError):
            await scene.add("a", within=10.0)
        await scene.rest(15.0)
        assert scene.addresses == 1, "it is waited for"
        await scene.rest(60.0)
        assert scene.addresses == 0
        await scene.kill()


class TestSubnets:
    async def test_a_full_subnet_rests_and_the_reason_is_told(self, journal: Path) -> None:
        scene = Scene(journal, cidr="10.1.0.0/28")
        await scene.boot()
        await scene.add_many([f"pod-{number}" for number in range(8)])
        await scene.add("pod-8")
        with pytest.raises(AddressUnavailableError, match=r"no free address in subnet-.* \(10\.1\.0\.0/28\)"):
            await scene.add("one too many", within=20.0)
        before = scene.count()
        await scene.rest(1200.0)
        assert scene.count() - before <= 21, "one call in two minutes for each way to get an address"
        scene.check_settled()
        await scene.kill()

    async def test_what_is_left_of_a_subnet_is_used(self, journal: Path) -> None:
        scene = Scene(journal, cidr="10.1.0.0/28", settings=warm(WarmTargets(ips=9)))
        other = scene.ec2.launch("m5.large", scene.subnet)
        [theirs] = [each for each in scene.ec2.records() if each.instance == other]
        await scene.admin.assign_addresses(theirs.id, 5)
        await scene.boot()
        await scene.rest(30.0)
        assert scene.addresses == 16 - 5 - 1 - 1 - 5
        assert scene.node.store.shortage is not None
        scene.check_settled()
        await scene.kill()

    async def test_another_subnet_is_turned_to_by_its_tag(self, journal: Path) -> None:
        scene = Scene(journal, cidr="10.1.0.0/28")
        scene.ec2.subnet("10.1.1.0/24")
        tagged = scene.ec2.subnet("10.1.2.0/24", tags={SUBNET_TAG: SUBNET_VALUE})
        await scene.boot()
        addresses = await scene.add_many([f"pod-{number}" for number in range(18)])
        assert any(address.startswith("10.1.2.") for address in addresses)
        assert {each.subnet for each in scene.records()} == {scene.subnet, tagged}
        scene.check_settled()
        await scene.kill()

    async def test_a_half_filled_interface_in_a_dry_subnet_keeps_no_interface_from_being_made_elsewhere(
        self, journal: Path
    ) -> None:
        """The dry subnet is asked once in a while, and the others at once."""
        scene = Scene(journal, cidr="10.1.0.0/28", settings=warm(WarmTargets(ips=2)))
        tagged = scene.ec2.subnet("10.1.2.0/24", tags={SUBNET_TAG: SUBNET_VALUE})
        await fill(scene, leave=4)
        await scene.boot()
        addresses = await scene.add_many([f"pod-{number}" for number in range(10)], within=10.0)
        assert sum(address.startswith("10.1.2.") for address in addresses) == 6
        primary, second = scene.records()
        assert (len(primary.ranges), second.subnet) == (4, tagged)
        for number in range(10):  # more is wanted again, and again
            scene.delete(f"pod-{number}")
            await scene.rest((FULL_SECONDS - 20.0) / 10)
            await scene.add(f"pod-{number + 10}", within=10.0)
        refused = [call.error for call in scene.ec2.calls if call.error]
        assert refused == ["InsufficientFreeAddressesInSubnet"] * 2, (
            "asked for all of it, and for what it had left then"
        )
        scene.check_settled()
        await scene.kill()

    async def test_subnets_of_other_zones_and_vpcs_are_not_tried(self, journal: Path) -> None:
        scene = Scene(journal, cidr="10.1.0.0/28")
        tags = {SUBNET_TAG: SUBNET_VALUE}
        scene.ec2.subnet("10.1.4.0/22", tags=tags, zone="eu-central-1b")
        scene.ec2.subnet("10.2.0.0/22", tags=tags, vpc=scene.ec2.vpc("10.2.0.0/16"))
        await fill(scene, leave=0)
        await scene.boot()
        hint = f"and no other subnet in eu-central-1a of .* has the tag {SUBNET_TAG}=1"
        with pytest.raises(AddressUnavailableError, match=f"no free address in {scene.subnet} .*{hint}"):
            await scene.add("a", within=10.0)
        assert (scene.count(), scene.calls()["CreateNetworkInterface"]) == (1, 0), "the primary one's was asked, once"
        tagged = scene.ec2.subnet("10.1.2.0/28", tags=tags)
        await scene.add("a", within=300.0)
        assert scene.records()[1].subnet == tagged
        scene.check_settled()
        await scene.kill()

    async def test_a_subnet_that_is_gone_is_left_out_and_the_next_one_is_used(self, journal: Path) -> None:
        scene = Scene(journal, cidr="10.1.0.0/28")
        tags = {SUBNET_TAG: SUBNET_VALUE}
        scene.ec2.subnet("10.1.4.0/22", tags=tags)
        smaller = scene.ec2.subnet("10.1.2.0/24", tags=tags)
        await fill(scene, leave=0)
        scene.ec2.faults.refusals["CreateNetworkInterface"] = [
            "InsufficientFreeAddressesInSubnet",
            "InvalidSubnetID.NotFound",
        ]
        await scene.boot()
        await scene.add("a", within=5.0)
        assert scene.records()[1].subnet == smaller
        scene.check_settled()
        await scene.kill()

    async def test_where_the_node_may_have_no_more_interfaces_it_says_which_subnet_is_dry(self, journal: Path) -> None:
        scene = Scene(journal, cidr="10.1.0.0/28", settings=warm(WarmTargets(ips=2, max_interfaces=1)))
        scene.ec2.subnet("10.1.2.0/24", tags={SUBNET_TAG: SUBNET_VALUE})
        await fill(scene, leave=3)
        await scene.boot()
        await scene.add_many(["a", "b", "c"])
        with pytest.raises(
            AddressUnavailableError, match=f"1 are allowed for pods, .*; no free address in {scene.subnet}"
        ):
            await scene.add("d", within=5.0)
        await scene.kill()

    async def test_an_interface_in_another_zone_is_not_attached_and_goes(self, journal: Path) -> None:
        """An administrator has given it the tags of this node."""
        scene = Scene(journal, settings=warm(WarmTargets(ips=12)))
        elsewhere = scene.ec2.subnet("10.1.4.0/24", zone="eu-central-1b")
        request = InterfaceRequest(
            subnet=SubnetId(elsewhere), groups=(), token="", description="", tags=scene.own_tags(), addresses=2
        )
        made = await scene.admin.create_interface(request)
        await scene.boot()
        await scene.rest(60.0)
        calls = [(call.action, call.error) for call in scene.ec2.calls if call.action == "AttachNetworkInterface"]
        assert calls == [("AttachNetworkInterface", "")]
        assert made.id not in {each.id for each in scene.ec2.records()}
        assert len(scene.records()) == 2
        scene.check_settled()
        await scene.kill()

    async def test_what_could_not_be_attached_is_deleted_and_another_one_is_made(self, journal: Path) -> None:
        scene = Scene(journal, settings=warm(WarmTargets(ips=0)))
        await scene.boot()
        await scene.add_many([f"pod-{number}" for number in range(9)])
        scene.ec2.faults.refusals["AttachNetworkInterface"] = ["InvalidParameterCombination"]
        await scene.add("pod-9", within=30.0)
        calls = scene.calls()
        assert (calls["CreateNetworkInterface"], calls["DeleteNetworkInterface"]) == (2, 1)
        scene.check_settled()
        await scene.kill()

    async def test_single_addresses_where_no_prefix_is_whole_and_prefixes_again_later(self, journal: Path) -> None:
        scene = Scene(journal, settings=warm(WarmTargets(ips=2), prefixes=True))
        spoilers = [scene.ec2.launch("t3.nano", scene.subnet) for _ in range(120)]
        await scene.boot()
        addresses = await scene.add_many([f"pod-{number}" for number in range(4)])
        assert len(set(addresses)) == 4
        assert all(each.prefixlen == 32 for record in scene.records() for each in record.ranges)
        for instance in spoilers:
            scene.ec2.terminate(instance)
        await scene.rest(1000.0)
        await scene.add_many([f"pod-{number}" for number in range(4, 12)])
        await scene.rest(30.0)
        assert any(each.prefixlen == 28 for record in scene.records() for each in record.ranges)
        scene.check_settled()
        await scene.kill()

    async def test_prefixes(self, journal: Path) -> None:
        scene = Scene(journal, settings=warm(WarmTargets(prefixes=1), prefixes=True))
        await scene.boot()
        await scene.add_many([f"pod-{number}" for number in range(20)])
        await scene.rest(30.0)
        assert scene.addresses == 48
        scene.check_settled()
        await scene.kill()


class TestCapacity:
    async def test_a_type_without_prefixes_has_single_addresses_instead(self, journal: Path) -> None:
        scene = Scene(journal, settings=warm(WarmTargets(prefixes=1), prefixes=True), instance_type="t2.small")
        await scene.boot()
        await scene.add_many([f"pod-{number}" for number in range(2)])
        await scene.rest(30.0)
        assert scene.provisioner.status.addresses_most == 9
        assert (scene.addresses, scene.free) == (6, 4), "WARM_ENI_TARGET counts, as WARM_PREFIX_TARGET cannot"
        assert [call for call in scene.ec2.calls if call.error] == []
        # The next process knows it from the journal.
        await scene.boot()
        await scene.rest(5.0)
        assert scene.calls()["DescribeInstanceTypes"] == 1
        await scene.add_many([f"pod-{number}" for number in range(2, 9)])
        assert [call for call in scene.ec2.calls if call.error] == []
        scene.check_settled()
        await scene.kill()

    async def test_who_allows_more_pods_than_can_have_addresses_is_told_both_numbers(self, journal: Path) -> None:
        scene = Scene(journal, instance_type="t3.nano", settings=warm(WarmTargets(ips=0)))
        scene.node.store.pods_limit = 110
        await scene.boot()
        await scene.rest(5.0)
        told = "the Node allows 110 pods, but at most 2 can have an address: lower the kubelet's maxPods"
        assert [(subject.kind, *said) for subject, *said in scene.recorder.told] == [
            ("Node", "PodLimitExceedsAddresses", told)
        ]
        await scene.add_many(["a", "b"])
        with pytest.raises(AddressUnavailableError, match=rf"all addresses are taken.*; {told}"):
            await scene.add("c", within=5.0)
        await scene.rest(600.0)
        assert len(scene.recorder.told) == 1, "once, and not again and again"
        scene.node.store.pods_limit = 2
        scene.node.store.changed.set()
        with pytest.raises(AddressUnavailableError) as refused:
            await scene.add("c", within=5.0)
        assert "maxPods" not in str(refused.value)
        assert scene.node.store.excess is None
        await scene.kill()


class TestOthers:
    async def foreign(self, scene: Scene, *, device: int) -> str:
        request = InterfaceRequest(
            subnet=SubnetId(scene.subnet),
            groups=(),
            token="",
            description="",
            tags={CLUSTER_TAG: "another"},
            addresses=2,
        )
        made = await scene.admin.create_interface(request)
        await scene.admin.attach_interface(made.id, InstanceId(scene.instance), device=device)
        return made.id

    async def test_an_interface_of_somebody_else_is_left_alone_and_takes_its_place(self, journal: Path) -> None:
        scene = Scene(journal, settings=warm(WarmTargets(ips=40)))
        foreign = await self.foreign(scene, device=1)
        before = next(each for each in scene.ec2.records() if each.id == foreign)
        await scene.boot()
        await scene.rest(60.0)
        assert [each.device_number for each in scene.records()] == [0, 1, 2]
        assert scene.free == 18
        assert scene.provisioner.status.foreign == 1
        after = next(each for each in scene.ec2.records() if each.id == foreign)
        assert after == before
        assert "1 of them attached by others" in (scene.node.store.shortage or "")
        scene.check_settled()
        await scene.kill()

    async def test_what_others_have_attached_counts_against_what_the_node_can_have(self, journal: Path) -> None:
        scene = Scene(journal)
        await scene.boot()
        await scene.rest(10.0)
        assert (scene.node.store.ip_max, scene.provisioner.status.addresses_most) == (27, 27)
        await self.foreign(scene, device=1)
        await scene.rest(61.0)
        assert scene.node.store.ip_max == 18
        await scene.kill()

    async def test_interfaces_of_other_network_cards_take_neither_number_nor_place(self, journal: Path) -> None:
        """One of the first card without an address does, and metadata that do not have it tell nothing new."""
        scene = Scene(journal, settings=warm(WarmTargets(ips=3)))
        for device in (0, 1, 2):
            scene.ec2.attach_for_efa(scene.instance, card=1, device=device)
        await scene.boot()
        await scene.rest(300.0)
        assert scene.node.store.ip_max == 27
        described = scene.count("DescribeNetworkInterfaces")
        await scene.add_many([f"pod-{number}" for number in range(27)])
        own = [each for each in scene.records() if each.network_card == 0]
        assert [each.device_number for each in own] == [0, 1, 2]
        await scene.rest(600.0)
        assert scene.count("DescribeNetworkInterfaces") - described <= 3
        await scene.kill()

    async def test_an_interface_without_an_address_takes_its_place_on_the_first_card(self, journal: Path) -> None:
        scene = Scene(journal, settings=warm(WarmTargets(ips=12)))
        scene.ec2.attach_for_efa(scene.instance, card=0, device=1)
        await scene.boot()
        await scene.rest(100.0)
        assert scene.node.store.ip_max == 18
        assert [each.device_number for each in scene.records()] == [0, 2]
        described = scene.count("DescribeNetworkInterfaces")
        await scene.rest(600.0)
        assert scene.count("DescribeNetworkInterfaces") == described
        await scene.kill()

    async def test_max_eni_counts_too(self, journal: Path) -> None:
        scene = Scene(journal, settings=warm(WarmTargets(ips=3, max_interfaces=1), prefixes=True))
        await scene.boot()
        await scene.rest(10.0)
        assert scene.node.store.ip_max == 9 * 16
        await scene.kill()

    async def test_an_interface_that_is_to_be_left_alone_keeps_its_pods_and_nothing_else(self, journal: Path) -> None:
        scene = Scene(journal, settings=warm(WarmTargets(ips=3), unneeded=10.0))
        await scene.boot()
        await scene.rest(30.0)
        pods = {name: await scene.add(name) for name in map("pod-{}".format, range(12))}
        second = next(each for each in scene.records() if each.device_number == 1)
        theirs = {name for name, address in pods.items() if ip_network(address) in second.ranges}
        assert theirs
        scene.ec2.tag(second.id, **{NO_MANAGE_TAG: "true"})
        scene.ec2.tag(scene.records()[0].id, **{NO_MANAGE_TAG: "true"})
        before = next(each for each in scene.records() if each.id == second.id)
        await scene.boot()
        await scene.rest(60.0)
        assert scene.node.store.ip_max == 18
        assert scene.network.state is not None
        assert scene.network.state.find(second.id) is not None, "its pods need its routes"
        await scene.admin.set_groups(scene.records()[0].id, ["sg-new"])
        for name in set(pods) - theirs:
            scene.delete(name)
        given = {await scene.add(f"later-{number}") for number in range(17)}
        assert given.isdisjoint({str(each.network_address) for each in before.ranges})
        for name in theirs:
            scene.delete(name)
        await scene.rest(300.0)
        [after] = [each for each in scene.records() if each.id == second.id]
        assert after == before
        assert {each.groups for each in scene.records()} == {("sg-new",), before.groups}
        assert scene.node.store.lost() == {}
        scene.metadata.reachable = scene.ec2.reachable = False
        await scene.boot()
        await scene.rest(30.0)
        [use] = [each for each in scene.node.store.uses() if each.interface.id == second.id]
        assert use.free == 0, "the journal knows it, too"
        scene.metadata.reachable = scene.ec2.reachable = True
        scene.ec2.tag(second.id, **{NO_MANAGE_TAG: "false"})
        await scene.boot()
        await scene.rest(60.0)
        assert scene.node.store.ip_max == 27
        assert {each.groups for each in scene.records()} == {("sg-new",)}
        await scene.kill()

    async def test_a_spare_that_is_to_be_left_alone_is_neither_attached_nor_deleted(self, journal: Path) -> None:
        scene = Scene(journal, settings=warm(WarmTargets(ips=12)))
        tags = {**scene.own_tags(), NO_MANAGE_TAG: "true"}
        spare = await scene.admin.create_interface(
            InterfaceRequest(subnet=SubnetId(scene.subnet), groups=(), token="", description="", tags=tags)
        )
        await scene.boot()
        await scene.rest(200.0)
        assert len(scene.records()) == 2
        [found] = [each for each in scene.ec2.records() if each.id == spare.id]
        assert (found.instance, found.status) == (None, "available")
        await scene.kill()

    async def test_the_primary_interface_is_the_one_of_the_instances_hardware_address(self, journal: Path) -> None:
        """And not the one with the device number 0, which is somebody else's here; also where nobody answers."""
        scene = Scene(journal, primary_device=1, settings=warm(WarmTargets(ips=40), prefixes=False))
        foreign = await self.foreign(scene, device=0)
        before = next(each for each in scene.ec2.records() if each.id == foreign)
        await scene.boot()
        await scene.rest(60.0)
        assert [each.device_number for each in scene.records()] == [0, 1, 2]
        own = {each.interface.id: each.interface for each in scene.node.store.uses()}
        primary = scene.ec2.primary_of(scene.instance)
        assert own.keys() == {each.id for each in scene.records()} - {foreign}
        assert [each.id for each in own.values() if each.is_primary] == [primary.id]
        assert scene.network.state is not None
        assert scene.network.state.primary is not None
        assert scene.network.state.primary.interface.id == primary.id
        given = set(await scene.add_many([f"pod-{number}" for number in range(18)]))
        assert not given & {str(each.network_address) for each in before.ranges}
        assert not given & {str(each.primary) for each in scene.records()}
        scene.metadata.reachable = scene.ec2.reachable = False
        await scene.boot()
        await scene.rest(60.0)
        assert {each.interface.id: each.interface.is_primary for each in scene.node.store.uses()} == {
            each.id: each.is_primary for each in own.values()
        }
        assert next(each for each in scene.ec2.records() if each.id == foreign) == before
        await scene.kill()

    async def test_an_address_that_the_node_itself_has_is_given_to_no_pod_and_not_given_back(
        self, journal: Path
    ) -> None:
        scene = Scene(journal, settings=warm(WarmTargets(ips=3), unneeded=10.0))
        await scene.admin.assign_addresses(scene.records()[0].id, 5)
        own = {each.network_address for each in sorted(scene.records()[0].ranges, key=str)[:2]}
        scene.network.own_addresses = frozenset(own)
        await scene.boot()
        await scene.rest(200.0)
        assert own <= {each.network_address for each in scene.records()[0].ranges}
        assert scene.free == 3
        given = set(await scene.add_many([f"pod-{number}" for number in range(25)]))
        assert not given & set(map(str, own))
        with pytest.raises(AddressUnavailableError):
            await scene.add("one-too-many", within=30.0)
        scene.network.own_addresses = frozenset()
        scene.network.links_changed.set()
        assert await scene.add("another") in set(map(str, own))
        await scene.kill()

    async def test_security_groups_follow_the_primary_interface_within_a_minute(self, journal: Path) -> None:
        scene = Scene(journal, settings=warm(WarmTargets(ips=12)))
        await scene.boot()
        await scene.rest(60.0)
        await scene.admin.set_groups(scene.records()[0].id, ["sg-new", "sg-other"])
        await scene.rest(61.0)
        assert {each.groups for each in scene.records()} == {("sg-new", "sg-other")}
        await scene.kill()

    async def test_groups_that_are_configured_are_kept_and_the_primary_one_is_left_alone(self, journal: Path) -> None:
        scene = Scene(journal, settings=warm(WarmTargets(ips=12), groups=("sg-pods",)))
        primary = scene.records()[0].groups
        await scene.boot()
        await scene.rest(60.0)
        assert [each.groups for each in scene.records()] == [primary, ("sg-pods",)]
        await scene.admin.set_groups(scene.records()[1].id, ["sg-wrong"])
        await scene.rest(61.0)
        assert [each.groups for each in scene.records()] == [primary, ("sg-pods",)]
        await scene.kill()

    @pytest.mark.parametrize("way", ["unassigned", "detached"])
    @pytest.mark.parametrize(("rested", "within"), [(60.0, 61.0), (2.0, 92.0)])
    async def test_a_pod_whose_address_is_taken_is_told_within_a_minute(
        self, journal: Path, way: str, rested: float, within: float
    ) -> None:
        """Later where it undoes what the node has just done: EC2's descriptions may be of before that."""
        scene = Scene(journal, settings=warm(WarmTargets(ips=0)))
        await scene.boot()
        names = [f"pod-{number}" for number in range(10)]
        addresses = await scene.add_many(names)
        await scene.rest(rested)
        _, second = scene.records()
        [last] = [address for address in addresses if IPv4Network(address) in second.ranges]
        victim = names[addresses.index(last)]
        if way == "unassigned":
            await scene.admin.unassign(second.id, second.ranges)
        else:
            assert second.attachment is not None
            await scene.admin.detach_interface(second.attachment)
        await scene.rest(within)
        [(subject, reason, message)] = scene.recorder.told
        assert (subject.kind, subject.namespace, subject.name, subject.uid) == (
            "Pod",
            "apps",
            victim,
            f"uid-of-{victim}",
        )
        assert reason == "AddressLost"
        assert last in message
        others = [await scene.add(f"later-{number}") for number in range(8)]
        assert last not in others
        await scene.rest(300.0)
        assert len(scene.recorder.told) == 1, "once"
        await scene.kill()

    async def test_metadata_is_a_hint_that_something_has_changed(self, journal: Path) -> None:
        scene = Scene(journal, settings=warm(WarmTargets(ips=3)))
        await scene.boot()
        await scene.rest(63.0)
        described = scene.count("DescribeNetworkInterfaces")
        [primary] = scene.records()
        await scene.admin.unassign(primary.id, primary.ranges)
        await scene.rest(31.0)
        assert scene.addresses == 3
        assert scene.count("DescribeNetworkInterfaces") == described + 1
        await scene.kill()

    async def test_a_new_cidr_of_the_vpc_is_inside_within_a_minute(self, journal: Path) -> None:
        scene = Scene(journal, settings=warm(WarmTargets(), excluded=(IPv4Network("192.168.0.0/16"),)))
        await scene.boot()
        await scene.rest(60.0)
        scene.ec2.add_cidr(scene.ec2.vpc(), "100.64.0.0/16")
        await scene.rest(40.0)
        assert scene.network.state is not None
        assert scene.network.state.inside == {
            IPv4Network("10.1.0.0/16"), IPv4Network("100.64.0.0/16"), IPv4Network("192.168.0.0/16")
        }  # fmt: skip
        assert scene.network.state.external_snat is False
        await scene.kill()

    async def test_no_pod_gets_an_address_before_it_is_known_what_is_inside(self, journal: Path) -> None:
        """Or what it sends within the VPC would be translated, and stay so for as long as its connections last."""
        scene = Scene(journal)
        scene.metadata.tells_interfaces = False
        scene.ec2.faults.refusals["DescribeVpcs"] = ["Unavailable"] * 1000
        await scene.boot()
        with pytest.raises(AddressUnavailableError, match="DescribeVpcs"):
            await scene.add("a", within=60.0)
        scene.ec2.faults.refusals.clear()
        await scene.add("a", within=100.0)
        assert scene.network.state is not None
        assert scene.network.state.inside == {IPv4Network("10.1.0.0/16")}
        scene.check_settled()
        await scene.kill()

    async def test_who_translates_nothing_need_not_know_what_is_inside(self, journal: Path) -> None:
        scene = Scene(journal, settings=warm(WarmTargets(ips=3), external_snat=True))
        scene.metadata.tells_interfaces = False
        scene.ec2.faults.refusals["DescribeVpcs"] = ["Unavailable"] * 1000
        await scene.boot()
        await scene.add("a")
        await scene.kill()


class TestRefusals:
    async def test_throttling_delays_and_breaks_nothing(self, journal: Path) -> None:
        scene = Scene(journal)
        scene.ec2.faults.throttled = 0.5
        await scene.boot(timeout=120.0)
        await scene.add_many([f"pod-{number}" for number in range(14)], within=3000.0)
        for number in range(14):
            scene.delete(f"pod-{number}")
        await scene.rest(4000.0)
        scene.ec2.faults.throttled = 0.0
        await scene.rest(200.0)
        assert (len(scene.records()), scene.addresses) == (1, 3)
        scene.check_settled()
        await scene.kill()

    async def test_out_of_reach_ec2_is_asked_ever_less_often_and_the_reason_is_told(self, journal: Path) -> None:
        scene = Scene(journal)
        await scene.boot()
        await scene.add_many(["a", "b", "c"])
        await scene.rest(20.0)
        before = len(scene.ec2.calls)
        scene.ec2.reachable = False
        with pytest.raises(AddressUnavailableError, match="EC2 does not answer"):
            await scene.add_many(["d", "e", "f", "g"], within=60.0)
        scene.ec2.reachable = True
        await scene.rest(50.0)
        assert len(scene.ec2.calls) > before
        assert scene.free == 4, "one more than is to be warm: the kubelet tries the last pod again"
        scene.check_settled()
        await scene.kill()

    async def test_what_the_role_does_not_allow_is_named_and_not_asked_for_again_soon(self, journal: Path) -> None:
        scene = Scene(journal)
        scene.ec2.faults.refusals["AssignPrivateIpAddresses"] = ["UnauthorizedOperation"] * 3
        scene.ec2.faults.refusals["CreateNetworkInterface"] = ["UnauthorizedOperation"] * 3
        await scene.boot()
        with pytest.raises(AddressUnavailableError, match="role does not allow ec2:"):
            await scene.add("a", within=30.0)
        await scene.rest(170.0)
        assert scene.count() == 2
        await scene.rest(1000.0)
        assert scene.free == 3
        scene.check_settled()
        await scene.kill()

    async def test_who_may_not_tag_leaves_nothing_over_and_the_node_has_one_event(self, journal: Path) -> None:
        scene = Scene(journal)
        scene.ec2.faults.denied = {"CreateTags"}
        await scene.boot()
        await scene.add_many([f"pod-{number}" for number in range(9)])
        with pytest.raises(AddressUnavailableError, match=r"ec2:CreateNetworkInterface together with ec2:CreateTags"):
            await scene.add("late", within=100.0)
        await scene.rest(150.0)
        [told] = scene.recorder.told
        subject, reason, message = told
        assert (subject.kind, subject.name, subject.uid, reason) == ("Node", NODE, NODE, "Ec2CallDenied")
        for word in ("CreateNetworkInterface", "ec2:CreateTags", "nothing", "300 s"):
            assert word in message
        assert scene.calls()["CreateNetworkInterface"] == 1
        assert (len(scene.ec2.records()), scene.node.store.journal.creation) == (1, None)
        await scene.rest(400.0)
        assert set(scene.recorder.told) == {told}, "the same each time, so it is one Event with a count"
        scene.ec2.faults.denied = set()
        assert await scene.add("late", within=400.0)
        await scene.rest(30.0)
        scene.check_settled()
        await scene.kill()

    async def test_who_may_create_and_not_attach_leaves_nothing_over_either(self, journal: Path) -> None:
        scene = Scene(journal, settings=warm(WarmTargets(ips=12)))
        scene.ec2.faults.denied = {"AttachNetworkInterface"}
        await scene.boot()
        await scene.rest(200.0)
        assert scene.calls()["CreateNetworkInterface"] == 1
        assert len(scene.ec2.records()) == 1
        [(subject, reason, message)] = scene.recorder.told
        assert (subject.kind, reason) == ("Node", "Ec2CallDenied")
        assert "ec2:AttachNetworkInterface" in message
        await scene.kill()

    async def test_a_limit_that_only_ec2_knows_is_learnt(self, journal: Path) -> None:
        scene = Scene(journal, settings=warm(WarmTargets(ips=15)))
        scene.ec2.faults.refusals["AttachNetworkInterface"] = ["AttachmentLimitExceeded"]
        await scene.boot()
        await scene.rest(120.0)
        assert len(scene.records()) == 1
        assert len(scene.ec2.records()) == 1, "what could not be attached is deleted"
        await scene.rest(900.0)
        assert len(scene.records()) == 2
        scene.check_settled()
        await scene.kill()

    async def test_an_interface_whose_link_does_not_come_up_is_not_counted_upon(self, journal: Path) -> None:
        scene = Scene(journal, settings=warm(WarmTargets(ips=12)))
        await scene.boot()
        await scene.rest(10.0)
        scene.network.down.add(scene.records()[1].id)
        scene.network.links_changed.set()
        await scene.rest(120.0)
        assert len(scene.records()) == 3
        assert scene.free == 12
        scene.check()
        await scene.kill()


class LateClient(MemoryEc2Client):
    """One that describes the instance as it was, for as long as `described` is not None; and finds no interface by its
    tags while `blind`.
    """

    described: list[InterfaceRecord] | None = None
    blind = False

    async def interfaces_of(self, instance: InstanceId) -> list[InterfaceRecord]:
        now = await super().interfaces_of(instance)
        return now if self.described is None else self.described

    async def find_interfaces(self, tags: Mapping[str, str], *, status: str = "") -> list[InterfaceRecord]:
        found = await super().find_interfaces(tags, status=status)
        return [] if self.blind else found


async def test_a_description_of_before_a_change_takes_nothing_from_a_pod(journal: Path) -> None:
    scene = Scene(journal, settings=warm(WarmTargets(ips=0)))
    scene.client = late = LateClient(scene.ec2, caller="coild")
    scene.be(scene.instance)
    await scene.boot()
    await scene.rest(1.0)
    late.described = scene.records()
    # Nobody knows what came of the last step of attaching: EC2 is asked to describe the instance.
    scene.ec2.faults.lost_answers["ModifyNetworkInterfaceAttribute"] = 1
    described = scene.count("DescribeNetworkInterfaces")
    await scene.add_many([f"pod-{number}" for number in range(11)])
    await scene.rest(5.0)
    assert scene.count("DescribeNetworkInterfaces") > described
    assert scene.recorder.told == []
    assert len(scene.records()) == 2
    late.described = None
    await scene.rest(100.0)
    assert scene.count("AssignPrivateIpAddresses", "CreateNetworkInterface") == 2
    scene.check_settled()
    await scene.kill()


@pytest.mark.parametrize("killed", [False, True])
async def test_a_creation_of_which_nobody_knows_makes_one_interface(journal: Path, killed: bool) -> None:
    scene = Scene(journal, settings=warm(WarmTargets(ips=12)))
    scene.client = late = LateClient(scene.ec2, caller="coild")
    scene.be(scene.instance)
    late.blind = True
    scene.ec2.faults.lost_answers["CreateNetworkInterface"] = 1
    await scene.boot()
    while not scene.count("CreateNetworkInterface"):
        await scene.rest(0.1)
    if killed:
        await scene.boot()
    await scene.rest(30.0)
    assert scene.count("CreateNetworkInterface") == 2
    assert len(scene.ec2.records()) == len(scene.records()) == 2
    scene.check_settled()
    await scene.kill()


class TestDescribeLag:
    """EC2 describes the interfaces as they were up to a minute ago (cilium#36428)."""

    def late(self, journal: Path, lag: float, **more: object) -> Scene:
        scene = Scene(journal, settings=warm(WarmTargets(ips=3), **more))
        scene.ec2.faults.describe_lag = lag
        return scene

    @pytest.mark.parametrize("lag", [5.0, 60.0])
    async def test_what_the_node_has_changed_is_neither_repeated_nor_taken_from_a_pod(
        self, journal: Path, lag: float
    ) -> None:
        scene, prompt = self.late(journal, lag), Scene(journal.with_name("prompt"))
        for each in (scene, prompt):
            await each.boot()
            for number in range(14):
                await each.add(f"pod-{number}")
                # What metadata tells that EC2 never did has it asked for a description.
                await each.admin.set_groups(each.records()[0].id, [f"sg-{number}"])
                await each.rest(31.0)
            await each.rest(100.0)
        assert scene.count("DescribeNetworkInterfaces") > 14
        assert scene.recorder.told == []
        assert scene.calls()["AssignPrivateIpAddresses"] == prompt.calls()["AssignPrivateIpAddresses"]
        assert scene.calls()["CreateNetworkInterface"] == 1
        assert scene.addresses == prompt.addresses
        for each in (scene, prompt):
            each.check_settled()
            await each.kill()

    async def test_an_assignment_without_an_answer_is_not_repeated_and_is_found(self, journal: Path) -> None:
        scene = self.late(journal, 30.0)
        scene.ec2.faults.lost_answers["AssignPrivateIpAddresses"] = 1
        await scene.boot()
        with pytest.raises(AddressUnavailableError, match=r"AssignPrivateIpAddresses for eni-.* was not answered"):
            await scene.add("early", within=29.0, pod="web")
        assert await scene.add("late", within=20.0, pod="web")
        await scene.rest(5.0)
        assert (scene.count(), scene.free) == (1, 3), "the first pod waited for the fourth when it was asked for"
        await scene.rest(60.0)
        scene.check_settled()
        await scene.kill()

    async def test_an_assignment_that_did_not_take_place_is_repeated_after_a_minute(self, journal: Path) -> None:
        scene = self.late(journal, 0.0)
        scene.ec2.faults.refusals["AssignPrivateIpAddresses"] = ["InternalError"]
        await scene.boot()
        await scene.rest(59.0)
        assert scene.count() == 1, "EC2's descriptions may still be of before it"
        described = scene.count("DescribeNetworkInterfaces")
        assert described <= 12, "asked ever less often"
        await scene.rest(5.0)
        assert (scene.count(), scene.free) == (2, 3)
        scene.check_settled()
        await scene.kill()

    async def test_a_call_that_was_not_sent_is_repeated_as_soon_as_ec2_is_there(self, journal: Path) -> None:
        scene = self.late(journal, 0.0)
        await scene.boot()
        await scene.rest(10.0)
        scene.ec2.reachable = False
        await scene.add_many(["a", "b", "c"])
        await scene.rest(8.0)
        scene.ec2.reachable = True
        assert await scene.add("d", within=10.0)
        await scene.kill()

    async def test_an_interface_whose_attachment_was_not_answered_is_not_made_twice(self, journal: Path) -> None:
        scene = self.late(journal, 45.0)
        await scene.boot()
        await scene.rest(60.0)
        scene.ec2.faults.lost_answers["AttachNetworkInterface"] = 1
        names = [f"pod-{number}" for number in range(10)]
        await scene.add_many(names, within=60.0)
        await scene.rest(120.0)
        assert scene.calls()["CreateNetworkInterface"] == 1
        assert scene.calls()["AttachNetworkInterface"] == 1
        assert len(scene.records()) == 2
        scene.check_settled()
        await scene.kill()

    async def test_after_a_removal_without_an_answer_pods_get_others_and_nothing_is_given_that_is_gone(
        self, journal: Path
    ) -> None:
        scene = self.late(journal, 45.0, unneeded=30.0)
        await scene.boot()
        await scene.add_many([f"pod-{number}" for number in range(8)])
        for number in range(6):
            scene.delete(f"pod-{number}")
        scene.ec2.faults.lost_answers["UnassignPrivateIpAddresses"] = 1
        while not scene.count("UnassignPrivateIpAddresses"):
            await scene.rest(1.0)
        left = {str(each.network_address) for record in scene.records() for each in record.ranges}
        given = await scene.add_many([f"later-{number}" for number in range(5)], within=5.0)
        now = {str(each.network_address) for record in scene.records() for each in record.ranges}
        assert set(given) <= now
        assert now > left, "EC2 has assigned others meanwhile"
        assert scene.count("UnassignPrivateIpAddresses") == 1
        await scene.rest(300.0)
        assert scene.recorder.told == []
        scene.check_settled()
        await scene.kill()

    @pytest.mark.parametrize("lag", [20.0, 55.0])
    async def test_the_next_process_takes_nothing_from_a_pod_and_gives_nothing_that_is_gone(
        self, journal: Path, lag: float
    ) -> None:
        scene = self.late(journal, lag, unneeded=30.0)
        await scene.boot()
        await scene.add_many([f"pod-{number}" for number in range(8)])
        await scene.rest(2.0)
        await scene.boot()
        await scene.rest(100.0)
        assert scene.recorder.told == []
        for number in range(6):
            scene.delete(f"pod-{number}")
        before = scene.count("UnassignPrivateIpAddresses")
        while scene.count("UnassignPrivateIpAddresses") == before:
            await scene.rest(0.5)
        await scene.boot()
        await scene.rest(5.0)
        given = await scene.add_many([f"later-{number}" for number in range(6)], within=60.0)
        assert set(given) <= {str(each.network_address) for record in scene.records() for each in record.ranges}
        assert scene.recorder.told == []
        await scene.rest(200.0)
        scene.check_settled()
        await scene.kill()


class TestGone:
    """An interface that EC2 does not know any more, whoever still lists it (vpc-cni#1008)."""

    async def remove(self, scene: Scene, record: InterfaceRecord) -> None:
        assert record.attachment is not None
        await scene.admin.detach_interface(record.attachment)
        await scene.admin.delete_interface(record.id)

    async def test_metadata_that_list_it_keep_no_process_from_starting(self, journal: Path) -> None:
        scene = Scene(journal, settings=warm(WarmTargets(ips=3)))
        await scene.boot()
        names = [f"pod-{number}" for number in range(12)]
        await scene.add_many(names)
        await scene.rest(100.0)
        scene.metadata.lag = 1e6
        _, second = scene.records()
        await self.remove(scene, second)
        await scene.boot()
        assert await scene.add("new", within=20.0)
        await scene.rest(200.0)
        assert {reason for _, reason, _ in scene.recorder.told} == {"AddressLost"}
        errors = {call.error for call in scene.ec2.calls if call.action.startswith("Describe")}
        assert errors == {""}
        assert await scene.add("later", within=20.0)
        await scene.kill()

    async def test_to_which_ec2_assigns_nothing_is_left_out_and_others_are_used(self, journal: Path) -> None:
        scene = Scene(journal, settings=warm(WarmTargets(ips=3)))
        await scene.boot()
        await scene.add_many([f"pod-{number}" for number in range(10)])
        await scene.rest(100.0)
        scene.ec2.faults.refusals["AssignPrivateIpAddresses"] = ["InvalidNetworkInterfaceID.NotFound"]
        await scene.add_many([f"more-{number}" for number in range(5)], within=20.0)
        assert len(scene.records()) == 3, "the one that is not known has room, and is not asked for more"
        await scene.rest(100.0)
        assert scene.recorder.told == [], "EC2 describes it, so it was no more than a delay"
        assert scene.free == scene.addresses - 15

        _, second, third = scene.records()
        scene.ec2.faults.refusals["AssignPrivateIpAddresses"] = ["InvalidNetworkInterfaceID.NotFound"]
        await scene.add_many([f"last-{number}" for number in range(3)], within=20.0)
        await scene.rest(20.0)
        assert scene.records()[1].ranges == second.ranges, "it still has room"
        assert scene.records()[2].ranges > third.ranges
        await scene.rest(100.0)
        scene.check_settled()
        await scene.kill()

    async def test_of_which_ec2_changes_no_groups_is_left_out_and_others_are_changed(self, journal: Path) -> None:
        scene = Scene(journal, settings=warm(WarmTargets(ips=12)))
        await scene.boot()
        await scene.add_many([f"pod-{number}" for number in range(8)])
        await scene.rest(100.0)
        primary, second, _ = scene.records()
        await scene.admin.set_groups(primary.id, ["sg-new"])
        scene.ec2.faults.refusals["ModifyNetworkInterfaceAttribute"] = ["InvalidNetworkInterfaceID.NotFound"]
        await scene.rest(40.0)
        assert [each.groups for each in scene.records()] == [("sg-new",), second.groups, ("sg-new",)]
        await scene.rest(60.0)
        assert {each.groups for each in scene.records()} == {("sg-new",)}
        assert scene.recorder.told == []
        await scene.kill()

    async def test_one_that_ec2_does_not_know_yet_is_attached_later(self, journal: Path) -> None:
        """Right after its creation (EC2 Developer Guide, "Eventual consistency")."""
        scene = Scene(journal, settings=warm(WarmTargets(ips=12)))
        scene.ec2.faults.refusals["AttachNetworkInterface"] = ["InvalidNetworkInterfaceID.NotFound"]
        await scene.boot()
        await scene.rest(60.0)
        assert scene.calls()["CreateNetworkInterface"] == 1
        assert len(scene.records()) == 2
        scene.check_settled()
        await scene.kill()


class TestStart:
    async def test_without_ec2_the_journal_and_metadata_give_and_nothing_is_released(self, journal: Path) -> None:
        scene = Scene(journal)
        await scene.boot()
        await scene.add("a")
        await scene.rest(20.0)
        await scene.kill()
        scene.ec2.reachable = False
        changing = scene.count()
        await scene.boot()
        await scene.rest(300.0)
        assert scene.source == "metadata"
        assert await scene.add("b", within=0.0)
        assert scene.count() == changing
        scene.metadata.reachable = False
        await scene.boot()
        await scene.rest(30.0)
        assert scene.source == "checkpoint"
        assert await scene.add("c", within=0.0)
        assert scene.recorder.told == []
        scene.ec2.reachable = scene.metadata.reachable = True
        await scene.rest(200.0)
        assert scene.source == "ec2"
        scene.check_settled()
        await scene.kill()

    async def test_a_fresh_node_without_anybody_waits_and_says_why(self, journal: Path) -> None:
        scene = Scene(journal)
        scene.ec2.reachable = scene.metadata.reachable = False
        await scene.boot()
        with pytest.raises(AddressUnavailableError, match="metadata service"):
            await scene.add("a", within=60.0)
        scene.metadata.reachable = True
        with pytest.raises(AddressUnavailableError, match="EC2 does not answer"):
            await scene.add("a", within=60.0)
        scene.ec2.reachable = True
        assert await scene.add("a", within=120.0)
        await scene.rest(100.0)
        scene.check_settled()
        await scene.kill()

    async def test_a_lagging_metadata_service_gives_no_address_that_was_given_back(self, journal: Path) -> None:
        scene = Scene(journal)
        scene.metadata.lag = 10_000.0
        await scene.boot()
        await scene.add_many([f"pod-{number}" for number in range(8)])
        for number in range(8):
            scene.delete(f"pod-{number}")
        await scene.rest(SURPLUS_SECONDS + 280.0)
        assert scene.addresses == 3
        scene.metadata.lag = 300.0
        await scene.kill()
        scene.ec2.reachable = False
        await scene.boot()
        await scene.rest(10.0)
        ours = {str(each.network_address) for record in scene.records() for each in record.ranges}
        given = [await scene.add(name, within=0.0) for name in ("a", "b", "c")]
        assert set(given) == ours
        with pytest.raises(AddressUnavailableError):
            await scene.add("d", within=0.0)
        await scene.kill()

    async def test_what_ec2_was_asked_to_take_is_not_given_by_the_next_process(self, journal: Path) -> None:
        scene = Scene(journal)
        scene.metadata.lag = 1e6
        await scene.boot()
        await scene.add_many([f"pod-{number}" for number in range(6)])
        for number in range(6):
            scene.delete(f"pod-{number}")
        killed = asyncio.Event()

        async def gate(action: str, moment: Moment) -> None:
            if action == "UnassignPrivateIpAddresses" and moment is Moment.AFTER:
                killed.set()
                await asyncio.get_running_loop().create_future()

        scene.ec2.gate = gate
        await killed.wait()
        ours = {str(each.network_address) for record in scene.records() for each in record.ranges}
        assert len(ours) == 3
        await scene.kill()
        scene.ec2.reachable = False
        scene.metadata.reachable = False
        await scene.boot()
        await scene.rest(20.0)
        given = [await scene.add(name, within=0.0) for name in ("a", "b", "c")]
        assert set(given) == ours
        with pytest.raises(AddressUnavailableError):
            await scene.add("d", within=0.0)
        await scene.kill()

    async def test_what_ec2_takes_only_now_is_not_given_by_the_next_process(self, journal: Path) -> None:
        """An earlier process has asked for it with its last breath, and EC2 describes the interfaces as before."""
        scene = Scene(journal)
        scene.metadata.lag = 1e6
        await scene.boot()
        await scene.add_many([f"pod-{number}" for number in range(6)])
        for number in range(6):
            scene.delete(f"pod-{number}")
        asked = asyncio.Event()

        async def gate(action: str, moment: Moment) -> None:
            if action == "UnassignPrivateIpAddresses" and not asked.is_set():
                asked.set()
                await asyncio.get_running_loop().create_future()

        scene.ec2.gate = gate
        await asked.wait()
        [primary] = scene.records()
        checkpoint = scene.node.store.journal.checkpoint
        assert checkpoint is not None
        [noted] = checkpoint.interfaces
        leaving = primary.ranges - noted.interface.ranges
        assert leaving
        scene.metadata.reachable = False  # it would give a hint
        await scene.boot()
        await scene.rest(5.0)
        await scene.admin.unassign(primary.id, leaving)
        for number in range(40):
            with suppress(AddressUnavailableError):
                address = await scene.add(f"later-{number}", within=0.0)
                ours = {each for record in scene.records() for each in record.ranges}
                assert ip_network(address) in ours
            await scene.rest(1.0)
        await scene.kill()

    async def test_what_another_process_left_is_attached_or_deleted(self, journal: Path) -> None:
        scene = Scene(journal, settings=warm(WarmTargets(ips=12)))
        for number in range(2):
            request = InterfaceRequest(
                subnet=SubnetId(scene.subnet),
                groups=(),
                token=str(number),
                description="",
                tags=scene.own_tags(),
                addresses=3,
            )
            await scene.admin.create_interface(request)
        await scene.boot()
        await scene.rest(30.0)
        assert scene.count("CreateNetworkInterface") == 0
        assert (len(scene.records()), len(scene.ec2.records()), scene.addresses) == (2, 2, 12)
        scene.check_settled()
        await scene.kill()

    async def test_the_journal_of_another_instance_says_nothing(self, journal: Path) -> None:
        scene = Scene(journal)
        await scene.boot()
        await scene.rest(10.0)
        await scene.kill()
        other = Scene(journal)
        other.be(other.ec2.launch("m5.large", other.subnet))
        other.ec2.reachable = False
        await other.boot()
        await other.rest(10.0)
        with pytest.raises(AddressUnavailableError):
            await other.add("a", within=0.0)
        await other.kill()

    async def test_by_the_journal_of_another_instance_nothing_is_asked_of_ec2(self, journal: Path) -> None:
        """An image of a node's disk, a metadata service that is not there yet, and EC2 that would obey."""
        scene = Scene(journal)
        await scene.boot()
        await scene.add_many([f"pod-{number}" for number in range(8)])
        await scene.rest(10.0)
        await scene.kill()
        theirs = scene.records()
        copy = scene.ec2.launch("m5.large", scene.subnet)
        scene.node.kernel.clear()
        scene.be(copy)
        scene.metadata.reachable = False
        changes = scene.count()
        await scene.boot()
        await scene.rest(400.0)
        assert scene.count() == changes
        with pytest.raises(AddressUnavailableError):
            await scene.add("a", within=10.0)
        scene.metadata.reachable = True
        await scene.rest(30.0)
        assert [each.id for each in scene.ec2.records() if each.instance != copy] == [each.id for each in theirs]
        address = await scene.add("b")
        assert any(ip_network(address).subnet_of(each) for one in scene.records() for each in one.ranges)  # type: ignore[arg-type]
        await scene.kill()


def test_tags_are_what_the_collector_looks_for() -> None:
    assert (CLUSTER_TAG, INSTANCE_TAG) == ("coil.cybozu.com/cluster", "coil.cybozu.com/instance")
