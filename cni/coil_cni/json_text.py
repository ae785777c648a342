"""JSON by the C accelerator of the standard library alone: the `json` package imports `re`, 6 ms.

Strict: no NaN or Infinity in either direction, no second value, no byte order mark.
"""

from _json import encode_basestring_ascii, make_encoder, make_scanner


def _refuse(what: object) -> object:
    raise ValueError(f"not JSON: {what!r}")


def _finite(text: str) -> float:
    # What is read must be writable again: a prevResult goes out after coild has done its work.
    number = float(text)
    if number - number:  # an infinity; its difference is NaN, which is true
        _refuse(text)
    return number


class _Context:
    """What the scanner asks of its context (see `json.decoder.JSONDecoder`)."""

    strict = True
    object_hook = None
    object_pairs_hook = None
    parse_float = staticmethod(_finite)
    parse_int = int
    parse_constant = staticmethod(_refuse)
    memo: dict[str, str] = {}  # noqa: RUF012 - read by C code


_BLANKS = " \t\n\r"
_scan = make_scanner(_Context)  # type: ignore[arg-type]  # typeshed asks for a scanner instead
# markers, default, encoder, indent, key separator, item separator, sort_keys, skipkeys, allow_nan
_encode = make_encoder(None, _refuse, encode_basestring_ascii, None, ":", ",", False, False, False)


def decode(data: bytes) -> object:
    """The value that `data` holds; ValueError when it is not exactly one JSON text in UTF-8."""
    text = data.decode().strip(_BLANKS)
    try:
        try:
            value, end = _scan(text, 0)
        except SystemError:
            # The scanner takes its exception from json.decoder, but only if that was imported, and otherwise fails
            # without one (Modules/_json.c, raise_errmsg). So the 10 ms are spent on malformed text alone.
            import json.decoder  # noqa: F401

            value, end = _scan(text, 0)
    except (StopIteration, RecursionError):
        raise ValueError("not a JSON text") from None
    if end != len(text):
        raise ValueError(f"more after the JSON text, at character {end}")
    return value


def encode(value: object) -> bytes:
    """Compact JSON in ASCII; ValueError for what JSON has no words for (an infinite float, say)."""
    try:
        return "".join(_encode(value, 0)).encode()
    except RecursionError:
        raise ValueError("nested too deeply") from None
