"""Ledger and journal through crashes at every step, with journals cut, damaged and lost.

The kernel's word is a dictionary here. What must hold: the ledger is the kernel's after each start; no address is in
two hands, none is lost for good; and as long as nobody tampered with journal or clock, none is given within its rest.
"""

from enum import Enum
from ipaddress import IPv4Address
from pathlib import Path
from tempfile import TemporaryDirectory

from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, rule

from coil.ipam.node_ledger import Reuse
from coil.ipam.occupancy import AttachmentKey
from coild.model.journal_file import HEADER
from tests.coild.addresses.test_journal import COOLDOWN, ONE, POD, POOL, ZERO, Node, Times
from tests.coild.scene import key

KEYS = st.builds(lambda number: key(f"c{number}"), st.integers(0, 19))


class Step(Enum):
    """How far an ADD or a DEL comes before the process dies."""

    BOOKED = "booked"
    """In the ledger, and nowhere else."""
    NOTED = "noted"
    """In the journal, too, and not in the kernel: an ADD comes that far, a DEL has left the kernel before."""
    DONE = "done"


class Life(RuleBasedStateMachine):
    def __init__(self) -> None:
        super().__init__()
        self.folder = TemporaryDirectory()
        self.times = Times()
        self.kernel: dict[AttachmentKey, IPv4Address] = {}
        self.freed: dict[IPv4Address, float] = {}
        """By the clock; only what the next process can know of."""
        self.node = Node(Path(self.folder.name, "journal"), self.times)
        self.node.resume()

    @rule(who=KEYS, reuse=st.sampled_from(Reuse), step=st.sampled_from([*Step, *[Step.DONE] * 5]))
    def add(self, who: AttachmentKey, reuse: Reuse, step: Step) -> None:
        before = self.node.ledger.find(who)
        given = self.node.ledger.acquire(POOL, who, now=self.times.clock, reuse=reuse)
        if given is None or given.ipv4 is None:
            assert reuse is Reuse.AFTER_COOLDOWN or len(self.kernel) == 16
            return
        if before is not None:
            assert given == before
            return
        if reuse is Reuse.AFTER_COOLDOWN:
            assert self.times.clock - self.freed.get(given.ipv4, -COOLDOWN) >= COOLDOWN
        assert given.ipv4 not in self.kernel.values()
        if step is not Step.BOOKED:
            self.node.journal.gave(given, POD)
        if step is Step.DONE:
            self.kernel[who] = given.ipv4
            self.freed.pop(given.ipv4, None)
        else:
            self.start()

    @rule(who=KEYS, step=st.sampled_from([*Step, *[Step.DONE] * 5]))
    def delete(self, who: AttachmentKey, step: Step) -> None:
        address = self.kernel.pop(who, None)
        taken = self.node.ledger.release(who, now=self.times.clock)
        assert (taken and taken.ipv4) == address
        if taken is None or address is None:
            return
        self.freed[address] = self.times.clock
        if step is not Step.BOOKED:
            self.node.journal.took(taken)
        if step is not Step.DONE:
            self.start()

    @rule(who=KEYS)
    def vanish(self, who: AttachmentKey) -> None:
        """While the process is down."""
        if (address := self.kernel.pop(who, None)) is not None:
            self.freed[address] = self.times.clock
        self.start()

    @rule(seconds=st.sampled_from([0.1, 5.0, 14.0, 31.0]))
    def time_passes(self, seconds: float) -> None:
        self.times.pass_(seconds)

    @rule(seconds=st.sampled_from([-1e7, -20.0, 20.0, 1e7]))
    def somebody_sets_the_clock(self, seconds: float) -> None:
        self.times.wall += seconds
        if seconds > 0:
            self.freed.clear()

    @rule(data=st.data())
    def somebody_damages_the_journal(self, data: st.DataObject) -> None:
        content = bytearray(self.node.path.read_bytes())
        start = data.draw(st.integers(0, len(content)))
        end = data.draw(st.integers(start, len(content)))
        content[start:end] = data.draw(st.binary(max_size=20))
        if data.draw(st.booleans()):
            del content[start:]
        self.node.path.write_bytes(content)
        self.freed.clear()
        self.start()
        if not self.node.path.read_bytes().startswith(HEADER):
            # Taken for somebody else's, so it was left alone; nothing is noted until it is removed.
            self.node.path.unlink()
            self.start()

    @rule()
    def somebody_removes_the_journal(self) -> None:
        self.node.path.unlink(missing_ok=True)
        self.freed.clear()
        self.start()

    @rule()
    def start(self) -> None:
        """After a kill -9, as nothing was said before."""
        self.node.journal.close()
        self.node = Node(self.node.path, self.times)
        for who, address in self.kernel.items():
            self.node.ledger.adopt(who, pool=POOL, ipv4=address)
        self.node.resume()

    @invariant()
    def the_ledger_equals_the_kernel(self) -> None:
        out = {allocation.key: allocation.ipv4 for allocation in self.node.ledger.allocations()}
        assert out == self.kernel
        assert len(set(out.values())) == len(out)

    @invariant()
    def no_address_is_lost(self) -> None:
        tally = self.node.ledger.tally(POOL, now=self.times.clock)
        assert tally.allocated + tally.cooling + tally.free == 16
        assert max(map(self.node.ledger.last_cooldown_end, (ZERO, ONE))) <= self.times.clock + COOLDOWN

    def teardown(self) -> None:
        self.node.journal.close()
        self.folder.cleanup()


TestLife = Life.TestCase
TestLife.settings = settings(max_examples=100, stateful_step_count=40, deadline=None)
