"""A real cluster whose pods are ports: two nodes with kubelet and containerd, without kube-proxy, Coil on them as Helm
installs it with the profile `neutron`, and OpenStack's own Neutron and Octavia.

    node-1, node-2: Kubernetes, coild, coil-raven ─► Neutron, Octavia, on this machine
          └─ VXLAN ─ CloudRouter ◄───────────────────────┘

Neutron and Octavia have no agents. In their place, `PortAgent` tells Neutron of a port that a node has plugged in, and
`CloudRouter` forwards what the router and the load balancers would.
"""

import json
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from typing import Any, Final

import yaml

from coil.neutron.identity import Kind
from integration.cluster.cluster import Cluster
from integration.cluster.control_plane import ControlPlane
from integration.cluster.family import ClusterFamilies
from integration.cluster.node import Node
from integration.deployment import apply
from integration.helm.chart import NAMESPACE
from integration.helm.release import Release, import_image
from integration.image.build import build_image
from integration.kernel_state import KernelState
from integration.neutron.cloud_router import CloudRouter
from integration.neutron.neutron_server import NeutronServer
from integration.neutron.octavia_server import OctaviaServer
from integration.neutron.port_agent import PortAgent
from integration.nodes.program_pods import ProgramPods
from integration.patience import wait_until

STATE: Final = "coil-state"
"""Where the journal is, below what each node has for itself."""
CLOUD: Final = "stage"
PUBLIC: Final = "public"
PUBLIC_CIDR: Final = "192.0.2.0/24"
FAMILIES: Final = 2
PROGRAMS: Final = ("coild", "raven")
_FIRST_SERVICE: Final = {
    "apiVersion": "v1",
    "kind": "Service",
    "metadata": {"name": "first", "namespace": "default"},
    "spec": {"ports": [{"port": 80}], "ipFamilyPolicy": "RequireDualStack"},
}
"""The subnets of cluster IPs are made for the first Service of each family, and stay: what tests count starts there."""


@dataclass(frozen=True, slots=True)
class NeutronNodes:
    """Make it with `up`."""

    cluster: Cluster
    release: Release
    neutron: NeutronServer
    octavia: OctaviaServer
    router: CloudRouter

    @classmethod
    @contextmanager
    def up(cls) -> Iterator["NeutronNodes"]:
        """Installed, and all nodes are Ready. Ends with the context, however that ends."""
        image = build_image()
        with ExitStack() as stack:
            cluster = stack.enter_context(Cluster.up(kube_proxy=False))
            folder, address = cluster.workspace.make_folder("neutron"), cluster.network.host4
            hosts = [node.name for node in cluster.nodes]
            neutron = stack.enter_context(NeutronServer.start(folder, hosts=hosts, address=address))
            neutron.add_public_network(PUBLIC, PUBLIC_CIDR)
            folder = cluster.workspace.make_folder("octavia")
            octavia = stack.enter_context(OctaviaServer.start(folder, neutron, address=address))
            router = stack.enter_context(
                CloudRouter(
                    cluster.workspace,
                    cluster.network,
                    cluster.plane,
                    octavia,
                    nodes=[node.ipv4 for node in cluster.nodes],
                    public=PUBLIC_CIDR,
                )
            )
            import_image(cluster, image)
            apply(cluster.plane, _clouds(octavia))
            release = Release(cluster.plane, _values(cluster.plane), profiles=["neutron"])
            nodes = cls(cluster, release, neutron, octavia, router)
            kernels = {node.name: KernelState(str(node.netns)) for node in cluster.nodes}
            stack.enter_context(PortAgent(neutron, kernels))
            nodes.program_pods.install(nodes.logs)
            router.announce()
            apply(cluster.plane, _FIRST_SERVICE)
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

    def wait_idle(self) -> None:
        """Return when each namespace has its network, whole, and each Service its load balancers."""
        wait_until(self._is_idle, what="networks of all namespaces, and load balancers of all Services")

    def _is_idle(self) -> bool:
        connected = self.neutron.connected_subnets({Kind.SUBNET_IPV4, Kind.SUBNET_IPV6})
        services = [each["spec"] for each in self.read("services", "--all-namespaces")["items"]]
        listeners = sum(
            len(spec["ports"]) for spec in services for address in spec.get("clusterIPs", ()) if address != "None"
        )
        found = self.octavia.snapshot()
        return (
            len(connected) == FAMILIES * len(self.read("namespaces")["items"])
            and found["listeners"] == found["pools"] == listeners
        )

    def ports(self) -> dict[str, dict[str, Any]]:
        """Neutron's ports of pods, by the pod's UID."""
        with self.neutron.connect() as connection:
            ports = connection.network.get("/ports?device_owner=compute:kuryr").json()["ports"]
        return {port["device_id"]: port for port in ports}

    def logs(self) -> Iterator[tuple[str, str]]:
        """Name and last lines of what each program of the release has logged."""
        return self.program_pods.logs(*PROGRAMS)


def _clouds(octavia: OctaviaServer) -> dict[str, Any]:
    cloud = {
        "auth_type": "none",
        "network_endpoint_override": octavia.neutron.endpoint,
        "load_balancer_endpoint_override": octavia.endpoint,
    }
    return {
        "apiVersion": "v1",
        "kind": "Secret",
        "metadata": {"name": "coil-raven-clouds", "namespace": NAMESPACE},
        "stringData": {"clouds.yaml": yaml.safe_dump({"clouds": {CLOUD: cloud}})},
    }


def _values(plane: ControlPlane) -> dict[str, object]:
    return {
        "apiServer.host": str(plane.address),
        "apiServer.port": plane.port,
        "raven.publicNetwork": PUBLIC,
        "raven.services.cidrs": list(map(str, ClusterFamilies.IPV4_FIRST.service_ranges)),
        "raven.project": "5e1f5a2c0d6b4b7e8d1c2a3b4c5d6e7f",
        "raven.cloud": CLOUD,
        "raven.supernets": ["10.128.0.0/9/16", "fd00:10::/48"],
        "raven.portCooling": "2s",
        "raven.extraArgs": ["--lease-duration=5s", "--gc-interval=4s"],
        "ipam.extraArgs": ["--lease-duration=5s"],
        "neutron.stateDirectory": f"/run/{STATE}",
        "neutron.bindingDirectory": "/run/kuryr",
    }
