"""The product's client against the strict EC2: both keep the contract, which the EC2 in memory keeps as well."""

import os
from collections.abc import AsyncIterator, Iterator

import pytest

from coil.aws.call_budget import CallBudget, Rate
from coil.aws.ec2 import BotocoreEc2, Ec2
from coil.aws.error import GoneError
from integration.aws.strict_ec2 import REGION, StrictEc2
from tests.coil.aws.ec2_contract import Ec2Contract, request


class TestEc2Client(Ec2Contract):
    @pytest.fixture
    def account(self) -> Iterator[StrictEc2]:
        with StrictEc2.start() as ec2:
            yield ec2

    @pytest.fixture
    async def client(self, account: StrictEc2, monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[Ec2]:
        for name in ("AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY"):
            monkeypatch.setenv(name, "testing")
        assert "AWS_PROFILE" not in os.environ
        budget = CallBudget({}, default=Rate(burst=1000, per_second=1000.0), clock=lambda: 0.0, random=lambda: 0.0)
        async with BotocoreEc2.connect(region=REGION, budget=budget, endpoint=account.endpoint) as made:
            yield made

    async def test_a_description_by_ids_fails_as_a_whole_if_one_is_not_known(
        self, account: StrictEc2, client: BotocoreEc2
    ) -> None:
        """The product's client asks by filters; this is what it would get."""
        made = await client.create_interface(request(account.subnet("10.1.0.0/24")))
        with pytest.raises(GoneError, match=r"InvalidNetworkInterfaceID\.NotFound"):
            await client._call("DescribeNetworkInterfaces", NetworkInterfaceIds=[made.id, "eni-0123456789abcdef0"])
