"""Clients come to a router, one after the other, up to a thousand; how long one waits, and what the agent takes for it.

A pod that becomes the n-th client is a real one, with its end of the tunnel and an address that is known to nobody yet.
The clock starts when the API server is told of its address, as coild does during the ADD, and stops with the first
answer that comes through the tunnel. Then the pod goes, and the next one comes: so n stays what it is. All others exist
at the API server and in the router, with tunnel and route, but send nothing.
"""

import asyncio
import socket
import time
from collections.abc import Iterable
from ipaddress import IPv4Address
from typing import Final

from coil.egress.gateway import DEFAULT_TUNNEL_POLICY
from coil.kernel.tunnel import tunnel_name
from integration.bench.bare_client import BareClient
from integration.bench.egress_agent import RouterAgent
from integration.bench.egress_result import Crowd, Fill, Joins
from integration.bench.egress_scene import Scene
from integration.bench.egress_text import crowd_address, tell_client, withdraw_client
from integration.bench.process_state import cpu_seconds, proportional_megabytes, resident_megabytes
from integration.patience import wait_until

STEPS: Final = (1, 100, 1000)
_JOINS: Final = 25
"""On an emulated processor one may wait twice as long as the next: nine would not tell the median to five percent."""
_SAMPLE: Final = 100
_IDLE_SECONDS: Final = 30.0
_PATIENCE_SECONDS: Final = 60.0
_PROBE_SECONDS: Final = 0.001
_SILENCE_SECONDS: Final = 0.05
_PAUSE_SECONDS: Final = 0.1


class CrowdTrial:
    """`api` is the administrator's; the client's end of the tunnel is there."""

    def __init__(self, api: BareClient, *, agent: RouterAgent, scene: Scene) -> None:
        self._api = api
        self._agent = agent
        self._scene = scene
        self._joined = 0

    async def join(self) -> float:
        """One more client, the scene's; milliseconds until it was answered. Raises RuntimeError when it never was."""
        self._joined += 1
        name = f"joining-{self._joined}"
        path = self._scene.tunnel
        if path.answered(within=_SILENCE_SECONDS, pause=_PROBE_SECONDS):
            raise RuntimeError("the client was answered through its tunnel before it was one")
        began = time.perf_counter()
        await self._api.send(tell_client(name, self._scene.client_address))
        if not path.answered(within=_PATIENCE_SECONDS, pause=_PROBE_SECONDS):
            raise RuntimeError(f"{name} was not answered")
        return (time.perf_counter() - began) * 1000

    async def leave(self) -> None:
        """The one that came last goes; returns when its tunnel is gone."""
        await self._api.send(withdraw_client(f"joining-{self._joined}"))
        self._wait_tunnels([self._scene.client_address], present=False)

    async def run(self) -> Crowd:
        """Everything. Takes minutes on an emulated processor."""
        empty = resident_megabytes(self._agent.pid, "VmRSS")
        await self.join()  # the first packet of all looks for its neighbours
        await self.leave()
        joins: list[Joins] = []
        fills: list[Fill] = []
        others = 0
        for count in STEPS:
            for last in milestones(others, count - 1):
                fills.append(await self._fill(others + 1, last))
                others = last
            joins.append(await self._take_joins(count))
        await self.join()
        began, before = time.perf_counter(), cpu_seconds(self._agent.pid)
        await asyncio.sleep(_IDLE_SECONDS)
        idle, cpu = time.perf_counter() - began, cpu_seconds(self._agent.pid) - before
        tunnels, routes = self._count()
        return Crowd(
            joins=tuple(joins),
            fills=tuple(fills),
            rss_mb=resident_megabytes(self._agent.pid, "VmRSS"),
            peak_mb=resident_megabytes(self._agent.pid, "VmHWM"),
            pss_mb=proportional_megabytes(self._agent.pid),
            empty_rss_mb=empty,
            idle_seconds=idle,
            idle_cpu_ms=cpu * 1000,
            tunnels=tunnels,
            routes=routes,
        )

    async def _take_joins(self, count: int) -> Joins:
        taken = []
        for _ in range(_JOINS):
            taken.append(await self.join())
            await self.leave()
        return Joins(count=count, ms=tuple(taken))

    async def _fill(self, first: int, last: int) -> Fill:
        began, before = time.perf_counter(), cpu_seconds(self._agent.pid)
        numbers = range(first, last + 1)
        chains = ((tell_client(f"other-{n}", crowd_address(n)),) for n in numbers)
        await self._api.send_chains(chains, width=1)
        self._wait_tunnels(list(map(crowd_address, numbers)), present=True)
        await asyncio.sleep(_PAUSE_SECONDS)  # what follows the last tunnel
        cpu = cpu_seconds(self._agent.pid) - before
        return Fill(first=first, last=last, cpu_ms=cpu * 1000, seconds=time.perf_counter() - began)

    def _wait_tunnels(self, addresses: Iterable[IPv4Address], *, present: bool) -> None:
        names = [tunnel_name(address) for address in addresses]

        def come_about() -> bool:
            return all(_exists(name) is present for name in names)

        wait_until(
            lambda: self._scene.router.netns.call(come_about),
            what=f"the router has {'its' if present else 'no more'} tunnels",
            timeout=_PATIENCE_SECONDS,
            pause=_PAUSE_SECONDS,
        )

    def _count(self) -> tuple[int, int]:
        router = self._scene.router.netns
        links = [link for link in router.read("link", "show", "type", "ipip") if link["ifname"].startswith("fou4_")]
        return len(links), len(router.read("route", "show", "table", str(DEFAULT_TUNNEL_POLICY.public_table)))


def milestones(present: int, wanted: int) -> list[int]:
    """Where the fills end that bring `present` clients to `wanted`: at every hundred, as each fill is one sample."""
    return [*range(present - present % _SAMPLE + _SAMPLE, wanted, _SAMPLE), *([wanted] if wanted > present else [])]


def _exists(link: str) -> bool:
    try:
        socket.if_nametoindex(link)
    except OSError:
        return False
    return True
