"""The CIDRs of a VPC, where the metadata service is late or silent, and so is EC2."""

from ipaddress import IPv4Network

from coild.eni.vpc_watch import CONFIRM_SECONDS, VpcWatch
from tests.coil.aws.memory_ec2 import MemoryEc2
from tests.coil.aws.memory_ec2_client import MemoryEc2Client
from tests.coil.aws.memory_metadata import MemoryMetadata
from tests.coild.eni.node import LOG

FIRST, SECOND = IPv4Network("10.1.0.0/16"), IPv4Network("100.64.0.0/16")


class Vpc:
    def __init__(self) -> None:
        self.now = 0.0
        self.ec2 = MemoryEc2(clock=lambda: self.now)
        instance = self.ec2.launch("m5.large", self.ec2.subnet("10.1.0.0/24"))
        self.metadata = MemoryMetadata(self.ec2, instance, clock=lambda: self.now)
        self.watch = VpcWatch(
            ec2=MemoryEc2Client(self.ec2),
            metadata=self.metadata,
            clock=lambda: self.now,
            random=lambda: 0.5,
            log=LOG,
            primary=self.ec2.primary_of(instance).mac,
        )

    def grow(self) -> None:
        self.ec2.add_cidr(self.ec2.vpc(), str(SECOND))

    async def after(self, seconds: float) -> frozenset[IPv4Network]:
        self.now += seconds
        await self.watch.look()
        return self.watch.cidrs


async def test_a_new_cidr_is_inside_once_the_metadata_service_tells() -> None:
    vpc = Vpc()
    assert await vpc.after(0.0) == {FIRST}
    vpc.grow()
    assert await vpc.after(30.0) == {FIRST, SECOND}


async def test_ec2_is_asked_when_something_is_new_and_rarely_otherwise() -> None:
    vpc = Vpc()
    for _ in range(int(CONFIRM_SECONDS / 30) - 1):
        await vpc.after(30.0)
    assert vpc.ec2.count("DescribeVpcs") == 1, "at a moment of its own choice, not at its start"
    vpc.grow()
    await vpc.after(30.0)
    await vpc.after(30.0)
    assert vpc.ec2.count("DescribeVpcs") == 2
    await vpc.after(CONFIRM_SECONDS)
    assert vpc.ec2.count("DescribeVpcs") == 3


async def test_one_that_lags_is_corrected_by_ec2_in_the_end() -> None:
    vpc = Vpc()
    vpc.metadata.lag = 1e6
    await vpc.after(0.0)
    vpc.grow()
    assert await vpc.after(30.0) == {FIRST}
    assert await vpc.after(CONFIRM_SECONDS) == {FIRST, SECOND}
    assert await vpc.after(30.0) == {FIRST, SECOND}, "what EC2 has said is not forgotten"


async def test_nothing_is_outside_because_nobody_answers() -> None:
    vpc = Vpc()
    vpc.watch.resume([FIRST, SECOND])
    vpc.metadata.reachable = False
    vpc.ec2.reachable = False
    assert await vpc.after(30.0) == {FIRST, SECOND}
    vpc.metadata.reachable = True
    assert await vpc.after(30.0) == {FIRST, SECOND}, "the metadata service alone takes nothing away"
    vpc.ec2.reachable = True
    assert await vpc.after(30.0) == {FIRST}


async def test_silent_metadata_leaves_ec2() -> None:
    vpc = Vpc()
    await vpc.after(0.0)
    vpc.metadata.reachable = False
    vpc.grow()
    assert await vpc.after(60.0) == {FIRST, SECOND}
