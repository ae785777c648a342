"""Against an EC2 whose descriptions are of any moment of the last minute, each of its own: the node never takes what it
has for gone, and gives nothing of what it has given back.
"""

from dataclasses import dataclass, field, replace
from ipaddress import IPv4Network

from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from coil.aws.ec2 import AttachmentId, InterfaceRecord
from coil.kernel.family import IPNetwork
from coild.eni.inventory import Inventory
from coild.eni.own_writes import DESCRIBE_LAG_SECONDS
from tests.coild.eni.test_inventory import LAG, TAGS, record

SPARE = [IPv4Network(f"10.0.0.{number}") for number in range(20, 23)]
EVERY = [IPv4Network(f"10.0.0.{number}") for number in range(10, 13)]


@dataclass
class LaggingEc2:
    """What is so since when; the last entry is of now."""

    history: list[tuple[float, dict[str, InterfaceRecord]]] = field(default_factory=list)

    @property
    def now(self) -> dict[str, InterfaceRecord]:
        return self.history[-1][1]

    def change(self, interfaces: dict[str, InterfaceRecord], *, at: float) -> None:
        self.history.append((at, interfaces))

    def describe(self, *, of: float) -> list[InterfaceRecord]:
        past = [interfaces for at, interfaces in self.history if at <= of] or [self.history[0][1]]
        return list(past[-1].values())


class Machine(RuleBasedStateMachine):
    """Only the node changes anything until `interfere`."""

    def __init__(self) -> None:
        super().__init__()
        self.clock = 1000.0
        self.ec2 = LaggingEc2()
        self.ec2.change({each.id: each for each in (record(0), record(1))}, at=0.0)
        self.inventory = Inventory(tags=TAGS, primary_mac=record(0).mac, version=4, lag=LAG)
        self.inventory.describe(self.ec2.now.values(), asked=self.clock)
        self.by_others = False
        self.attachments = 0

    @rule(seconds=st.floats(0.0, 45.0))
    def wait(self, seconds: float) -> None:
        self.clock += seconds

    @rule(age=st.floats(0.0, 1.0))
    def describe(self, age: float) -> None:
        of = self.clock - age * (DESCRIBE_LAG_SECONDS - 0.001)
        self.inventory.describe(self.ec2.describe(of=of), asked=self.clock)

    @rule(device=st.integers(0, 1), network=st.sampled_from(EVERY))
    def assign(self, device: int, network: IPNetwork) -> None:
        taken = {each for one in self.ec2.now.values() for each in one.ranges}
        if (known := self.ec2.now.get(f"eni-{device}")) is None or network in taken:
            return
        self._put(replace(known, ranges=known.ranges | {network}))
        self.inventory.assigned(known.id, [network], now=self.clock)

    @rule(number=st.integers(0, 5))
    def unassign(self, number: int) -> None:
        taken = [(known, each) for known in self.ec2.now.values() for each in sorted(known.ranges, key=str)]
        if not taken:
            return
        known, network = taken[number % len(taken)]
        self._put(replace(known, ranges=known.ranges - {network}))
        self.inventory.unassigned(known.id, [network], now=self.clock)

    @rule(ranges=st.sets(st.sampled_from(SPARE)))
    def detach_or_attach(self, ranges: set[IPNetwork]) -> None:
        known = self.ec2.now.get("eni-1")
        if known is not None:
            self._put(known, there=False)
            self.inventory.detached(known.id, now=self.clock)
            return
        self.attachments += 1
        attachment = AttachmentId(f"attach-again-{self.attachments}")
        made = replace(record(1, *ranges), attachment=attachment)
        self._put(made)
        self.inventory.attached(made, 1, attachment, now=self.clock)
        self.inventory.flagged(self.inventory.own()[-1], now=self.clock)

    @precondition(lambda self: not self.by_others)
    @rule(device=st.integers(0, 1))
    def interfere(self, device: int) -> None:
        """Somebody else takes all addresses of an interface."""
        if (known := self.ec2.now.get(f"eni-{device}")) is None or not known.ranges:
            return
        self._put(replace(known, ranges=frozenset()))
        self.by_others = True

    @rule()
    def settle(self) -> None:
        """Time passes, and what is looked for again is: then the node knows what is so."""
        self.clock += DESCRIBE_LAG_SECONDS
        self.describe(0.0)
        for _ in range(4):
            if (due := self.inventory.next_look) is not None:
                self.clock = max(self.clock, due)
                self.describe(0.0)
        assert self.inventory.next_look is None
        assert self.inventory.doubted == set()
        assert {each.id: each for each in self.inventory.own()} == self.ec2.now
        self.by_others = False

    @invariant()
    def what_the_node_has_is_what_it_takes_to_be_there(self) -> None:
        there = {each for one in self.ec2.now.values() for each in one.ranges}
        known = {each for one in self.inventory.interfaces() for each in one.ranges}
        assert there <= known, "nothing of it is taken for gone"
        if not self.by_others:
            assert known == there
            assert self.inventory.doubted == set()

    def _put(self, changed: InterfaceRecord, *, there: bool = True) -> None:
        others = {key: each for key, each in self.ec2.now.items() if key != changed.id}
        self.ec2.change(others | {changed.id: changed} if there else others, at=self.clock)


TestDescriptionsThatLag = Machine.TestCase
