import pytest
from hypothesis import given
from hypothesis import strategies as st

from coil.kube.errors import ApiError, ForbiddenError, GoneError, UnavailableError
from coil.reconcile.backoff import FRUITLESS_WATCHES, GOOD_WATCH_SECONDS, Backoff, Outcome, Step, Verdict, WatchBackoff


def test_growth_up_to_the_cap() -> None:
    backoff = Backoff(base=0.5, cap=10.0)
    assert [backoff.delay(attempt, lambda: 0.0) for attempt in range(7)] == [0.5, 1, 2, 4, 8, 10, 10]


@pytest.mark.parametrize(("chance", "delay"), [(0.0, 1.0), (0.5, 0.875), (1.0, 0.75)])
def test_the_share_of_chance(chance: float, delay: float) -> None:
    assert Backoff(base=1.0, cap=10.0, jitter=0.25).delay(0, lambda: chance) == delay


@given(
    attempt=st.integers(0, 10**6),
    chance=st.floats(0, 1, exclude_max=True),
    jitter=st.floats(0, 1),
    factor=st.floats(1, 10),
)
def test_a_delay_is_never_beyond_its_bounds(attempt: int, chance: float, jitter: float, factor: float) -> None:
    backoff = Backoff(base=0.2, cap=30.0, factor=factor, jitter=jitter)
    assert 0.2 * (1 - jitter) <= backoff.delay(attempt, lambda: chance) <= 30.0


@pytest.mark.parametrize(
    "arguments",
    [
        {"base": 0.0, "cap": 1.0},
        {"base": 2.0, "cap": 1.0},
        {"base": 1.0, "cap": 2.0, "factor": 0.5},
        {"base": 1.0, "cap": 2.0, "jitter": 1.5},
        {"base": 1.0, "cap": 2.0, "jitter": -0.1},
    ],
)
def test_nonsense_is_refused(arguments: dict[str, float]) -> None:
    with pytest.raises(ValueError, match=r"backoff|jitter"):
        Backoff(**arguments)


_LONG = GOOD_WATCH_SECONDS
_UNAVAILABLE = UnavailableError("503")


def _watch_backoff() -> WatchBackoff:
    return WatchBackoff(Backoff(base=1.0, cap=8.0), random=lambda: 0.0)


@pytest.mark.parametrize(
    ("outcome", "verdict"),
    [
        (Outcome(_LONG, accepted=True), Verdict(0.0, Step.WATCH)),
        (Outcome(_LONG, accepted=True, events=9), Verdict(0.0, Step.WATCH)),
        (Outcome(_LONG, accepted=True, fault=_UNAVAILABLE), Verdict(1.0, Step.WATCH)),
        (Outcome(_LONG, accepted=True, fault=GoneError("410")), Verdict(1.0, Step.LIST)),
        (Outcome(_LONG, fault=_UNAVAILABLE), Verdict(1.0, Step.WATCH)),  # a slow list that failed
        (Outcome(0.0, accepted=True), Verdict(1.0, Step.WATCH)),
        (Outcome(0.0, accepted=True, events=3), Verdict(1.0, Step.WATCH)),
        (Outcome(0.0, fault=_UNAVAILABLE), Verdict(1.0, Step.WATCH)),
        (Outcome(0.0, fault=GoneError("410")), Verdict(1.0, Step.LIST)),
        (Outcome(0.0, fault=ForbiddenError("403")), Verdict(1.0, Step.LIST)),
        (Outcome(0.0, fault=ApiError("400")), Verdict(1.0, Step.LIST)),
    ],
)
def test_the_first_verdict(outcome: Outcome, verdict: Verdict) -> None:
    assert _watch_backoff().decide(outcome) == verdict


def _delays(*outcomes: Outcome) -> list[float]:
    backoff = _watch_backoff()
    return [backoff.decide(outcome).delay for outcome in outcomes]


def test_failures_in_a_row_wait_longer() -> None:
    assert _delays(*[Outcome(0.0, fault=_UNAVAILABLE)] * 5) == [1, 2, 4, 8, 8]


def test_lists_in_a_row_wait_longer_though_events_came() -> None:
    expired = Outcome(0.0, accepted=True, events=5, fault=GoneError("410"))
    assert _delays(*[expired] * 4) == [1, 2, 4, 8]


def test_progress_starts_the_backoff_anew() -> None:
    failed, broken = Outcome(0.0, fault=_UNAVAILABLE), Outcome(0.0, accepted=True, events=1, fault=_UNAVAILABLE)
    good = Outcome(_LONG, accepted=True)
    assert _delays(failed, failed, broken, failed, good, failed) == [1, 2, 1, 2, 0, 1]


def test_fruitless_watches_cost_the_place() -> None:
    backoff = _watch_backoff()
    steps = [backoff.decide(Outcome(0.0, accepted=True)).step for _ in range(FRUITLESS_WATCHES * 2)]
    one_round = [Step.WATCH] * (FRUITLESS_WATCHES - 1) + [Step.LIST]
    assert steps == one_round * 2


def test_an_outage_does_not_cost_the_place() -> None:
    backoff = _watch_backoff()
    for _ in range(100):
        assert backoff.decide(Outcome(0.0, fault=_UNAVAILABLE)).step is Step.WATCH


@pytest.mark.parametrize(("asked", "waited"), [(0.0, 1.0), (5.0, 5.0), (86400.0, 60.0)])
def test_the_servers_wish_is_heard_within_reason(asked: float, waited: float) -> None:
    fault = UnavailableError("429", retry_after=asked)
    assert _delays(Outcome(0.0, fault=fault)) == [waited]


_OUTCOMES = st.builds(
    Outcome,
    st.sampled_from([0.0, 1.0, GOOD_WATCH_SECONDS, 300.0]),
    accepted=st.booleans(),
    events=st.integers(0, 3),
    fault=st.sampled_from([None, _UNAVAILABLE, GoneError("410"), ForbiddenError("403")]),
)


@given(st.lists(_OUTCOMES))
def test_there_is_no_busy_loop(outcomes: list[Outcome]) -> None:
    backoff = WatchBackoff(Backoff(base=1.0, cap=8.0), random=lambda: 0.999)
    for outcome in outcomes:
        lived = outcome.lived if outcome.accepted else 0.0
        assert lived >= GOOD_WATCH_SECONDS or backoff.decide(outcome).delay >= 0.5
