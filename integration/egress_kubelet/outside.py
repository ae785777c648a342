"""The control plane of the stage, at native speed, and the pods that it wants on the node."""

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from integration.cluster.control_plane import Controllers, ControlPlane
from integration.cluster.credentials import NodeCredentials
from integration.cluster.network import Network
from integration.cluster.node_config import CNI_BIN_DIR, CNI_CONF_DIR
from integration.cluster.pki import KeyPair
from integration.cluster.workspace import Workspace
from integration.demo.workload import namespace_document, pool_document
from integration.deployment import apply, apply_chart, grant_node_list
from integration.egress.description import Stage
from integration.egress.outside import start_egress_controller, start_ipam_controller
from integration.helm.chart import Document, render
from integration.image.build import IMAGE

NODE = "node-1"
POOL = {"blockSizeBits": 3, "subnets": [{"ipv4": "10.100.0.0/24", "ipv6": "fd10:100::/120"}]}
EGRESS_NAMESPACE = "internet"
CLIENT_NAMESPACE = "apps"

EMULATED = 10.0
"""How many times as long everything takes in the virtual machine, at most."""


@dataclass(frozen=True, slots=True, kw_only=True)
class KubeletStage(Stage):
    """And what the node joins the cluster with, and the archive of Coil's image."""

    kubelet_kubeconfig: Path
    proxy_kubeconfig: Path
    serving_key: Path
    serving_certificate: Path
    image: Path

    @property
    def node(self) -> NodeCredentials:
        return NodeCredentials(
            authority=self.authority,
            kubelet=self.kubelet_kubeconfig,
            serving=KeyPair(key=self.serving_key, certificate=self.serving_certificate),
            proxy=self.proxy_kubeconfig,
        )


@contextmanager
def start_outside(image: Path) -> Iterator[tuple[KubeletStage, Path]]:
    """Everything, ready; the description and the file that it was written to. Ends with the context."""
    with Workspace.create() as workspace:
        # The machine's end of its link is an address that the guest reaches as well as namespaces of this machine.
        network = Network.create(workspace)
        plane = ControlPlane.start(workspace=workspace, address=network.host4, controllers=Controllers.RUNNING)
        apply_chart(plane)
        grant_node_list(plane)
        start_ipam_controller(plane)
        start_egress_controller(plane, image=IMAGE)
        apply(plane, pool_document("default", POOL), *map(namespace_document, (EGRESS_NAMESPACE, CLIENT_NAMESPACE)))
        apply(plane, daemon_set())
        stage = _describe(plane, image)
        path = workspace.folder / "stage.json"
        stage.write(path)
        yield stage, path


def daemon_set() -> Document:
    """coild, as the chart has it."""
    repository, tag = IMAGE.rsplit(":", 1)
    values = {
        "image": {"repository": repository, "tag": tag, "pullPolicy": "Never"},
        "cni": {"binDir": str(CNI_BIN_DIR), "confDir": str(CNI_CONF_DIR)},
        "egress": {"loadKernelModules": False},
        "routeSync": {"enabled": True},
    }
    documents = (each for each in render(values) if each["kind"] == "DaemonSet")
    found = next(each for each in documents if each["metadata"]["name"] == "coild")
    # A daemon that starts slowly, as everything does there, is none that hangs.
    for container in found["spec"]["template"]["spec"]["containers"]:
        container["livenessProbe"]["failureThreshold"] *= int(EMULATED)
    return found


def _describe(plane: ControlPlane, image: Path) -> KubeletStage:
    # Nobody calls its kubelet: the API server has no way into the guest.
    node = plane.credentials.for_node(NODE)
    return KubeletStage(
        address=str(plane.address),
        port=plane.port,
        authority=node.authority,
        admin_certificate=plane.credentials.admin.certificate,
        admin_key=plane.credentials.admin.key,
        kubelet_kubeconfig=node.kubelet,
        proxy_kubeconfig=node.proxy,
        serving_key=node.serving.key,
        serving_certificate=node.serving.certificate,
        image=image,
    )
