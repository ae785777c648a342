"""Which decisions connections may bear, and when."""

import pytest

from coil.eip.decision_cache import REST_SECONDS, DecisionCache
from coil.eip.eip_set import DECIDED, DECISIONS, PENDING, VALID
from coil.eip.element_ledger import ElementLedger

HOUSE, GARDEN = "10:1", "11:1"


class Room:
    """A cache, its ledger, and a clock that is set by hand."""

    def __init__(self) -> None:
        self.now = 100.0
        self.ledger = ElementLedger()
        self.cache = DecisionCache(self.ledger, clock=lambda: self.now)

    def marks(self) -> dict[str, int]:
        """The bits of each policy that has a mark; those that are valid are the same."""
        found = {str(word): int(str(mark)) & 0xFFFFFF for word, mark in self._of(DECISIONS).items()}
        assert {int(str(mark)) for mark in self._of(DECISIONS).values()} == {
            PENDING.value | bits for bits in found.values()
        }
        assert {int(str(mark)) for mark in self._of(VALID)} == {DECIDED.value | bits for bits in found.values()}
        return found

    def _of(self, name: object) -> dict[object, object]:
        return dict(self.ledger.elements().get(name, {}))  # type: ignore[call-overload]

    def rest(self) -> None:
        """What has changed is in the kernel, and its time passes."""
        self.cache.settle()
        assert self.cache.wait() == pytest.approx(REST_SECONDS)
        self.now += REST_SECONDS
        self.cache.renew()


@pytest.fixture
def room() -> Room:
    room = Room()
    for word in (HOUSE, GARDEN):
        room.cache.follow(word, carried=True)
    return room


def test_a_policy_has_a_mark_when_it_has_rested(room: Room) -> None:
    room.now += 10
    assert room.cache.wait() is None, "nobody has said that it is in the kernel"
    room.cache.renew()
    assert room.marks() == {}
    room.cache.settle()
    room.now += REST_SECONDS / 2
    assert room.cache.wait() == pytest.approx(REST_SECONDS / 2)
    room.cache.renew()
    assert room.marks() == {}
    room.now += REST_SECONDS / 2
    room.cache.renew()
    assert room.marks().keys() == {HOUSE, GARDEN}
    assert room.cache.wait() is None


def test_what_changes_has_none_and_then_another_one(room: Room) -> None:
    room.rest()
    before = room.marks()
    room.cache.spoil([HOUSE])
    assert room.marks() == {GARDEN: before[GARDEN]}
    room.rest()
    after = room.marks()
    assert after[GARDEN] == before[GARDEN]
    assert after[HOUSE] not in before.values()


def test_a_change_while_it_rests_begins_the_time_anew(room: Room) -> None:
    room.cache.settle()
    room.now += REST_SECONDS * 0.9
    room.cache.spoil([HOUSE])
    room.now += REST_SECONDS
    room.cache.renew()
    assert room.marks().keys() == {GARDEN}
    room.rest()
    assert room.marks().keys() == {HOUSE, GARDEN}


def test_what_is_not_carried_any_more_never_gets_one(room: Room) -> None:
    room.rest()
    room.cache.follow(HOUSE, carried=False)
    assert room.marks().keys() == {GARDEN}
    room.cache.spoil([HOUSE])
    room.cache.settle()
    assert room.cache.wait() is None
    room.cache.follow(HOUSE, carried=True)
    room.rest()
    assert room.marks().keys() == {HOUSE, GARDEN}


def test_what_somebody_else_has_changed_spoils_all(room: Room) -> None:
    room.rest()
    before = room.marks()
    room.cache.spoil_all()
    assert room.marks() == {}
    room.rest()
    assert not set(room.marks().values()) & set(before.values())


def test_marks_come_round(room: Room, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("coil.eip.decision_cache._MARKS", 4)
    for _ in range(20):
        room.rest()
        assert len(set(room.marks().values())) == 2
        room.cache.spoil([HOUSE])
