"""The control plane of the stage, at native speed: what a cluster's own machines do, beside the nodes under test.

Of Kubernetes' controllers those run that egress NAT rests on; pods are bound to nodes by the tests' kubelet. Coil's two
controllers run under their own service accounts, and the API server asks their webhooks.
"""

from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial
from ipaddress import IPv4Address
from pathlib import Path

from integration.cluster.address import free_port
from integration.cluster.command_line import Version, controller_manager_command
from integration.cluster.control_plane import ControlPlane
from integration.cluster.family import ClusterFamilies
from integration.cluster.network import Network
from integration.cluster.programs import Program, locate
from integration.cluster.workspace import Workspace
from integration.deployment import (
    apply,
    apply_chart,
    controller_probe,
    egress_controller_command,
    grant_node_list,
    ipam_controller_command,
    ready_probe,
)
from integration.egress.description import Description
from integration.service import Service

CONTROLLERS = (
    *("deployment", "replicaset", "disruption", "endpoint", "endpointslice"),
    *("serviceaccount", "serviceaccount-token", "namespace", "garbagecollector"),
)
POOL = {"ipv4": "10.100.0.0/24", "ipv6": "fd10:100::/120"}
BLOCK_BITS = 3
EGRESS_NAMESPACE = "internet"
CLIENT_NAMESPACE = "apps"
SINGLE_NAMESPACE = "single"
"""Its pool has one address of each family: the next pod has that of the last one."""
SINGLE_POOL = {"ipv4": "10.101.0.1/32", "ipv6": "fd10:101::1/128"}
_FIELDS = {4: "ipv4", 6: "ipv6"}
"""Of a pool's subnet, by IP version."""
NAMESPACES = {EGRESS_NAMESPACE: "default", CLIENT_NAMESPACE: "default", SINGLE_NAMESPACE: "single"}
"""And the pool of each."""
_LOCALHOST = IPv4Address("127.0.0.1")


@contextmanager
def start_outside() -> Iterator[tuple[Description, Path]]:
    """Everything, ready; the description and the file that it was written to. Ends with the context."""
    with Workspace.create() as workspace:
        families = ClusterFamilies.choose()
        # The machine's end of its link is an address that the guest reaches as well as namespaces of this machine.
        network = Network.create(workspace, families)
        address = families.pick(network.host4, network.host6)[0]
        plane = ControlPlane.start(workspace=workspace, address=address, families=families)
        _start_controller_manager(plane)
        apply_chart(plane)
        grant_node_list(plane)
        start_ipam_controller(plane)
        start_egress_controller(plane)
        _fill(plane)
        description = _describe(plane)
        path = workspace.folder / "stage.json"
        description.write(path)
        yield description, path


def start_ipam_controller(plane: ControlPlane) -> Service:
    """coil-ipam-controller, ready."""
    metrics, health = _two_ports(19386)
    command = ipam_controller_command(plane, ports=(metrics, health))
    spawn = partial(plane.workspace.spawn, "coil-ipam-controller", command)
    service = Service(spawn, ready=controller_probe(plane, health=health))
    service.wait_ready()
    return service


def start_egress_controller(plane: ControlPlane, *, image: str = "coil") -> Service:
    """coil-egress-controller, ready; `image` is what its router pods run."""
    metrics, health = _two_ports(19396)
    command = egress_controller_command(plane, ports=(metrics, health), image=image)
    spawn = partial(plane.workspace.spawn, "coil-egress-controller", command)
    service = Service(spawn, ready=ready_probe(health))
    service.wait_ready()
    return service


def _start_controller_manager(plane: ControlPlane) -> None:
    program = locate([Program.CONTROLLER_MANAGER])[Program.CONTROLLER_MANAGER]
    port = free_port(plane.address, 10257)
    command = controller_manager_command(
        program, Version.of(program), plane.credentials, address=plane.address, port=port
    )
    plane.workspace.spawn(Program.CONTROLLER_MANAGER, [*command, f"--controllers={','.join(CONTROLLERS)}"])


def _fill(plane: ControlPlane) -> None:
    """Pools and namespaces."""
    fields = [_FIELDS[version] for version in plane.families.value]
    for name, subnets, bits in (("default", POOL, BLOCK_BITS), ("single", SINGLE_POOL, 0)):
        subnet = {field: subnets[field] for field in fields}
        spec = {"blockSizeBits": bits, "subnets": [subnet]}
        pool = {"kind": "AddressPool", "metadata": {"name": name}, "spec": spec}
        apply(plane, {"apiVersion": "coil.cybozu.com/v2", **pool})
    for name, source in NAMESPACES.items():
        metadata = {"name": name, "annotations": {"coil.cybozu.com/pool": source}}
        apply(plane, {"apiVersion": "v1", "kind": "Namespace", "metadata": metadata})


def _describe(plane: ControlPlane) -> Description:
    proxy = locate([Program.PROXY])[Program.PROXY]
    credentials = plane.credentials
    return Description(
        address=str(plane.address),
        port=plane.port,
        authority=credentials.authority.certificate,
        admin_certificate=credentials.admin.certificate,
        admin_key=credentials.admin.key,
        coild_kubeconfig=plane.kubeconfig_for("coild"),
        proxy_kubeconfig=credentials.kubeconfig("system:kube-proxy"),
        proxy=proxy,
        proxy_version=str(Version.of(proxy)),
        families=plane.families,
    )


def _two_ports(preferred: int) -> tuple[int, int]:
    first = free_port(_LOCALHOST, preferred)
    return first, free_port(_LOCALHOST, first + 1)
