"""The ledger and its journal, against a naive model of both."""

from dataclasses import replace
from pathlib import Path
from tempfile import TemporaryDirectory

import pytest
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, rule

from coil.ipam.occupancy import AttachmentKey
from coil.kernel.link import LinkName
from coil.neutron.handoff import Handoff, PortAddress
from coil.neutron.resource import NetworkId, PortId, ProjectId
from coild.model.attachment import PodName
from coild.model.journal_file import HEADER, JournalFile
from coild.model.port_error import PortInUseError
from coild.neutron.journal import PortHolding, PortJournal
from coild.neutron.ledger import PortLedger
from tests.coild.neutron.port_node import handoff
from tests.coild.scene import LOG, key

POD = PodName("apps", "web", "uid")
LINK = LinkName("veth01234567")


def resume(file: JournalFile, *present: str) -> PortLedger:
    made = PortLedger(PortJournal(file), wall=lambda: 7.0, log=LOG)
    made.resume([key(container) for container in present])
    return made


def resumed(path: Path, *present: str) -> PortLedger:
    return resume(JournalFile(path, log=LOG), *present)


def held(found: PortLedger) -> dict[str, PortId]:
    return {holding.key.container_id: holding.port.port for holding in found.held()}


def left(found: PortLedger) -> dict[str, PortId]:
    return {holding.key.container_id: holding.port.port for holding in found.left()}


@pytest.mark.parametrize(
    "port",
    [
        handoff(1, "uid", active=False, segmentation=17),
        Handoff(
            port=PortId("a" * 32),
            pod_uid="uid",
            mac=handoff(1, "").mac,
            addresses=(PortAddress(handoff(1, "").addresses[0].interface),),
            network=NetworkId(""),
            project=ProjectId(""),
            type="midonet",
            mtu=1400,
        ),
    ],
)
@pytest.mark.parametrize("reported", [True, False])
def test_the_next_process_knows_all_of_a_port(tmp_path: Path, port: Handoff, *, reported: bool) -> None:
    first = resumed(tmp_path / "journal")
    first.take(key("c1"), POD, LINK, port, reported=reported)
    first.note_bound(key("c1"))
    second = resumed(tmp_path / "journal", "c1")
    assert [*second.held()] == [
        PortHolding(key=key("c1"), pod=POD, link=LINK, port=port, since=7.0, reported=reported, bound=True)
    ]


def test_what_the_kernel_does_not_have_is_to_be_unplugged(tmp_path: Path) -> None:
    first = resumed(tmp_path / "journal")
    for number, container in enumerate(("c1", "c2", "c3"), start=1):
        first.take(key(container), POD, LINK, handoff(number, "uid"))
    first.leave(key("c3"))
    assert first.something_left.is_set()
    second = resumed(tmp_path / "journal", "c1")
    assert (set(held(second)), set(left(second))) == ({"c1"}, {"c2", "c3"})
    second.settle(handoff(2, "").port)
    third = resumed(tmp_path / "journal", "c1")
    assert (set(held(third)), set(left(third))) == ({"c1"}, {"c3"})


def test_a_container_that_has_left_one_port_may_have_another(tmp_path: Path) -> None:
    first = resumed(tmp_path / "journal")
    first.take(key("c1"), POD, LINK, handoff(1, "uid"))
    first.leave(key("c1"))
    first.take(key("c1"), POD, LINK, handoff(2, "uid"))
    first.settle(handoff(1, "").port)
    second = resumed(tmp_path / "journal", "c1")
    assert (held(second), left(second)) == ({"c1": handoff(2, "").port}, {})


def test_what_is_unplugged_is_not_taken_for_plugged_in_by_the_next_process(tmp_path: Path) -> None:
    first = resumed(tmp_path / "journal")
    first.take(key("c1"), POD, LINK, handoff(1, "uid"))
    first.note_bound(key("c1"))
    first.note_unbound(key("c1"))
    (holding,) = resumed(tmp_path / "journal", "c1").held()
    assert not holding.bound


def test_a_record_of_another_version_is_skipped(tmp_path: Path) -> None:
    file = JournalFile(tmp_path / "journal", log=LOG)
    file.replace([b'["given","c1"]', b'["new","c1","eth0"]', b"{}", b'["bound","c9","eth0"]'])
    file.close()
    assert (tmp_path / "journal").read_bytes().startswith(HEADER)
    assert held(resumed(tmp_path / "journal", "c1")) == {}


class LedgerModel(RuleBasedStateMachine):
    """Containers take, leave and settle ports; a process ends at any moment, and the next knows the same."""

    containers = st.sampled_from(["c1", "c2", "c3"])
    numbers = st.integers(1, 4)

    def __init__(self) -> None:
        super().__init__()
        self.folder = TemporaryDirectory()
        self.file = self.open()
        self.ledger = resume(self.file)
        self.held: dict[str, PortId] = {}
        self.bound: set[str] = set()
        self.left: dict[PortId, str] = {}

    def open(self) -> JournalFile:
        return JournalFile(Path(self.folder.name) / "journal", log=LOG)

    @rule(container=containers, number=numbers)
    def take(self, container: str, number: int) -> None:
        port = handoff(number, "uid")
        if container in self.held:
            return
        if port.port in {*self.held.values(), *self.left}:
            with pytest.raises(PortInUseError):
                self.ledger.take(key(container), POD, LINK, port)
        else:
            self.ledger.take(key(container), POD, LINK, port)
            self.held[container] = port.port

    @rule(container=containers)
    def bind(self, container: str) -> None:
        self.ledger.note_bound(key(container))
        self.bound |= {container} & {*self.held}

    @rule(container=containers)
    def unbind(self, container: str) -> None:
        self.ledger.note_unbound(key(container))
        self.bound.discard(container)

    @rule(container=containers)
    def drop(self, container: str) -> None:
        self.ledger.drop(key(container))
        self.held.pop(container, None)
        self.bound.discard(container)

    @rule(container=containers)
    def leave(self, container: str) -> None:
        self.ledger.leave(key(container))
        if (port := self.held.pop(container, None)) is not None:
            self.left[port] = container
        self.bound.discard(container)

    @rule(number=numbers)
    def settle(self, number: int) -> None:
        self.ledger.settle(handoff(number, "").port)
        self.left.pop(handoff(number, "").port, None)

    @rule(gone=st.sets(containers))
    def end(self, gone: set[str]) -> None:
        """The next process; of these containers the links are gone."""
        self.file.close()
        self.file = self.open()
        self.ledger = resume(self.file, *(container for container in self.held if container not in gone))
        for container in gone & {*self.held}:
            self.left[self.held.pop(container)] = container
            self.bound.discard(container)

    @invariant()
    def agrees(self) -> None:
        assert held(self.ledger) == self.held
        assert {holding.port.port: holding.key.container_id for holding in self.ledger.left()} == self.left
        assert {binding.endpoint for binding in self.ledger.bound()} == self.bound
        ports = [*self.held.values(), *self.left]
        assert len({*ports}) == len(ports)

    def teardown(self) -> None:
        self.file.close()
        self.folder.cleanup()


TestLedgerModel = LedgerModel.TestCase


def test_the_file_does_not_grow_for_ever(tmp_path: Path) -> None:
    first = resumed(tmp_path / "journal")
    for number in range(3000):
        who = AttachmentKey(key(f"c{number}").container_id, "eth0")
        first.take(who, POD, LINK, replace(handoff(number % 200, "uid"), pod_uid=str(number)))
        first.drop(who)
    assert (tmp_path / "journal").stat().st_size < 300_000
