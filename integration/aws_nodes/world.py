"""A real cluster in a VPC: two instances with kubelet, containerd and kube-proxy, and Coil on them as Helm installs it.

    node-1, node-2: Kubernetes, Coil     internet, on-premises
    endpoint: an AWS service's           control plane, EC2: outside the VPC, on this machine

A node has no link but its interfaces: by the primary one it reaches the API server and EC2, both behind the VPC's
router, and the API server reaches kubelets, webhooks and pods by that router, from an address that the security group
lets in. Nobody announces routes to pods: that their addresses are delivered is EC2's doing. Instances are of a type
with few addresses, so that a handful of pods takes several interfaces.
"""

import json
from collections.abc import Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, replace
from ipaddress import IPv6Network
from itertools import islice
from typing import Any, Final
from urllib.parse import urlsplit

from coil.kernel.family import IPAddress
from integration.aws import administrator
from integration.aws.ec2_state import Interface
from integration.aws.instance import Instance
from integration.aws.metadata_service import MetadataService
from integration.aws.strict_ec2 import StrictEc2
from integration.aws.vpc import METADATA, Vpc
from integration.aws_nodes.instance_network import InstanceNetwork
from integration.aws_nodes.node_pod import NodePod
from integration.cluster.cluster import CONTROL_PLANE, Cluster
from integration.cluster.command_line import Version
from integration.cluster.control_plane import Controllers, ControlPlane
from integration.cluster.family import ClusterFamilies
from integration.cluster.image import busybox_images, write_archive
from integration.cluster.network import Namespaces, Network
from integration.cluster.node import Node, Software
from integration.cluster.programs import CLUSTER, NODE, Program, locate
from integration.cluster.requirement import check_requirements
from integration.cluster.workspace import Workspace
from integration.helm.release import Release, import_image
from integration.image.build import build_image
from integration.kernel_state import KernelState
from integration.nodes.program_pods import ProgramPods

TYPE: Final = "t3.small"
"""Three interfaces with four addresses each, so nine pods."""
PODS_OF_NODE: Final = 9
VPC_CIDR: Final = "10.1.0.0/16"
SUBNETS: Final = ("10.1.0.0/24", "10.1.1.0/24")
NAME: Final = "blue"
"""The cluster's, in the tags of its interfaces."""
COOLING_SECONDS: Final = 1
STATE: Final = "coil-state"
"""Where the journal is, below what each node has for itself."""
_LOG_LINES: Final = 60


@dataclass(frozen=True, slots=True)
class AwsNodes:
    """Make it with `up`; the release is the tests' to install."""

    cluster: Cluster
    release: Release
    ec2: StrictEc2
    vpc: Vpc
    metadata: MetadataService
    instances: dict[str, Instance]
    """By their nodes' names."""
    endpoint: Instance

    @classmethod
    @contextmanager
    def up(cls, *, ipv6: bool = False) -> Iterator["AwsNodes"]:
        """The nodes are registered and have the image. Ends with the context, however that ends.

        With `ipv6`, subnets, nodes and Services have such addresses, too.
        """
        check_requirements()
        families = ClusterFamilies.IPV4_FIRST if ipv6 else ClusterFamilies.IPV4_ONLY
        programs = locate(CLUSTER)
        image = build_image()
        with ExitStack() as stack:
            workspace = stack.enter_context(Workspace.create())
            network = Network.create(workspace, families)
            ec2 = stack.enter_context(StrictEc2.start(address=str(network.host4)))
            administrator.open_vpc(ec2)
            vpc = stack.enter_context(Vpc.up(workspace, network, ec2))
            metadata = MetadataService(ec2, netns=vpc.router.net, address=str(METADATA), port=80)
            stack.enter_context(metadata)
            blocks = _blocks(ec2) if ipv6 else [None for _ in SUBNETS]
            subnets = [ec2.subnet(cidr, ipv6=str(block or "")) for cidr, block in zip(SUBNETS, blocks, strict=True)]
            launched = [
                administrator.launch(ec2, TYPE, subnet, ipv6=block)
                for subnet, block in zip(subnets, blocks, strict=True)
            ]
            instances = InstanceNetwork(workspace, vpc, ec2, instances=launched, families=families)
            software = Software(
                programs={program: programs[program] for program in NODE},
                version=Version.of(programs[Program.KUBELET]),
                containerd=Version.of(programs[Program.CONTAINERD]),
                images=write_archive(workspace.folder / "images.tar", busybox_images()),
            )
            members = [
                Node(workspace, instances, software, name=f"node-{number}", index=number - 1)
                for number in range(1, len(launched) + 1)
            ]
            seat = _seat(workspace, network, ec2)
            with ThreadPoolExecutor(max_workers=len(members)) as pool:
                starts = [pool.submit(node.start, others=[]) for node in members]
                plane = ControlPlane.start(
                    controllers=Controllers.RUNNING,
                    workspace=workspace,
                    address=network.control_plane[0],
                    namespaces=seat,
                    families=families,
                )
                for node, start in zip(members, starts, strict=True):
                    start.result()
                    _join(plane, node)
            cluster = Cluster(workspace, network, plane, members)
            cluster.wait_registered()
            import_image(cluster, image)
            other = administrator.launch(ec2, TYPE, subnets[1], ipv6=blocks[1])
            endpoint = Instance(workspace, vpc, ec2, instance=other, name="endpoint")
            release = Release(plane, _values(ec2), profiles=["aws-eni"])
            yield cls(cluster, release, ec2, vpc, metadata, instances.started, endpoint)

    def with_values(self, values: Mapping[str, object]) -> "AwsNodes":
        """The same nodes, with a release that has these values in addition; they win."""
        return replace(self, release=replace(self.release, values={**self.release.values, **values}))

    def install(self) -> None:
        """Install the release, and return when all nodes are Ready. The programs' logs are noted in an error."""
        self.programs.install(self.logs)

    @property
    def plane(self) -> ControlPlane:
        return self.cluster.plane

    @property
    def nodes(self) -> list[Node]:
        return self.cluster.nodes

    @property
    def programs(self) -> ProgramPods:
        return ProgramPods(self.cluster, self.release)

    def kernel(self, node: Node) -> KernelState:
        """What the node's kernel holds."""
        return KernelState(str(node.netns))

    def read(self, *arguments: str) -> dict[str, Any]:
        """What `kubectl get` prints as JSON."""
        document: dict[str, Any] = json.loads(self.plane.kubectl("get", *arguments, "--output=json"))
        return document

    def pods(self, namespace: str) -> list[NodePod]:
        """The namespace's pods that run, by node and name."""
        found = []
        for document in self.read("pods", f"--namespace={namespace}")["items"]:
            [node] = [node for node in self.nodes if node.name == document["spec"]["nodeName"]]
            found.append(NodePod(document=document, node=node, instance=self.instances[node.name]))
        return sorted(found, key=lambda pod: (pod.node.name, pod.name))

    def interfaces(self) -> list[Interface]:
        """Of all nodes, as EC2 has them now."""
        return [each for instance in self.instances.values() for each in instance.interfaces]

    def assignable(self) -> set[IPAddress]:
        """Every address that a pod can have, as EC2 has it now: all but each interface's own."""
        return {address for interface in self.interfaces() for address in interface.addresses[1:]}

    @contextmanager
    def ec2_away(self) -> Iterator[None]:
        """During the block nobody in the VPC reaches EC2."""
        self.vpc.cut(self._ec2_server)
        try:
            yield
        finally:
            self.vpc.mend(self._ec2_server)

    @contextmanager
    def metadata_away(self) -> Iterator[None]:
        """During the block the metadata service is silent."""
        self.metadata.speaks.clear()
        try:
            yield
        finally:
            self.metadata.speaks.set()

    @contextmanager
    def api_server_away(self) -> Iterator[None]:
        """During the block nobody in the VPC reaches the API server."""
        server = (str(self.plane.address), self.plane.port)
        self.vpc.cut(server)
        try:
            yield
        finally:
            self.vpc.mend(server)

    def reboot(self, node: Node) -> None:
        """Restart it as after a power failure: nobody was told, and only what is on a disk is left.

        Returns when the kubelet has been started again, and waits for nothing that this does.
        """
        self.vpc.unplug(self.instances[node.name].id)
        node.power_off(keep=[STATE])
        node.start(others=[])
        _join(self.plane, node)

    @property
    def _ec2_server(self) -> tuple[str, int]:
        server = urlsplit(self.ec2.endpoint)
        return str(server.hostname), int(server.port or 0)

    def logs(self) -> Iterator[tuple[str, str]]:
        """Name and last lines of what each program of the release has logged, and what EC2 was asked."""
        yield from self.programs.logs("coild", "ipam-controller")
        yield "EC2", "\n".join(map(str, self.ec2.calls[-_LOG_LINES:]))

    def spoofed(self) -> list[str]:
        """Every flow that an interface had no right to send: what a node with wrong rules does."""
        return [str(record) for record in self.vpc.flows() if record.action == "spoofed"]


def _blocks(ec2: StrictEc2) -> list[IPv6Network]:
    """A block of the VPC's for each of the subnets."""
    return list(islice(administrator.open_ipv6(ec2).subnets(new_prefix=64), len(SUBNETS)))


def _join(plane: ControlPlane, node: Node) -> None:
    node.join(plane.credentials.for_node(node.name, (node.ipv4, node.ipv6)))


def _seat(workspace: Workspace, network: Network, ec2: StrictEc2) -> Namespaces:
    """Where the control plane is: its way into the VPC is the router, and the VPC's default group lets it in."""
    address = network.control_plane[0]
    seat = Namespaces.hold(workspace, CONTROL_PLANE)
    network.attach(seat, port=CONTROL_PLANE, addresses=network.control_plane)
    seat.run("ip", "route", "add", VPC_CIDR, "via", str(network.node_addresses(0)[0]))
    administrator.allow(ec2, administrator.default_group(ec2), network=f"{address}/32")
    return seat


def _values(ec2: StrictEc2) -> dict[str, object]:
    return {
        "aws.clusterName": NAME,
        "aws.ec2Endpoint": ec2.endpoint,
        "aws.stateDirectory": f"/run/{STATE}",
        "coild.cooling": f"{COOLING_SECONDS}s",
        "ipam.extraArgs": ["--lease-duration=5s"],
    }
