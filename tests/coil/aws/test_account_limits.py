"""The account's limits, as the EC2 in memory enforces them."""

import pytest

from coil.aws.ec2 import InstanceId
from coil.aws.error import Ec2Error, ThrottledError
from tests.coil.aws.account_limits import DOCUMENTED, AccountLimits
from tests.coil.aws.ec2_contract import TYPE, primary
from tests.coil.aws.memory_ec2 import MemoryEc2
from tests.coil.aws.memory_ec2_client import MemoryEc2Client


class Clock:
    now = 0.0

    def __call__(self) -> float:
        return self.now


async def test_a_burst_is_granted_and_then_the_rate_by_operation_for_all_callers() -> None:
    clock = Clock()
    ec2 = MemoryEc2(clock=clock, limits=AccountLimits(clock))
    subnet = ec2.subnet("10.1.0.0/16")
    instance = ec2.launch(TYPE, subnet)
    clients = [MemoryEc2Client(ec2, caller=name) for name in ("one", "two")]
    own = await primary(clients[0], instance)

    async def granted(calls: int) -> int:
        refused = 0
        for number in range(calls):
            try:
                await clients[number % 2].set_groups(own.id, ["sg-1"])
            except ThrottledError:
                refused += 1
        return calls - refused

    assert await granted(130) == 100
    clock.now = 2.0
    assert await granted(30) == 10
    assert len(await clients[0].interfaces_of(InstanceId(instance))) == 1, "another operation has a bucket of its own"
    clock.now = 1000.0
    assert await granted(130) == 100, "rest earns a burst and no more"
    assert sum(call.error == "RequestLimitExceeded" for call in ec2.calls) == 30 + 20 + 30


async def test_every_operation_of_the_product_has_a_limit() -> None:
    clock = Clock()
    ec2 = MemoryEc2(limits=AccountLimits(clock))
    subnet = ec2.subnet("10.1.0.0/24", ipv6="2001:db8::/64")
    own = await primary(client := MemoryEc2Client(ec2), ec2.launch(TYPE, subnet))
    await client.assign_ipv6_prefix(own.id)
    await client.unassign(own.id, await client.assign_addresses(own.id, 1))
    assert {call.action for call in ec2.calls} <= DOCUMENTED.keys()
    with pytest.raises(Ec2Error):
        await client.vpc_cidrs("vpc-none")
