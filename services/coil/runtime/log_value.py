"""Any object as something small that a log line can carry.

Long text is cut, long collections are counted, deep ones are not descended into, and an object that is not
known to be small is named by its type and never asked for its repr: a client library's model prints for
seconds. Pure, and total: whatever comes in, something comes out and nothing is raised.
"""

import dataclasses
import math
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
from uuid import UUID

import msgspec

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
    """`value` reduced to None, bool, int, float, str, and lists and dicts of these."""
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
