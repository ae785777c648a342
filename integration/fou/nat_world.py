"""Client, router and an outside host, with both networks under test bound to them."""

import socket
import subprocess
from contextlib import AsyncExitStack
from ipaddress import ip_address
from types import TracebackType
from typing import Any

from coil.egress.gateway import ClientSpec, Gateway, Replies, RouterSpec, SourcePort
from coil.kernel.family import Family, IPAddress
from coil.kernel.route import DEFAULT_NETWORKS
from coil.nat.client import ClientChanges, ClientNetwork
from coil.nat.router import RouterNetwork
from integration.nat_stage import OUTSIDE, Host, NatStage
from integration.netns.netns import Netns
from integration.udp_conversation import UdpConversation

SECONDS = 60.0


def lines(netns: Netns, *command: str) -> list[str]:
    """What a command says inside, a line each, blanks squeezed."""
    argv = ["nsenter", f"--net={netns.path}", "--", *command]
    said = subprocess.run(argv, capture_output=True, text=True, check=True, timeout=SECONDS).stdout
    return [" ".join(line.split()) for line in said.splitlines() if line.strip()]


class NatWorld:
    """An async context manager. The router is set up; what else there is, a test says."""

    def __init__(self, stage: NatStage) -> None:
        self.stage = stage
        self._stack = AsyncExitStack()
        self.client: ClientNetwork
        self.router: RouterNetwork

    async def __aenter__(self) -> "NatWorld":
        async with AsyncExitStack() as stack:
            self.client = await stack.enter_async_context(ClientNetwork())
            self.router = await self.open_router(self.stage.router, stack)
            self._stack = stack.pop_all()
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, value: BaseException | None, traceback: TracebackType | None
    ) -> None:
        await self._stack.aclose()

    async def open_router(self, host: Host, stack: AsyncExitStack | None = None) -> RouterNetwork:
        """A router in that host's namespace, set up, for everything."""
        router = await (stack or self._stack).enter_async_context(RouterNetwork(host.netns.path))
        await router.set_up(RouterSpec(addresses=tuple(host.addresses.values())))
        await router.set_destinations(tuple(DEFAULT_NETWORKS.values()))
        return router

    def gateway(self, name: str = "internet/nat", router: Host | None = None, **options: Any) -> Gateway:
        """A gateway straight to a router, for all that is outside."""
        options.setdefault("addresses", tuple((router or self.stage.router).addresses.values()))
        options.setdefault("destinations", tuple(OUTSIDE.values()))
        return Gateway(name=name, **options)

    async def sync(
        self, *gateways: Gateway, host: Host | None = None, replies: Replies = Replies.BY_ROUTE, **options: Any
    ) -> ClientChanges:
        """Make the client, or another pod, a client of those gateways; `options` are further fields of the spec."""
        pod = host or self.stage.client
        spec = ClientSpec(addresses=tuple(pod.addresses.values()), gateways=gateways, replies=replies, **options)
        return await self.client.sync(spec, pod.netns.path)

    async def connect(self, source_port: SourcePort = SourcePort.FIXED) -> None:
        """The usual: the client sends all that is outside to the router, which knows it."""
        await self.router.add_peers(tuple(self.stage.client.addresses.values()), source_port)
        await self.sync(self.gateway(source_port=source_port))


def bound(host: Host, family: Family, kind: socket.SocketKind, port: int = 0) -> socket.socket:
    """A socket of the host, bound to its own address."""
    made = unbound(host, family, kind)
    made.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    made.bind((str(host.addresses[family]), port))
    return made


def unbound(host: Host, family: Family, kind: socket.SocketKind) -> socket.socket:
    """A socket of the host, which the kernel will find a source address for."""
    domain = socket.AF_INET if family is Family.IPV4 else socket.AF_INET6
    made = host.netns.call(lambda: socket.socket(domain, kind))
    made.settimeout(SECONDS)
    return made


def ask(asking: Host, answering: Host, family: Family, *, size: int = 8) -> IPAddress:
    """A datagram there and back; whom the other side saw."""
    with (
        unbound(asking, family, socket.SOCK_DGRAM) as one,
        bound(answering, family, socket.SOCK_DGRAM) as other,
    ):
        one.sendto(b"?" * size, other.getsockname())
        question, peer = other.recvfrom(1 << 16)
        other.sendto(question, peer)
        assert one.recv(1 << 16) == question
        return ip_address(peer[0])


class Conversation(UdpConversation):
    """From one host to another."""

    def __init__(self, asking: Host, answering: Host, family: Family, *, may_lose: int = 0) -> None:
        kind = socket.SOCK_DGRAM
        super().__init__(unbound(asking, family, kind), bound(answering, family, kind), may_lose=may_lose)


def kernel_state(netns: Netns) -> dict[str, Any]:
    """Everything that egress NAT could leave in a namespace, sysctls apart."""
    return {
        **netns.state(),
        "fou": sorted(lines(netns, "ip", "fou", "show")),
        "nft": lines(netns, "nft", "list", "ruleset"),
    }
