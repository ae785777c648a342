"""One node's agent in a cluster of many policies: its start, and what a change costs it.

The agent is the real one, with the rights of its account, in namespaces of its own on a link to a real API server; all
that it hears goes through a relay that counts. The other nodes, and all pods, are objects alone. No controller runs:
the statuses are as one has left them.
"""

import asyncio
import socket
import sys
import time
from collections.abc import AsyncIterator, Callable, Collection, Iterator, Sequence
from contextlib import asynccontextmanager, contextmanager
from dataclasses import dataclass
from ipaddress import IPv4Address
from pathlib import Path
from typing import Final

from integration.bench.bare_client import BareClient, Call
from integration.bench.byte_relay import ByteRelay, counting_bytes
from integration.bench.eip_crowd import eip_address
from integration.bench.eip_text import (
    TENANTS,
    change_policy,
    create_gateway,
    create_lease,
    create_policy,
    create_slice,
    create_tenant,
    create_tunnel,
    newcomer,
    place_policies,
    replace_pods,
)
from integration.bench.ipam_text import create_node, node_name
from integration.bench.process_state import cpu_seconds, resident_megabytes
from integration.cluster.control_plane import ControlPlane
from integration.cluster.kubeconfig import Server, write_token_kubeconfig
from integration.cluster.network import Namespaces, Network
from integration.cluster.process import Process
from integration.cluster.workspace import Workspace
from integration.deployment import apply_chart, ready_probe
from integration.netns.netns import call_inside

ACCOUNT: Final = "coil-egress-node"
CARRIER: Final = 0
"""The number of the node that carries everything."""
ORDINARY: Final = 1
_HEALTH_PORT: Final = 9399
_NODES: Final = 100
_TERM: Final = 1
_CONNECTIONS: Final = 16
_POLL_SECONDS: Final = 0.01
_START_SECONDS: Final = 180.0
_EFFECT_SECONDS: Final = 120.0
_IDLE_SECONDS: Final = 5.0
_NFTABLES_EVENTS: Final = 1 << 6
"""NFNLGRP_NFTABLES as a bit (linux/netfilter/nfnetlink.h)."""
_NETLINK_NETFILTER: Final = 12
_EVENT_BUFFER: Final = 256 << 20


@dataclass(frozen=True, slots=True, kw_only=True)
class Start:
    """From exec to ready. `carries`: until the last EIP was on the device, on the node that has them."""

    seconds: float
    cpu_seconds: float
    received: int
    rss_mb: float
    peak_mb: float
    carries: float | None


@dataclass(frozen=True, slots=True, kw_only=True)
class Effect:
    """`writing`: how long the API server took for the writes; `lag`: from its last answer to the last element in the
    kernel. Bytes are those beyond a quiet agent's.
    """

    writing: float
    lag: float
    cpu_seconds: float
    received: float


@dataclass(frozen=True, slots=True, kw_only=True)
class NodeTrial:
    """What was measured on one node. `first` found nothing in the kernel, `again` what the killed one had left.
    `rolled`: a thousand pods of ten policies replaced; `scattered`: one pod of each policy.
    """

    first: Start
    again: Start
    idle_per_second: float
    idle_cpu_percent: float
    changes: Sequence[Effect]
    rolled: Effect
    scattered: Effect


class Stage:
    """A filled API server and the link of its nodes. Make it with `open_stage`."""

    def __init__(self, plane: ControlPlane, network: Network, filler: BareClient, *, policies: int) -> None:
        self._plane = plane
        self._network = network
        self._filler = filler
        self._policies = policies
        self._lives = 0
        self._extras = 0

    async def fill(self) -> None:
        every = range(self._policies)
        send = self._filler.send_chains
        await send(create_tenant(name) for name in TENANTS)
        await send([create_node(number)] for number in range(_NODES))
        await send(create_tunnel(number, self.address(number)) for number in range(_NODES))
        await self._filler.send(create_gateway(node=CARRIER, hosts=()))
        await send(create_policy(number, node=CARRIER) for number in every)
        await send([create_slice(number, nodes=_NODES)] for number in every)
        await self._filler.send(create_lease(CARRIER, term=_TERM))
        await self._filler.send(place_policies(self._policies, node=CARRIER, term=_TERM))

    def address(self, number: int) -> IPv4Address:
        """A node's own."""
        return self._network.node_addresses(number)[0]

    async def take_trial(self, number: int) -> NodeTrial:
        """The agent of that node, started twice; then changes, while the second one runs."""
        namespaces = await asyncio.to_thread(Namespaces.hold, self._plane.workspace, node_name(number))
        await asyncio.to_thread(
            self._network.attach, namespaces, port=f"node{number}", addresses=self._network.node_addresses(number)
        )
        async with counting_bytes(str(self._plane.address), self._plane.port) as relay:
            agent = _Agent(self._plane, namespaces, relay, number=number)
            eips = [eip_address(policy) for policy in range(self._policies)] if number == CARRIER else []
            try:
                first = await asyncio.to_thread(agent.start, eips)
                await asyncio.to_thread(agent.kill)
                again = await asyncio.to_thread(agent.start, eips)
                return await self._watch(agent, first, again)
            finally:
                await asyncio.to_thread(agent.kill)

    async def _watch(self, agent: "_Agent", first: Start, again: Start) -> NodeTrial:
        await asyncio.sleep(_IDLE_SECONDS)
        heard, busy = agent.received, agent.cpu
        await asyncio.sleep(_IDLE_SECONDS)
        idle = (agent.received - heard) / _IDLE_SECONDS
        idle_cpu = (agent.cpu - busy) / _IDLE_SECONDS * 100
        changes = []
        for policy in range(5):
            # A policy that has a pod here, whichever node this is; and a destination that none has had yet.
            self._extras += 1
            extra = IPv4Address("198.51.100.0") + self._extras
            calls = [change_policy(policy, [f"{extra}/32"])]
            changes.append(await self._take_effect(agent, calls, {extra}, idle=idle))
        rolled = await self._replace(agent, range(10), 100, idle=idle)
        scattered = await self._replace(agent, range(self._policies), 0, idle=idle)
        return NodeTrial(
            first=first,
            again=again,
            idle_per_second=idle,
            idle_cpu_percent=idle_cpu,
            changes=changes,
            rolled=rolled,
            scattered=scattered,
        )

    async def _replace(self, agent: "_Agent", policies: Collection[int], pods: int, *, idle: float) -> Effect:
        """So many pods of each policy; 0: the one that runs on this node."""
        self._lives += 1
        calls, signs = [], set()
        for policy in policies:
            own = (agent.number - policy) % _NODES
            which = range(pods) if pods else [own]
            calls.append(replace_pods(policy, which, nodes=_NODES, lives=self._lives))
            signs.add(newcomer(policy, own, lives=self._lives))
        return await self._take_effect(agent, calls, signs, idle=idle)

    async def _take_effect(
        self, agent: "_Agent", calls: Sequence[Call], signs: Collection[IPv4Address], *, idle: float
    ) -> Effect:
        with agent.kernel_events() as wait_for:
            heard, busy, began = agent.received, agent.cpu, time.perf_counter()
            waiting = asyncio.create_task(asyncio.to_thread(wait_for, {sign.packed for sign in signs}))
            await self._filler.send_chains(([call] for call in calls), width=_CONNECTIONS)
            written = time.perf_counter()
            lag = await waiting - written
            # What the agent still does for it, and what it still hears.
            await asyncio.sleep(1.0)
            passed = time.perf_counter() - began
        return Effect(
            writing=written - began,
            lag=lag,
            cpu_seconds=agent.cpu - busy,
            received=agent.received - heard - idle * passed,
        )


class _Agent:
    """The program, in the node's namespaces."""

    def __init__(self, plane: ControlPlane, namespaces: Namespaces, relay: ByteRelay, *, number: int) -> None:
        self.number = number
        self._plane = plane
        self._namespaces = namespaces
        self._relay = relay
        self._kubeconfig = self._write_kubeconfig()
        self._process: Process | None = None

    @property
    def received(self) -> int:
        return self._relay.received

    @property
    def cpu(self) -> float:
        return cpu_seconds(self._running.pid)

    def start(self, eips: Collection[IPv4Address]) -> Start:
        """Blocks until it is ready, and has those addresses on its device."""
        received, began = self.received, time.perf_counter()
        self._process = self._spawn()
        probe = ready_probe(_HEALTH_PORT)
        self._await(lambda: call_inside(self._namespaces.net, probe))
        seconds = time.perf_counter() - began
        cpu, heard = self.cpu, self.received - received
        rss = resident_megabytes(self._running.pid, "VmRSS")
        peak = resident_megabytes(self._running.pid, "VmHWM")
        if eips:
            self._await(lambda: self._addresses() >= len(eips))
        return Start(
            seconds=seconds,
            cpu_seconds=cpu,
            received=heard,
            rss_mb=rss,
            peak_mb=peak,
            carries=time.perf_counter() - began if eips else None,
        )

    def kill(self) -> None:
        """Idempotent."""
        if self._process is not None and self._process.poll() is None:
            self._process.kill()
            self._process.wait(10)

    @contextmanager
    def kernel_events(self) -> Iterator[Callable[[Collection[bytes]], float]]:
        """What is told of nftables in the node's namespace from now on: a function that blocks until each of some byte
        strings was among it, and returns that moment on `time.perf_counter`.
        """
        with call_inside(self._namespaces.net, _open_events) as events:
            yield lambda signs: _await_signs(events, signs)

    @property
    def _running(self) -> Process:
        assert self._process is not None, "it was not started"
        return self._process

    def _await(self, condition: Callable[[], bool]) -> None:
        end = time.perf_counter() + _START_SECONDS
        while not condition():
            if self._running.poll() is not None or time.perf_counter() > end:
                raise self._running.failure("did not become ready")
            time.sleep(_POLL_SECONDS)

    def _addresses(self) -> int:
        """How many local addresses of the EIPs' range there are."""
        routes = call_inside(self._namespaces.net, lambda: Path("/proc/thread-self/net/fib_trie").read_text())
        # Each is listed in two tries, or in one that stands for both.
        return len({line for line in routes.splitlines() if line.strip().startswith("|-- 100.65.")})

    def _spawn(self) -> Process:
        name = node_name(self.number)
        command = [
            *(sys.executable, "-m", "coil_egress_agent.eip"),
            *(f"--kubeconfig={self._kubeconfig}", f"--node-name={name}", "--cluster-cidr=10.96.0.0/12"),
        ]
        return self._plane.workspace.spawn(f"agent-{name}", [*self._namespaces.entrance, *command])

    def _write_kubeconfig(self) -> Path:
        self._plane.kubeconfig_for(ACCOUNT)
        token = self._plane.workspace.folder / "service-accounts" / f"kube-system.{ACCOUNT}.token"
        server = Server(f"https://{self._plane.address}:{self._relay.port}", self._plane.credentials.server.authority)
        folder = self._plane.workspace.make_folder("relays")
        return write_token_kubeconfig(folder / f"{self.number}.kubeconfig", server, token)


@asynccontextmanager
async def open_stage(*, policies: int) -> AsyncIterator[Stage]:
    """A control plane of its own, filled; all of it gone afterwards."""
    with Workspace.create() as workspace:
        network = await asyncio.to_thread(Network.create, workspace)
        with ControlPlane.start(workspace=workspace, address=network.host4) as plane:
            await asyncio.to_thread(apply_chart, plane)
            async with BareClient(plane.admin_kubeconfig, connections=_CONNECTIONS) as filler:
                stage = Stage(plane, network, filler, policies=policies)
                await stage.fill()
                yield stage


def _open_events() -> socket.socket:
    made = socket.socket(socket.AF_NETLINK, socket.SOCK_RAW, _NETLINK_NETFILTER)
    made.setsockopt(socket.SOL_SOCKET, 33, _EVENT_BUFFER)  # SO_RCVBUFFORCE
    made.bind((0, _NFTABLES_EVENTS))
    made.settimeout(_EFFECT_SECONDS)
    return made


def _await_signs(events: socket.socket, signs: Collection[bytes]) -> float:
    missing = set(signs)
    while missing:
        data = events.recv(1 << 20)
        missing -= {sign for sign in missing if sign in data}
    return time.perf_counter()
