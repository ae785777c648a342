"""Lists cut into pieces anywhere, and lists that were not written by an API server."""

import json
from itertools import pairwise
from typing import Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from coil.crd.meta import ObjectMeta, Struct
from coil.kube.item_stream import ItemStream

TEXTS = st.text(alphabet=st.sampled_from('ab"\\{}[],: é')) | st.just('}],"items":[') | st.just('},{"kind":"Thing"')


class Thing(Struct, frozen=True, kw_only=True):
    metadata: ObjectMeta
    notes: tuple[dict[str, str], ...] = ()


DECODE = msgspec.json.Decoder(Thing).decode


class Envelope(Struct, frozen=True):
    metadata: dict[str, str]
    items: list[Thing] | None


@st.composite
def things(draw: st.DrawFn) -> dict[str, Any]:
    name = draw(TEXTS)
    # Notes that begin as things do: an end of one is no end of the thing.
    notes = draw(st.lists(st.fixed_dictionaries({"kind": st.just("Thing"), "notes": TEXTS}), max_size=3))
    return {"kind": "Thing", "notes": notes, "metadata": {"name": name}}


@st.composite
def bodies(draw: st.DrawFn) -> tuple[bytes, list[str]]:
    """A list as the API server writes it: its metadata before or after the objects, by the kind."""
    items = draw(st.lists(things(), max_size=6))
    metadata = {"resourceVersion": "7", "continue": draw(st.sampled_from(["", "token"]))}
    halves: list[dict[str, Any]] = [{"kind": "ThingList", "metadata": metadata}, {"items": items}]
    if draw(st.booleans()):
        halves.reverse()
    text = json.dumps(halves[0] | halves[1], separators=(",", ":"), ensure_ascii=False)
    return text.encode(), [item["metadata"]["name"] for item in items]


def read(body: bytes, cuts: list[int]) -> tuple[list[Thing], Envelope]:
    stream = ItemStream(DECODE)
    places = [0, *sorted(cut % (len(body) + 1) for cut in cuts), len(body)]
    for begin, end in pairwise(places):
        stream.feed(body[begin:end])
    envelope = msgspec.json.decode(stream.close(), type=Envelope)
    return stream.items + (envelope.items or []), envelope


@given(bodies(), st.lists(st.integers(min_value=0), max_size=8))
def test_every_object_is_found_once_and_in_order(body: tuple[bytes, list[str]], cuts: list[int]) -> None:
    text, names = body
    found, envelope = read(text, cuts)
    assert [thing.metadata.name for thing in found] == names
    assert envelope.metadata["resourceVersion"] == "7"


def test_objects_are_decoded_as_soon_as_they_are_complete() -> None:
    stream = ItemStream(DECODE)
    stream.feed(
        b'{"kind":"ThingList","items":[{"metadata":{"name":"a"},"x":1},{"metadata":{"name":"b"},"x":1},{"metadata":{"name":"c'
    )
    assert [thing.metadata.name for thing in stream.items] == ["a", "b"]


@pytest.mark.parametrize("items", ["null", "[]"])
def test_an_empty_list(items: str) -> None:
    found, _ = read(b'{"items":%b,"kind":"ThingList","metadata":{"resourceVersion":"7"}}' % items.encode(), [])
    assert found == []


def test_a_list_with_blanks_is_read_at_its_end() -> None:
    body = json.dumps({"items": [{"metadata": {"name": name}} for name in "abc"], "metadata": {}}, indent=1)
    found, _ = read(body.encode(), [10, 20, 60])
    assert [thing.metadata.name for thing in found] == ["a", "b", "c"]


def test_an_object_of_the_wrong_shape_is_an_error_at_once() -> None:
    stream = ItemStream(DECODE)
    with pytest.raises(msgspec.ValidationError):
        stream.feed(b'{"items":[{"metadata":{"name":"a"},"x":1},{"metadata":{"name":17},"x":1},{"metadata":{"name":"c')


def test_what_is_no_json_ends_soon() -> None:
    stream = ItemStream(DECODE)
    stream.feed(b'{"items":[{"metadata":{"name":')
    with pytest.raises(msgspec.DecodeError):
        stream.feed(b'!},{"metadata":{"name":' * 2000)


def test_a_list_that_breaks_off_has_no_envelope() -> None:
    with pytest.raises(msgspec.DecodeError):
        read(b'{"items":[{"metadata":{"name":"a"},"x":1},{"metadata":{"name":"b"},"x":1}', [])


def test_an_object_may_end_in_itself_more_than_a_thousand_times() -> None:
    notes = [{"kind": "Thing", "notes": "}]"}] * 2000
    body = {"items": [{"metadata": {"name": "many"}, "notes": notes}], "metadata": {"resourceVersion": "7"}}
    found, _ = read(json.dumps(body, separators=(",", ":")).encode(), [5000])
    assert [len(thing.notes) for thing in found] == [2000]
