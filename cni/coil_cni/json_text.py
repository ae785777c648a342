"""JSON without the package `json`, which imports `re`, and without its accelerator, which is no part of libpython.

Strict: no NaN or Infinity in either direction, no second value, no byte order mark. Source: RFC 8259.
"""

_BLANKS = " \t\n\r"
_WORDS = {"t": ("true", True), "f": ("false", False), "n": ("null", None)}
_ESCAPES = {'"': '"', "\\": "\\", "/": "/", "b": "\b", "f": "\f", "n": "\n", "r": "\r", "t": "\t"}
_WRITTEN = {'"': '\\"', "\\": "\\\\", "\b": "\\b", "\f": "\\f", "\n": "\\n", "\r": "\\r", "\t": "\\t"}
_DIGITS = "0123456789"
_NUMBER = _DIGITS + "+-.eE"
_HEX = _DIGITS + "abcdefABCDEF"


def decode(data: bytes) -> object:
    """The value that `data` holds; ValueError when it is not exactly one JSON text in UTF-8."""
    # Nothing of JSON ends in a NUL, so that the end of the text needs no look of its own.
    text = data.decode() + "\0"
    try:
        value, end = _value(text, _skip(text, 0))
    except RecursionError:
        raise ValueError("nested too deeply") from None
    end = _skip(text, end)
    if end != len(text) - 1:
        raise ValueError(f"more after the JSON text, at character {end}")
    return value


def encode(value: object) -> bytes:
    """Compact JSON in ASCII; ValueError for what JSON has no words for (an infinite float, say)."""
    parts: list[str] = []
    try:
        _write(value, parts)
    except RecursionError:
        raise ValueError("nested too deeply") from None
    return "".join(parts).encode()


def _malformed(text: str, position: int) -> ValueError:
    where = f"at character {position}" if position < len(text) - 1 else "it ends too early"
    return ValueError(f"not JSON: {where}")


def _skip(text: str, position: int) -> int:
    while text[position] in _BLANKS:
        position += 1
    return position


def _value(text: str, position: int) -> tuple[object, int]:
    first = text[position]
    if first == '"':
        return _string(text, position)
    if first == "{":
        return _object(text, position)
    if first == "[":
        return _array(text, position)
    if first in _WORDS:
        word, value = _WORDS[first]
        if text.startswith(word, position):
            return value, position + len(word)
    elif first in _NUMBER:
        return _number(text, position)
    raise _malformed(text, position)


def _object(text: str, position: int) -> tuple[dict[str, object], int]:
    members: dict[str, object] = {}
    position = _skip(text, position + 1)
    if text[position] == "}":
        return members, position + 1
    while True:
        if text[position] != '"':
            raise _malformed(text, position)
        key, position = _string(text, position)
        position = _skip(text, position)
        if text[position] != ":":
            raise _malformed(text, position)
        members[key], position = _value(text, _skip(text, position + 1))
        position = _skip(text, position)
        if text[position] == "}":
            return members, position + 1
        if text[position] != ",":
            raise _malformed(text, position)
        position = _skip(text, position + 1)


def _array(text: str, position: int) -> tuple[list[object], int]:
    items: list[object] = []
    position = _skip(text, position + 1)
    if text[position] == "]":
        return items, position + 1
    while True:
        item, position = _value(text, position)
        items.append(item)
        position = _skip(text, position)
        if text[position] == "]":
            return items, position + 1
        if text[position] != ",":
            raise _malformed(text, position)
        position = _skip(text, position + 1)


def _string(text: str, position: int) -> tuple[str, int]:
    start = position + 1
    end = text.find('"', start)
    chunk = text[start:end]
    # isprintable is a quick look at all characters; what it has doubts about is looked at one by one.
    if end >= 0 and "\\" not in chunk and (chunk.isprintable() or min(chunk) >= " "):
        return chunk, end + 1
    return _escaped_string(text, start)


def _escaped_string(text: str, position: int) -> tuple[str, int]:
    parts = []
    while True:
        start = position
        while text[position] >= " " and text[position] not in '"\\':
            position += 1
        parts.append(text[start:position])
        if text[position] == '"':
            break
        if text[position] != "\\":  # a control character, or the end
            raise _malformed(text, position)
        escape = text[position + 1]
        position += 2
        if escape == "u":
            unit, position = _unit(text, position)
            if 0xD800 <= unit < 0xDC00 and text.startswith("\\u", position):
                low, after = _unit(text, position + 2)
                if 0xDC00 <= low < 0xE000:
                    unit, position = 0x10000 + ((unit - 0xD800) << 10) + (low - 0xDC00), after
            parts.append(chr(unit))
        elif escape in _ESCAPES:
            parts.append(_ESCAPES[escape])
        else:
            raise _malformed(text, position - 1)
    return "".join(parts), position + 1


def _unit(text: str, position: int) -> tuple[int, int]:
    digits = text[position : position + 4]
    if len(digits) < 4 or digits.strip(_HEX):
        raise _malformed(text, position)
    # int() would also take blanks and signs, at the edges; and underscores within, which strip leaves alone.
    if "_" in digits or not digits.isalnum():
        raise _malformed(text, position)
    return int(digits, 16), position + 4


def _number(text: str, position: int) -> tuple[int | float, int]:
    end = position + 1
    while text[end] in _NUMBER:
        end += 1
    literal = text[position:end]
    mantissa, mark, exponent = literal.replace("E", "e").partition("e")
    whole, point, fraction = mantissa.removeprefix("-").partition(".")
    if exponent[:1] in ("+", "-"):
        exponent = exponent[1:]
    wrong = (
        not whole.isdigit()
        or (whole[0] == "0" and whole != "0")
        or bool(point) is not fraction.isdigit()
        or bool(mark) is not exponent.isdigit()
    )
    if wrong:
        raise _malformed(text, position)
    if not point and not mark:
        return int(literal), end
    number = float(literal)
    if number - number:  # an infinity; its difference is NaN, which is true
        # What is read must be writable again: a prevResult goes out after coild has done its work.
        raise ValueError(f"not JSON: {literal}")
    return number, end


def _write(value: object, parts: list[str]) -> None:
    if isinstance(value, str):
        parts.append(_quote(value))
    elif value is None:
        parts.append("null")
    elif value is True:
        parts.append("true")
    elif value is False:
        parts.append("false")
    elif isinstance(value, int):
        parts.append(str(value))
    elif isinstance(value, float) and not value - value:
        parts.append(repr(value))
    elif isinstance(value, dict):
        separator = "{"
        for key, member in value.items():
            if not isinstance(key, str):
                raise ValueError(f"not JSON: the key {key!r}")
            parts.append(separator)
            parts.append(_quote(key))
            parts.append(":")
            _write(member, parts)
            separator = ","
        parts.append("}" if value else "{}")
    elif isinstance(value, list | tuple):
        separator = "["
        for item in value:
            parts.append(separator)
            _write(item, parts)
            separator = ","
        parts.append("]" if value else "[]")
    else:
        raise ValueError(f"not JSON: {value!r}")


def _quote(text: str) -> str:
    if text.isascii() and text.isprintable() and '"' not in text and "\\" not in text:
        return f'"{text}"'
    return '"' + "".join([_escape(character) for character in text]) + '"'


def _escape(character: str) -> str:
    if character in _WRITTEN:
        return _WRITTEN[character]
    code = ord(character)
    if 0x20 <= code < 0x7F:
        return character
    if code > 0xFFFF:
        code -= 0x10000
        return f"\\u{0xD800 + (code >> 10):04x}\\u{0xDC00 + (code & 0x3FF):04x}"
    return f"\\u{code:04x}"
