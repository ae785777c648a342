"""The store through pods that come and go, interfaces that come and go, crashes at every step, and reboots.

The kernel's word is a dictionary. What must hold: no address is held twice, none is given while it cools down or while
EC2 has it not for this node, and nothing in use or cooling down is ever withdrawn; in the next process, too.
"""

import asyncio
from enum import Enum
from ipaddress import IPv4Address, IPv4Network
from pathlib import Path
from tempfile import TemporaryDirectory

from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from coil.eni.interface import NetworkInterface
from coil.eni.ledger import InUseError
from coil.ipam.occupancy import AttachmentKey
from coild.model.attachment import AddressUnavailableError
from tests.coil.eni.vpc import COOLDOWN, interface
from tests.coild.eni.node import POD, Node
from tests.coild.scene import key

KEYS = st.builds(lambda number: key(f"c{number}"), st.integers(0, 9))
RANGES = [["10.0.0.10/32", "10.0.0.11/32", "10.0.0.16/28"], ["10.0.1.10/32", "10.0.1.11/32", "10.0.1.16/28"]]


class Step(Enum):
    """How far an ADD or a DEL comes before the process dies."""

    NOTED = "noted"
    DONE = "done"


class Life(RuleBasedStateMachine):
    def __init__(self) -> None:
        super().__init__()
        self.folder = TemporaryDirectory()
        self.now = 1000.0
        self.node = Node(Path(self.folder.name, "journal"), clock=lambda: self.now)
        self.interfaces: list[NetworkInterface] = []
        self.up: set[str] = set()
        self.freed: dict[IPv4Address, float] = {}
        self.withdrawn: set[IPv4Network] = set()

    @property
    def kernel(self) -> dict[AttachmentKey, IPv4Address]:
        return self.node.kernel  # type: ignore[return-value]

    def cooling(self) -> set[IPv4Address]:
        return {address for address, freed in self.freed.items() if self.now - freed < COOLDOWN}

    def givable(self) -> set[IPv4Address]:
        ranges = {network for each in self.interfaces if each.id in self.up for network in each.ranges}
        there = {IPv4Address(int(address)) for network in ranges - self.withdrawn for address in network}
        return there - {*self.kernel.values()} - self.cooling()

    @rule(who=KEYS, step=st.sampled_from([Step.NOTED, *[Step.DONE] * 4]))
    def add(self, who: AttachmentKey, step: Step) -> None:
        givable = self.givable()
        held = self.kernel.get(who)
        try:
            address = asyncio.run(self.node.store.take(who, POD, deadline=0.0)).address
        except AddressUnavailableError:
            assert held is not None or not givable
            assert held is None or not any(held in network for each in self.interfaces for network in each.ranges)
            return
        assert isinstance(address, IPv4Address)
        if held is not None:
            assert address == held
            return
        assert address in givable
        if step is Step.DONE:
            self.kernel[who] = address
            return
        self.freed[address] = self.now
        self.start()

    @rule(who=KEYS, step=st.sampled_from([Step.NOTED, *[Step.DONE] * 4]))
    def delete(self, who: AttachmentKey, step: Step) -> None:
        if (address := self.kernel.pop(who, None)) is not None:
            self.freed[address] = self.now
        if step is Step.DONE:
            self.node.store.release(who)
        else:
            self.start()

    @rule(who=KEYS)
    @precondition(lambda self: self.givable())
    def an_add_that_is_undone(self, who: AttachmentKey) -> None:
        if who not in self.kernel:
            address = asyncio.run(self.node.store.take(who, POD, deadline=0.0)).address
            assert address in self.givable()
            self.node.store.revoke(who)
            assert address in self.givable(), "free at once"

    @rule(chosen=st.lists(st.sets(st.integers(0, 2)), min_size=2, max_size=2), up=st.sets(st.integers(0, 1)))
    def ec2_answers(self, chosen: list[set[int]], up: set[int]) -> None:
        self.interfaces = [
            interface(device, *(RANGES[device][number] for number in numbers)) for device, numbers in enumerate(chosen)
        ]
        self.up = {each.id for each in self.interfaces if each.device_number in up}
        self.withdrawn &= {network for each in self.interfaces for network in each.ranges}
        self.tell()

    def tell(self) -> None:
        self.node.store.update(self.interfaces, up=[each.id for each in self.interfaces if each.id in self.up])

    @rule(device=st.integers(0, 1), number=st.integers(0, 2))
    def withdraw(self, device: int, number: int) -> None:
        wanted = IPv4Network(RANGES[device][number])
        if not any(wanted in each.ranges for each in self.interfaces):
            return
        used = {*self.kernel.values()} | self.cooling()
        try:
            self.node.store.withdraw([wanted])
        except InUseError:
            assert any(address in wanted for address in used)
        else:
            assert not any(address in wanted for address in used)
            self.withdrawn.add(wanted)

    @rule()
    def reinstate(self) -> None:
        self.node.store.reinstate(self.withdrawn)
        self.withdrawn.clear()

    @rule(seconds=st.sampled_from([0.1, 5.0, 14.0, 31.0]))
    def time_passes(self, seconds: float) -> None:
        self.now += seconds

    @rule()
    def start(self) -> None:
        """After a kill -9."""
        self.node.start()
        self.withdrawn.clear()
        self.tell()

    @rule()
    def reboot(self) -> None:
        """Which takes longer than a cooldown; `test_journal` has those that do not."""
        self.freed.clear()
        self.now = COOLDOWN + 1
        self.node.reboot()
        self.withdrawn.clear()
        self.tell()

    @invariant()
    def the_ledger_equals_the_kernel(self) -> None:
        out = {allocation.key: allocation.address for allocation in self.node.store.held()}
        assert out == self.kernel
        assert len({*out.values()}) == len(out)

    @invariant()
    def what_cools_down_is_known(self) -> None:
        assert {*self.node.store.cooldowns()} >= self.cooling() - {*self.kernel.values()}

    @invariant()
    def who_lost_its_address_is_known(self) -> None:
        there = [network for each in self.interfaces for network in each.ranges]
        lost = {who for who, address in self.kernel.items() if not any(address in network for network in there)}
        assert self.node.store.lost().keys() == lost

    def teardown(self) -> None:
        self.node.store.journal.close()
        self.folder.cleanup()


TestLife = Life.TestCase
TestLife.settings = settings(max_examples=100, stateful_step_count=40, deadline=None)
