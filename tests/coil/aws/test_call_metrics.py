"""Which calls are counted, and by which word of EC2's."""

from contextlib import nullcontext
from typing import Any

import pytest
from botocore.exceptions import ClientError, EndpointConnectionError
from prometheus_client import CollectorRegistry

from coil.aws.call_budget import CallBudget, Rate
from coil.aws.call_metrics import Ec2CallMetrics
from coil.aws.ec2 import BotocoreEc2, LazyClient
from coil.aws.error import ThrottledError, UnavailableError


class Client:
    """Of botocore, for one call."""

    def __init__(self, *outcomes: Exception | dict[str, Any]) -> None:
        self._outcomes = list(outcomes)

    async def delete_network_interface(self, **_: Any) -> dict[str, Any]:
        outcome = self._outcomes.pop(0)
        if isinstance(outcome, Exception):
            raise outcome
        return outcome


async def test_every_call_is_measured_and_every_error_counted_by_its_code() -> None:
    client = Client(
        {},
        ClientError({"Error": {"Code": "RequestLimitExceeded", "Message": "slow"}}, "DeleteNetworkInterface"),
        EndpointConnectionError(endpoint_url="http://127.0.0.1:1"),
    )

    async def sleep(seconds: float) -> None:
        pass

    budget = CallBudget({}, default=Rate(10, 10.0), clock=lambda: 0.0, random=lambda: 0.5, sleep=sleep)
    metrics = Ec2CallMetrics()
    ec2 = BotocoreEc2(LazyClient(lambda: nullcontext(client)), budget, metrics)
    registry = CollectorRegistry()
    for collector in metrics.collectors():
        registry.register(collector)
    await ec2.delete_interface("eni-1")  # type: ignore[arg-type]
    with pytest.raises(ThrottledError):
        await ec2.delete_interface("eni-1")  # type: ignore[arg-type]
    with pytest.raises(UnavailableError):
        await ec2.delete_interface("eni-1")  # type: ignore[arg-type]

    call = {"call": "DeleteNetworkInterface"}
    assert registry.get_sample_value("coil_ec2_call_duration_seconds_count", call) == 3
    for code in ("RequestLimitExceeded", "EndpointConnectionError"):
        assert registry.get_sample_value("coil_ec2_errors_total", call | {"code": code}) == 1
