"""Log lines: one document each, small whatever is passed, and libraries' lines in the same form."""

import io
import json
import logging
from collections.abc import Iterator
from dataclasses import dataclass, field
from datetime import UTC, datetime
from enum import Enum
from ipaddress import ip_address, ip_network
from pathlib import Path
from typing import Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from coil.runtime.log import ITEM_LIMIT, TEXT_LIMIT, LogFormat, make_logger, render_bounded


@pytest.fixture(autouse=True)
def _standard_logging_as_before() -> Iterator[None]:
    root = logging.getLogger()
    handlers, level = root.handlers[:], root.level
    yield
    root.handlers[:] = handlers
    root.setLevel(level)


class Model:
    """As a client library's models are: its repr is a page, and takes its time."""

    def __repr__(self) -> str:
        raise AssertionError("a model must not be printed")

    __str__ = __repr__


class Family(Enum):
    V4 = "ipv4"


class Pool(msgspec.Struct, frozen=True):
    name: str
    bits: int = 5


@dataclass(frozen=True)
class Block:
    name: str
    pool: Pool
    secret: str = field(default="x", repr=False)


def lines(stream: io.StringIO) -> list[dict[str, Any]]:
    return [json.loads(line) for line in stream.getvalue().splitlines()]


class TestLines:
    def test_a_line_is_a_document(self) -> None:
        stream = io.StringIO()
        log = make_logger("coild", stream=stream).bind(controller="pools")
        log.warning("reconcile failed", key="default", retry_in=0.25)
        (line,) = lines(stream)
        when = datetime.fromisoformat(line.pop("timestamp"))
        assert when.tzinfo == UTC
        assert line == {
            "process": "coild",
            "controller": "pools",
            "event": "reconcile failed",
            "level": "warning",
            "key": "default",
            "retry_in": 0.25,
        }

    def test_the_level_is_a_threshold(self) -> None:
        stream = io.StringIO()
        log = make_logger("coild", level="warning", stream=stream)
        log.debug("a")
        log.info("b")
        log.warning("c")
        log.error("d")
        assert [line["event"] for line in lines(stream)] == ["c", "d"]

    def test_a_traceback_is_kept_and_bounded_at_its_beginning(self) -> None:
        def deep(levels: int) -> None:
            if levels == 0:
                raise ValueError("x" * 10_000 + " the end")
            deep(levels - 1)

        stream = io.StringIO()
        log = make_logger("coild", stream=stream)
        try:
            deep(50)
        except ValueError as error:
            log.error("failed", exc_info=error)
        (line,) = lines(stream)
        assert line["exception"].endswith(" the end")
        assert len(line["exception"]) < 8_100

    def test_a_line_stays_small(self) -> None:
        stream = io.StringIO()
        log = make_logger("coild", stream=stream)
        log.info("x" * 10**6, text="y" * 10**6, many=list(range(10**6)), deep=[[[[[[[1]]]]]]], model=Model())
        assert len(stream.getvalue()) < 3 * TEXT_LIMIT
        assert lines(stream)[0]["model"] == "<Model>"

    def test_a_log_that_nobody_reads_harms_nobody(self) -> None:
        stream = io.StringIO()
        log = make_logger("coild", stream=stream)
        stream.close()
        log.error("nobody hears this")

    def test_libraries_speak_the_same_way(self) -> None:
        stream = io.StringIO()
        make_logger("coild", stream=stream)
        logging.getLogger("aiohttp.access").info("GET /healthz")
        try:
            raise ConnectionResetError("peer")
        except ConnectionResetError:
            logging.getLogger("asyncio").exception("Task exception was never retrieved: %s", "it")
        (line,) = lines(stream)
        assert line["event"] == "Task exception was never retrieved: it"
        assert (line["process"], line["library"], line["level"]) == ("coild", "asyncio", "error")
        assert "ConnectionResetError: peer" in line["exception"]

    def test_text_for_people(self) -> None:
        stream = io.StringIO()
        make_logger("coild", format=LogFormat.TEXT, stream=stream).info("started", tasks=2)
        text = stream.getvalue()
        assert "started" in text
        assert "tasks=2" in text
        with pytest.raises(json.JSONDecodeError):
            json.loads(text)


class TestValues:
    @pytest.mark.parametrize(
        ("value", "shown"),
        [
            (None, None),
            (True, True),
            (7, 7),
            (0.5, 0.5),
            (float("nan"), "nan"),
            (float("-inf"), "-inf"),
            (1 << 200, "<a number of 201 bits>"),
            ("text", "text"),
            (b"secret", "<6 bytes>"),
            (Family.V4, "ipv4"),
            (ip_address("fd00::1"), "fd00::1"),
            (ip_network("10.0.0.0/8"), "10.0.0.0/8"),
            (Path("/run/x"), "/run/x"),
            (ValueError("bad"), "ValueError: bad"),
            (Pool, "Pool"),
            (Pool("default"), {"name": "default", "bits": 5}),
            (Block("b", Pool("p")), {"name": "b", "pool": {"name": "p", "bits": 5}}),
            ({1: {Family.V4: "x"}}, {"1": {"ipv4": "x"}}),
            ([[[[1]]]], [[["<1 items>"]]]),
            ({"a": {"b": {"c": {"d": 1}}}}, {"a": {"b": {"c": "<1 fields>"}}}),
            (Model(), "<Model>"),
            ([Model()], ["<Model>"]),
        ],
    )
    def test_rendering(self, value: object, shown: object) -> None:
        assert render_bounded(value) == shown

    def test_long_ones_are_cut_and_counted(self) -> None:
        assert render_bounded("x" * (TEXT_LIMIT + 7)) == "x" * TEXT_LIMIT + "… (7 more)"
        items = render_bounded(list(range(ITEM_LIMIT + 5)))
        assert items == [*range(ITEM_LIMIT), "… 5 more"]
        fields = render_bounded({str(number): number for number in range(ITEM_LIMIT + 5)})
        assert isinstance(fields, dict)
        assert fields["…"] == "5 more"
        assert len(fields) == ITEM_LIMIT + 1

    def test_an_error_whose_text_cannot_be_made(self) -> None:
        class BrokenError(Exception):
            def __str__(self) -> str:
                raise RuntimeError

        assert render_bounded(BrokenError()) == "BrokenError (its text cannot be made)"

    def test_what_refers_to_itself_ends(self) -> None:
        loop: list[object] = []
        loop.append(loop)
        assert render_bounded(loop) == [[["<1 items>"]]]

    @given(
        st.recursive(
            st.none() | st.booleans() | st.integers() | st.floats() | st.text() | st.binary(),
            lambda inner: st.lists(inner) | st.dictionaries(st.text() | st.integers(), inner) | st.tuples(inner),
            max_leaves=50,
        )
    )
    def test_whatever_comes_in_json_can_say_it(self, value: object) -> None:
        rendered = render_bounded(value)
        assert json.loads(json.dumps(rendered, allow_nan=False)) == rendered
