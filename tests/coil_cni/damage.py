"""Calls that are nearly right: a good one is damaged in a few places, so that most of it is still good and the damage
is met deep inside.
"""

import json
from collections.abc import Mapping
from random import Random
from typing import Any

from tests.coil_cni.test_service import OLD, OLDEST, RESULT

SCRAPS: list[Any] = [
    *(None, True, 0, -1, 1e300, 10**400, "", "a", "\ud800", "\x00", "x" * 300, "😀", [], {}, [[]], [{}], {"": ""}),
    *("1.0.0", "0.2.0", "/", "/run/\n.sock", "::1/128", RESULT, OLD, OLDEST),
]
PIECES = [b"\x00", b"\xff", b"{", b"}", b"[", b']"', b'"', b"\\", b"\\u", b"1e999", b"NaN", b",", b":", b"\xc3", b" "]
WORDS = [b"", b";", b"=", b"A=b", b"\xff", b"../..", b"x" * 64, "ä".encode(), b"eth0\n", b"IgnoreUnknown=1"]


def damaged_call(
    random: Random, environ: Mapping[str, str], conf: Mapping[str, Any], *, severity: float = 1.0
) -> tuple[dict[bytes, bytes], bytes]:
    """Environment and standard input, with up to four damages, and some with none.

    `severity` is the share of calls whose configuration is a candidate for damage.
    """
    octets = {name.encode(): value.encode() for name, value in environ.items()}
    document: Any = dict(conf)
    damages = random.randrange(3) if random.random() < severity else 0
    for _ in range(damages):
        document = _damaged_value(random, document)
    stdin = json.dumps(document, ensure_ascii=random.random() < 0.5).encode(errors="surrogatepass")
    if random.random() < 0.4 * severity:
        stdin = _damaged_text(random, stdin, PIECES)
    if random.random() < 0.3:
        name = random.choice([*octets])
        octets[name] = _damaged_text(random, octets[name], WORDS).replace(b"\0", b"")
    return octets, stdin


def _damaged_value(random: Random, value: Any) -> Any:
    """The value with one of its parts replaced, removed or added."""
    if isinstance(value, dict) and value and random.random() < 0.8:
        key = random.choice(list(value))
        if random.random() < 0.1:
            return {name: part for name, part in value.items() if name != key}
        return value | {key: _damaged_value(random, value[key])}
    if isinstance(value, list) and value and random.random() < 0.8:
        index = random.randrange(len(value))
        return [*value[:index], _damaged_value(random, value[index]), *value[index + 1 :]]
    return random.choice(SCRAPS)


def _damaged_text(random: Random, text: bytes, pieces: list[bytes]) -> bytes:
    start = random.randrange(len(text) + 1)
    end = min(len(text), start + random.choice((0, 0, 1, 5, 1000)))
    return text[:start] + random.choice(pieces) + text[end:]
