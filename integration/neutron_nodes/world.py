"""A real cluster whose pods are ports: two nodes with kubelet and containerd, Coil on them as Helm installs it with the
profile `neutron`, and OpenStack's own Neutron.

    node-1, node-2: Kubernetes, coild, coil-raven ─► Neutron, on this machine
          └─ VXLAN between the nodes ─┘

Neutron has no agents: in their place, `PortAgent` tells it of a port that a node has plugged in.
"""

import json
import threading
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from typing import Any, Final

import yaml

from coil.neutron.node_bridge import BRIDGE_PREFIX
from integration.cluster.cluster import Cluster
from integration.cluster.control_plane import ControlPlane
from integration.cluster.node import Node
from integration.deployment import apply
from integration.helm.chart import NAMESPACE
from integration.helm.release import Release, import_image
from integration.image.build import build_image
from integration.kernel_state import KernelState
from integration.neutron.neutron_server import NeutronServer
from integration.nodes.program_pods import ProgramPods

STATE: Final = "coil-state"
"""Where the journal is, below what each node has for itself."""
CLOUD: Final = "stage"
PROGRAMS: Final = ("coild", "raven")
_PAUSE: Final = 0.5


class PortAgent:
    """What an agent of Neutron does on each node: a port is ACTIVE once the node's bridge has its hardware address."""

    def __init__(self, neutron: NeutronServer, nodes: list[Node]) -> None:
        self._neutron = neutron
        self._nodes = {node.name: KernelState(str(node.netns)) for node in nodes}
        self._ended = threading.Event()
        self._thread = threading.Thread(target=self._run, name="port-agent")

    @contextmanager
    def running(self) -> Iterator[None]:
        """Beside the block."""
        self._thread.start()
        try:
            yield
        finally:
            self._ended.set()
            self._thread.join()

    def _run(self) -> None:
        with self._neutron.connect() as connection:
            while not self._ended.wait(_PAUSE):
                ports = connection.network.get("/ports?status=DOWN").json()["ports"]
                bound = [port for port in ports if port["binding:host_id"] in self._nodes]
                plugged = {name: _plugged(self._nodes[name]) for name in {port["binding:host_id"] for port in bound}}
                for port in bound:
                    if port["mac_address"] in plugged[port["binding:host_id"]]:
                        self._neutron.set_status(port["id"], "ACTIVE")


def _plugged(kernel: KernelState) -> set[str]:
    """The hardware addresses that are tied to ports of bridges of networks."""
    entries = json.loads(kernel.run("bridge", "-json", "fdb", "show") or "[]")
    return {entry["mac"] for entry in entries if entry.get("master", "").startswith(BRIDGE_PREFIX)}


@dataclass(frozen=True, slots=True)
class NeutronNodes:
    """Make it with `up`."""

    cluster: Cluster
    release: Release
    neutron: NeutronServer

    @classmethod
    @contextmanager
    def up(cls) -> Iterator["NeutronNodes"]:
        """Installed, and all nodes are Ready. Ends with the context, however that ends."""
        image = build_image()
        with ExitStack() as stack:
            cluster = stack.enter_context(Cluster.up())
            folder = cluster.workspace.make_folder("neutron")
            hosts = [node.name for node in cluster.nodes]
            neutron = stack.enter_context(NeutronServer.start(folder, hosts=hosts, address=cluster.network.host4))
            import_image(cluster, image)
            apply(cluster.plane, _clouds(neutron))
            nodes = cls(cluster, Release(cluster.plane, _values(), profiles=["neutron"]), neutron)
            stack.enter_context(PortAgent(neutron, cluster.nodes).running())
            nodes.program_pods.install(nodes.logs)
            yield nodes

    @property
    def program_pods(self) -> ProgramPods:
        """Of the release."""
        return ProgramPods(self.cluster, self.release)

    @property
    def plane(self) -> ControlPlane:
        return self.cluster.plane

    def kernel(self, node: Node) -> KernelState:
        """What the node's kernel holds."""
        return KernelState(str(node.netns))

    def read(self, *arguments: str) -> dict[str, Any]:
        """What `kubectl get` prints as JSON."""
        document: dict[str, Any] = json.loads(self.plane.kubectl("get", *arguments, "--output=json"))
        return document

    def programs(self) -> set[str]:
        """The names of the pods of coild and coil-raven, at least one of each."""
        found = [{pod["metadata"]["name"] for pod in self.program_pods.of(component)} for component in PROGRAMS]
        assert all(found), found
        return {name for names in found for name in names}

    def ports(self) -> dict[str, dict[str, Any]]:
        """Neutron's ports of pods, by the pod's UID."""
        with self.neutron.connect() as connection:
            ports = connection.network.get("/ports?device_owner=compute:kuryr").json()["ports"]
        return {port["device_id"]: port for port in ports}

    def logs(self) -> Iterator[tuple[str, str]]:
        """Name and last lines of what each program of the release has logged."""
        return self.program_pods.logs(*PROGRAMS)


def _clouds(neutron: NeutronServer) -> dict[str, Any]:
    cloud = {"auth_type": "none", "network_endpoint_override": neutron.endpoint}
    return {
        "apiVersion": "v1",
        "kind": "Secret",
        "metadata": {"name": "coil-raven-clouds", "namespace": NAMESPACE},
        "stringData": {"clouds.yaml": yaml.safe_dump({"clouds": {CLOUD: cloud}})},
    }


def _values() -> dict[str, object]:
    return {
        "raven.cloud": CLOUD,
        "raven.supernets": ["10.128.0.0/9/16", "fd00:10::/48"],
        "raven.extraArgs": ["--lease-duration=5s", "--gc-interval=4s"],
        "ipam.extraArgs": ["--lease-duration=5s"],
        "neutron.stateDirectory": f"/run/{STATE}",
        "neutron.bindingDirectory": "/run/kuryr",
    }
