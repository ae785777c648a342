"""Who is a client of an Egress, and who is not."""

from collections.abc import Mapping
from ipaddress import ip_address

import pytest
from hypothesis import given
from hypothesis import strategies as st

from coil.crd.builtin import Pod, PodIP, PodSpec, PodStatus
from coil.crd.meta import ObjectMeta
from coil.egress.client_pod import EgressNames, EgressRef, client_addresses, is_client, parse_egress_annotations

EGRESS = EgressRef("internet", "nat")
KEY = "egress.coil.cybozu.com/internet"
STRANGE = "10.1.2 0.0.0.0 127.0.0.1 224.0.0.1 169.254.1.1 :: ::1 ff02::1 fe80::1 fd00::1%eth0 ::ffff:10.1.2.3 "
NAMES = st.sampled_from(["nat", "nat2", " nat ", "na", "t", "", ",", "nat,", "Nat", "n at"])


def make_pod(
    annotations: Mapping[str, str], *addresses: str, phase: str = "Running", host_network: bool = False
) -> Pod:
    return Pod(
        metadata=ObjectMeta(name="pod", namespace="default", annotations=dict(annotations)),
        spec=PodSpec(host_network=host_network),
        status=PodStatus(phase=phase, pod_ips=tuple(PodIP(ip=address) for address in addresses)),
    )


@pytest.mark.parametrize("value", ["nat", "other,nat", " other , nat "])
@pytest.mark.parametrize("phase", ["", "Pending", "Running", "Unknown"])
def test_an_annotated_pod_is_a_client(value: str, phase: str) -> None:
    assert is_client(make_pod({KEY: value}, phase=phase), EGRESS)


@pytest.mark.parametrize(
    "pod",
    [
        make_pod({}),
        make_pod({KEY: "other"}),
        make_pod({KEY: ""}),
        make_pod({KEY: "nat2"}),
        make_pod({"egress.coil.cybozu.com/domestic": "nat"}),
        make_pod({KEY: "nat"}, phase="Succeeded"),
        make_pod({KEY: "nat"}, phase="Failed"),
        make_pod({KEY: "nat"}, host_network=True),
    ],
)
def test_others_are_none(pod: Pod) -> None:
    assert not is_client(pod, EGRESS)


@given(st.lists(NAMES).map(",".join))
def test_both_ends_read_the_annotation_alike(value: str) -> None:
    named = parse_egress_annotations({KEY: value}).references
    assert is_client(make_pod({KEY: value}), EGRESS) == (EGRESS in named)


def test_addresses() -> None:
    assert client_addresses(make_pod({})) == frozenset()
    assert client_addresses(make_pod({}, "10.1.2.3", "fd00::1")) == {ip_address("10.1.2.3"), ip_address("fd00::1")}


@pytest.mark.parametrize("text", STRANGE.split(" "))
def test_one_that_no_pod_can_have_does_not_stop_the_other(text: str) -> None:
    assert client_addresses(make_pod({}, text, "10.1.2.3")) == {ip_address("10.1.2.3")}


EGRESS_NAMES = st.from_regex(r"[a-z0-9]{1,8}", fullmatch=True)


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


@given(st.dictionaries(EGRESS_NAMES, st.lists(EGRESS_NAMES, min_size=1, max_size=4, unique=True), max_size=4))
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
