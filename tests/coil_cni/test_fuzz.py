"""Twenty thousand calls that are nearly right: each gives a CNI error, and no more than one attempt to reach coild.

hypothesis looks for small counterexamples in test_bad_input; here a good call is damaged in a few places, so that most
of it is still good and the damage is met deep inside. The seeds are fixed: the same cases on each run.
"""

import json
from random import Random
from typing import Any

import pytest

from coil_cni.error import NOT_AVAILABLE, TRY_AGAIN_LATER
from coil_cni.version import SINCE, SUPPORTED
from tests.coil_cni.edges import ENVIRON, NETCONF, run_plugin
from tests.coil_cni.test_result import OLD, OLDEST, RESULT

CASES = 2000
SEEDS = range(10)
SCRAPS: list[Any] = [
    *(None, True, 0, -1, 1e300, 10**400, "", "a", "\ud800", "\x00", "x" * 300, "😀", [], {}, [[]], [{}], {"": ""}),
    *("1.0.0", "0.2.0", "/", "/run/\n.sock", "::1/128", RESULT, OLD, OLDEST),
]
PIECES = [b"\x00", b"\xff", b"{", b"}", b"[", b']"', b'"', b"\\", b"\\u", b"1e999", b"NaN", b",", b":", b"\xc3", b" "]
WORDS = [b"", b";", b"=", b"A=b", b"\xff", b"../..", b"x" * 64, "ä".encode(), b"eth0\n", b"IgnoreUnknown=1"]


def damaged_value(random: Random, value: Any) -> Any:
    """The value with one of its parts replaced, removed or added."""
    if isinstance(value, dict) and value and random.random() < 0.8:
        key = random.choice(list(value))
        if random.random() < 0.1:
            return {name: part for name, part in value.items() if name != key}
        return value | {key: damaged_value(random, value[key])}
    if isinstance(value, list) and value and random.random() < 0.8:
        index = random.randrange(len(value))
        return [*value[:index], damaged_value(random, value[index]), *value[index + 1 :]]
    return random.choice(SCRAPS)


def damaged_text(random: Random, text: bytes, pieces: list[bytes]) -> bytes:
    start = random.randrange(len(text) + 1)
    end = min(len(text), start + random.choice((0, 0, 1, 5, 1000)))
    return text[:start] + random.choice(pieces) + text[end:]


def call(random: Random) -> tuple[dict[bytes, bytes], bytes]:
    """Environment and standard input, with one to three damages."""
    environ = {name.encode(): value.encode() for name, value in ENVIRON.items()}
    environ[b"CNI_COMMAND"] = random.choice([*SINCE]).encode()
    conf: Any = NETCONF | {
        "cniVersion": random.choice(SUPPORTED),
        "socket": "/nowhere/coild.sock",
        "prevResult": random.choice([RESULT, OLD, OLDEST]),
        "cni.dev/valid-attachments": [{"containerID": "c0ffee", "ifname": "eth0"}],
    }
    for _ in range(random.randrange(3)):
        conf = damaged_value(random, conf)
    stdin = json.dumps(conf, ensure_ascii=random.random() < 0.5).encode(errors="surrogatepass")
    if random.random() < 0.4:
        stdin = damaged_text(random, stdin, PIECES)
    if random.random() < 0.3:
        name = random.choice([*environ])
        environ[name] = damaged_text(random, environ[name], WORDS).replace(b"\0", b"")
    return environ, stdin


@pytest.mark.parametrize("seed", SEEDS)
def test_a_damaged_call_is_a_cni_error(seed: int) -> None:
    random = Random(seed)
    codes = set()
    for _ in range(CASES):
        environ, stdin = call(random)
        outcome = run_plugin(environ, stdin)
        if outcome.status == 0:
            assert outcome.document["supportedVersions"] == [*SUPPORTED]
            assert outcome.connected == 0
        else:
            codes.add(outcome.code)
            # A path that was damaged may be one where nobody could listen: 5.
            assert outcome.code in (1, 4, 5, 6, 7, TRY_AGAIN_LATER, NOT_AVAILABLE), (environ, stdin)
            assert outcome.connected == (outcome.code in (5, TRY_AGAIN_LATER, NOT_AVAILABLE)), (environ, stdin)
    assert codes >= {1, 4, 6, 7, TRY_AGAIN_LATER, NOT_AVAILABLE}
