"""Whom the internet host saw when a pod asked it something, and whom it should have seen. No input, no output."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass


@dataclass(frozen=True, slots=True, kw_only=True)
class Sighting:
    """One question of a pod. `own` is the pod's address of the question's family, `seen` what the host's socket saw."""

    pod: str
    annotated: bool
    own: str
    seen: str

    @property
    def asker(self) -> str:
        """The pod, and whether it is annotated."""
        return f"{self.pod}, annotated" if self.annotated else self.pod

    def who(self, routers: Mapping[str, str]) -> str:
        """Who has the address that was seen; `routers` are the names of the router pods by address."""
        if self.seen in routers:
            return f"router {routers[self.seen]}"
        return "the pod itself" if self.seen == self.own else "nobody that is known here"


def find_mistakes(sightings: Sequence[Sighting], routers: Mapping[str, str]) -> list[str]:
    """A sentence for each annotated pod not seen as a router, and each other pod not seen as itself."""
    return [
        f"{sighting.pod} ({sighting.own}) was seen as {sighting.seen}, which is {sighting.who(routers)}"
        for sighting in sightings
        if not (sighting.seen in routers if sighting.annotated else sighting.seen == sighting.own)
    ]
