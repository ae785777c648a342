"""The CIDRs of the VPC, followed live: what pods reach with their own addresses.

The metadata service names them and costs nothing, so it is asked every half minute by default; EC2 decides. It is asked
when the metadata service says something new, or nothing, and every half hour: until it answers, a CIDR that is named
by either counts. So an address inside the VPC is never taken for one outside because a service did not answer.
Before either has, no CIDR is known, and no pod may get an address (`ensure`).
"""

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from ipaddress import IPv4Network
from typing import Final

from structlog.typing import FilteringBoundLogger

from coil.aws.ec2 import Ec2
from coil.aws.error import Ec2Error, UnavailableError
from coil.aws.metadata import InstanceMetadata, MetadataError, MetadataInterface
from coil.kernel.link import MacAddress

DESCRIBE: Final = "DescribeVpcs"
NOT_KNOWN: Final = MacAddress("")
CONFIRM_SECONDS: Final = 1800.0
"""EC2 is asked as often even if nothing seems to have changed."""


@dataclass(slots=True, kw_only=True)
class VpcWatch:
    """One per process. `clock` never jumps, `random` gives [0, 1); `vpc` is "" until it is known. `primary` is the
    hardware address of the primary interface, "" until that is known.

    `period` is how many seconds pass between two looks.
    """

    ec2: Ec2
    metadata: InstanceMetadata
    clock: Callable[[], float]
    random: Callable[[], float]
    log: FilteringBoundLogger
    period: float = 30.0
    vpc: str = ""
    primary: MacAddress = NOT_KNOWN
    _told: frozenset[IPv4Network] = frozenset()
    """By the metadata service, or the journal, in its last words."""
    _confirmed: frozenset[IPv4Network] | None = None
    """By EC2."""
    _settled: frozenset[IPv4Network] | None = None
    """What had been told when EC2 answered, or when it was believed without EC2."""
    _due: float = float("-inf")
    _asked: float = float("-inf")

    @property
    def cidrs(self) -> frozenset[IPv4Network]:
        """All that may be the VPC's."""
        if self._confirmed is None:
            return self._told
        return self._confirmed if self._settled == self._told else self._confirmed | self._told

    def resume(self, cidrs: Iterable[IPv4Network]) -> None:
        """What an earlier process knew from EC2, which is asked anew if the metadata service tells anything else."""
        self._told = self._confirmed = self._settled = frozenset(cidrs)
        self._due = self.clock() + CONFIRM_SECONDS * self.random()

    async def look(self) -> list[MetadataInterface] | None:
        """Ask once; returns what the metadata service says of the interfaces, None if it says nothing. Never raises."""
        found = await self.ask_metadata()
        if self._settled is None and found is not None:
            # At a node's start nobody needs EC2 for this, and two thousand nodes may start at once.
            self._settled = _cidrs(found, self.vpc)
            self._due = self.clock() + CONFIRM_SECONDS * self.random()
        silent = found is None and self.clock() >= self._asked + self.period
        if self.vpc and (silent or self.clock() >= self._due or self._told != self._settled):
            await self.confirm()
        return found

    async def ask_metadata(self) -> list[MetadataInterface] | None:
        """Ask the metadata service only; None if it says nothing. Never raises."""
        try:
            found = await self.metadata.interfaces()
        except MetadataError as error:
            self.log.debug("metadata not read", error=str(error))
            return None
        if not self.vpc:
            self.vpc = next((each.vpc for each in found if each.mac == self.primary), "")
        told = _cidrs(found, self.vpc)
        # Before EC2 has spoken, nobody has said that a CIDR is gone.
        self._told = told if self._confirmed is not None else self._told | told
        return found

    async def ensure(self) -> None:
        """Return when a CIDR is known; EC2 is asked if nobody has named one. `vpc` must be known. Raises Ec2Error."""
        if not self.cidrs:
            await self._ask_ec2()
        if not self.cidrs:
            raise UnavailableError(DESCRIBE, "NoCidrs", f"EC2 describes {self.vpc} without an IPv4 CIDR")

    async def confirm(self) -> None:
        """Ask EC2. Never raises."""
        try:
            await self._ask_ec2()
        except Ec2Error as error:
            self.log.info("CIDRs of the VPC not confirmed", error=str(error))

    async def _ask_ec2(self) -> None:
        told = self._told
        cidrs = await self.ec2.vpc_cidrs(self.vpc)
        self._asked = self.clock()
        self._due = self._asked + CONFIRM_SECONDS
        confirmed = frozenset(cidr for cidr in cidrs if isinstance(cidr, IPv4Network))
        if not confirmed:
            return
        if confirmed != self._confirmed:
            self.log.info("CIDRs of the VPC", vpc=self.vpc, cidrs=sorted(map(str, confirmed)))
        self._confirmed, self._settled = confirmed, told


def _cidrs(found: Iterable[MetadataInterface], vpc: str) -> frozenset[IPv4Network]:
    return frozenset(cidr for each in found if each.vpc == vpc for cidr in each.vpc_ipv4s)
