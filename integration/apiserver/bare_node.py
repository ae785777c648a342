"""A Node object and a network namespace with an uplink to a real API server; neither kubelet nor container runtime.

Coil runs on it as on any node (its programs under their own service accounts, the plugin put there by the installer),
and a test plays the runtime. Everything ends with the workspace, however the test ends.
"""

import json
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from functools import partial
from ipaddress import IPv4Address
from pathlib import Path
from typing import Any

from integration.apiserver.sandbox import PodName
from integration.apiserver.wired_node import WiredNode
from integration.cluster.address import free_port
from integration.cluster.control_plane import ControlPlane
from integration.cluster.network import Network
from integration.cluster.workspace import Workspace
from integration.deployment import (
    apply,
    coild_command,
    controller_probe,
    ipam_controller_command,
)
from integration.service import Service

NAME = "bare-node"
UPLINK = "eth0"
UPLINK_MTU = 1400
"""Not the usual one, so that it shows where a pod's comes from."""

LEASE = "--lease-duration=5s"
"""The shortest: a controller that was killed is followed by the next one after that time."""

GROUP_PATH = "/apis/coil.cybozu.com/v2"


class BareNode(WiredNode):
    """Make one with `up`, or several, numbered from 0, in one workspace and network."""

    def __init__(
        self, workspace: Workspace, network: Network, plane: ControlPlane, *, name: str = NAME, index: int = 0
    ) -> None:
        super().__init__(workspace, network, name=name, index=index)
        self.plane = plane
        self.namespaces.run("ip", "link", "set", UPLINK, "mtu", str(UPLINK_MTU))
        # A node that nobody has made a router yet.
        self.namespaces.set_sysctls(["net.ipv4.ip_forward=0", "net.ipv6.conf.all.forwarding=0"])

    @classmethod
    @contextmanager
    def up(cls, plane: ControlPlane) -> Iterator["BareNode"]:
        """A node in a workspace and a network of its own, and its Node object; the control plane has the chart."""
        with Workspace.create() as workspace:
            node = cls(workspace, Network.create(workspace), plane)
            node.register()
            try:
                yield node
            finally:
                node.destroy_sandboxes()

    def start_controller(self) -> Service:
        """One ipam-controller, beside the control plane; returns when it is ready, before it leads."""
        address = IPv4Address("127.0.0.1")
        metrics = free_port(address, 19386)
        health = free_port(address, metrics + 1)
        # Nobody looks at its page, which is on any free port.
        flags = [LEASE, "--inspect-addr=127.0.0.1:0"]
        command = ipam_controller_command(self.plane, ports=(metrics, health), flags=flags)
        spawn = partial(self.workspace.spawn, "coil-ipam-controller", command)
        service = Service(spawn, ready=controller_probe(self.plane, health=health))
        service.wait_ready()
        return service

    def start_coild(self, *flags: str, kubeconfig: Path | None = None) -> Service:
        """coild in the node's namespace, with its account's kubeconfig unless told otherwise; until it takes calls."""
        service = self.start_daemon(coild_command(self.plane, socket=self.socket, flags=flags, kubeconfig=kubeconfig))
        service.wait_ready()
        return service

    def make_namespace(self, name: str, *, pool: str = "") -> None:
        """A Namespace with its account, without which the API server takes no pod; `pool` goes into its annotation."""
        metadata: dict[str, Any] = {"name": name}
        if pool:
            metadata["annotations"] = {"coil.cybozu.com/pool": pool}
        account = {"name": "default", "namespace": name}
        apply(
            self.plane,
            {"apiVersion": "v1", "kind": "Namespace", "metadata": metadata},
            {"apiVersion": "v1", "kind": "ServiceAccount", "metadata": account},
        )

    def make_pod(self, namespace: str, name: str, *, account: str = "default", image: str = "none") -> PodName:
        """A Pod of the node, as the API server knows one that no kubelet has started yet."""
        spec = {
            "nodeName": self.name,
            "serviceAccountName": account,
            "containers": [{"name": "main", "image": image}],
            "automountServiceAccountToken": False,
        }
        metadata = {"name": name, "namespace": namespace}
        apply(self.plane, {"apiVersion": "v1", "kind": "Pod", "metadata": metadata, "spec": spec})
        made = self.plane.read(f"/api/v1/namespaces/{namespace}/pods/{name}")
        return PodName(namespace, name, made["metadata"]["uid"])

    def make_pool(self, name: str, *subnets: Mapping[str, str], bits: int) -> None:
        """An AddressPool."""
        spec = {"blockSizeBits": bits, "subnets": [dict(subnet) for subnet in subnets]}
        document = {"apiVersion": "coil.cybozu.com/v2", "kind": "AddressPool", "metadata": {"name": name}, "spec": spec}
        apply(self.plane, document)

    def objects(self, plural: str) -> list[dict[str, Any]]:
        """All objects of one of Coil's kinds, as the API server has them now."""
        items: list[dict[str, Any]] = self.plane.read(f"{GROUP_PATH}/{plural}")["items"]
        return items

    def register(self) -> None:
        """Make the Node object, as a kubelet does it."""
        apply(self.plane, {"apiVersion": "v1", "kind": "Node", "metadata": {"name": self.name}})
        addresses = [{"type": "InternalIP", "address": str(address)} for address in (self.ipv4, self.ipv6)]
        patch = json.dumps({"status": {"addresses": addresses}})
        self.plane.kubectl("patch", "node", self.name, "--subresource=status", "--type=merge", f"--patch={patch}")
