"""The interpreter of a process that renews a lease while it computes."""

import gc
import sys
from typing import Final

SWITCH_SECONDS: Final = 0.001
"""How long a thread that computes keeps the interpreter from one that wants to renew (5 ms by default): a renewal takes
it several times.
"""


def shorten_pauses() -> None:
    """What has been loaded stays: to look at a million objects of it again takes a collection of garbage longer than a
    renewal may wait. Idempotent.
    """
    sys.setswitchinterval(SWITCH_SECONDS)
    gc.collect()
    gc.freeze()
