"""The control plane of the stage: etcd, API server with the chart, and egress-controllers as their service account."""

from collections.abc import Iterator
from contextlib import contextmanager

from integration.cluster.control_plane import ControlPlane
from integration.cluster.family import ClusterFamilies
from integration.cluster.network import Network
from integration.cluster.workspace import Workspace
from integration.deployment import apply, apply_chart, apply_cluster_networks
from integration.eip.controllers import Controllers
from integration.eip.description import Description

NAMESPACES = ("shop", "bank")
KINDS = tuple(
    f"crd/{kind}.egressgateway.spidernet.io"
    for kind in ("egresstunnels", "egressgateways", "egressgatewaypolicies", "egressendpointslices")
)
AGENT_ACCOUNT = "coil-egress-node"


@contextmanager
def start_control_plane() -> Iterator[Description]:
    """Everything, ready. Ends with the context."""
    with start_with_controllers() as (description, _):
        yield description


@contextmanager
def start_with_controllers(
    families: ClusterFamilies = ClusterFamilies.IPV4_FIRST,
) -> Iterator[tuple[Description, Controllers]]:
    """The same for somebody who has something to do with the controllers, or with IP families."""
    with Workspace.create() as workspace:
        # The machine's end of its link is an address that nodes reach, in namespaces and in a guest.
        network = Network.create(workspace)
        address = families.pick(network.host4, network.host6)[0]
        plane = ControlPlane.start(workspace=workspace, address=address, families=families)
        apply_chart(plane)
        apply_cluster_networks(plane)
        plane.kubectl("wait", "--for=condition=Established", "--timeout=180s", *KINDS)
        for name in NAMESPACES:
            _make_namespace(plane, name)
        controllers = Controllers(plane)
        description = Description(
            address=str(plane.address),
            port=plane.port,
            authority=plane.credentials.authority.certificate,
            admin_certificate=plane.credentials.admin.certificate,
            admin_key=plane.credentials.admin.key,
            agent_kubeconfig=plane.kubeconfig_for(AGENT_ACCOUNT),
            families=families,
        )
        yield description, controllers


def _make_namespace(plane: ControlPlane, name: str) -> None:
    apply(plane, {"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": name, "labels": {"tenant": name}}})
    # No controller-manager makes it, and no pod is admitted without.
    account = {"kind": "ServiceAccount", "metadata": {"name": "default", "namespace": name}}
    apply(plane, {"apiVersion": "v1", **account})
