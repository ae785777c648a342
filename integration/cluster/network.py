"""The wires of a cluster: a bridge that joins its nodes and the host, dual stack, with addresses nobody else has.

IPv4 comes from 198.18.0.0/16, the lower half of what RFC 2544 sets aside for tests; IPv6 from a random RFC 4193 prefix.
The bridge lives in a namespace of its own (the fabric), so that a firewall of the host never sees what nodes say to
each other. The fabric is the nodes' default gateway and has no route beyond the cluster: what a pod sends into the
world is unreachable from there, and nothing leaves the machine. The host has one link into the fabric and an address on
it; to the cluster it is a machine outside. Namespaces are held by a process each and by nothing else: when the
cluster's processes are gone, so are its namespaces, and every link in them.
"""

from __future__ import annotations

import fcntl
import json
import secrets
import subprocess
from collections.abc import Sequence
from dataclasses import dataclass
from ipaddress import IPv4Address, IPv4Interface, IPv4Network, IPv6Address, IPv6Network
from pathlib import Path
from typing import Protocol

from integration.cluster.cache import cache_root
from integration.cluster.cleanup import link_name
from integration.cluster.family import ClusterFamilies
from integration.cluster.process import Process
from integration.cluster.workspace import Workspace

_RANGE = IPv4Network("198.18.0.0/16")
_HOST, _GATEWAY, _CONTROL_PLANE, _FIRST_NODE = 1, 2, 3, 11
"""The host parts of the addresses on the bridge."""
_BRIDGE = "bridge"
_LAST = "100000"
"""The metric of a route that yields to all others."""
_HOLD_TIMEOUT = 60.0  # seconds in which a new namespace must be there
_COMMAND_TIMEOUT = 60.0


class NetworkError(Exception):
    """A link, an address or a namespace could not be made; the message has the command and what it said."""


def run_command(argv: Sequence[str], *, timeout: float = _COMMAND_TIMEOUT) -> str:
    """Run one short command on the host and return its standard output. Raises NetworkError when it fails."""
    done = subprocess.run(list(argv), check=False, capture_output=True, text=True, timeout=timeout)
    if done.returncode:
        raise NetworkError(f"{' '.join(argv)}: {done.stderr.strip() or f'exit code {done.returncode}'}")
    return done.stdout


@dataclass(frozen=True, slots=True)
class Namespaces:
    """A network and a mount namespace, as old as the process that holds them."""

    holder: Process

    @property
    def net(self) -> Path:
        """The network namespace, for setns(2) and whoever takes a path."""
        return Path(f"/proc/{self.holder.pid}/ns/net")

    @property
    def entrance(self) -> list[str]:
        """The beginning of a command line whose rest runs inside, in the same process."""
        return ["nsenter", f"--net={self.net}", f"--mount=/proc/{self.holder.pid}/ns/mnt", "--"]

    @classmethod
    def hold(cls, workspace: Workspace, name: str) -> Namespaces:
        """Make them. Mounts made inside are seen nowhere else and go with the last process inside."""
        holder = workspace.spawn(
            name, ["unshare", "--net", "--mount", "--propagation=private", "busybox", "sleep", "infinity"]
        )
        # The program is replaced only after the namespaces have been made.
        holder.wait_ready(lambda: _program(holder.pid) == "busybox", timeout=_HOLD_TIMEOUT)
        return cls(holder)

    def run(self, *argv: str) -> None:
        """Run one short command inside. Raises NetworkError when it fails."""
        run_command([*self.entrance, *argv])

    def set_sysctls(self, settings: Sequence[str]) -> None:
        """Set ``name=value`` of the network namespace."""
        self.run("busybox", "sysctl", "-q", "-w", *settings)


class NodeNetwork(Protocol):
    """What a node asks of the network that it is on."""

    @property
    def families(self) -> ClusterFamilies:
        """Of its addresses, those that a node has."""

    def node_addresses(self, index: int) -> tuple[IPv4Address, IPv6Address]:
        """The addresses of the node number ``index``, from 0."""

    def attach(self, namespaces: Namespaces, *, port: str, addresses: tuple[IPv4Address, IPv6Address]) -> None:
        """Connect a node, which is to be a router then. ``port`` is its name on the network. Raises NetworkError."""


@dataclass(frozen=True, slots=True)
class Network:
    """A cluster's subnets and its fabric. Make one with ``create``."""

    ipv4: IPv4Network
    ipv6: IPv6Network
    fabric: Namespaces
    host_link: str
    """The host's link into the fabric."""
    families: ClusterFamilies
    """What machines get of the addresses that are theirs; the host and the fabric have both."""

    @classmethod
    def create(cls, workspace: Workspace, families: ClusterFamilies = ClusterFamilies.IPV4_FIRST) -> Network:
        """Make the bridge and the host's link into it; its end is ``workspace.close``. Raises NetworkError."""
        fabric = Namespaces.hold(workspace, "fabric")
        fabric.run("ip", "link", "add", "name", _BRIDGE, "type", "bridge", "mcast_snooping", "0")
        fabric.run("ip", "link", "set", _BRIDGE, "up")
        _keep_firewall_off(fabric)
        # Between looking for a free subnet and having taken it no other cluster may look.
        with (cache_root() / "network.lock").open("w") as lock:
            fcntl.flock(lock, fcntl.LOCK_EX)
            host = link_name(workspace.id)
            network = cls(ipv4=_free_subnet(), ipv6=_random_prefix(), fabric=fabric, host_link=host, families=families)
            run_command(
                ["ip", "link", "add", "name", host, "type", "veth", "peer", "name", "host", "netns", str(fabric.net)]
            )
            run_command(["ip", "address", "add", f"{network.host4}/{network.ipv4.prefixlen}", "dev", host])
        run_command(["ip", "address", "add", f"{network.host6}/{network.ipv6.prefixlen}", "dev", host, "nodad"])
        fabric.run("ip", "link", "set", "host", "master", _BRIDGE, "up")
        run_command(["ip", "link", "set", host, "up"])
        # A server on the host goes on talking to nodes of another network that is gone: not by the default route.
        run_command(["ip", "route", "append", str(_RANGE), "dev", host, "metric", _LAST])
        network._be_gateway()
        return network

    @property
    def host4(self) -> IPv4Address:
        """The host's address."""
        return self.ipv4[_HOST]

    @property
    def host6(self) -> IPv6Address:
        """The same for IPv6."""
        return self.ipv6[_HOST]

    @property
    def control_plane(self) -> tuple[IPv4Address, IPv6Address]:
        """The addresses of a control plane that has a namespace of its own."""
        return self.ipv4[_CONTROL_PLANE], self.ipv6[_CONTROL_PLANE]

    def node_addresses(self, index: int) -> tuple[IPv4Address, IPv6Address]:
        """The addresses of the node number ``index``, from 0."""
        return self.ipv4[_FIRST_NODE + index], self.ipv6[_FIRST_NODE + index]

    def attach(self, namespaces: Namespaces, *, port: str, addresses: tuple[IPv4Address, IPv6Address]) -> None:
        """Give a machine its link ``eth0``, addresses, default routes, and make it a router. Raises NetworkError.

        Of ``addresses`` it gets those of the cluster's families.
        """
        self.fabric.run(
            *("ip", "link", "add", "name", port, "type", "veth", "peer", "name", "eth0", "netns", str(namespaces.net))
        )
        self.fabric.run("ip", "link", "set", port, "master", _BRIDGE, "up")
        namespaces.set_sysctls(
            [
                "net.ipv4.ip_forward=1",
                "net.ipv6.conf.all.forwarding=1",
                # What the host's distribution has chosen for itself would be inherited.
                "net.ipv4.conf.all.rp_filter=0",
                "net.ipv4.conf.default.rp_filter=0",
            ]
        )
        namespaces.run("ip", "link", "set", "lo", "up")
        own = self.families.pick(*addresses)
        for address in own:
            subnet, once = (self.ipv4, []) if address.version == 4 else (self.ipv6, ["nodad"])
            namespaces.run("ip", "address", "add", f"{address}/{subnet.prefixlen}", "dev", "eth0", *once)
        namespaces.run("ip", "link", "set", "eth0", "up")
        for address in own:
            gateway = self.ipv4[_GATEWAY] if address.version == 4 else self.ipv6[_GATEWAY]
            namespaces.run("ip", f"-{address.version}", "route", "add", "default", "via", str(gateway))
        if 4 in self.families.value:
            # An API server may listen at the host's address on another network.
            namespaces.run("ip", "route", "add", str(_RANGE), "via", str(self.host4))

    def detach(self, port: str) -> None:
        """Take a machine's link away: another one may have its port and its addresses. Raises NetworkError."""
        self.fabric.run("ip", "link", "delete", port)

    def _be_gateway(self) -> None:
        """Have the fabric answer for the world: a router without a way out."""
        self.fabric.set_sysctls(["net.ipv4.ip_forward=1", "net.ipv6.conf.all.forwarding=1"])
        for address, prefix_length in (
            (self.ipv4[_GATEWAY], self.ipv4.prefixlen),
            (self.ipv6[_GATEWAY], self.ipv6.prefixlen),
        ):
            nodad = ["nodad"] if address.version == 6 else []
            self.fabric.run("ip", "address", "add", f"{address}/{prefix_length}", "dev", _BRIDGE, *nodad)
            self.fabric.run("ip", f"-{address.version}", "route", "add", "unreachable", "default")


def _keep_firewall_off(fabric: Namespaces) -> None:
    """Where the kernel shows bridged packets to iptables, the fabric's shall not be."""
    for family in ("iptables", "ip6tables", "arptables"):
        if Path(f"/proc/sys/net/bridge/bridge-nf-call-{family}").exists():
            fabric.set_sysctls([f"net.bridge.bridge-nf-call-{family}=0"])


def _free_subnet() -> IPv4Network:
    """A random /24 that overlaps no route of the host."""
    routes = json.loads(run_command(["ip", "-json", "-4", "route", "show", "table", "all"]))
    taken = [
        IPv4Interface(route["dst"]).network
        for route in routes
        if route["dst"] not in ("default", str(_RANGE)) and IPv4Interface(route["dst"]).network.overlaps(_RANGE)
    ]
    subnets = list(_RANGE.subnets(new_prefix=24))
    free = [subnet for subnet in subnets if not any(subnet.overlaps(other) for other in taken)]
    if not free:
        raise NetworkError(f"all of {_RANGE} is routed on this machine; free a /24 of it")
    return secrets.choice(free)


def _random_prefix() -> IPv6Network:
    """A /64 of a random unique local /48 (RFC 4193, section 3.2)."""
    return IPv6Network((0xFD << 120 | secrets.randbits(40) << 80, 64))


def _program(pid: int) -> str:
    """The name of the program that the process runs; empty when it is gone."""
    try:
        return Path(f"/proc/{pid}/exe").readlink().name
    except OSError:
        return ""
