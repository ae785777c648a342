"""Log lines: one JSON document each on standard error, or readable text when that is a terminal.

A logger is made once, at the process's edge, and handed down. What libraries say through the standard
library's logging comes out in the same form. A line is some kilobytes at most, whatever somebody passes in
(see `log_value`), and a stream that cannot be written to is no reason for a process to fail.
"""

import json
import logging
import sys
from enum import Enum
from typing import Any, TextIO, cast

import structlog
from structlog.typing import EventDict, FilteringBoundLogger, Processor, WrappedLogger

from coil.runtime.log_value import cut_text, render_bounded

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
