"""The network of the egress figures, in one kernel: three paths from a pod to the host outside, all across one node.

    tunnel   client ═ node ═ router ─ node ─ outside     an Egress's client: FoU to the Service's address, masquerade
    plain    pod    ─ node ─ router ─ node ─ outside     routed through the same router, which masquerades it as well
    direct   pod    ─ node ─ outside                     what a pod without an Egress has

So tunnel and plain differ by the tunnel alone: hops, forwarding, connection tracking and masquerade are the same. The
node translates the Service's address to the router's, as kube-proxy has it done.
"""

import os
import subprocess
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from ipaddress import IPv4Address
from typing import Final

from coil.egress.gateway import DEFAULT_TUNNEL_POLICY, ClientSpec, Gateway
from coil.kernel.family import Family
from coil.kernel.tunnel import tunnel_name
from coil.nat.client import ClientNetwork
from integration.bench.egress_path import TrafficPath
from integration.bench.egress_server import serving_in
from integration.bench.egress_text import EGRESS_NAME, ROUTER_NAMESPACE
from integration.nat_stage import GATEWAYS, OUTSIDE, SERVICE, Host, NatStage
from integration.vm.run import INSIDE_VARIABLE

_GATEWAY = GATEWAYS[Family.IPV4]
_SERVICE = SERVICE[Family.IPV4]
_TABLE = "200"
_API_LINK = "bench-api"
_API_ENDS = ("198.51.100.1", "198.51.100.2")
_SECONDS: Final = 60


class Scene:
    """Make it with `open_scene`. `paths` in the order of the picture."""

    def __init__(self, stage: NatStage) -> None:
        self._stage = stage
        self.router = stage.router
        self.router_address = _address(stage.router)
        self.client_address = _address(stage.client)
        self.tunnel = TrafficPath(
            name="tunnel", netns=stage.client.netns.path, target=_address(stage.outside), link=tunnel_name(_SERVICE)
        )
        self.plain = self._path("plain", self._add_plain_pod())
        self.direct = self._path("direct", self._add_direct_pod())

    @property
    def paths(self) -> tuple[TrafficPath, TrafficPath, TrafficPath]:
        return self.tunnel, self.plain, self.direct

    async def connect_client(self) -> None:
        """The client's end of its tunnel, as coild makes it before a pod has its address."""
        gateway = Gateway(
            name=f"{ROUTER_NAMESPACE}/{EGRESS_NAME}", addresses=(_SERVICE,), destinations=(OUTSIDE[Family.IPV4],)
        )
        async with ClientNetwork() as network:
            spec = ClientSpec(addresses=(self.client_address,), gateways=(gateway,))
            await network.sync(spec, self._stage.client.netns.path)

    def _path(self, name: str, pod: Host) -> TrafficPath:
        return TrafficPath(name=name, netns=pod.netns.path, target=self.tunnel.target)

    def _add_plain_pod(self) -> Host:
        """What comes from its link, the node sends to the router."""
        pod = self._stage.add_pod(4)
        node, router = self._stage.node, self._stage.router
        node.ip("rule", "add", "priority", "100", "iif", pod.link, "lookup", _TABLE)
        hop = ("via", str(_address(router)), "dev", router.link, "onlink")
        node.ip("route", "add", "default", *hop, "table", _TABLE)
        return pod

    def _add_direct_pod(self) -> Host:
        """The host outside knows the way back to it."""
        pod = self._stage.add_pod(5)
        self._stage.outside.netns.ip("route", "add", str(_address(pod)), "via", _GATEWAY, "dev", "eth0")
        return pod


@contextmanager
def open_scene(api: IPv4Address) -> Iterator[Scene]:
    """All but the router's agent and the client's tunnel; `api` can be reached from the pods. Gone afterwards."""
    with ExitStack() as stack:
        stage = stack.enter_context(NatStage([Family.IPV4]))
        _lead_to(api, stage)
        _translate(stage)
        stack.enter_context(serving_in(stage.outside.netns.path, _address(stage.outside)))
        yield Scene(stage)


def _lead_to(api: IPv4Address, stage: NatStage) -> None:
    """By a link between the node and the namespace of this process, from where the API server is reached."""
    ours, nodes = _API_ENDS
    ends = ("link", "add", "api", "type", "veth", "peer", "name", _API_LINK, "netns", str(os.getpid()))
    stage.node.ip(*ends)
    _run("ip", "link", "set", _API_LINK, "up")
    _run("ip", "address", "add", f"{ours}/30", "dev", _API_LINK)
    stage.node.ip("link", "set", "api", "up")
    stage.node.ip("address", "add", f"{nodes}/30", "dev", "api")
    stage.node.ip("route", "add", str(api), "via", ours)
    if os.environ.get(INSIDE_VARIABLE):
        _run("busybox", "sysctl", "-q", "-w", "net.ipv4.ip_forward=1")
        _run("nft", "-f", "-", text=_masquerade(link="eth0"))


def _translate(stage: NatStage) -> None:
    """kube-proxy's part on the node, and the pods' way to the API server."""
    service = (
        "add table ip service; "
        "add chain ip service in { type nat hook prerouting priority dstnat; }; "
        f"add rule ip service in ip daddr {_SERVICE} udp dport {DEFAULT_TUNNEL_POLICY.port} "
        f"dnat to {_address(stage.router)};"
    )
    _run("ip", "netns", "exec", stage.node.name, "nft", "-f", "-", text=service + _masquerade(link="api"))


def _masquerade(*, link: str) -> str:
    return (
        "add table ip out; "
        "add chain ip out way { type nat hook postrouting priority srcnat; }; "
        f'add rule ip out way oifname "{link}" masquerade;'
    )


def _address(host: Host) -> IPv4Address:
    return IPv4Address(host.addresses[Family.IPV4])


def _run(*command: str, text: str | None = None) -> None:
    subprocess.run(command, input=text, text=True, check=True, timeout=_SECONDS)
