"""The control plane of the stage: etcd, API server with the chart, and one egress-controller as its service account."""

from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial
from ipaddress import IPv4Address

from integration.cluster.address import free_port
from integration.cluster.control_plane import ControlPlane
from integration.cluster.network import Network
from integration.cluster.workspace import Workspace
from integration.deployment import apply, apply_chart, egress_controller_command, egress_controller_probe
from integration.eip.description import Description
from integration.service import Service

NAMESPACES = ("shop", "bank")
KINDS = tuple(
    f"crd/{kind}.egressgateway.spidernet.io"
    for kind in ("egresstunnels", "egressgateways", "egressgatewaypolicies", "egressendpointslices")
)
AGENT_ACCOUNT = "coil-egress-node"
_FLAGS = ("--lease-duration=5s", "--cert-check-interval=500ms")
_LOCALHOST = IPv4Address("127.0.0.1")


@contextmanager
def start_control_plane() -> Iterator[Description]:
    """Everything, ready. Ends with the context."""
    with Workspace.create() as workspace:
        # The machine's end of its link is an address that nodes reach, in namespaces and in a guest.
        network = Network.create(workspace)
        plane = ControlPlane.start(workspace=workspace, address=network.gateway4)
        apply_chart(plane)
        plane.kubectl("wait", "--for=condition=Established", "--timeout=30s", *KINDS)
        for name in NAMESPACES:
            _make_namespace(plane, name)
        _start_controller(plane)
        yield Description(
            address=str(plane.address),
            port=plane.port,
            authority=plane.credentials.authority.certificate,
            admin_certificate=plane.credentials.admin.certificate,
            admin_key=plane.credentials.admin.key,
            agent_kubeconfig=plane.kubeconfig_for(AGENT_ACCOUNT),
        )


def _make_namespace(plane: ControlPlane, name: str) -> None:
    apply(plane, {"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": name, "labels": {"tenant": name}}})
    # No controller-manager makes it, and no pod is admitted without.
    account = {"kind": "ServiceAccount", "metadata": {"name": "default", "namespace": name}}
    apply(plane, {"apiVersion": "v1", **account})


def _start_controller(plane: ControlPlane) -> None:
    metrics = free_port(_LOCALHOST, 19396)
    health = free_port(_LOCALHOST, metrics + 1)
    command = egress_controller_command(plane, ports=(metrics, health), image="coil", flags=_FLAGS)
    spawn = partial(plane.workspace.spawn, "coil-egress-controller", command)
    Service(spawn, ready=egress_controller_probe(plane, health=health)).wait_ready()
