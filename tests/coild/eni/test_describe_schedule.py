"""How often EC2 is asked to describe the interfaces."""

from dataclasses import dataclass, field

from coild.eni.describe_schedule import CONFIRM_SECONDS, FASTER, LONGEST_RESYNC, DescribeSchedule
from coild.eni.own_writes import DESCRIBE_LAG_SECONDS
from tests.coild.eni.test_inventory import A, B, record, told

RESYNC = 60.0
BEFORE, AFTER = [told(record(0, A))], [told(record(0, A, B))]


@dataclass
class Schedule:
    """On a clock that stands still but for `wait`; without chance."""

    now: float = 0.0
    under_test: DescribeSchedule = field(init=False)

    def __post_init__(self) -> None:
        self.under_test = DescribeSchedule(resync=RESYNC, clock=lambda: self.now, random=lambda: 1.0)

    def wait(self, seconds: float) -> None:
        self.now += seconds


def test_before_the_first_description_and_in_doubt_it_is_due() -> None:
    schedule = Schedule()
    assert schedule.under_test.left <= 0
    schedule.under_test.succeeded(0.0)
    assert (schedule.under_test.left, schedule.under_test.described) == (RESYNC, 0.0)
    schedule.under_test.doubt = True
    assert schedule.under_test.left <= 0


def test_while_metadata_tell_what_is_known_it_is_seldom() -> None:
    schedule = Schedule()
    schedule.under_test.note_metadata(answers=True)
    schedule.under_test.succeeded(0.0)
    assert schedule.under_test.left == CONFIRM_SECONDS
    assert not schedule.under_test.heed(BEFORE, known=True)
    assert schedule.under_test.left == CONFIRM_SECONDS


def test_what_ec2_never_told_has_it_asked_once_and_again_after_it_was_known() -> None:
    schedule = Schedule()
    schedule.under_test.note_metadata(answers=True)
    for _ in range(2):
        schedule.under_test.succeeded(schedule.now)
        schedule.wait(10.0)
        assert schedule.under_test.heed(AFTER, known=False)
        assert schedule.under_test.left <= 0
        schedule.under_test.succeeded(schedule.now)
        assert not schedule.under_test.heed(AFTER, known=False)
        assert schedule.under_test.left == CONFIRM_SECONDS
        assert not schedule.under_test.heed(BEFORE, known=True)


def test_metadata_that_fall_silent_are_replaced() -> None:
    schedule = Schedule()
    schedule.under_test.note_metadata(answers=True)
    schedule.under_test.succeeded(0.0)
    assert schedule.under_test.note_metadata(answers=False)
    assert schedule.under_test.left == RESYNC
    assert not schedule.under_test.note_metadata(answers=False)


def test_refusals_make_it_rarer_up_to_a_bound_and_answers_more_frequent_again() -> None:
    schedule = Schedule()
    schedule.under_test.succeeded(0.0)
    assert [schedule.under_test.refused() for _ in range(5)] == [RESYNC * factor for factor in (2, 4, 8, 8, 8)]
    assert schedule.under_test.left == LONGEST_RESYNC * RESYNC
    schedule.under_test.succeeded(0.0)
    assert schedule.under_test.left == FASTER * LONGEST_RESYNC * RESYNC


def test_a_description_that_may_be_of_before_a_change_is_asked_for_again_soon() -> None:
    schedule = Schedule(now=100.0)
    schedule.under_test.note_metadata(answers=True)
    schedule.under_test.succeeded(99.0, again=DESCRIBE_LAG_SECONDS)
    assert schedule.under_test.left == DESCRIBE_LAG_SECONDS - 1.0
