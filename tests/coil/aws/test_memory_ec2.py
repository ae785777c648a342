"""The EC2 in memory keeps the contract, and what else it promises."""

import asyncio
import random

import pytest

from coil.aws.ec2 import Ec2, InstanceId
from coil.aws.error import Ec2Error, UnavailableError
from coil.eni.interface import SubnetId
from tests.coil.aws.ec2_contract import TAGS, TYPE, Ec2Contract, attach, primary, request
from tests.coil.aws.memory_ec2 import MemoryEc2, Moment
from tests.coil.aws.memory_ec2_client import MemoryEc2Client


class KilledError(Exception):
    """In place of the end of the process that called."""


class TestMemoryEc2(Ec2Contract):
    @pytest.fixture
    def account(self) -> MemoryEc2:
        return MemoryEc2()

    @pytest.fixture
    def client(self, account: MemoryEc2) -> Ec2:
        return MemoryEc2Client(account, caller="node-1")

    async def test_the_free_addresses_are_those_that_can_be_had(self, account: MemoryEc2, client: Ec2) -> None:
        subnet = SubnetId(account.subnet("10.1.0.0/24"))
        assert (await client.subnet(subnet)).free == 256 - 5
        made = await client.create_interface(request(subnet, prefixes=2))
        assert (await client.subnet(subnet)).free == 256 - 5 - 1 - 32
        await client.delete_interface(made.id)
        assert (await client.subnet(subnet)).free == 256 - 5

    async def test_the_same_seed_gives_the_same_addresses(self) -> None:
        async def run(seed: int) -> list[str]:
            account = MemoryEc2()
            account.faults.random = random.Random(seed)
            made = await MemoryEc2Client(account).create_interface(request(account.subnet("10.1.0.0/24"), addresses=5))
            return sorted(map(str, made.ranges))

        assert await run(7) == await run(7) != await run(8)

    async def test_who_is_cancelled_does_not_know_whether_it_took_place(self, account: MemoryEc2, client: Ec2) -> None:
        subnet = account.subnet("10.1.0.0/24")
        own = await primary(client, account.launch(TYPE, subnet))
        account.faults.latency = 0.2
        outcomes = []
        for patience in (0.01, 0.15):
            with pytest.raises(TimeoutError):
                async with asyncio.timeout(patience):
                    await client.assign_addresses(own.id, 1)
            outcomes.append(sum(len(record.ranges) for record in account.records()))
        assert outcomes == [0, 1]

    @pytest.mark.parametrize("moment", Moment)
    async def test_the_gate_ends_a_call_before_or_after_it_took_place(
        self, account: MemoryEc2, client: Ec2, moment: Moment
    ) -> None:
        async def gate(action: str, at: Moment) -> None:
            if (action, at) == ("CreateNetworkInterface", moment):
                raise KilledError

        account.gate = gate
        with pytest.raises(KilledError):
            await client.create_interface(request(account.subnet("10.1.0.0/24")))
        assert len(await client.find_interfaces(TAGS)) == (moment is Moment.AFTER)

    async def test_out_of_reach_nothing_takes_place(self) -> None:
        waits: list[float] = []

        async def sleep(seconds: float) -> None:
            waits.append(seconds)

        account = MemoryEc2(sleep=sleep)
        subnet = account.subnet("10.1.0.0/24")
        account.reachable = False
        with pytest.raises(UnavailableError):
            await MemoryEc2Client(account).create_interface(request(subnet))
        assert waits, "the client gives up after a while"
        assert account.records() == []

    async def test_an_interface_is_in_use_until_it_is_detached(self) -> None:
        now = 0.0
        account = MemoryEc2(clock=lambda: now)
        account.faults.detaching = 5.0
        subnet = account.subnet("10.1.0.0/24")
        client = MemoryEc2Client(account)
        record = await attach(client, subnet, account.launch(TYPE, subnet), device=1)
        assert record.attachment is not None
        await client.detach_interface(record.attachment)
        now = 4.9
        [leaving] = await client.find_interfaces(TAGS)
        assert (leaving.status, leaving.attachment) == ("detaching", record.attachment)
        with pytest.raises(Ec2Error, match="currently in use"):
            await client.delete_interface(record.id)
        with pytest.raises(Ec2Error, match="IncorrectState"):
            await client.detach_interface(record.attachment)
        now = 5.0
        await client.delete_interface(record.id)
        assert await client.find_interfaces(TAGS) == []

    async def test_who_asked_what_is_on_record(self, account: MemoryEc2, client: Ec2) -> None:
        await client.interfaces_of(InstanceId("i-1"))
        account.faults.refusals["DescribeVpcs"] = ["UnauthorizedOperation"]
        with pytest.raises(Exception, match="UnauthorizedOperation"):
            await client.vpc_cidrs(account.vpc())
        assert [(call.action, call.error, call.caller) for call in account.calls] == [
            ("DescribeNetworkInterfaces", "", "node-1"),
            ("DescribeVpcs", "UnauthorizedOperation", "node-1"),
        ]

    async def test_others_add_a_cidr(self, account: MemoryEc2, client: Ec2) -> None:
        account.add_cidr(account.vpc(), "100.64.0.0/16")
        assert [str(each) for each in await client.vpc_cidrs(account.vpc())] == ["10.1.0.0/16", "100.64.0.0/16"]
