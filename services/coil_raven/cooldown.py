"""How long the port of a pod that has ended is kept, so that no other pod gets its address meanwhile.

Load balancers and clients go on using the address until they hear of the end. coild keeps the addresses of its other
sources for as long (`coild --cooling`).
"""

from collections.abc import Callable


class Cooldown:
    """Of one term, by the UIDs of pods. `seconds` may be 0. `clock` is in monotonic seconds."""

    def __init__(self, seconds: float, *, clock: Callable[[], float]) -> None:
        self._seconds = seconds
        self._clock = clock
        self._until: dict[str, float] = {}

    def left(self, uid: str) -> float:
        """Seconds until the port may be deleted, from the first call on; 0 then."""
        return max(0.0, self._until.setdefault(uid, self._clock() + self._seconds) - self._clock())

    def forget(self, uid: str) -> None:
        """The port is deleted. Idempotent."""
        self._until.pop(uid, None)
