"""nftables tables of the family inet, as far as we write them: counters, base chains, and rules of a few statements.

Place in the flow: `coil.egress` plans a table, `coil.nft` renders it for libnftables and compares it with the kernel's.
Links are matched by name, never by index, so a table is the same in every namespace.
"""

from dataclasses import dataclass
from enum import Enum, IntEnum, StrEnum
from typing import TypeAlias

from coil.kernel.family import Family


class ChainType(StrEnum):
    FILTER = "filter"
    NAT = "nat"
    """Sees the first packet of a connection only; what it decides holds for the others."""
    ROUTE = "route"
    """Packets whose mark it changes are routed again."""


class Hook(StrEnum):
    INPUT = "input"
    FORWARD = "forward"
    OUTPUT = "output"
    POSTROUTING = "postrouting"


class Priority(IntEnum):
    """Where a chain stands among those of its hook (linux/netfilter_ipv4.h); `nft` prints the names."""

    MANGLE = -150
    FILTER = 0
    SRCNAT = 100


class Field(Enum):
    """What a rule may look at or set, as `nft` writes it."""

    INPUT_LINK = "meta iifname"
    OUTPUT_LINK = "meta oifname"
    FAMILY = "meta nfproto"
    PACKET_MARK = "meta mark"
    IPV4_SOURCE = "ip saddr"
    IPV6_SOURCE = "ip6 saddr"
    CONNECTION_STATE = "ct state"
    CONNECTION_MARK = "ct mark"


SOURCE = {Family.IPV4: Field.IPV4_SOURCE, Family.IPV6: Field.IPV6_SOURCE}


class Comparison(Enum):
    IS = "=="
    IS_NOT = "!="
    AMONG = "in"
    """For flags, such as the state of a connection."""


@dataclass(frozen=True, slots=True)
class Match:
    """The rule goes on only with packets whose `field` compares so with `value`."""

    field: Field
    comparison: Comparison
    value: str | int


@dataclass(frozen=True, slots=True)
class Assign:
    """Set a mark to a number, or to another mark."""

    field: Field
    value: int | Field


@dataclass(frozen=True, slots=True)
class Count:
    """Count the packet under the table's counter of that name."""

    counter: str


class Verdict(StrEnum):
    """What ends a rule."""

    DROP = "drop"
    MASQUERADE = "masquerade"


Statement: TypeAlias = Match | Assign | Count | Verdict


@dataclass(frozen=True, slots=True, kw_only=True)
class NftChain:
    """A base chain that accepts what no rule of it drops."""

    name: str
    type: ChainType
    hook: Hook
    priority: Priority
    rules: tuple[tuple[Statement, ...], ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class NftTable:
    """`table inet <name>`, with all that is to be in it."""

    name: str
    chains: tuple[NftChain, ...]
    counters: tuple[str, ...] = ()

    def __str__(self) -> str:
        return f"table inet {self.name}"
