"""How many calls AWS grants one account in one region, as it documents it.

EC2 Developer Guide, "Request throttling for the Amazon EC2 API", table "Request token bucket sizes and refill rates":
each operation has a token bucket of its own, of the size and the rate of its category, or of its own where the table
names it ("uncategorized actions"). Accounts may have been granted more; none has less.
"""

from collections.abc import Callable, Mapping

from coil.aws.call_budget import Rate

NON_MUTATING = Rate(burst=100, per_second=20.0)
"""`Describe*`; so are, with a filter or in pages, those that have a smaller bucket without."""
MUTATING = Rate(burst=50, per_second=5.0)
UNCATEGORIZED = Rate(burst=100, per_second=5.0)
"""What the table has for each of the following."""

DOCUMENTED: Mapping[str, Rate] = {
    **dict.fromkeys(
        ("DescribeInstanceTypes", "DescribeNetworkInterfaces", "DescribeSubnets", "DescribeVpcs"), NON_MUTATING
    ),
    **dict.fromkeys(("AttachNetworkInterface", "DetachNetworkInterface"), MUTATING),
    **dict.fromkeys(
        (
            *("AssignIpv6Addresses", "AssignPrivateIpAddresses", "UnassignPrivateIpAddresses"),
            *("CreateNetworkInterface", "DeleteNetworkInterface", "ModifyNetworkInterfaceAttribute"),
        ),
        UNCATEGORIZED,
    ),
}


class AccountLimits:
    """`clock` is the event loop's. What is refused costs no token."""

    def __init__(self, clock: Callable[[], float], rates: Mapping[str, Rate] = DOCUMENTED) -> None:
        self._clock = clock
        self._rates = rates
        self._tokens = {action: float(rate.burst) for action, rate in rates.items()}
        self._at = dict.fromkeys(rates, 0.0)

    def admit(self, action: str) -> bool:
        """Whether a call is carried out, for which it takes a token. KeyError for an operation that is not listed."""
        now, rate = self._clock(), self._rates[action]
        earned = (now - self._at[action]) * rate.per_second
        self._tokens[action] = min(float(rate.burst), self._tokens[action] + earned)
        self._at[action] = now
        if self._tokens[action] < 1:
            return False
        self._tokens[action] -= 1
        return True
