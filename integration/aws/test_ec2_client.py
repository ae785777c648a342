"""The product's client against the strict EC2: both keep the contract, which the EC2 in memory keeps as well."""

import os
from collections.abc import AsyncIterator, Iterator

import pytest

from coil.aws.call_budget import CallBudget, Rate
from coil.aws.ec2 import BotocoreEc2, Ec2
from integration.aws.strict_ec2 import REGION, StrictEc2
from tests.coil.aws.ec2_contract import Ec2Contract


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
