from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from coil.kube.lines import LineSplitter, LineTooLongError


def _feed(splitter: LineSplitter, data: bytes, cuts: list[int]) -> list[bytes]:
    places = sorted({0, len(data), *(cut % (len(data) + 1) for cut in cuts)})
    pieces = [data[start:end] for start, end in pairwise(places)]
    return [line for piece in pieces for line in splitter.feed(piece)]


_LINES = st.lists(st.binary(max_size=20).map(lambda line: line.replace(b"\n", b"")), max_size=12)


@given(lines=_LINES, rest=st.binary(max_size=9).map(lambda r: r.replace(b"\n", b"")), cuts=st.lists(st.integers(0)))
def test_lines_do_not_depend_on_how_the_stream_is_cut(lines: list[bytes], rest: bytes, cuts: list[int]) -> None:
    splitter = LineSplitter(limit=20)
    data = b"".join(line + b"\n" for line in lines) + rest
    assert _feed(splitter, data, cuts) == [line for line in lines if line]
    assert splitter.held == len(rest)


@given(length=st.integers(0, 40), cuts=st.lists(st.integers(0)), ended=st.booleans())
def test_a_line_may_have_the_limit_and_not_a_byte_more(length: int, cuts: list[int], ended: bool) -> None:
    data = b"x" * length + (b"\n" if ended else b"")
    splitter = LineSplitter(limit=20)
    if length > 20:
        with pytest.raises(LineTooLongError):
            _feed(splitter, data, cuts)
    else:
        _feed(splitter, data, cuts)
