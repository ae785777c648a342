"""What goes wrong with calls to an EC2 of the tests, and what was asked of it: the same for the one in memory and for
the one over HTTP (`integration.aws.strict_ec2`)."""

from collections import Counter
from dataclasses import dataclass, field
from random import Random


@dataclass(slots=True)
class Faults:
    """What goes wrong with calls; `random` decides where a share of them is meant."""

    random: Random = field(default_factory=lambda: Random(1))
    throttled: float = 0.0
    """The share of calls that is refused with RequestLimitExceeded."""
    latency: float = 0.0
    """Seconds before each answer."""
    detaching: float = 0.0
    """Seconds for which an interface is in use after it was detached; of the EC2 in memory."""
    describe_lag: float = 0.0
    """How many seconds old what DescribeNetworkInterfaces tells is, from 0 to 60; calls themselves act on what is so.
    Set it before what is to be told late: what was before is told as it is at the first call after that."""
    refusals: dict[str, list[str]] = field(default_factory=dict)
    """By operation, error codes for its next calls."""
    denied: set[str] = field(default_factory=set)
    """Actions that no policy allows. CreateTags is one: EC2 asks for it where something is created with tags."""
    lost_answers: Counter[str] = field(default_factory=Counter)
    """By operation, how many of its next calls take place and are answered with InternalError."""


@dataclass(frozen=True, slots=True)
class Call:
    """One that was answered, as it was asked; `error` is "" where it succeeded. Who asked when is known in memory."""

    action: str
    error: str
    caller: str = ""
    at: float = 0.0
