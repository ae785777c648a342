"""What one process tells the next, and people."""

from datetime import UTC, datetime
from ipaddress import IPv4Network
from pathlib import Path

import pytest

from coil.crd.names import BlockName, PoolName
from coil.ipam.block import Block
from coil.ipam.node_ledger import Allocation, NodeLedger, Reuse
from coild.addresses.journal import FORMER_HOLDERS, AddressJournal, FormerHolder, Resumption
from coild.model.attachment import Holder, PodName
from coild.model.journal_file import COMPACT_BYTES, JournalFile
from tests.coild.scene import LOG, key

POOL, ZERO, ONE = PoolName("default"), BlockName("default-0"), BlockName("default-1")
POD = PodName("apps", "pod")
COOLDOWN = 30.0


class Times:
    """The time of day may be set; the clock only goes on."""

    clock = 100.0
    wall = 1_900_000_000.0

    def pass_(self, seconds: float) -> None:
        self.clock += seconds
        self.wall += seconds


class Node:
    """Two blocks of eight addresses, and a journal; both as one process sees them."""

    def __init__(self, path: Path, times: Times) -> None:
        self.path, self.times = path, times
        self.ledger = NodeLedger(cooldown=COOLDOWN)
        for index, name in enumerate((ZERO, ONE)):
            self.ledger.add_block(Block(name, POOL, index, IPv4Network((0x0A000000 + 8 * index, 29)), None))
        self.journal = AddressJournal(
            JournalFile(path, log=LOG),
            cooldown=COOLDOWN,
            wall=lambda: self.times.wall,
            clock=lambda: self.times.clock,
        )

    def add(self, container: str, pod: PodName = POD, *, reuse: Reuse = Reuse.AFTER_COOLDOWN) -> int:
        allocation = self.ledger.acquire(POOL, key(container), now=self.times.clock, reuse=reuse)
        assert allocation is not None
        self.journal.gave(allocation, pod)
        return allocation.slot

    def delete(self, container: str) -> None:
        allocation = self.ledger.release(key(container), now=self.times.clock)
        assert allocation is not None
        self.journal.took(allocation)

    def revoke(self, container: str) -> None:
        allocation = self.ledger.revoke(key(container))
        assert allocation is not None
        self.journal.revoked(allocation, cooldown_left=self.ledger.cooldown_end(allocation) - self.times.clock)

    def killed(self) -> "Node":
        """The next process, with what this one holds."""
        successor = Node(self.path, self.times)
        for allocation in self.ledger.allocations():
            successor.ledger.adopt(allocation.key, pool=POOL, ipv4=allocation.ipv4)
        return successor

    def resume(self) -> dict[BlockName, Resumption]:
        held = {allocation.key: allocation for allocation in self.ledger.allocations()}
        found = self.journal.resume(held, [ZERO, ONE])
        for name, resumption in found.items():
            cooldowns = {slot: self.times.clock + seconds for slot, seconds in resumption.cooldowns.items()}
            self.ledger.resume(name, last=resumption.last, cooldowns=cooldowns)
        return found


@pytest.fixture
def node(tmp_path: Path) -> Node:
    node = Node(tmp_path / "journal", Times())
    assert node.resume() == {}
    return node


def test_the_search_goes_on_where_the_killed_process_stopped(node: Node) -> None:
    assert [node.add(f"c{number}") for number in range(4)] == [0, 1, 2, 3]
    node.times.pass_(1)
    node.delete("c3")
    node.times.pass_(COOLDOWN)
    successor = node.killed()
    successor.resume()
    assert successor.add("c9") == 4, "not 3, the highest that is free by the kernel's word"


def test_what_rests_goes_on_resting_and_no_longer(node: Node) -> None:
    for number in range(8):
        node.add(f"c{number}")
    node.delete("c0")
    node.times.pass_(10)
    node.delete("c1")
    successor = node.killed()
    assert successor.resume() == {ZERO: Resumption(7, {0: 20, 1: 30})}
    successor.times.pass_(20)
    assert successor.add("d0") == 0
    third = successor.killed()
    assert third.resume() == {ZERO: Resumption(0, {1: 10})}, "after two restarts as well"
    third.times.pass_(10)
    assert third.killed().resume() == {ZERO: Resumption(0, {})}


@pytest.mark.parametrize("jump", [-1e6, -1.0, 5.0])
def test_the_time_of_day_may_jump(node: Node, jump: float) -> None:
    node.add("c0")
    node.delete("c0")
    node.times.wall += jump
    left = node.killed().resume()[ZERO].cooldowns[0]
    assert left == min(COOLDOWN, COOLDOWN - jump)


def test_the_time_of_day_may_jump_far_ahead(node: Node) -> None:
    node.add("c0")
    node.delete("c0")
    node.times.wall += 1e6
    assert node.killed().resume()[ZERO].cooldowns == {}


def test_an_address_that_was_lost_while_nobody_watched_rests_from_the_start(node: Node) -> None:
    node.add("c0")
    node.add("c1")
    node.times.pass_(1000)
    successor = node.killed()
    successor.ledger.revoke(key("c1"))  # its namespace went with the container
    assert successor.resume()[ZERO].cooldowns == {1: COOLDOWN}
    assert successor.journal.holder(key("c1")) == Holder(None, None)


def test_an_address_that_was_lost_while_nobody_watched_rests_from_its_recorded_del(node: Node) -> None:
    for number in range(3):
        node.add(f"c{number}")
    node.times.pass_(1000)
    at = node.times.clock - 12
    successor = node.killed()
    for lost in ("c0", "c1"):
        successor.ledger.revoke(key(lost))
    ended = {key("c0"): at, key("c1"): at - COOLDOWN, key("unknown"): at}
    held = {allocation.key: allocation for allocation in successor.ledger.allocations()}
    assert successor.journal.resume(held, [ZERO, ONE], ended)[ZERO].cooldowns == {0: COOLDOWN - 12}
    assert successor.killed().resume()[ZERO].cooldowns == {0: COOLDOWN - 12}, "after one more restart as well"


def test_an_address_that_came_back_a_while_ago_rests_from_then(node: Node) -> None:
    node.add("c0")
    node.times.pass_(1000)
    allocation = node.ledger.release(key("c0"), now=node.times.clock - 12)
    assert allocation is not None
    node.journal.took(allocation, at=node.times.clock - 12)
    assert node.killed().resume()[ZERO].cooldowns == {0: COOLDOWN - 12}


def test_an_address_that_was_never_used_does_not_rest(node: Node) -> None:
    node.add("c0")
    node.revoke("c0")
    assert node.killed().resume()[ZERO].cooldowns == {}


def test_an_address_that_was_given_early_and_never_used_goes_on_resting(node: Node) -> None:
    for number in range(16):
        node.add(f"c{number}")
    node.delete("c0")
    node.times.pass_(COOLDOWN / 3)
    assert node.add("d0", reuse=Reuse.ANY) == 0
    node.revoke("d0")
    assert node.killed().resume()[ZERO].cooldowns == {0: pytest.approx(COOLDOWN * 2 / 3)}
    node.times.pass_(COOLDOWN)
    assert node.killed().resume()[ZERO].cooldowns == {}


def test_who_has_an_address_and_since_when_survives(node: Node) -> None:
    node.add("c0", PodName("apps", "first", "some-uid"))
    since = datetime.fromtimestamp(node.times.wall, UTC)
    node.times.pass_(77)
    assert node.journal.holder(key("c0")) == Holder(PodName("apps", "first", "some-uid"), since)
    successor = node.killed()
    successor.resume()
    assert successor.journal.holder(key("c0")) == Holder(PodName("apps", "first", "some-uid"), since)
    third = successor.killed()
    third.resume()
    assert third.journal.holder(key("c0")) == Holder(PodName("apps", "first", "some-uid"), since)
    third.delete("c0")
    assert third.journal.holder(key("c0")) == Holder(None, None)


def test_who_had_an_address_survives(node: Node) -> None:
    slot = node.add("c0", PodName("apps", "first", "some-uid"))
    since = datetime.fromtimestamp(node.times.wall, UTC)
    node.times.pass_(77)
    until = datetime.fromtimestamp(node.times.wall, UTC)
    assert node.journal.former(ZERO) == {}
    node.delete("c0")
    had = {slot: FormerHolder(key("c0"), PodName("apps", "first"), since, until)}
    assert node.journal.former(ZERO) == had
    assert node.journal.former(ONE) == {}
    successor = node.killed()
    successor.resume()
    third = successor.killed()
    third.resume()
    assert third.journal.former(ZERO) == had, "after two restarts as well"
    third.journal.left(ZERO)
    assert third.killed().journal.former(ZERO) == {}


def test_who_was_given_an_address_and_never_used_it_did_not_have_it(node: Node) -> None:
    for number in range(16):
        node.add(f"c{number}", PodName("apps", f"pod-{number}"))
    node.delete("c0")
    node.add("d0", PodName("apps", "other"), reuse=Reuse.ANY)
    node.revoke("d0")
    assert [had.pod.name for had in node.journal.former(ZERO).values()] == ["pod-0"]
    assert [had.pod.name for had in node.killed().journal.former(ZERO).values()] == ["pod-0"]


def test_of_some_addresses_it_is_remembered_who_had_them(node: Node) -> None:
    """The last that came back, however many there are."""
    for number in range(FORMER_HOLDERS + 3):
        allocation = Allocation(key(f"c{number}"), POOL, ZERO, number, None, None)
        node.journal.gave(allocation, PodName("apps", f"pod-{number}"))
        node.journal.took(allocation)
    former = node.journal.former(ZERO)
    assert (len(former), min(former), max(former)) == (FORMER_HOLDERS, 3, FORMER_HOLDERS + 2)


def test_a_note_of_another_place_than_the_kernel_s_is_not_believed(node: Node) -> None:
    node.add("c0")
    successor = Node(node.path, node.times)
    successor.ledger.adopt(key("c0"), pool=POOL, ipv4=IPv4Network("10.0.0.4/32").network_address)
    assert successor.resume()[ZERO].cooldowns == {0: COOLDOWN}
    assert successor.journal.holder(key("c0")) == Holder(None, None)


def test_blocks_that_have_left_are_forgotten(node: Node) -> None:
    for number in range(9):
        node.add(f"c{number}")
    node.delete("c8")
    node = node.killed()
    assert set(node.resume()) == {ZERO, ONE}
    node.journal.left(ONE)
    successor = node.killed()
    assert set(successor.resume()) == {ZERO}
    held = {allocation.key: allocation for allocation in successor.ledger.allocations()}
    assert successor.journal.resume(held, []) == {}


def test_an_attachment_outside_this_node_s_blocks_keeps_its_note(node: Node) -> None:
    node.add("c0")
    successor = Node(node.path, node.times)
    assert successor.journal.resume({key("c0"): None}, [ZERO])[ZERO].cooldowns == {}
    assert successor.journal.holder(key("c0")).pod == POD


def test_the_file_stays_small_whatever_happens(node: Node) -> None:
    for number in range(20_000):
        node.add(f"{number:064x}")
        node.times.pass_(10)
        node.delete(f"{number:064x}")
        node.times.pass_(10)
    assert node.path.stat().st_size < COMPACT_BYTES + 1000
    slot = node.add("last")
    node.delete("last")
    found = node.killed().resume()
    assert found[ZERO].last == slot
    assert found[ZERO].cooldowns[slot] == COOLDOWN


def test_records_of_another_program_s_making_are_passed_over(node: Node) -> None:
    node.add("c0")
    file = JournalFile(node.path, log=LOG)
    records = file.load()
    file.replace(
        [
            *records,
            b'["given","c1","eth0",1,2,3,4,5]',
            b'["later",1]',
            b"[]",
            b"{}",
            b"\xff",
            b'["last","default-0","x"]',
        ]
    )
    successor = node.killed()
    assert successor.resume() == {ZERO: Resumption(0, {})}


@pytest.mark.parametrize("at", ["1e308", "-1e308"])
def test_a_moment_that_no_calendar_has(node: Node, at: str) -> None:
    file = JournalFile(node.path, log=LOG)
    file.load()
    file.replace([b'["given","c0","eth0","apps","pod","default-0",0,%s]' % at.encode()])
    node.add("c0")
    successor = node.killed()
    successor.resume()
    assert successor.journal.holder(key("c0")) == Holder(POD, None)
