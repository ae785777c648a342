"""In which subnet a node's next interface is made, and where EC2 need not be asked for addresses for a while.

A node keeps to the subnet of its primary interface. When that has none left it turns to others of its VPC and zone that
are tagged for it, the one with the most free addresses first. Pure: `now` is the caller's clock, in seconds.

A subnet that has refused rests, so that a full one costs a node one call in two minutes and not one for each pod that
waits. Not all of an answer is a refusal: of nine addresses asked for, four may be there, and single addresses where no
/28 is whole. So what was refused is asked for in smaller measure first.
"""

from collections.abc import Callable, Collection
from dataclasses import dataclass, field
from ipaddress import IPv4Network
from typing import Final

from coil.eni.interface import SubnetId

FULL_SECONDS: Final = 120.0
"""For which a subnet without a free address rests."""
FRAGMENTED_SECONDS: Final = 600.0
"""For which one without a whole prefix is asked for single addresses: it takes many pods' ends to make one whole."""
JITTER: Final = 0.25
"""Rests are longer by up to so much, or all nodes of a full subnet would come back in one instant."""


@dataclass(frozen=True, slots=True, kw_only=True)
class SubnetOffer:
    """A subnet that interfaces may be made in; `free` counts single addresses, as of some moment."""

    id: SubnetId
    ipv4: IPv4Network
    free: int


@dataclass(slots=True)
class _Rest:
    """What is known of one kind of range in a subnet. `most` may be asked for at once, 0 for nothing, until then."""

    most: int
    until: float


@dataclass(slots=True)
class SubnetChoice:
    """One per node. `random` gives [0, 1)."""

    random: Callable[[], float]
    primary: SubnetOffer | None = None
    others: tuple[SubnetOffer, ...] = ()
    _rests: dict[tuple[SubnetId, int], _Rest] = field(default_factory=dict)
    """By subnet and size of a range."""

    def learn(self, primary: SubnetOffer, others: Collection[SubnetOffer]) -> None:
        """What EC2 says of them now."""
        self.primary = primary
        self.others = tuple(
            sorted((each for each in others if each.id != primary.id), key=lambda each: (-each.free, each.id))
        )

    def forget(self, subnet: SubnetId) -> None:
        """It is not there any more. The primary one stays: no subnet goes while an interface is in it."""
        self.others = tuple(each for each in self.others if each.id != subnet)

    def most(self, subnet: SubnetId, *, range_size: int, now: float) -> int | None:
        """How many ranges of that size the subnet may be asked for in one call; None for any number."""
        rest = self._rests.get((subnet, range_size))
        whole = None if rest is None or rest.until <= now else rest.most
        # Where there is no single address, there is no prefix either.
        return 0 if range_size > 1 and self.most(subnet, range_size=1, now=now) == 0 else whole

    def refused(self, subnet: SubnetId, *, range_size: int, asked: int, free: int, now: float) -> None:
        """The subnet had not as many as were asked for; `free` are its single addresses, as EC2 counts them now."""
        known = self.most(subnet, range_size=range_size, now=now)
        left = min(asked - 1, free // range_size)
        # Of prefixes nobody knows how many are whole: one, if any. A smaller number is tried once.
        most = 0 if known is not None else min(left, 1) if range_size > 1 else left
        seconds = FULL_SECONDS if range_size == 1 else FRAGMENTED_SECONDS
        until = now + seconds * (1 + JITTER * self.random())
        self._rests[subnet, range_size] = _Rest(max(0, most), until)

    def choose(self, *, range_size: int, now: float) -> SubnetOffer | None:
        """Where an interface with ranges of that size may be made; None if all rest."""
        if self.primary is None:
            return None
        candidates = (self.primary, *self.others)
        return next((each for each in candidates if self.most(each.id, range_size=range_size, now=now) != 0), None)

    def shortage(self, *, now: float) -> str | None:
        """Which subnets have no address left, as a sentence; None if none of them rests."""
        offers = (self.primary, *self.others) if self.primary is not None else ()
        full = [f"{each.id} ({each.ipv4})" for each in offers if self.most(each.id, range_size=1, now=now) == 0]
        return f"no free address in {', '.join(full)}" if full else None

    def next_change(self, *, now: float) -> float | None:
        """In how many seconds the next rest is over; None if none rests."""
        ends = [rest.until for rest in self._rests.values() if rest.until > now]
        return min(ends) - now if ends else None
