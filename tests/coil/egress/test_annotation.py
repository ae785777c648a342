"""What people write into the annotations of client pods, and what it means."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from coil.egress.annotation import EgressNames, EgressRef, parse_egress_annotations

KEY = "egress.coil.cybozu.com/internet"
NAMES = st.from_regex(r"[a-z0-9]{1,8}", fullmatch=True)


@pytest.mark.parametrize(
    ("value", "names"),
    [
        ("nat", ["nat"]),
        ("nat,second", ["nat", "second"]),
        ("second,nat", ["nat", "second"]),
        ("  nat ,\tsecond\n", ["nat", "second"]),
        ("a.b-c", ["a.b-c"]),
    ],
)
def test_names_are_read(value: str, names: list[str]) -> None:
    assert parse_egress_annotations({KEY: value}) == EgressNames(tuple(EgressRef("internet", name) for name in names))


@pytest.mark.parametrize(
    ("value", "problem"),
    [
        ("good,", "a name is missing in 'good,'"),
        ("good,,", "a name is missing"),
        ("good,Bad", "'Bad' is not the name of an Egress"),
        ("good,b/c", "'b/c' is not the name of an Egress"),
        ("good,two words", "'two words' is not the name of an Egress"),
        ("good," + "x" * 254, "is not the name of an Egress"),
    ],
)
def test_nonsense_is_reported_and_what_is_right_beside_it_counts(value: str, problem: str) -> None:
    found = parse_egress_annotations({KEY: value})
    assert found.references == (EgressRef("internet", "good"),)
    assert KEY in found.problems[0]
    assert problem in found.problems[0]


def test_a_name_that_is_written_twice_changes_nothing_and_is_reported() -> None:
    found = parse_egress_annotations({KEY: "good, good"})
    assert (found.references, found.problems) == ((EgressRef("internet", "good"),), ())
    assert found.duplicates == (f"annotation {KEY}: 'good' is named twice",)


def test_an_empty_value_is_a_missing_name() -> None:
    assert parse_egress_annotations({KEY: ""}) == EgressNames((), (f"annotation {KEY}: a name is missing in ''",))


@pytest.mark.parametrize("namespace", ["", "Upper", "a.b", "-a", "a/b", "x" * 64])
def test_what_no_namespace_can_be_called_is_reported(namespace: str) -> None:
    found = parse_egress_annotations({"egress.coil.cybozu.com/" + namespace: "nat", KEY: "nat"})
    assert found.references == (EgressRef("internet", "nat"),)
    assert found.problems == (
        f"annotation egress.coil.cybozu.com/{namespace}: {namespace!r} is not the name of a namespace",
    )


def test_other_annotations_are_nobodys_business_here() -> None:
    others = {"coil.cybozu.com/pool": "x", "egress.coil.cybozu.com": "nat", "example.com/egress": "nat"}
    assert parse_egress_annotations(others) == EgressNames()


@given(st.dictionaries(NAMES, st.lists(NAMES, min_size=1, max_size=4, unique=True), max_size=4))
def test_every_name_is_found_once_and_in_order_whatever_the_order_of_writing(wanted: dict[str, list[str]]) -> None:
    annotations = {f"egress.coil.cybozu.com/{space}": " , ".join(names) for space, names in wanted.items()}
    expected = sorted(EgressRef(space, name) for space, names in wanted.items() for name in names)
    assert parse_egress_annotations(annotations) == EgressNames(tuple(expected))
    backwards = dict(reversed(list(annotations.items())))
    assert parse_egress_annotations(backwards) == EgressNames(tuple(expected))


@given(st.dictionaries(st.text(max_size=80).map("egress.coil.cybozu.com/".__add__), st.text(max_size=300), max_size=3))
def test_no_text_is_too_strange(annotations: dict[str, str]) -> None:
    found = parse_egress_annotations(annotations)
    assert len(found.references) + len(found.problems) + len(found.duplicates) >= len(annotations)
