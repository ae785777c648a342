"""Which versions of the CNI specification the plugin speaks, and since which of them it knows a command."""

SUPPORTED = ("0.3.1", "0.4.0", "1.0.0")
NEWEST = SUPPORTED[-1]

SINCE = {"ADD": "0.3.1", "DEL": "0.3.1", "CHECK": "0.4.0", "VERSION": "0.3.1"}
"""Command → the first version of SUPPORTED that has it."""


def allows(version: str, command: str) -> bool:
    """Whether a network configuration of this (supported) version may be used with the command."""
    return SUPPORTED.index(version) >= SUPPORTED.index(SINCE[command])
