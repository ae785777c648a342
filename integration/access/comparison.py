"""The chart's rights and the programs' calls, held against each other, both ways. Pure."""

from collections.abc import Collection, Iterable
from dataclasses import replace

from integration.access.right import Right
from integration.cluster.audit_log import Call


def find_unused(rights: Iterable[Right], calls: Collection[Call]) -> list[Right]:
    """The rights by which nothing was ever allowed, in their order.

    Who watches may list: an informer that streams its list reads it in pages when the stream breaks off, which may not
    happen to each of them in the tests.

    Of two rights that cover one call the API server names the first that it finds. One that another makes superfluous
    is thereby found as well.
    """
    asked = [*calls, *(replace(call, verb="list") for call in calls if call.verb == "watch")]
    return [right for right in rights if not any(right.allowed(call) for call in asked)]


def find_outside(rights: Collection[Right], calls: Iterable[Call]) -> list[Call]:
    """The calls that no right of the chart covers, sorted: allowed by somebody else's role, or refused.

    A call that was refused although the chart grants it is not among them: an API server refuses everybody until it
    has read its roles, and tests take roles away.
    """
    accounts = {right.account for right in rights}
    return sorted(
        call
        for call in calls
        if call.account in accounts
        and not any(right.allowed(call) if call.role else right.would_allow(call) for right in rights)
    )


def describe_call(call: Call) -> str:
    """A call that was found outside, in a sentence's length."""
    group = f".{call.group}" if call.group else ""
    if call.role:
        return f"{call.account}: {call.verb} {call.resource}{group}, allowed by another's role: {call.role}"
    place = f" in {call.namespace}" if call.namespace else ""
    return f"{call.account}: {call.verb} {call.resource}{group} {call.name or '(all)'}{place}, refused"
