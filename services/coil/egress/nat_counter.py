"""What a router counts."""

from dataclasses import dataclass
from enum import StrEnum

from coil.kernel.family import Family


class NatCounterKind(StrEnum):
    MASQUERADED = "masqueraded"
    """Forwarded to the uplink under the router's own address."""
    INVALID = "invalid"
    """Dropped, because connection tracking makes no sense of it."""


@dataclass(frozen=True, slots=True, kw_only=True)
class NatCounter:
    """One figure of a router, by family and kind; it only ever grows while the namespace lives."""

    family: Family
    kind: NatCounterKind
    packets: int
    bytes: int


def counter_name(family: Family, kind: NatCounterKind) -> str:
    """The name of the counter in the router's table."""
    return f"{kind}_{family.name.lower()}"
