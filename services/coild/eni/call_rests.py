"""What EC2 has refused, and for how long it is not asked again.

Silence and throttling concern all calls: all of them wait, longer each time. (`coil.aws.call_budget` has the node's
calls wait after throttling as well; the two pauses run at the same time.) Everything else concerns one operation: one
that the instance's role does not allow rests for minutes, one that EC2 refuses for another reason longer each time.
"""

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Final

from structlog.typing import FilteringBoundLogger

from coil.aws.error import DeniedError, Ec2Error, ThrottledError, UnavailableError
from coil.reconcile.backoff import Backoff

ASSIGN: Final = "AssignPrivateIpAddresses"
ASSIGN_IPV6: Final = "AssignIpv6Addresses"
UNASSIGN: Final = "UnassignPrivateIpAddresses"
CREATE: Final = "CreateNetworkInterface"
ATTACH: Final = "AttachNetworkInterface"
DETACH: Final = "DetachNetworkInterface"
DELETE: Final = "DeleteNetworkInterface"
MODIFY: Final = "ModifyNetworkInterfaceAttribute"
DESCRIBE: Final = "DescribeNetworkInterfaces"
FIND_SUBNETS: Final = "DescribeSubnets"
LIMITS: Final = "DescribeInstanceTypes"

SILENCE_BACKOFF: Final = Backoff(base=1.0, cap=60.0)
REFUSAL_BACKOFF: Final = Backoff(base=2.0, cap=120.0)
DENIED_BACKOFF: Final = Backoff(base=300.0, cap=300.0, jitter=0.25)


@dataclass(slots=True)
class _Rest:
    until: float
    failures: int
    reason: str


@dataclass(slots=True, kw_only=True)
class CallRests:
    """One per process. `clock` never jumps, `random` gives [0, 1)."""

    clock: Callable[[], float]
    random: Callable[[], float]
    log: FilteringBoundLogger
    _silence: _Rest = field(default_factory=lambda: _Rest(float("-inf"), 0, ""))
    _rests: dict[str, _Rest] = field(default_factory=dict)
    """By operation."""

    def failed(self, error: Ec2Error) -> None:
        """A call came to this."""
        now = self.clock()
        if isinstance(error, ThrottledError | UnavailableError):
            silence = self._silence
            until = now + SILENCE_BACKOFF.delay(silence.failures, self.random)
            self._silence = _Rest(until, silence.failures + 1, f"EC2 does not answer: {error}")
            if isinstance(error, ThrottledError):
                self._silence.reason = f"EC2 grants this account no more calls for now: {error}"
            self.log.info("EC2 has not answered", call=error.call, error=str(error), pause=round(until - now, 1))
            return
        denied = isinstance(error, DeniedError)
        before = self._rests.get(error.call)
        failures = before.failures if before is not None else 0
        pause = (DENIED_BACKOFF if denied else REFUSAL_BACKOFF).delay(failures, self.random)
        reason = f"the instance's role does not allow {rights_of(error.call)}: {error}" if denied else str(error)
        self._rests[error.call] = _Rest(now + pause, failures + 1, reason)
        if before is None or before.reason != reason:
            report = self.log.error if denied else self.log.warning
            report("EC2 has refused", call=error.call, error=str(error), denied=denied)

    def succeeded(self, call: str) -> None:
        """EC2 has answered this one."""
        self._silence = _Rest(float("-inf"), 0, "")
        self._rests.pop(call, None)

    def rests(self, *calls: str) -> bool:
        """Whether one of the operations is not to be asked for now."""
        now = self.clock()
        return any(rest.until > now for call in calls if (rest := self._rests.get(call)) is not None)

    @property
    def quiet_left(self) -> float:
        """Seconds for which nothing is asked."""
        return max(0.0, self._silence.until - self.clock())

    @property
    def reason(self) -> str | None:
        """Why EC2 does not do what it is wanted to; None while it does."""
        if self._silence.failures:
            return self._silence.reason
        return next((rest.reason for rest in self._rests.values()), None)

    @property
    def next_end(self) -> float | None:
        """In how many seconds the next operation may be asked for again; None if none rests."""
        now = self.clock()
        return min((rest.until - now for rest in self._rests.values() if rest.until > now), default=None)


def rights_of(call: str) -> str:
    """The actions of a policy that an operation needs."""
    action = f"ec2:{call}"
    # Interfaces are created with their tags; what EC2 answers does not say which of the two is missing.
    return f"{action} together with ec2:CreateTags" if call == CREATE else action
