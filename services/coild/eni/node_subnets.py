"""The subnets that the node's interfaces are in, or may be made in: asked of EC2, and chosen by `SubnetChoice`.

    the primary interface's ─► dry ─► those of its VPC and zone that are tagged for it ─► all dry: the shortage

A subnet that has refused rests, and no other one does: an interface with room in a dry subnet keeps no node from making
the next one elsewhere. An interface in another zone than the instance's can never be attached, so EC2 is asked for
subnets of the zone only.
"""

from collections.abc import Callable
from dataclasses import dataclass, field
from ipaddress import IPv4Network
from typing import Final

from structlog.typing import FilteringBoundLogger

from coil.aws.ec2 import Ec2, SubnetRecord
from coil.aws.error import Ec2Error, GoneError, SubnetFullError
from coil.eni.interface import SubnetId
from coil.eni.subnet_choice import SubnetChoice, SubnetOffer
from coil.eni.tag import SUBNET_TAG, SUBNET_VALUE
from coild.eni.call_rests import FIND_SUBNETS, CallRests

SEARCH_SECONDS: Final = 120.0
"""Between two searches for other subnets."""


@dataclass(slots=True, kw_only=True)
class NodeSubnets:
    """One per process. `zone` is the instance's. `clock` never jumps, `random` gives [0, 1)."""

    ec2: Ec2
    zone: str
    rests: CallRests
    clock: Callable[[], float]
    random: Callable[[], float]
    log: FilteringBoundLogger
    vpc: str = ""
    """Empty until the primary interface is known; no other subnets are looked for before."""
    networks: dict[SubnetId, IPv4Network] = field(default_factory=dict)
    """The CIDR of each subnet that was heard of; it never changes."""
    _choice: SubnetChoice = field(init=False)
    _search_due: float = float("-inf")

    def __post_init__(self) -> None:
        self._choice = SubnetChoice(self.random)

    async def ensure_network(self, subnet: SubnetId) -> IPv4Network:
        """The CIDR of the subnet, without which the kernel's tables for an interface in it cannot be made."""
        if subnet not in self.networks:
            self.networks[subnet] = (await self.ec2.subnet(subnet)).ipv4
        return self.networks[subnet]

    async def use_primary(self, subnet: SubnetId, vpc: str) -> None:
        """The primary interface is in this one, which comes before all others. Raises Ec2Error."""
        self.vpc = vpc
        network = await self.ensure_network(subnet)
        if self._choice.primary is None:
            self._choice.learn(SubnetOffer(id=subnet, ipv4=network, free=0), ())

    async def search(self, *, range_size: int) -> None:
        """Know the other subnets if the primary one has no such ranges. Raises Ec2Error."""
        primary, now = self._choice.primary, self.clock()
        if primary is None or now < self._search_due or self.rests.rests(FIND_SUBNETS):
            return
        if self.most(primary.id, range_size=range_size) != 0:
            return
        found = await self.ec2.find_subnets(self.vpc, self.zone, {SUBNET_TAG: SUBNET_VALUE})
        self.rests.succeeded(FIND_SUBNETS)
        self._search_due = now + SEARCH_SECONDS
        self._choice.learn(primary, [_offer(each) for each in found])
        self.networks |= {each.id: each.ipv4 for each in found}

    def most(self, subnet: SubnetId, *, range_size: int) -> int | None:
        """How many ranges of that size the subnet may be asked for in one call; None for any number."""
        return self._choice.most(subnet, range_size=range_size, now=self.clock())

    def choose(self, *, range_size: int) -> SubnetOffer | None:
        """Where the next interface with ranges of that size is to be; None if there is nowhere."""
        return self._choice.choose(range_size=range_size, now=self.clock())

    async def note_refusal(self, subnet: SubnetId, error: SubnetFullError, *, range_size: int, asked: int) -> None:
        """The subnet had not as many ranges as were asked for. Has EC2 say how many there are, if that can help."""
        free = 0
        if asked > 1:
            try:
                free = (await self.ec2.subnet(subnet)).free
            except Ec2Error as unknown:
                self.log.debug("subnet not described", subnet=subnet, error=str(unknown))
        self._choice.refused(subnet, range_size=range_size, asked=asked, free=free, now=self.clock())
        self.log.warning("the subnet has not enough", subnet=subnet, asked=asked, free=free, error=str(error))

    def note_too_small(self, subnet: SubnetId, *, range_size: int) -> None:
        """What the subnet has left is not enough for an interface with one range."""
        self._choice.refused(subnet, range_size=range_size, asked=1, free=0, now=self.clock())

    def note_gone(self, subnet: SubnetId, error: GoneError) -> None:
        """The subnet does not exist any more."""
        self._choice.forget(subnet)
        self.log.warning("the subnet is gone", subnet=subnet, error=str(error))

    @property
    def shortage(self) -> str | None:
        """Which subnets have no address left, and what would help; None if one may have some."""
        now = self.clock()
        dry = self._choice.shortage(now=now)
        if dry is None or self._choice.choose(range_size=1, now=now) is not None:
            return None
        if self._choice.others:
            return dry
        return f"{dry}, and no other subnet in {self.zone} of {self.vpc} has the tag {SUBNET_TAG}={SUBNET_VALUE}"

    @property
    def dry(self) -> str | None:
        """Which subnets have no address left, whatever others have; None if none of them is known to be dry."""
        return self._choice.shortage(now=self.clock())

    @property
    def next_change(self) -> float | None:
        """In how many seconds the next rest is over; None if none rests."""
        return self._choice.next_change(now=self.clock())


def _offer(record: SubnetRecord) -> SubnetOffer:
    return SubnetOffer(id=record.id, ipv4=record.ipv4, free=record.free)
