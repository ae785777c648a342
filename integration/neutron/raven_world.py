"""coil-raven as a process under its own service account, between a real API server and a real Neutron."""

import secrets
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from ipaddress import IPv4Address
from pathlib import Path
from typing import Any, Final

import yaml

from coil.crd.builtin import EVENTS, NAMESPACES, PODS, SERVICE_ACCOUNTS, SERVICES
from coil.crd.builtin import Service as KubeService
from coil.crd.endpoint_slice import ENDPOINT_SLICES, SERVICE_LABEL
from coil.crd.names import NEUTRON_FINALIZER
from coil.kube.client import KubeClient
from coil.neutron.handoff import ANNOTATION_PORT, Handoff, parse_handoff
from coil.neutron.identity import Kind
from integration.apiserver.ipam_world import until
from integration.apiserver.refusal_log import missing_rights
from integration.cluster.address import free_port
from integration.cluster.control_plane import ControlPlane
from integration.cluster.family import ClusterFamilies
from integration.deployment import ACCESS_KINDS, apply, ready_probe
from integration.helm.chart import Document, render
from integration.neutron.neutron_server import NeutronServer
from integration.neutron.octavia_server import OctaviaServer
from integration.patience import wait_until
from integration.service import Service

ACCOUNT: Final = "coil-raven"
LOCALHOST: Final = IPv4Address("127.0.0.1")
FLAGS: Final = ("--lease-duration=5s", "--gc-interval=4s", "--port-cooling=1s")
CLOUD: Final = "stage"
SUPERNETS: Final = "10.0.0.0/8,fd00:1::/48"
SERVICE_NETWORK: Final = str(ClusterFamilies.IPV4_FIRST.service_ranges[0])
"""The Service network of the control plane, as far as load balancers are made for it."""
SERVICE_FLAGS: Final = (f"--service-cidrs={SERVICE_NETWORK}", "--project=5e1f5a2c0d6b4b7e8d1c2a3b4c5d6e7f")
"""Load balancers for Services. Without authentication Octavia has to be told the project."""
PUBLIC: Final = "public"
"""The public network, where there is one."""
FAMILIES: Final = 2
_OF_NAMESPACES: Final = frozenset({Kind.SUBNET_IPV4, Kind.SUBNET_IPV6})


def raven_documents() -> list[Document]:
    """Its account, roles and admission policies, as the chart has them."""
    kinds = (*ACCESS_KINDS, "ValidatingAdmissionPolicy", "ValidatingAdmissionPolicyBinding")
    documents = render({"raven": {"enabled": True, "services": {"cidrs": [SERVICE_NETWORK]}}})
    return [each for each in documents if each["kind"] in kinds and each["metadata"]["name"].startswith(ACCOUNT)]


def clouds_file(folder: Path, neutron: NeutronServer, octavia: OctaviaServer | None = None) -> Path:
    """clouds.yaml for services without authentication."""
    path = folder / "clouds.yaml"
    cloud = {"auth_type": "none", "network_endpoint_override": neutron.endpoint}
    if octavia is not None:
        cloud["load_balancer_endpoint_override"] = octavia.endpoint
    path.write_text(yaml.safe_dump({"clouds": {CLOUD: cloud}}))
    return path


@dataclass(frozen=True, slots=True)
class RavenWorld:
    """`client` is the administrator's, `metrics` coil-raven's port for them, `page` its inspection page.

    Make one with `start`.
    """

    plane: ControlPlane
    client: KubeClient
    neutron: NeutronServer
    raven: Service
    prefix: str
    metrics: int
    page: str

    @classmethod
    @contextmanager
    def start(
        cls,
        plane: ControlPlane,
        client: KubeClient,
        neutron: NeutronServer,
        folder: Path,
        *flags: str,
        octavia: OctaviaServer | None = None,
        clouds: Path | None = None,
    ) -> Iterator["RavenWorld"]:
        """With coil-raven ready. It ends with the context; what it has made in Neutron stays.

        `clouds` is its clouds.yaml, if it is to authenticate itself.
        """
        apply(plane, *raven_documents())
        metrics = free_port(LOCALHOST, 9394)
        health = free_port(LOCALHOST, metrics + 1)
        inspect = free_port(LOCALHOST, health + 1)
        flags = (f"--inspect-addr=127.0.0.1:{inspect}", *flags)
        clouds = clouds or clouds_file(folder, neutron, octavia)
        command = raven_command(plane, clouds, ports=(metrics, health), flags=flags)
        prefix = f"raven-{secrets.token_hex(3)}"
        raven = Service(lambda: plane.workspace.spawn(prefix, command), ready=ready_probe(health))
        page = f"http://localhost:{inspect}/ip-manager"
        world = cls(plane, client, neutron, raven, prefix, metrics, page)
        try:
            raven.wait_ready()
            yield world
        finally:
            raven.process.stop(timeout=60.0)
        refused = missing_rights(raven.process.log)
        assert refused == [], "the role is too narrow"

    async def add_namespace(self, name: str) -> str:
        """Returns its full name. It has the account `default`, which no controller makes here."""
        full = f"{self.prefix}-{name}"
        await self.client.create(NAMESPACES, {"metadata": {"name": full}})
        await self.client.create(SERVICE_ACCOUNTS, {"metadata": {"name": "default"}}, namespace=full)
        return full

    async def add_pod(self, namespace: str, name: str, *, node: str, annotations: dict[str, str] | None = None) -> None:
        """An object without a kubelet, on that node."""
        body: dict[str, Any] = {
            "metadata": {"name": name, "annotations": annotations or {}},
            "spec": {
                "nodeName": node,
                "automountServiceAccountToken": False,
                "containers": [{"name": "main", "image": "none"}],
            },
        }
        await self.client.create(PODS, body, namespace=namespace)

    async def delete_pod(self, namespace: str, name: str) -> None:
        """At once, as there is no kubelet to wait for."""
        path = f"/api/v1/namespaces/{namespace}/pods/{name}?gracePeriodSeconds=0"
        status, _ = self.plane.request("DELETE", path)
        assert status == 200

    async def handoff(self, namespace: str, name: str) -> Handoff | None:
        """What the pod's node is told."""
        pod = await self.client.get(PODS, name, namespace=namespace)
        text = pod.metadata.annotations.get(ANNOTATION_PORT)
        return None if text is None else parse_handoff(text, pod_uid=pod.metadata.uid)

    async def wait_for_handoffs(self, pods: Sequence[tuple[str, str]]) -> None:
        """Return when the node of each pod has been told of its port. `pods` are namespaces and names."""
        for namespace, name in pods:
            await until(partial(self._is_handed_off, namespace, name), what=f"the port of {namespace}/{name}")

    async def add_service(self, namespace: str, name: str = "web", **spec: Any) -> KubeService:
        """Of one IP family and one port, unless `spec` says otherwise."""
        body = {
            "metadata": {"name": name},
            "spec": {"ports": [{"name": "http", "port": 80}], "ipFamilyPolicy": "SingleStack", **spec},
        }
        return await self.client.create(SERVICES, body, namespace=namespace)

    async def put_endpoints(self, namespace: str, addresses: Sequence[str], *, service: str = "web") -> None:
        """As the controller manager does it."""
        body: dict[str, Any] = {
            "metadata": {"name": service, "labels": {SERVICE_LABEL: service}},
            "addressType": "IPv4",
            "endpoints": [{"addresses": [address], "conditions": {"ready": True}} for address in addresses],
            "ports": [{"name": "http", "port": 8080, "protocol": "TCP"}],
        }
        present = await self.client.list(ENDPOINT_SLICES, namespace=namespace)
        if any(each.metadata.name == service for each in present):
            await self.client.replace(ENDPOINT_SLICES, body, name=service, namespace=namespace)
        else:
            await self.client.create(ENDPOINT_SLICES, body, namespace=namespace)

    async def ingress(self, namespace: str, name: str = "web") -> list[str]:
        """Where the Service is said to be reached."""
        service = await self.client.get(SERVICES, name, namespace=namespace)
        return [each.ip for each in service.status.load_balancer.ingress]

    async def is_told(self, namespace: str, reason: str) -> bool:
        """Whether there is an Event with that reason."""
        return any(event.reason == reason for event in await self.client.list(EVENTS, namespace=namespace))

    async def wait_for_networks(self) -> None:
        """Return when every namespace has its network, whole: the router has an interface on each of its subnets.

        Those that are being deleted have none: no controller manager runs that would end them.
        """
        namespaces = sum(not each.metadata.deleting for each in await self.client.list(NAMESPACES))
        wait_until(
            lambda: len(self.neutron.connected_subnets(_OF_NAMESPACES)) == FAMILIES * namespaces,
            what=f"the networks of {namespaces} namespaces",
        )

    async def is_released(self, namespace: str) -> bool:
        """Whether its Namespace does not wait for its network any more."""
        found = await self.client.get(NAMESPACES, namespace)
        return NEUTRON_FINALIZER not in found.metadata.finalizers

    async def _is_handed_off(self, namespace: str, name: str) -> bool:
        return await self.handoff(namespace, name) is not None

    def wait_idle(self) -> None:
        """Return when it leads and every namespace has a network, and it has looked for ports without a pod since."""
        looks = self._looks()
        wait_until(lambda: self._looks() > looks + 1, what="coil-raven has looked at everything")

    def _looks(self) -> int:
        entries = self.raven.process.entries()
        return sum(entry["event"] == "resync" and entry.get("controller") == "pod" for entry in entries)

    def wait_for(self, snapshot: dict[str, int], *, what: str) -> None:
        """Return when Neutron has as many of each kind as that."""
        wait_until(lambda: self.neutron.snapshot() == snapshot, what=what)


def raven_command(plane: ControlPlane, clouds: Path, *, ports: tuple[int, int], flags: Sequence[str] = ()) -> list[str]:
    """How coil-raven is started, as its service account; may be used again after its death.

    `ports` are those of its metrics and of its health.
    """
    metrics, health = ports
    addresses = (f"--metrics-addr=127.0.0.1:{metrics}", f"--health-addr=127.0.0.1:{health}")
    return [*(sys.executable, "-m", "coil_raven"), *common_flags(plane, clouds), *addresses, *flags]


def cleanup_command(plane: ControlPlane, clouds: Path, *flags: str) -> list[str]:
    """How everything of the cluster is removed from OpenStack, as coil-raven's service account."""
    return [*(sys.executable, "-m", "coil_raven", "cleanup"), *common_flags(plane, clouds), *flags]


def common_flags(plane: ControlPlane, clouds: Path) -> list[str]:
    """Where both find the API server and OpenStack, and what they have in common."""
    return [
        f"--kubeconfig={plane.kubeconfig_for(ACCOUNT)}",
        f"--clouds-file={clouds}",
        f"--cloud={CLOUD}",
        f"--supernets={SUPERNETS}",
        *FLAGS,
    ]
