"""The kernel's side of a router pod, as the rest of the agent knows it. `coil.nat.RouterNetwork` is the real one."""

from collections.abc import Collection
from typing import Final, Protocol

from coil.egress.gateway import RouterSpec
from coil.egress.nat_counter import NatCounter
from coil.egress.policy import SourcePort
from coil.kernel.family import IPAddress
from coil.nat.error import NAT_ERRORS

CALL_SECONDS: Final = 60.0
"""A call that takes longer is given up; the kernel has stalled, and what was asked for may still come about."""

ROUTER_ERRORS: Final = (*NAT_ERRORS, OSError)
"""What the kernel refuses, or does not answer (a TimeoutError is an OSError). All of it may pass."""


class Router(Protocol):
    """Every method is idempotent, and raises one of ROUTER_ERRORS with a sentence that says what to do about it."""

    async def set_up(self, spec: RouterSpec) -> None:
        """All but the peers. Those that are complete stay as they are; what is only a part of one may go."""
        ...

    async def peers(self) -> frozenset[IPAddress]:
        """The peers that are complete in the kernel."""
        ...

    async def add_peers(self, peers: Collection[IPAddress], source_port: SourcePort) -> None:
        """Complete what is missing of each; change the source port in place."""
        ...

    async def remove_peers(self, peers: Collection[IPAddress]) -> None:
        """Absent ones are fine."""
        ...

    async def counters(self) -> tuple[NatCounter, ...]:
        """What was masqueraded and what was dropped, by family, since the namespace was set up."""
        ...
