"""Calls against the budget, on a clock of the test's own."""

import asyncio

import pytest

from coil.aws.call_budget import FIRST_PAUSE, LONGEST_PAUSE, CallBudget, Rate, TokenBucket
from coil.aws.error import Ec2Error, ThrottledError, UnavailableError, error_of

REFUSAL = ThrottledError("AssignPrivateIpAddresses", "RequestLimitExceeded", "Request limit exceeded.")


class Clock:
    """Time passes when somebody sleeps, and for no other reason."""

    def __init__(self) -> None:
        self.now = 0.0

    def __call__(self) -> float:
        return self.now

    async def sleep(self, seconds: float) -> None:
        self.now += seconds


def budget(clock: Clock, *, burst: int = 2, per_second: float = 1.0, random: float = 1.0) -> CallBudget:
    rates = {"DeleteNetworkInterface": Rate(burst=burst, per_second=per_second)}
    default = Rate(burst=100, per_second=100.0)
    return CallBudget(rates, default=default, clock=clock, random=lambda: random, sleep=clock.sleep)


class TestTokenBucket:
    def test_a_burst_is_free_and_what_follows_comes_at_its_pace(self) -> None:
        bucket = TokenBucket(Rate(burst=3, per_second=2.0))
        assert [bucket.take(0.0) for _ in range(6)] == [0.0, 0.0, 0.0, 0.5, 1.0, 1.5]

    def test_rest_earns_a_burst_and_no_more(self) -> None:
        bucket = TokenBucket(Rate(burst=2, per_second=1.0))
        for _ in range(4):
            bucket.take(0.0)
        assert bucket.take(100.0) == 0.0
        assert bucket.take(100.0) == 0.0
        assert bucket.take(100.0) == 1.0


class TestCallBudget:
    async def test_each_kind_of_call_has_its_own_bucket(self) -> None:
        clock = Clock()
        calls = budget(clock)
        for _ in range(4):
            await calls.enter("DeleteNetworkInterface")
        assert clock.now > 0
        before = clock.now
        for _ in range(50):
            await calls.enter("DescribeSubnets")
        assert clock.now == before

    async def test_after_a_refusal_all_wait_and_longer_each_time(self) -> None:
        clock = Clock()
        calls = budget(clock, burst=100)
        pauses = []
        for _ in range(9):
            calls.note(REFUSAL)
            began = clock.now
            await calls.enter("DescribeSubnets")
            pauses.append(clock.now - began)
        assert pauses[:4] == [FIRST_PAUSE, 2.0, 4.0, 8.0]
        assert pauses[-1] == LONGEST_PAUSE
        calls.note(None)
        calls.note(REFUSAL)
        assert calls.pause_left == FIRST_PAUSE

    async def test_half_of_a_pause_is_left_to_chance(self) -> None:
        clock = Clock()
        calls = budget(clock, random=0.0)
        calls.note(REFUSAL)
        assert calls.pause_left == FIRST_PAUSE / 2

    async def test_other_errors_delay_nobody(self) -> None:
        calls = budget(Clock())
        calls.note(UnavailableError("DescribeSubnets", "InternalError", ""))
        assert calls.pause_left == 0.0

    async def test_who_is_cancelled_while_waiting_is_gone(self) -> None:
        calls = CallBudget({}, default=Rate(burst=1, per_second=0.001), clock=lambda: 0.0, random=lambda: 0.0)
        await calls.enter("X")
        with pytest.raises(TimeoutError):
            async with asyncio.timeout(0.01):
                await calls.enter("X")


@pytest.mark.parametrize(
    ("code", "status", "kind"),
    [
        ("RequestLimitExceeded", 503, "ThrottledError"),
        ("InsufficientCidrBlocks", 400, "SubnetFullError"),
        ("InternalError", 500, "UnavailableError"),
        ("SomethingNew", 503, "UnavailableError"),
        ("SomethingNew", 400, "Ec2Error"),
        ("UnauthorizedOperation", 403, "DeniedError"),
    ],
)
def test_what_can_be_acted_upon_is_told_apart(code: str, status: int, kind: str) -> None:
    error = error_of("CreateNetworkInterface", code, "because", status=status)
    assert isinstance(error, Ec2Error)
    assert type(error).__name__ == kind
    assert str(error) == f"CreateNetworkInterface: {code}: because"
