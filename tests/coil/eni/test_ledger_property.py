"""The ledger against a naive model, under any sequence of calls."""

from ipaddress import IPv4Address, IPv4Network

from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, rule

from coil.eni.interface import NetworkInterface
from coil.eni.ledger import EniLedger, InUseError
from coil.ipam.occupancy import AttachmentKey
from tests.coil.eni.vpc import COOLDOWN, interface, key

KEYS = st.builds(key, st.integers(0, 9))
RANGES = [
    ["10.1.0.10/32", "10.1.0.11/32", "10.1.0.16/28"],
    ["10.1.1.10/32", "10.1.1.11/32", "10.1.1.16/28"],
]
"""What each of two interfaces may have."""


class LedgerModel(RuleBasedStateMachine):
    """The model: what EC2 has, who holds which address, and until when which one cools down."""

    def __init__(self) -> None:
        super().__init__()
        self.ledger = EniLedger(cooldown=COOLDOWN)
        self.now = 0.0
        self.interfaces: list[NetworkInterface] = []
        self.up: set[str] = set()
        self.held: dict[AttachmentKey, IPv4Address] = {}
        self.until: dict[IPv4Address, float] = {}
        self.withdrawn: set[IPv4Network] = set()

    def givable(self) -> set[IPv4Address]:
        ranges = {
            network
            for each in self.interfaces
            if each.id in self.up
            for network in each.ranges
            if network not in self.withdrawn
        }
        everything = {IPv4Address(int(address)) for network in ranges for address in network}
        return everything - set(self.held.values()) - self.cooling()

    def cooling(self) -> set[IPv4Address]:
        return {address for address, until in self.until.items() if until > self.now}

    @rule(seconds=st.sampled_from([0.5, 14.0, 30.0]))
    def time_passes(self, seconds: float) -> None:
        self.now += seconds

    @rule(chosen=st.lists(st.sets(st.integers(0, 2)), min_size=2, max_size=2), up=st.sets(st.integers(0, 1)))
    def ec2_answers(self, chosen: list[set[int]], up: set[int]) -> None:
        self.interfaces = [
            interface(device, *(RANGES[device][number] for number in numbers))
            for device, numbers in enumerate(chosen)
            if numbers
        ]
        self.up = {each.id for each in self.interfaces if each.device_number in up}
        lost = self.ledger.update(self.interfaces, up=[each.id for each in self.interfaces if each.id in self.up])
        there = {network for each in self.interfaces for network in each.ranges}
        self.withdrawn &= there
        missing = {who for who, address in self.held.items() if not any(address in network for network in there)}
        assert {allocation.key for allocation in lost} == missing

    @rule(who=KEYS)
    def acquire(self, who: AttachmentKey) -> None:
        found = self.ledger.acquire(who, version=4, now=self.now)
        if who in self.held:
            assert found is not None
            assert found.address == self.held[who]
        elif found is None:
            assert not self.givable()
        else:
            assert found.address in self.givable()
            self.held[who] = IPv4Address(int(found.address))

    @rule(who=KEYS, index=st.integers(0, 5))
    def adopt(self, who: AttachmentKey, index: int) -> None:
        address = IPv4Address("10.1.0.10") + index
        try:
            self.ledger.adopt(who, address)
        except InUseError:
            assert self.held.get(who, address) != address or address in self.held.values()
        else:
            assert self.held.get(who, address) == address
            assert address not in [held for other, held in self.held.items() if other != who]
            self.held[who] = address
            self.until.pop(address, None)
            self.withdrawn = {network for network in self.withdrawn if address not in network}

    @rule(who=KEYS)
    def release(self, who: AttachmentKey) -> None:
        assert (self.ledger.release(who, now=self.now) is not None) is (who in self.held)
        if (address := self.held.pop(who, None)) is not None:
            self.until[address] = self.now + COOLDOWN

    @rule(who=KEYS)
    def revoke(self, who: AttachmentKey) -> None:
        self.ledger.revoke(who)
        self.held.pop(who, None)

    @rule(device=st.integers(0, 1), numbers=st.sets(st.integers(0, 2), min_size=1))
    def withdraw(self, device: int, numbers: set[int]) -> None:
        wanted = {IPv4Network(RANGES[device][number]) for number in numbers}
        there = {network for each in self.interfaces for network in each.ranges}
        if not wanted <= there:
            return
        used = set(self.held.values()) | self.cooling()
        busy = any(address in network for network in wanted for address in used)
        try:
            self.ledger.withdraw(wanted, now=self.now)
        except InUseError:
            assert busy
        else:
            assert not busy
            self.withdrawn |= wanted

    @rule()
    def reinstate(self) -> None:
        self.ledger.reinstate(self.withdrawn)
        self.withdrawn.clear()

    @invariant()
    def it_agrees(self) -> None:
        assert {each.key: each.address for each in self.ledger.allocations()} == self.held
        uses = self.ledger.uses(now=self.now)
        assert [use.interface for use in uses] == self.interfaces
        for use in uses:
            ranges = use.interface.ranges
            here = {IPv4Address(int(address)) for network in ranges for address in network}
            withdrawn = {address for address in here if any(address in network for network in self.withdrawn)}
            assert use.total == len(here)
            assert use.held == len(here & set(self.held.values()))
            assert use.cooling == len(here & self.cooling())
            assert use.free == len(here - withdrawn - set(self.held.values()) - self.cooling())
            used = set(self.held.values()) | self.cooling()
            assert set(use.idle) == {
                network
                for network in ranges
                if network not in self.withdrawn and not any(address in network for address in used)
            }


TestEniLedger = LedgerModel.TestCase
TestEniLedger.settings = settings(max_examples=100, stateful_step_count=40, deadline=None)
