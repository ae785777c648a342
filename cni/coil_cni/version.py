"""Which versions of the CNI specification the plugin speaks, and since which of them it knows a command."""

SUPPORTED = ("0.1.0", "0.2.0", "0.3.0", "0.3.1", "0.4.0", "1.0.0", "1.1.0")
"""In their order."""
NEWEST = SUPPORTED[-1]

SINCE = {
    "ADD": "0.1.0",
    "DEL": "0.1.0",
    "CHECK": "0.4.0",
    "GC": "1.1.0",
    "STATUS": "1.1.0",
    "VERSION": "0.1.0",
}
"""Command → the first version of SUPPORTED whose configurations may be used with it. VERSION is asked of any."""


def allows(version: str, command: str) -> bool:
    """Whether a network configuration of this (supported) version may be used with the command."""
    return SUPPORTED.index(version) >= SUPPORTED.index(SINCE[command])
