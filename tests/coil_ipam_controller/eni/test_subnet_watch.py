"""Which subnets are watched, what is told of them, and what an admin sees."""

import asyncio
import json
import math

from coil.eni.subnet_forecast import SHORTEST_SPAN
from coil.eni.tag import SUBNET_TAG, SUBNET_VALUE
from coil.page.cluster_document import ClusterDocument, UseCounts
from coil.page.cluster_page import render_cluster_page
from coil.page.document import render_json
from coil.page.query import parse_query
from coil_ipam_controller.eni.description import describe_interfaces
from coil_ipam_controller.eni.leader import ROUND_SECONDS
from coil_ipam_controller.eni.subnet_watch import USE_SECONDS
from coil_ipam_controller.eni.view import RESERVED
from tests.coil.page.html_tree import parse_html
from tests.coil_ipam_controller.eni.scene import NOON, Scene, play

TAGGED = {SUBNET_TAG: SUBNET_VALUE}


def test_subnets_with_interfaces_and_tagged_ones_of_their_zone() -> None:
    async def script(scene: Scene) -> None:
        used = scene.ec2.subnet("10.1.0.0/24")
        tagged = scene.ec2.subnet("10.1.1.0/28", tags=TAGGED)
        scene.ec2.subnet("10.1.2.0/24", tags={SUBNET_TAG: "0"})
        scene.ec2.subnet("10.2.0.0/24", vpc=scene.ec2.vpc("10.2.0.0/16"), tags=TAGGED)
        await scene.attach(used, addresses=3)
        await asyncio.sleep(2 * ROUND_SECONDS)
        first, second = scene.view.subnets
        assert (first.id, first.total, first.free, first.interfaces, first.tagged) == (used, 251, 247, 1, False)
        assert (second.id, second.total, second.free, second.interfaces, second.tagged) == (tagged, 11, 11, 0, True)
        assert first.total == 2**8 - RESERVED
        labels = {"subnet": used, "zone": first.zone}
        assert scene.value("coil_controller_eni_subnet_addresses", **labels) == 251
        assert scene.value("coil_controller_eni_subnet_free_addresses", **labels) == 247
        assert scene.value("coil_controller_eni_subnet_dry_seconds", **labels) is None, "nobody knows yet"
        await asyncio.sleep(SHORTEST_SPAN)
        assert scene.value("coil_controller_eni_subnet_consumption", **labels) == 0
        assert scene.value("coil_controller_eni_subnet_dry_seconds", **labels) == math.inf
        assert scene.recorder.told == []

    play(script)


def test_a_subnet_that_runs_dry_is_told_before_and_after() -> None:
    async def script(scene: Scene) -> None:
        subnet = scene.ec2.subnet("10.1.0.0/28")
        other = scene.ec2.subnet("10.1.1.0/28")
        interface = await scene.attach(subnet)
        await scene.attach(other)
        await asyncio.sleep(ROUND_SECONDS)
        for _ in range(9):
            assert scene.recorder.reasons in ([], ["SubnetNearlyDry"])
            scene.ec2.assign(interface, addresses=1)
            await asyncio.sleep(2 * ROUND_SECONDS)
        assert scene.recorder.reasons == ["SubnetNearlyDry"]
        await scene.make(subnet, age=0)
        await asyncio.sleep(ROUND_SECONDS)
        assert scene.recorder.reasons == ["SubnetNearlyDry", "SubnetDry"]
        assert all(subnet in told.message for told in scene.recorder.told)
        [state, _] = scene.view.subnets
        assert (state.free, state.dry_in) == (0, 0)
        scene.ec2.unassign(interface, scene.ranges(interface))
        await asyncio.sleep(ROUND_SECONDS)
        assert scene.recorder.reasons == ["SubnetNearlyDry", "SubnetDry", "SubnetHasRoom"]

    play(script)


def test_all_interfaces_are_asked_for_rarely() -> None:
    async def script(scene: Scene) -> None:
        await scene.attach(scene.ec2.subnet("10.1.0.0/24"))
        await asyncio.sleep(3600)
        looks = 3600 / ROUND_SECONDS
        # One a round for what is unattached, and the rare ones.
        assert scene.ec2.count("DescribeNetworkInterfaces") <= looks + 3600 / USE_SECONDS + 3

    play(script)


def test_the_page_shows_it_and_a_replica_that_stands_by_says_who_knows() -> None:
    async def script(scene: Scene) -> None:
        subnet = scene.ec2.subnet("10.1.0.0/28")
        standing_by = describe_interfaces(scene.view)
        await scene.attach(subnet, addresses=9)
        await scene.attach(subnet)
        scene.ec2.faults.refusals["DescribeSubnets"] = ["InternalFailure"]
        await asyncio.sleep(10 * ROUND_SECONDS)
        leading = describe_interfaces(scene.view)
        document = cluster(leading, leads=True)
        section = parse_html(render_cluster_page(document, parse_query(""))).by_id("vpc")
        assert section.one("tbody").one("th").text == subnet
        assert [cell.text for cell in section.one("tbody").all("td")] == [
            *("eu-central-1a", "10.1.0.0/28", "0 of 11, 100 % in use", "2", "not known yet", "dry")
        ]
        [found] = json.loads(render_json(document))["interfaces"]["subnets"]
        assert (found["free"], found["dryInSeconds"], found["takenPerHour"]) == (0, 0, None)
        other = parse_html(render_cluster_page(cluster(standing_by, leads=False), parse_query(""))).by_id("vpc")
        assert "only the replica that leads looks at EC2" in other.text
        assert "vpc" not in render_cluster_page(cluster(None, leads=True), parse_query("")).split("<main")[-1]

    play(script)


def test_what_fails_is_on_the_page() -> None:
    async def script(scene: Scene) -> None:
        scene.ec2.faults.refusals["DescribeNetworkInterfaces"] = ["UnauthorizedOperation"] * 2
        await asyncio.sleep(1)
        section = parse_html(render_cluster_page(cluster(describe_interfaces(scene.view), leads=True), parse_query("")))
        assert "UnauthorizedOperation" in section.by_id("vpc").text

    play(script)


def cluster(interfaces: object, *, leads: bool) -> ClusterDocument:
    return ClusterDocument(
        replica="replica-1",
        leads=leads,
        at=NOON,
        blocks=UseCounts(),
        interfaces=interfaces,  # type: ignore[arg-type]
    )
