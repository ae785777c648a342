"""The metadata service in memory says what EC2 had a while ago."""

import pytest

from coil.aws.ec2 import InstanceId
from coil.aws.metadata import InstanceMetadata, MetadataError
from tests.coil.aws.ec2_contract import TYPE, attach, primary
from tests.coil.aws.memory_ec2 import MemoryEc2
from tests.coil.aws.memory_ec2_client import MemoryEc2Client
from tests.coil.aws.memory_metadata import MemoryMetadata


class Clock:
    now = 0.0

    def __call__(self) -> float:
        return self.now


async def test_it_describes_what_is_attached() -> None:
    ec2 = MemoryEc2()
    subnet = ec2.subnet("10.1.0.0/24", ipv6="2001:db8:0:1::/64")
    instance = ec2.launch(TYPE, subnet)
    client = MemoryEc2Client(ec2)
    record = await attach(client, subnet, instance, device=1, addresses=2, prefixes=0)
    own = await primary(client, instance)
    prefix = await client.assign_ipv6_prefix(own.id)
    [block] = await client.assign_prefixes(own.id, 1)
    metadata: InstanceMetadata = MemoryMetadata(ec2, instance)
    identity = await metadata.identity()
    assert (identity.instance_id, identity.instance_type) == (instance, TYPE)
    first, second = await metadata.interfaces()
    assert (first.device_number, first.interface, first.mac, first.local_ipv4s) == (0, own.id, own.mac, (own.primary,))
    assert (first.ipv4_prefixes, first.ipv6_prefixes, first.groups) == ((block,), (prefix,), own.groups)
    assert [str(each) for each in (first.subnet_ipv4, *first.vpc_ipv4s)] == ["10.1.0.0/24", "10.1.0.0/16"]
    assert second.local_ipv4s[0] == record.primary
    assert {f"{address}/32" for address in second.local_ipv4s[1:]} == set(map(str, record.ranges))


async def test_it_lags() -> None:
    clock = Clock()
    ec2 = MemoryEc2(clock=clock)
    subnet = ec2.subnet("10.1.0.0/24")
    instance = ec2.launch(TYPE, subnet)
    metadata = MemoryMetadata(ec2, instance, lag=30.0, clock=clock)
    client = MemoryEc2Client(ec2)
    own = await primary(client, instance)

    async def addresses_at(now: float) -> int:
        clock.now = now
        return len((await metadata.interfaces())[0].local_ipv4s)

    clock.now = 10.0
    new = await client.assign_addresses(own.id, 3)
    clock.now = 25.0
    await client.unassign(own.id, new)
    assert [await addresses_at(now) for now in (39.0, 40.0, 54.0, 55.0)] == [1, 4, 4, 1]


async def test_out_of_reach_nobody_knows() -> None:
    ec2 = MemoryEc2()
    metadata = MemoryMetadata(ec2, ec2.launch(TYPE, ec2.subnet("10.1.0.0/24")))
    metadata.reachable = False
    with pytest.raises(MetadataError):
        await metadata.identity()
    with pytest.raises(MetadataError):
        await metadata.interfaces()


async def test_it_forgets_what_is_detached_and_follows_a_new_cidr() -> None:
    ec2 = MemoryEc2()
    subnet = ec2.subnet("10.1.0.0/24")
    instance = ec2.launch(TYPE, subnet)
    client = MemoryEc2Client(ec2)
    metadata = MemoryMetadata(ec2, instance)
    record = await attach(client, subnet, instance, device=1)
    assert len(await metadata.interfaces()) == 2
    assert record.attachment is not None
    await client.detach_interface(record.attachment)
    ec2.add_cidr(ec2.vpc(), "100.64.0.0/16")
    [only] = await metadata.interfaces()
    assert only.interface == (await primary(client, InstanceId(instance))).id
    assert [str(each) for each in only.vpc_ipv4s] == ["10.1.0.0/16", "100.64.0.0/16"]
