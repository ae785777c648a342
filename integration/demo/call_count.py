"""How often EC2 was asked for what, and how often it should have been at most. No input, no output."""

from collections import Counter
from collections.abc import Iterable

LOOK = "Describe"
"""How operations begin that change nothing."""


def changes(actions: Iterable[str]) -> list[str]:
    """Those of the operations that change something in EC2, in their order."""
    return [action for action in actions if not action.startswith(LOOK)]


def count_rows(actions: Iterable[str]) -> list[tuple[str, str]]:
    """Each operation with its number of calls: first those that change something, in the order of their first call."""
    counts = Counter(actions)
    ordered = sorted(counts, key=lambda action: action.startswith(LOOK))
    return [(action, str(counts[action])) for action in ordered]


def find_excess(actions: Iterable[str], *, launched: int, added: int) -> list[str]:
    """A sentence for each operation that was called more often than it takes for so many interfaces.

    An interface that the instance was launched with takes one call for all its addresses, a further one three: it is
    created with its addresses, attached, and told to go with its instance. No pod takes a call of its own.
    """
    most = Counter(
        {
            "AssignPrivateIpAddresses": launched,
            "CreateNetworkInterface": added,
            "AttachNetworkInterface": added,
            "ModifyNetworkInterfaceAttribute": added,
        }
    )
    counts = Counter(changes(actions))
    return [
        f"calls of {action}: {count}, where {most[action]} are enough"
        for action, count in counts.items()
        if count > most[action]
    ]
