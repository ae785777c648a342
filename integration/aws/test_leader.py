"""The controller's work on EC2 by the product's client, over HTTP, against the strict EC2."""

import os
from collections.abc import Iterator
from datetime import timedelta

import pytest

from coil.aws.ec2 import Ec2, InstanceId, InterfaceRequest
from coil.aws.metadata import MetadataError
from coil.eni.interface import InterfaceId, SubnetId
from coil.eni.orphan import ORPHAN_SECONDS
from coil.eni.tag import CLUSTER_TAG, CREATED_TAG, SUBNET_TAG, SUBNET_VALUE, render_created
from coil_ipam_controller.eni.orphan_collector import OrphanCollector
from coil_ipam_controller.eni.subnet_watch import SubnetWatch
from integration.aws.leader import NOON, LeaderScene
from integration.aws.strict_ec2 import StrictEc2


@pytest.fixture
def world(monkeypatch: pytest.MonkeyPatch) -> Iterator[LeaderScene]:
    for name in ("AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY"):
        monkeypatch.setenv(name, "testing")
    assert "AWS_PROFILE" not in os.environ
    with StrictEc2.start() as account:
        yield LeaderScene(account, cluster="blue")


async def make(ec2: Ec2, subnet: str, *, cluster: str, token: str) -> InterfaceId:
    """One that was made an hour ago."""
    tags = {CLUSTER_TAG: cluster, CREATED_TAG: render_created(NOON - timedelta(hours=1))}
    made = await ec2.create_interface(
        InterfaceRequest(subnet=SubnetId(subnet), groups=(), token=token, description="of a test", tags=tags)
    )
    return made.id


async def test_orphans_of_this_cluster_go_and_all_others_stay(world: LeaderScene) -> None:
    subnet = world.account.subnet("10.1.0.0/24")
    instance = world.account.launch("m5.large", subnet)
    async with world.connect() as ec2:
        orphan = await make(ec2, subnet, cluster="blue", token="1")
        other = await make(ec2, subnet, cluster="green", token="2")
        used = await make(ec2, subnet, cluster="blue", token="3")
        await ec2.attach_interface(used, InstanceId(instance), device=1)
        collector = OrphanCollector(world.deps)
        await collector.round(ec2)
        assert world.view.unattached == 1
        world.clock = ORPHAN_SECONDS
        await collector.round(ec2)
        left = {each.id for each in await ec2.find_interfaces({})}
    assert orphan not in left
    assert {other, used} <= left
    assert world.account.count("DeleteNetworkInterface") == 1


async def test_the_subnets_of_the_cluster_and_what_they_have_left(world: LeaderScene) -> None:
    used = world.account.subnet("10.1.0.0/24")
    tagged = world.account.subnet("10.1.1.0/28", tags={SUBNET_TAG: SUBNET_VALUE})
    world.account.subnet("10.1.2.0/24")
    async with world.connect() as ec2:
        await make(ec2, used, cluster="blue", token="1")
        await SubnetWatch(world.deps).round(ec2)
    found = {each.id: (each.total, each.free, each.interfaces, each.tagged) for each in world.view.subnets}
    assert found == {used: (251, 250, 1, False), tagged: (11, 11, 0, True)}


async def test_without_a_region_the_metadata_service_is_asked(world: LeaderScene) -> None:
    with pytest.raises(MetadataError, match="does not answer"):
        # Where nobody listens.
        async with world.connect(region="", metadata="http://127.0.0.1:1"):
            pass
    assert world.account.count() == 0
