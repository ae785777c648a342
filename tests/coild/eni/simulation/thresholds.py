"""The proposal's algorithm as it is written: a minimum and a maximum of warm addresses, and whole interfaces.

* Whenever fewer than the minimum of addresses are available, an interface is created and attached, and all of its
  addresses are allocated; they count once the instance's metadata names them.
* Whenever more than the maximum are, an interface of which all addresses are in the warm pool is detached and freed.
* An address that was freed comes back to the warm pool after its cooldown.

Where the proposal leaves something open, what costs fewer calls was taken: nothing is asked of EC2 but what changes
something, interfaces go with their instance without a call, the primary interface's addresses are used as well, the
pool is looked at every five seconds (as in the first program of the proposal), a refused call is made again at the next
look and not sooner, and the process is never killed. The minimum and the maximum are those of that program: the
addresses of one interface, and of two.
"""

import asyncio
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field
from ipaddress import IPv4Address
from typing import TypeVar

from coil.aws.ec2 import AttachmentId, Ec2, InstanceId, InterfaceRequest
from coil.aws.error import ThrottledError
from coil.aws.metadata import InstanceMetadata
from coil.eni.interface import InterfaceId, SubnetId
from coil.eni.warm_pool import NodeLimits
from tests.coild.eni.simulation.trace import COOLDOWN

Answer = TypeVar("Answer")

LOOK_SECONDS = 5.0
TAKE_SECONDS = 1.0
"""After so long the kubelet asks again for a pod that got no address."""


@dataclass(slots=True, kw_only=True)
class ThresholdNode:
    """One node. `run` until it is cancelled; pods `take` and `release`."""

    ec2: Ec2
    metadata: InstanceMetadata
    instance: InstanceId
    subnet: SubnetId
    limits: NodeLimits
    clock: Callable[[], float]
    _pool: dict[InterfaceId, frozenset[IPv4Address]] = field(default_factory=dict)
    """As the metadata service names them, without those that were freed."""
    _attached: dict[InterfaceId, tuple[int, AttachmentId]] = field(default_factory=dict)
    """Those that were created here, with their device numbers."""
    _freed: set[InterfaceId] = field(default_factory=set)
    _held: set[IPv4Address] = field(default_factory=set)
    _cooling: dict[IPv4Address, float] = field(default_factory=dict)
    _created: int = 0

    async def run(self) -> None:
        """Keep the pool."""
        while True:
            await self._read_metadata()
            available = len(self._available())
            if available < self._size:
                await self._grow()
            elif available > 2 * self._size:
                await self._shrink()
            await asyncio.sleep(LOOK_SECONDS)

    async def take(self) -> IPv4Address:
        """An address of the pool, as soon as there is one."""
        free = self._available()
        while not free:
            await asyncio.sleep(TAKE_SECONDS)
            free = self._available()
        address = free[0]
        self._held.add(address)
        return address

    def release(self, address: IPv4Address) -> None:
        """The pod is gone."""
        self._held.remove(address)
        self._cooling[address] = self.clock() + COOLDOWN

    @property
    def _size(self) -> int:
        """The addresses of one interface."""
        return self.limits.slots - 1

    def _available(self) -> list[IPv4Address]:
        now = self.clock()
        self._cooling = {address: until for address, until in self._cooling.items() if until > now}
        known = (address for addresses in self._pool.values() for address in sorted(addresses))
        return [address for address in known if address not in self._held and address not in self._cooling]

    async def _read_metadata(self) -> None:
        for found in await self.metadata.interfaces():
            if found.interface not in self._freed:
                self._pool[found.interface] = frozenset(found.local_ipv4s[1:])

    async def _grow(self) -> None:
        [primary, *_] = self._pool
        if not self._pool[primary]:
            await self._allocate(primary)
        elif len(self._pool) < self.limits.interfaces:
            self._created += 1
            request = InterfaceRequest(
                subnet=self.subnet,
                groups=(),
                token=f"{self.instance}-{self._created}",
                description="",
                tags={},
            )
            made = await self._insist(lambda: self.ec2.create_interface(request))
            used = {device for device, _ in self._attached.values()}
            device = min(set(range(1, self.limits.interfaces)) - used)
            attachment = await self._insist(lambda: self.ec2.attach_interface(made.id, self.instance, device=device))
            self._attached[made.id] = (device, attachment)
            await self._allocate(made.id)

    async def _allocate(self, interface: InterfaceId) -> None:
        await self._insist(lambda: self.ec2.assign_addresses(interface, self._size))
        while not self._pool.get(interface):
            await asyncio.sleep(LOOK_SECONDS)
            await self._read_metadata()

    async def _shrink(self) -> None:
        available = set(self._available())
        interface = next((each for each in self._attached if self._pool[each] <= available), None)
        if interface is not None:
            del self._pool[interface]
            self._freed.add(interface)
            _, attachment = self._attached.pop(interface)
            await self._insist(lambda: self.ec2.detach_interface(attachment))
            await asyncio.sleep(LOOK_SECONDS)
            await self._insist(lambda: self.ec2.delete_interface(interface))

    async def _insist(self, call: Callable[[], Awaitable[Answer]]) -> Answer:
        while True:
            try:
                return await call()
            except ThrottledError:
                await asyncio.sleep(LOOK_SECONDS)
