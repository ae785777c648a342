"""What one process tells the next, across kill -9 and reboots, and what a damaged or unwritable file does."""

from dataclasses import replace
from datetime import UTC, datetime
from ipaddress import IPv4Address, IPv4Network, IPv6Network
from pathlib import Path

import pytest
from structlog.testing import capture_logs

from coil.eni.interface import SubnetId
from coil.eni.node_plan import AttachedInterface
from coil.eni.warm_pool import NodeLimits
from coild.eni.journal import Checkpoint, Creation
from coild.model.attachment import UNKNOWN_HOLDER, AddressUnavailableError, Holder
from tests.coil.eni.vpc import COOLDOWN, interface
from tests.coild.eni.node import POD, WALL, Node, one
from tests.coild.scene import key


class Clock:
    now = 1000.0

    def __call__(self) -> float:
        return self.now


@pytest.fixture
def clock() -> Clock:
    return Clock()


@pytest.fixture
async def node(tmp_path: Path, clock: Clock) -> Node:
    node = Node(tmp_path / "eni.journal", clock=clock)
    node.see(one("10.0.0.10/32"))
    return node


async def test_the_next_process_knows_whose_an_address_is(node: Node, clock: Clock) -> None:
    await node.add("c1")
    clock.now += 5
    node.start()
    assert node.store.journal.holder(key("c1")) == Holder(POD, datetime.fromtimestamp(WALL + 1000, UTC))
    assert node.store.journal.holder(key("c2")) == UNKNOWN_HOLDER


async def test_a_cooldown_goes_on_in_the_next_process(node: Node, clock: Clock) -> None:
    await node.add("c1")
    node.delete("c1")
    clock.now += 20
    node.start()
    assert node.store.cooldowns() == {IPv4Address("10.0.0.10"): pytest.approx(COOLDOWN - 20)}
    node.see(one("10.0.0.10/32"))
    with pytest.raises(AddressUnavailableError):
        await node.add("c2")
    clock.now += 10
    assert await node.add("c2") == "10.0.0.10"


@pytest.mark.parametrize("jump", [-3600.0, 0.0, 3600.0])
async def test_after_a_reboot_all_that_was_held_or_cooling_cools_down_from_the_machines_start(
    node: Node, clock: Clock, jump: float
) -> None:
    node.see(one("10.0.0.10/32", "10.0.0.11/32"))
    await node.add("c1")
    await node.add("c2")
    node.delete("c2")
    clock.now = 10.0  # of the machine's new life
    node.wall += jump
    node.reboot()
    assert node.store.held() == []
    expected = dict.fromkeys(map(IPv4Address, ("10.0.0.10", "10.0.0.11")), COOLDOWN - 10)
    assert node.store.cooldowns() == expected
    node.start()
    assert node.store.cooldowns() == expected, "not once more"
    assert node.store.journal.holder(key("c1")) == UNKNOWN_HOLDER


async def test_an_address_that_was_never_used_need_not_cool_down(node: Node) -> None:
    await node.add("c1")
    node.store.revoke(key("c1"))
    node.reboot()
    assert node.store.cooldowns() == {}


async def test_a_pod_that_nobody_noted_cools_down_when_it_is_gone(node: Node, clock: Clock) -> None:
    node.kernel[key("c1")] = IPv4Address("10.0.0.10")
    node.start()
    assert node.store.journal.holder(key("c1")) == UNKNOWN_HOLDER
    clock.now = 10.0
    node.reboot()
    assert node.store.cooldowns() == {IPv4Address("10.0.0.10"): COOLDOWN - 10}


@pytest.mark.parametrize("jump", [-1e7, 1e7])
async def test_the_time_of_day_may_be_set_meanwhile(node: Node, clock: Clock, jump: float) -> None:
    await node.add("c1")
    node.delete("c1")
    node.wall += jump
    clock.now += 1
    node.start()
    assert node.store.cooldowns() == {IPv4Address("10.0.0.10"): COOLDOWN - 1}


def remember(node: Node) -> None:
    """EC2's last word in the journal: the range that the node has."""
    [known, *_] = CHECKPOINT.interfaces
    own = replace(known, interface=one("10.0.0.10/32"))
    node.store.journal.note_checkpoint(replace(CHECKPOINT, interfaces=(own,)))


class TestUnknownPast:
    """Addresses that the node had before this process, and of which the journal says nothing."""

    @pytest.fixture
    async def node(self, node: Node, clock: Clock) -> Node:
        node.see(one("10.0.0.10/32"))
        remember(node)
        return node

    def cooling(self, node: Node, *ranges: str) -> dict[str, float]:
        node.see(one(*(ranges or ("10.0.0.10/32",))), inherited=True)
        return {str(address): left for address, left in node.store.cooldowns().items()}

    async def test_a_whole_journal_vouches_for_what_ec2_had_when_it_was_written(self, node: Node) -> None:
        node.start()
        assert self.cooling(node) == {}
        assert await node.add("c1") == "10.0.0.10"

    async def test_a_range_that_it_never_heard_of_may_be_on_its_way_back(self, node: Node) -> None:
        node.start()
        assert self.cooling(node, "10.0.0.10/32", "10.0.0.11/32") == {"10.0.0.11": COOLDOWN}

    async def test_a_power_failure_may_have_taken_the_last_records(self, node: Node, clock: Clock) -> None:
        assert node.path is not None
        data = node.path.read_bytes()
        await node.add("c1")
        node.path.write_bytes(data)
        clock.now = 12.0
        node.reboot()
        assert self.cooling(node) == {"10.0.0.10": COOLDOWN - 12}
        clock.now = COOLDOWN
        assert await node.add("c2") == "10.0.0.10"

    @pytest.mark.parametrize("damage", [b"", b"coild-journal 1\n0000 x\n", None])
    async def test_a_journal_that_was_lost_or_damaged(self, node: Node, damage: bytes | None) -> None:
        assert node.path is not None
        if damage is None:
            node.path.unlink()
        else:
            node.path.write_bytes(damage)
        node.start()
        assert self.cooling(node) == {"10.0.0.10": COOLDOWN}

    async def test_a_journal_that_cannot_be_written(self, node: Node) -> None:
        assert node.path is not None
        node.path.with_name(f"{node.path.name}.new").mkdir()
        node.start()
        assert self.cooling(node) == {"10.0.0.10": COOLDOWN}

    async def test_what_comes_later_is_new(self, node: Node) -> None:
        assert node.path is not None
        node.path.unlink()
        node.start()
        node.see(one("10.0.0.10/32"))
        assert node.store.cooldowns() == {}

    async def test_what_a_pod_has_is_known(self, node: Node) -> None:
        await node.add("c1")
        assert node.path is not None
        node.path.unlink()
        node.start()
        assert self.cooling(node) == {}
        assert await node.add("c1") == "10.0.0.10"

    async def test_of_a_prefix_of_ipv6_other_addresses_are_given(self, tmp_path: Path, clock: Clock) -> None:
        node = Node(tmp_path / "journal", clock=clock, version=6)
        prefix = replace(one(), ranges=frozenset({IPv6Network("fd00::/80")}))
        node.see(prefix)
        first = [await node.add(f"c{number}") for number in range(3)]
        node.kernel.clear()
        (tmp_path / "journal").unlink()
        node.start()
        node.see(prefix, inherited=True)
        assert not {await node.add(f"d{number}") for number in range(3)} & {*first}


CHECKPOINT = Checkpoint(
    instance="i-1",
    instance_type="m5.large",
    region="eu-central-1",
    zone="eu-central-1a",
    vpc="vpc-1",
    limits=NodeLimits(interfaces=3, slots=10, pods=29, prefixes=False),
    inside=(IPv4Network("10.0.0.0/16"), IPv4Network("10.1.0.0/16")),
    interfaces=(
        AttachedInterface(
            interface=replace(
                interface(0, "10.0.0.16/28", "10.0.0.10/32"),
                ranges=frozenset({IPv4Network("10.0.0.16/28"), IPv6Network("fd00:0:0:0:1::/80")}),
            ),
            subnet=IPv4Network("10.0.0.0/24"),
        ),
        AttachedInterface(interface=interface(2), subnet=IPv4Network("10.0.2.0/24")),
    ),
)
CREATION = Creation(
    token="coil-1",
    subnet=SubnetId("subnet-1"),
    groups=("sg-1", "sg-2"),
    tags={"coil.cybozu.com/cluster": "one"},
    description="Coil",
    prefixes=2,
)


@pytest.mark.parametrize("grown", [False, True])
async def test_the_checkpoint_and_the_interface_in_the_making_survive(node: Node, grown: bool) -> None:
    node.store.journal.note_checkpoint(replace(CHECKPOINT, inside=()))
    node.store.journal.note_checkpoint(CHECKPOINT)
    node.store.journal.note_creation(CREATION)
    if grown:
        node.start()  # which writes the file anew
    node.reboot()
    assert node.store.journal.checkpoint == CHECKPOINT
    assert node.store.journal.creation == CREATION
    node.store.journal.note_creation(None)
    node.start()
    assert node.store.journal.creation is None


async def test_what_is_noted_already_is_not_written_again(node: Node) -> None:
    assert node.path is not None
    node.store.journal.note_checkpoint(CHECKPOINT)
    size = node.path.stat().st_size
    node.store.journal.note_checkpoint(replace(CHECKPOINT))
    assert node.path.stat().st_size == size


async def test_records_that_are_not_understood_are_skipped(node: Node) -> None:
    await node.add("c1")
    node.store.journal.note_checkpoint(CHECKPOINT)
    for record in (b'["given","c9","eth0","n","p","u","no address",1.0]', b'["of a later release",1]', b"no JSON"):
        node.store.journal._file.append(record)
    node.start()
    assert node.store.journal.holder(key("c1")).pod == POD
    assert node.store.journal.checkpoint == CHECKPOINT


async def test_a_file_that_cannot_be_written_is_told_once_and_harms_nothing(tmp_path: Path, clock: Clock) -> None:
    with capture_logs() as lines:
        node = Node(tmp_path / "missing" / "eni.journal", clock=clock)
        node.see(one("10.0.0.10/32", "10.0.0.11/32"))
        assert await node.add("c1") == "10.0.0.10"
        node.store.journal.note_checkpoint(CHECKPOINT)
        node.delete("c1")
        assert await node.add("c2") == "10.0.0.11"
        with pytest.raises(AddressUnavailableError):
            await node.add("c3")
    assert [line["event"] for line in lines] == ["journal not rewritten"]
