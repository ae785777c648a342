"""`RouterNetwork`: the router's end of the tunnels, in one namespace.

Place in the flow: the agent in a router pod sets it up at its start and then adds and removes peers, which are the
addresses of client pods. What is done is in `router_sync`, and what is to be in `coil.egress.router_plan`.
"""

from collections.abc import Callable, Collection
from contextlib import AsyncExitStack
from types import TracebackType
from typing import TypeVar

from coil.egress.gateway import RouterSpec, SourcePort
from coil.egress.router_plan import NatCounter
from coil.kernel.family import IPAddress
from coil.nat import router_sync
from coil.netlink.host import NetnsPath
from coil.netlink.namespace import Namespace
from coil.netlink.worker import Worker

R = TypeVar("R")


class RouterNetwork:
    """The router's end of the tunnels, in the namespace of the process or in `netns`. An async context manager; leaving
    it waits for running jobs and leaves the kernel's state as it is. Needs CAP_NET_ADMIN in the namespace.

    Calls take turns. One that is cancelled before its turn has no effect; later it takes effect nevertheless.
    """

    def __init__(self, netns: NetnsPath | None = None) -> None:
        self._netns = netns
        self._stack = AsyncExitStack()
        self._worker: Worker
        self._spec: RouterSpec | None = None

    async def __aenter__(self) -> "RouterNetwork":
        async with AsyncExitStack() as stack:
            home = Namespace(self._netns) if self._netns is not None else Namespace.current()
            stack.enter_context(home)
            self._worker = Worker("egress-router", home, threads=1)
            stack.push_async_callback(self._worker.aclose)
            self._stack = stack.pop_all()
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, value: BaseException | None, traceback: TracebackType | None
    ) -> None:
        await self._stack.aclose()

    async def set_up(self, spec: RouterSpec) -> None:
        """Make everything but the peers: FOU ports, flow-based devices, sysctls, the lookup of the peers' table, NAT.

        Idempotent; keeps counters, and peers that are complete. To be called before the other methods; once, or again
        with another specification. Raises ValueError for a router without an address, NetlinkError (a sysctl that
        cannot be written is named, with what to do about it), NftError.
        """
        self._spec = spec
        await self._worker.run(router_sync.set_up_router, spec)

    async def peers(self) -> frozenset[IPAddress]:
        """The peers that are complete in the kernel: device up, and route. Raises NetlinkError."""
        return await self._with_spec(router_sync.read_peers)

    async def add_peers(self, peers: Collection[IPAddress], source_port: SourcePort) -> None:
        """Make a tunnel and a route for each; when it returns, they can send and be answered.

        Idempotent; where a tunnel is there, its source port is changed in place and no packet is lost. What it costs
        depends on how many peers are given, not on how many there are. Addresses of a family that the router does not
        have, and its own, are passed over.

        Raises NetlinkError for the first that was refused, after having tried all others; also for an address whose
        device name another one has (32 bits of a hash, in IPv6).
        """
        wanted = frozenset(peers)
        await self._with_spec(lambda spec: router_sync.add_peers(wanted, spec, source_port))

    async def remove_peers(self, peers: Collection[IPAddress]) -> None:
        """Take away routes and tunnels. Idempotent: those that are not there are fine. Raises NetlinkError."""
        await self._worker.run(router_sync.remove_peers, frozenset(peers))

    async def counters(self) -> tuple[NatCounter, ...]:
        """The router's counters, two for each of its families, counted since its first set-up. Raises NftError."""
        return await self._with_spec(router_sync.read_nat_counters)

    async def _with_spec(self, job: Callable[[RouterSpec], R]) -> R:
        if self._spec is None:
            raise RuntimeError("set_up comes first")
        return await self._worker.run(job, self._spec)
