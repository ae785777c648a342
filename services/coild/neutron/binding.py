"""The seam between a pod's veth and the network of its port.

    coild.neutron.wiring ─► Binding   the host's end of the veth, plugged into what Neutron calls the port's network

Each type of a port (`Handoff.type`) has one implementation: `bridge` works in this process, every other one is an
executable of that name (`coild.neutron.executable`).
"""

from collections.abc import Collection
from dataclasses import dataclass
from typing import Protocol

from coil.ipam.occupancy import ContainerId
from coil.kernel.link import LinkName
from coil.neutron.handoff import Handoff


@dataclass(frozen=True, slots=True, kw_only=True)
class PortBinding:
    """A port and the host's end of the pod's veth that is to be plugged into its network."""

    port: Handoff
    ifname: LinkName
    """The host's end, on this node."""
    endpoint: ContainerId


class Binding(Protocol):
    """Plugs the host's end of a pod's veth into the network of its port. One for each `type` of a port."""

    async def prepare(self, bound: Collection[PortBinding]) -> None:
        """What the node needs; `bound` are all that are bound (recovered after a restart). Idempotent; at start and
        with every sweep. Raises BindError, with what a user can act on.
        """
        ...

    async def bind(self, binding: PortBinding, *, timeout: float) -> None:
        """All or nothing, idempotent, within `timeout` seconds. Raises `coild.model.port_error.BindError`, or
        BindTimeoutError, with what a user can act on. Cancelled: undone.
        """
        ...

    async def apply_rules(self, binding: PortBinding, *, timeout: float) -> None:
        """Have the rules of the port's security groups hold (`Handoff.rules`), if this is what enforces them.
        Idempotent; of a port that is not bound, nothing. Raises as `bind` does, and then the former ones may hold.
        """
        ...

    async def unbind(self, binding: PortBinding, *, timeout: float) -> None:
        """Idempotent; works without API server, Neutron, and after the link is gone. Raises as `bind` does."""
        ...
