"""A node's kernel in memory, as far as its interfaces go: an interface that EC2 has attached gets its link after a
while, and one that it has detached loses it at once.
"""

import asyncio

from coil.aws.ec2 import InstanceId
from coil.eni.interface import InterfaceId
from coil.eni.node_plan import NodeState
from coil.kernel.family import IPAddress
from tests.coil.aws.memory_ec2 import MemoryEc2


class MemoryNodeNetwork:
    """Implements `InterfaceNetwork`. `delay` is what it takes for a link to appear, in seconds of the loop's clock."""

    def __init__(self, ec2: MemoryEc2, instance: str, *, delay: float = 0.0) -> None:
        self.links_changed = asyncio.Event()
        self.state: NodeState | None = None
        """What was applied last."""
        self.own_addresses: frozenset[IPAddress] = frozenset()
        """That somebody has configured on the node. Set `links_changed` after a change."""
        self.down: set[InterfaceId] = set()
        """Of whose links somebody has taken the carrier. Set `links_changed` after a change."""
        self._ec2 = ec2
        self._instance = InstanceId(instance)
        self._delay = delay
        self._attached = self._find_attached()
        self._links = set(self._attached)
        ec2.subscribe(instance, self._follow)

    async def apply(self, state: NodeState) -> frozenset[InterfaceId]:
        """See `InterfaceNetwork`."""
        self.state = state
        return frozenset(known.interface.id for known in state.interfaces) & self._links - self.down

    def _find_attached(self) -> set[InterfaceId]:
        return {record.id for record in self._ec2.describe_interfaces(self._instance, {}, "")}

    def _follow(self) -> None:
        before, self._attached = self._attached, self._find_attached()
        if gone := before - self._attached:
            self._links -= gone
            self.links_changed.set()
        for interface in self._attached - before:
            asyncio.get_running_loop().call_later(self._delay, self._appear, interface)

    def _appear(self, interface: InterfaceId) -> None:
        if interface in self._attached:
            self._links.add(interface)
            self.links_changed.set()
