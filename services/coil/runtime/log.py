"""Log lines: one JSON document each on standard error, or readable text when that is a terminal.

A logger is made once, at the process's edge, and handed down. What libraries say through the standard
library's logging comes out in the same form. A line is some kilobytes at most, whatever somebody passes in
(see `render_bounded`), and a stream that cannot be written to is no reason for a process to fail.
"""

import dataclasses
import json
import logging
import math
import sys
from collections.abc import Iterable, Mapping
from datetime import date, timedelta
from enum import Enum
from ipaddress import (
    IPv4Address,
    IPv4Interface,
    IPv4Network,
    IPv6Address,
    IPv6Interface,
    IPv6Network,
)
from itertools import islice
from pathlib import PurePath
from typing import Any, TextIO, cast
from uuid import UUID

import msgspec
import structlog
from structlog.typing import EventDict, FilteringBoundLogger, Processor, WrappedLogger

TEXT_LIMIT = 2_000
ITEM_LIMIT = 20
DEPTH_LIMIT = 3

_PRINTABLE = (
    IPv4Address,
    IPv4Interface,
    IPv4Network,
    IPv6Address,
    IPv6Interface,
    IPv6Network,
    PurePath,
    UUID,
    date,
    timedelta,
)


def render_bounded(value: object) -> object:
    """`value` reduced to None, bool, int, float, str, and lists and dicts of these, small enough for a log line.

    Long text is cut, long collections are counted, deep ones are not descended into, and an object that is not known
    to be small is named by its type and never asked for its repr: a client library's model prints for seconds. Pure,
    and total: nothing is raised.
    """
    return _render(value, DEPTH_LIMIT)


def cut_text(text: str, limit: int = TEXT_LIMIT) -> str:
    """The beginning of a text that is longer than `limit` characters, saying how much is left out."""
    return text if len(text) <= limit else f"{text[:limit]}… ({len(text) - limit} more)"


def _render(value: object, depth: int) -> object:  # noqa: PLR0911 - a table of types
    match value:
        case None | bool() | str() | int() | float():
            return _scalar(value)
        case Enum():
            return _render(value.value, depth)
        case BaseException():
            return cut_text(_error(value))
        case bytes() | bytearray():
            return f"<{len(value)} bytes>"
        case Mapping():
            return _fields(value.items(), len(value), depth)
        case list() | tuple() | set() | frozenset():
            return _items(value, len(value), depth)
    if isinstance(value, _PRINTABLE):
        return cut_text(str(value))
    if isinstance(value, type):
        return value.__qualname__
    if isinstance(value, msgspec.Struct):
        names = value.__struct_fields__
    elif dataclasses.is_dataclass(value):
        names = tuple(field.name for field in dataclasses.fields(value) if field.repr)
    else:
        return f"<{type(value).__qualname__}>"
    return _fields(((name, getattr(value, name, None)) for name in names), len(names), depth)


def _scalar(value: str | int | float | None) -> object:
    """JSON has no numbers that are not finite, and its readers none beyond 64 bits."""
    if isinstance(value, str):
        return cut_text(str(value))
    if isinstance(value, float) and not math.isfinite(value):
        return str(value)
    if isinstance(value, int) and value.bit_length() > 64:
        return f"<a number of {value.bit_length()} bits>"
    return value


def _error(error: BaseException) -> str:
    try:
        return f"{type(error).__name__}: {error}"
    except Exception:
        return f"{type(error).__name__} (its text cannot be made)"


def _fields(pairs: Iterable[tuple[object, object]], count: int, depth: int) -> object:
    if depth == 0:
        return f"<{count} fields>"
    shown: dict[str, object] = {}
    for name, value in islice(pairs, ITEM_LIMIT):
        shown[name if isinstance(name, str) else str(_render(name, 0))] = _render(value, depth - 1)
    if count > ITEM_LIMIT:
        shown["…"] = f"{count - ITEM_LIMIT} more"
    return shown


def _items(items: Iterable[object], count: int, depth: int) -> object:
    if depth == 0:
        return f"<{count} items>"
    shown = [_render(item, depth - 1) for item in islice(items, ITEM_LIMIT)]
    if count > ITEM_LIMIT:
        shown.append(f"… {count - ITEM_LIMIT} more")
    return shown


_TRACE_LIMIT = 8_000
_LEVELS = {"debug": logging.DEBUG, "info": logging.INFO, "warning": logging.WARNING, "error": logging.ERROR}
LOG_LEVELS = tuple(_LEVELS)


class LogFormat(Enum):
    """JSON for machines, text for people; AUTO is text on a terminal only."""

    AUTO = "auto"
    JSON = "json"
    TEXT = "text"


def make_logger(
    process: str,
    *,
    level: str = "info",
    format: LogFormat = LogFormat.AUTO,  # noqa: A002
    stream: TextIO | None = None,
) -> FilteringBoundLogger:
    """The logger of `process`, writing to `stream` (standard error). `level` is one of LOG_LEVELS.

    To be called at the process's edge only: it also replaces the handlers of the standard library's root
    logger.
    """
    stream = stream or sys.stderr
    terminal = stream.isatty()
    shared: list[Processor] = [
        structlog.processors.add_log_level,
        structlog.processors.TimeStamper(fmt="iso", utc=True),
        structlog.processors.format_exc_info,
        _bound,
    ]
    render: Processor = structlog.processors.JSONRenderer(serializer=_encode)
    if format is LogFormat.TEXT or (format is LogFormat.AUTO and terminal):
        render = structlog.dev.ConsoleRenderer(colors=terminal)
    _adopt_standard_logging(stream, level=_LEVELS[level], process=process, before=shared, render=render)
    logger = structlog.wrap_logger(
        _Sink(stream),
        processors=[*shared, render],
        wrapper_class=structlog.make_filtering_bound_logger(_LEVELS[level]),
        context_class=dict,
    )
    return cast(FilteringBoundLogger, logger.bind(process=process))


class _Sink:
    """Where structlog's lines go; one method for all levels."""

    def __init__(self, stream: TextIO) -> None:
        self._stream = stream

    def write(self, line: str) -> None:
        try:
            self._stream.write(line + "\n")
            self._stream.flush()
        except (OSError, ValueError):
            # The reader of our log is gone. There is nobody left to tell.
            pass

    debug = info = warning = error = critical = exception = msg = log = write


def describe_error(error: BaseException) -> str:
    """What stands under the key `error` in the log: the message, or the class where an exception has none."""
    return str(error) or type(error).__name__


def _adopt_standard_logging(
    stream: TextIO, *, level: int, process: str, before: list[Processor], render: Processor
) -> None:
    def name(_logger: WrappedLogger, _method: str, event: EventDict) -> EventDict:
        record = event["_record"]
        event["process"] = process
        event["library"] = record.name
        return event

    handler = logging.StreamHandler(stream)
    handler.setFormatter(
        structlog.stdlib.ProcessorFormatter(
            foreign_pre_chain=[name, *before],
            processors=[structlog.stdlib.ProcessorFormatter.remove_processors_meta, render],
        )
    )
    root = logging.getLogger()
    root.handlers[:] = [handler]
    # Below a warning libraries talk about themselves, an access log line per probe among it.
    root.setLevel(max(level, logging.WARNING))


def _bound(_logger: WrappedLogger, _method: str, event: EventDict) -> EventDict:
    for key, value in event.items():
        if key == "exception":
            # The innermost frames and the message stand at the end.
            if len(value) > _TRACE_LIMIT:
                event[key] = f"({len(value) - _TRACE_LIMIT} more) …{value[-_TRACE_LIMIT:]}"
        elif not key.startswith("_"):
            event[key] = render_bounded(value)
    return event


def _encode(event: Any, **_options: Any) -> str:
    return json.dumps(event, ensure_ascii=False, default=lambda value: cut_text(type(value).__qualname__))
