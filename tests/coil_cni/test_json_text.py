"""The plugin's own reader and writer against the package `json`."""

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from coil_cni.json_text import decode, encode

values = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False, allow_infinity=False) | st.text(),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(), inner, max_size=4),
    max_leaves=20,
)


@given(values, st.sampled_from([None, 2]), st.booleans())
def test_reads_what_json_writes(value: object, indent: int | None, ascii_only: bool) -> None:
    text = json.dumps(value, indent=indent, ensure_ascii=ascii_only)
    data = text.encode(errors="surrogatepass")
    try:
        data.decode()
    except UnicodeDecodeError:  # half a character, which is not UTF-8
        with pytest.raises(ValueError, match="codec"):
            decode(data)
    else:
        assert decode(b" \r\n\t" + data + b"\n") == value


@given(values)
def test_writes_what_json_reads(value: object) -> None:
    assert json.loads(encode(value)) == value


@given(st.binary(max_size=60) | st.text(alphabet='[]{}",:0123456789.eE+-truefalsn \\u"', max_size=30).map(str.encode))
def test_accepts_what_json_accepts(data: bytes) -> None:
    try:
        expected = json.loads(data.decode(), parse_constant=_refuse)
        json.dumps(expected, allow_nan=False)
    except ValueError:
        with pytest.raises(ValueError):  # noqa: PT011 - any, as the texts differ
            decode(data)
    else:
        assert decode(data) == expected


def _refuse(constant: str) -> None:
    raise ValueError(constant)


@pytest.mark.parametrize(
    "data",
    [
        b"",
        b" ",
        b"{",
        b"{}{}",
        b"NaN",
        b"[Infinity]",
        b"[1e999]",
        b"[-1e999]",
        b"\xef\xbb\xbf{}",
        b"\xff",
        b"'a'",
        b"[" * 99_999,
    ],
)
def test_what_is_not_json(data: bytes) -> None:
    with pytest.raises(ValueError):  # noqa: PT011
        decode(data)


def test_what_json_has_no_words_for() -> None:
    with pytest.raises(ValueError, match="JSON"):
        encode({"a": object()})
    with pytest.raises(ValueError, match="JSON"):
        encode([float("inf")])
