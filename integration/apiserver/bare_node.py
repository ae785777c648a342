"""A Node object and a network namespace with an uplink to a real API server; neither kubelet nor container runtime.

Coil runs on it as on any node (its programs under their own service accounts, the plugin put there by the installer),
and a test plays the runtime. Everything ends with the workspace, however the test ends.
"""

import json
import socket
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from functools import partial
from ipaddress import IPv4Address, IPv6Address
from pathlib import Path
from typing import Any

from integration.apiserver.runtime import Runtime
from integration.apiserver.sandbox import PodName, Sandbox
from integration.cluster.address import free_port
from integration.cluster.control_plane import ControlPlane
from integration.cluster.network import Namespaces, Network
from integration.cluster.process import Process
from integration.cluster.workspace import Workspace
from integration.deployment import (
    apply,
    apply_chart,
    coild_command,
    controller_probe,
    install_plugin,
    ipam_controller_command,
)
from integration.kernel_state import KernelState
from integration.service import Service

NAME = "bare-node"
UPLINK = "eth0"
UPLINK_MTU = 1400
"""Not the usual one, so that it shows where a pod's comes from."""

LEASE = "--lease-duration=5s"
"""The shortest: a controller that was killed is followed by the next one after that time."""

GROUP_PATH = "/apis/coil.cybozu.com/v2"


class BareNode:
    """Make one with `up`, or several, numbered from 0, in a workspace with a network and a control plane."""

    def __init__(
        self, workspace: Workspace, network: Network, plane: ControlPlane, *, name: str = NAME, index: int = 0
    ) -> None:
        self.name = name
        self.plane = plane
        self.workspace = workspace
        self.ipv4: IPv4Address
        self.ipv6: IPv6Address
        self.ipv4, self.ipv6 = network.node_addresses(index)
        self.socket = workspace.make_folder(name) / "coild.sock"
        self._sandboxes: list[Sandbox] = []
        self.namespaces = Namespaces.hold(workspace, name)
        network.attach(self.namespaces, port=name, index=index)
        self.namespaces.run("ip", "link", "set", UPLINK, "mtu", str(UPLINK_MTU))
        # A node that nobody has made a router yet.
        self.namespaces.set_sysctls(["net.ipv4.ip_forward=0", "net.ipv6.conf.all.forwarding=0"])

    @classmethod
    @contextmanager
    def up(cls) -> Iterator["BareNode"]:
        """etcd, API server and node; Coil's kinds and roles, and the Node object. Takes some seconds."""
        with Workspace.create() as workspace:
            network = Network.create(workspace)
            plane = ControlPlane.start(workspace=workspace, address=network.gateway4)
            node = cls(workspace, network, plane)
            apply_chart(plane)
            node.register()
            try:
                yield node
            finally:
                node.destroy_sandboxes()

    @property
    def kernel(self) -> KernelState:
        """What the kernel holds in the node's namespace."""
        return KernelState(str(self.namespaces.net))

    def install_plugin(self) -> Runtime:
        """Run the installer; returns the runtime that uses what it installed."""
        folder = self.workspace.make_folder(self.name, "cni")
        plugin = install_plugin(bin_dir=folder / "bin", etc_dir=folder / "net.d", socket=self.socket)
        return Runtime(plugin, self.socket)

    def start_controller(self) -> Service:
        """One ipam-controller, beside the control plane; returns when it is ready, before it leads."""
        address = IPv4Address("127.0.0.1")
        metrics = free_port(address, 19386)
        health = free_port(address, metrics + 1)
        command = ipam_controller_command(self.plane, ports=(metrics, health), flags=[LEASE])
        spawn = partial(self.workspace.spawn, "coil-ipam-controller", command)
        service = Service(spawn, ready=controller_probe(self.plane, health=health))
        service.wait_ready()
        return service

    def start_coild(self, *flags: str, kubeconfig: Path | None = None) -> Service:
        """coild in the node's namespace, with its account's kubeconfig unless told otherwise; until it takes calls."""
        command = coild_command(self.plane, socket=self.socket, flags=flags, kubeconfig=kubeconfig)
        environment = {"COIL_NODE_NAME": self.name}
        spawn = partial(self._spawn, f"coild-{self.name}", command, env=environment)
        service = Service(spawn, ready=self.is_served)
        service.wait_ready()
        return service

    def is_served(self) -> bool:
        """Whether somebody listens on the socket; a file alone is what a killed coild leaves."""
        with socket.socket(socket.AF_UNIX) as probe:
            try:
                probe.connect(str(self.socket))
            except OSError:
                return False
        return True

    def make_sandbox(self, pod: PodName, *, container_id: str) -> Sandbox:
        """A new sandbox, as the runtime makes one before an ADD; destroyed with the node at the latest."""
        sandbox = Sandbox(pod, container_id=container_id, cluster=self.workspace.id)
        self._sandboxes.append(sandbox)
        return sandbox

    def make_namespace(self, name: str, *, pool: str = "") -> None:
        """A Namespace; `pool` goes into its annotation."""
        metadata: dict[str, Any] = {"name": name}
        if pool:
            metadata["annotations"] = {"coil.cybozu.com/pool": pool}
        apply(self.plane, {"apiVersion": "v1", "kind": "Namespace", "metadata": metadata})

    def make_pool(self, name: str, *subnets: Mapping[str, str], bits: int) -> None:
        """An AddressPool."""
        spec = {"blockSizeBits": bits, "subnets": [dict(subnet) for subnet in subnets]}
        document = {"apiVersion": "coil.cybozu.com/v2", "kind": "AddressPool", "metadata": {"name": name}, "spec": spec}
        apply(self.plane, document)

    def objects(self, plural: str) -> list[dict[str, Any]]:
        """All objects of one of Coil's kinds, as the API server has them now."""
        items: list[dict[str, Any]] = json.loads(self.plane.kubectl("get", "--raw", f"{GROUP_PATH}/{plural}"))["items"]
        return items

    def register(self) -> None:
        """Make the Node object, as a kubelet does it."""
        apply(self.plane, {"apiVersion": "v1", "kind": "Node", "metadata": {"name": self.name}})
        addresses = [{"type": "InternalIP", "address": str(address)} for address in (self.ipv4, self.ipv6)]
        patch = json.dumps({"status": {"addresses": addresses}})
        self.plane.kubectl("patch", "node", self.name, "--subresource=status", "--type=merge", f"--patch={patch}")

    def destroy_sandboxes(self) -> None:
        """Destroy every sandbox that is left."""
        for sandbox in self._sandboxes:
            sandbox.destroy()

    def _spawn(self, name: str, argv: Sequence[str], *, env: Mapping[str, str]) -> Process:
        return self.workspace.spawn(name, [*self.namespaces.entrance, *argv], env=env)
