"""Twenty thousand calls that are nearly right: each gives a CNI error, and no more than one attempt to reach coild.

hypothesis looks for small counterexamples in test_bad_input; here a good call is damaged (`tests.coil_cni.damage`).
Calls that do reach coild, and a kernel, are in integration/plugin. The seeds are fixed: the same cases on each run.
"""

from random import Random

import pytest

from coil_cni.error import NOT_AVAILABLE, TRY_AGAIN_LATER
from coil_cni.invocation import SINCE, SUPPORTED
from tests.coil_cni.damage import damaged_call
from tests.coil_cni.edges import ENVIRON, NETCONF, run_plugin
from tests.coil_cni.test_service import OLD, OLDEST, RESULT

CASES = 2000
SEEDS = range(10)


def call(random: Random) -> tuple[dict[bytes, bytes], bytes]:
    """Any command, in any version."""
    environ = ENVIRON | {"CNI_COMMAND": random.choice([*SINCE])}
    conf = NETCONF | {
        "cniVersion": random.choice(SUPPORTED),
        "socket": "/nowhere/coild.sock",
        "prevResult": random.choice([RESULT, OLD, OLDEST]),
        "cni.dev/valid-attachments": [{"containerID": "c0ffee", "ifname": "eth0"}],
    }
    return damaged_call(random, environ, conf)


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
