"""Which interfaces are orphans: never another's, never one that somebody may be about to attach."""

from datetime import UTC, datetime, timedelta
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from coil.eni.interface import InterfaceId
from coil.eni.orphan import ORPHAN_SECONDS, FoundInterface, OrphanWatch, may_be_orphan
from coil.eni.tag import CLUSTER_TAG, CREATED_TAG, NO_MANAGE_TAG, render_created

NOON = datetime(2030, 1, 1, 12, tzinfo=UTC)
LONG_AGO = render_created(NOON - timedelta(hours=1))
CLUSTER = "blue"
IDS = st.integers(0, 5).map(lambda number: InterfaceId(f"eni-{number}"))


def found(name: str = "eni-1", *, status: str = "available", created: str = LONG_AGO, **tags: str) -> FoundInterface:
    known = {CLUSTER_TAG: CLUSTER, CREATED_TAG: created, **tags}
    return FoundInterface(
        id=InterfaceId(name), status=status, tags={key: value for key, value in known.items() if value}
    )


@st.composite
def interfaces(draw: st.DrawFn) -> FoundInterface:
    tags: dict[str, Any] = {}
    if (cluster := draw(st.sampled_from([CLUSTER, "green", "blue2", "", None]))) is not None:
        tags[CLUSTER_TAG] = cluster
    age = draw(st.integers(-3600, 7200))
    created = draw(
        st.sampled_from([render_created(NOON - timedelta(seconds=age)), "yesterday", "2030-01-01", "", None])
    )
    if created is not None:
        tags[CREATED_TAG] = created
    status = draw(st.sampled_from(["available", "in-use", "attaching", "detaching", "pending", "associated"]))
    return FoundInterface(id=draw(IDS), status=status, tags=tags)


LOOKS = st.lists(st.tuples(st.integers(0, 400), st.lists(interfaces(), unique_by=lambda each: each.id)), max_size=12)


@given(LOOKS)
def test_an_orphan_is_ours_old_and_was_unattached_at_each_look_for_long_enough(
    looks: list[tuple[int, list[FoundInterface]]],
) -> None:
    watch = OrphanWatch(CLUSTER)
    clock = 0.0
    history: list[tuple[float, dict[InterfaceId, FoundInterface]]] = []
    for passed, seen in looks:
        clock += passed
        history.append((clock, {each.id: each for each in seen}))
        for orphan in watch.observe(seen, clock=clock, now=NOON):
            each = history[-1][1][orphan]
            assert (each.status, each.tags[CLUSTER_TAG]) == ("available", CLUSTER)
            age = NOON - datetime.fromisoformat(each.tags[CREATED_TAG])
            assert age.total_seconds() > ORPHAN_SECONDS
            # The looks of at least the last five minutes all had it so.
            begun = max(at for at, _ in history if at <= clock - ORPHAN_SECONDS)
            assert all(may_be_orphan(known[orphan], CLUSTER) for at, known in history if at >= begun)


@given(st.integers(0, 10_000), st.integers(0, 10_000))
def test_what_stays_unattached_is_collected_in_the_end(first: int, later: int) -> None:
    watch = OrphanWatch(CLUSTER)
    watch.observe([found()], clock=first, now=NOON)
    due = watch.observe([found()], clock=first + ORPHAN_SECONDS + later, now=NOON)
    assert due == ["eni-1"]


@pytest.mark.parametrize(
    "other",
    [
        found(**{CLUSTER_TAG: "green"}),
        found(**{CLUSTER_TAG: ""}),
        found(created=""),
        found(created="soon"),
        found(created="2029-12-31T12:00:00"),
        found(status="in-use"),
        found(status="attaching"),
    ],
    ids=[
        "another cluster's",
        "nobody's",
        "of no age",
        "of an odd age",
        "of an age without a zone",
        "in use",
        "attaching",
    ],
)
def test_what_is_never_touched(other: FoundInterface) -> None:
    watch = OrphanWatch(CLUSTER)
    for minute in range(60):
        assert watch.observe([other], clock=60.0 * minute, now=NOON) == []
    assert watch.unattached == 0


def test_a_cluster_without_a_name_has_no_orphans() -> None:
    nameless = FoundInterface(
        id=InterfaceId("eni-1"), status="available", tags={CLUSTER_TAG: "", CREATED_TAG: LONG_AGO}
    )
    assert not may_be_orphan(nameless, "")


def test_an_old_tag_alone_is_not_enough() -> None:
    assert OrphanWatch(CLUSTER).observe([found()], clock=10_000.0, now=NOON) == []


def test_a_wall_clock_that_jumps_is_not_enough() -> None:
    watch = OrphanWatch(CLUSTER)
    young = found(created=render_created(NOON))
    assert watch.observe([young], clock=0.0, now=NOON) == []
    assert watch.observe([young], clock=60.0, now=NOON + timedelta(days=1)) == []


def test_one_that_was_attached_meanwhile_begins_anew() -> None:
    watch = OrphanWatch(CLUSTER)
    watch.observe([found()], clock=0.0, now=NOON)
    watch.observe([found(status="in-use")], clock=200.0, now=NOON)
    assert watch.observe([found()], clock=400.0, now=NOON) == []
    assert watch.observe([found()], clock=600.0, now=NOON) == []
    assert watch.observe([found()], clock=400.0 + ORPHAN_SECONDS, now=NOON) == ["eni-1"]


def test_those_come_first_that_were_seen_first() -> None:
    watch = OrphanWatch(CLUSTER)
    watch.observe([found("eni-9")], clock=0.0, now=NOON)
    watch.observe([found("eni-9"), found("eni-1")], clock=60.0, now=NOON)
    assert watch.observe([found("eni-1"), found("eni-9")], clock=900.0, now=NOON) == ["eni-9", "eni-1"]
    watch.forget(InterfaceId("eni-9"))
    assert watch.unattached == 1


def test_those_that_were_refused_come_last_until_they_are_gone() -> None:
    watch = OrphanWatch(CLUSTER)
    known = [found("eni-1"), found("eni-2")]
    watch.observe(known, clock=0.0, now=NOON)
    watch.note_refusal(InterfaceId("eni-1"))
    assert watch.observe(known, clock=ORPHAN_SECONDS, now=NOON) == ["eni-2", "eni-1"]
    watch.note_refusal(InterfaceId("eni-2"))
    watch.note_refusal(InterfaceId("eni-2"))
    assert watch.observe(known, clock=ORPHAN_SECONDS + 1, now=NOON) == ["eni-1", "eni-2"]
    watch.observe([], clock=ORPHAN_SECONDS + 2, now=NOON)
    watch.observe(known, clock=ORPHAN_SECONDS + 3, now=NOON)
    assert watch.observe(known, clock=2 * ORPHAN_SECONDS + 3, now=NOON) == ["eni-1", "eni-2"]


def test_what_is_to_be_left_alone_is_no_orphan() -> None:
    assert may_be_orphan(found(**{NO_MANAGE_TAG: "false"}), CLUSTER)
    assert not may_be_orphan(found(**{NO_MANAGE_TAG: "true"}), CLUSTER)
