"""One node of the stage: coild, the plugin and kube-proxy on a wired node, and its routes beyond the cluster."""

import logging
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from ipaddress import IPv4Address, ip_address, ip_network
from typing import Any, Protocol

from integration.apiserver.sandbox import Sandbox
from integration.apiserver.wired_node import WiredNode
from integration.cluster.command_line import Version
from integration.cluster.family import ClusterFamilies
from integration.cluster.kube_proxy import KubeProxy
from integration.cluster.network import Network
from integration.cluster.process import Process
from integration.cluster.workspace import Workspace
from integration.deployment import daemon_command
from integration.egress.api import Api
from integration.egress.description import Description
from integration.kernel_state import EXPORT_TABLE
from integration.service import Service
from integration.walk.recording import Recording

_log = logging.getLogger("station")

PATIENCE = 240.0
"""Seconds for what takes one natively."""

PAUSE = 0.5
"""Seconds between two looks that start a program or ask the API server."""


class PodRuntime(Protocol):
    """Who executes plugins for pods."""

    def add(self, sandbox: Sandbox) -> dict[str, Any]:
        """The result. Raises CniError."""
        ...

    def delete(self, sandbox: Sandbox) -> None:
        """Raises CniError."""
        ...


class CommandRunner(Protocol):
    """Where short commands can be run: a node."""

    def run(self, *argv: str) -> object: ...


def masquerade_to(address: str, node: CommandRunner) -> None:
    """Have what a node's pods send to that address come from the node."""
    family = nft_family(address)
    chain = f"add chain {family} stage out {{ type nat hook postrouting priority srcnat; }}"
    rule = f"add rule {family} stage out {family} daddr {address} masquerade"
    for line in (f"add table {family} stage", chain, rule):
        node.run("nft", line)


def nft_family(address: str) -> str:
    """How nft(8) calls the family of an address, both of tables and in expressions."""
    return "ip" if isinstance(ip_address(address), IPv4Address) else "ip6"


class Station:
    """Number `index` from 0; its programs are started together and waited for by `wait_ready`."""

    def __init__(
        self,
        workspace: Workspace,
        network: Network,
        description: Description,
        api: Api,
        *,
        index: int,
        name: str = "",
        flags: Sequence[str] = ("--route-sync", "--cooling=1s"),
    ) -> None:
        """`flags` are coild's."""
        self.wired = WiredNode(workspace, network, name=name or f"node-{index}", index=index)
        self.name = self.wired.name
        self.ipv4, self.ipv6 = self.wired.ipv4, self.wired.ipv6
        self.kernel = self.wired.kernel
        self._description = description
        self._register(api, network.families)
        self._reach_control_plane(network)
        # The API server's machine has no routes to pods.
        masquerade_to(description.address, self.wired.namespaces)
        self.coil = self.wired.install_plugin()
        """Executes our plugin alone."""
        self.runtime: PodRuntime = self.coil
        """What pods start and end by."""
        _log.info("%s has the plugin", self.name)
        self._start_proxy()
        self._command = daemon_command(description.coild_kubeconfig, socket=self.wired.socket, flags=flags)
        self.coild: Service = self.wired.start_daemon(self._command, patience=PATIENCE)

    def wait_ready(self) -> None:
        """Return when coild takes calls. Raises ComponentError."""
        self.coild.wait_ready()
        _log.info("%s has coild", self.name)

    def stop(self) -> None:
        """End its programs."""
        for service in (self.coild, self.proxy.service):
            service.kill()

    @contextmanager
    def traced_coild(self, recording: Recording) -> Iterator[Process]:
        """coild restarted with its calls noted, ready, as long as the block lasts."""
        with self.other_coild(recording.traced(self._command)) as traced:
            yield traced.process

    @contextmanager
    def coild_with(self, *flags: str) -> Iterator[None]:
        """coild restarted with these flags as well, ready, as long as the block lasts."""
        with self.other_coild([*self._command, *flags]):
            yield

    @contextmanager
    def other_coild(self, command: Sequence[str]) -> Iterator[Service]:
        """coild's place taken by another program, which is ready, as long as the block lasts."""
        self.coild.kill()
        other = self.wired.start_daemon(command, patience=PATIENCE)
        try:
            other.wait_ready()
            yield other
        finally:
            other.kill()
            self.coild.ensure_running()

    @contextmanager
    def cut_off(self) -> Iterator[None]:
        """Nothing of the node, nor of its pods, reaches the API server's machine as long as the block lasts."""
        run, address = self.wired.namespaces.run, self._description.address
        family = nft_family(address)
        run("nft", "add", "table", family, "stage-silence")
        try:
            for hook in ("output", "forward"):
                base = f"{{ type filter hook {hook} priority filter; }}"
                run("nft", f"add chain {family} stage-silence {hook} {base}")
                run("nft", f"add rule {family} stage-silence {hook} {family} daddr {address} drop")
            yield
        finally:
            run("nft", "delete", "table", family, "stage-silence")

    def route(self, destination: str, *, via: str) -> None:
        """A route of the administrator's."""
        self.wired.namespaces.run("ip", "route", "replace", destination, "via", via)

    def exported(self) -> list[str]:
        """The blocks that a routing daemon would announce."""
        return list(self.kernel.destinations(EXPORT_TABLE))

    def wait_programmed(self, address: str) -> None:
        """Return when kube-proxy has rules for a Service's address."""
        self.proxy.wait_programmed(address)

    def wait_withdrawn(self, address: str) -> None:
        """Return when a Service's address leads to no endpoint by kube-proxy."""
        self.proxy.wait_withdrawn(address)

    def _reach_control_plane(self, network: Network) -> None:
        """By the machine that the nodes are on; IPv4 networks of the tests are routed there anyway."""
        address = ip_address(self._description.address)
        if address.version == 6:
            self.route(str(ip_network(f"{address}/64", strict=False)), via=str(network.host6))

    def _register(self, api: Api, families: ClusterFamilies) -> None:
        """The Node object, as a kubelet makes it."""
        api.create("/api/v1/nodes", {"metadata": {"name": self.name}})
        addresses = [{"type": "InternalIP", "address": str(each)} for each in families.pick(self.ipv4, self.ipv6)]
        api.patch(f"/api/v1/nodes/{self.name}/status", {"status": {"addresses": addresses}})

    def _start_proxy(self) -> None:
        self.proxy = KubeProxy(
            self.name,
            program=self._description.proxy,
            version=Version.parse(self._description.proxy_version),
            kubeconfig=self._description.proxy_kubeconfig,
            folder=self.wired.workspace.make_folder(self.name),
            bind_address=self._description.families.unspecified,
            kernel=self.kernel,
            spawn=self.wired.spawn,
        )
