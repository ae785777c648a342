"""Nodes in a VPC, a machine in the VPC that is not a node, everything outside, and a real API server.

    node-0, node-1, …: coild, pods       internet, on-premises
    endpoint: an AWS service's           EC2 (moto), metadata, API server: on this machine

By default, instances are of a type with few addresses, so that a handful of pods takes several interfaces.
"""

from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from http import HTTPStatus
from itertools import islice, repeat
from typing import Final
from urllib.parse import urlsplit

from integration.aws import administrator
from integration.aws.instance import Instance
from integration.aws.metadata_service import MetadataService
from integration.aws.node import EniNode
from integration.aws.strict_ec2 import StrictEc2
from integration.aws.vpc import METADATA, Vpc
from integration.cluster.control_plane import ControlPlane
from integration.cluster.network import Network
from integration.cluster.process import complete_lines
from integration.cluster.workspace import Workspace
from integration.deployment import apply_eni_access

TYPE: Final = "t3.small"
"""Three interfaces with four addresses each, so three pods of each."""
PODS_OF_INTERFACE: Final = 3
SUBNETS: Final = ("10.1.0.0/24", "10.1.1.0/24")
ON_PREMISES: Final = "192.168.50.0/24"
FLAGS: Final = ("--cooling=1s", "--eni-describe-lag=1s")
"""EC2 here describes what is so, unless a test has it lag."""
_LOG_LINES: Final = 60


@dataclass(frozen=True, slots=True)
class EniWorld:
    """Make it with `up`; coild is the tests' to start."""

    workspace: Workspace
    plane: ControlPlane
    ec2: StrictEc2
    vpc: Vpc
    metadata: MetadataService
    nodes: list[EniNode]
    endpoint: Instance

    @classmethod
    @contextmanager
    def up(
        cls,
        plane: ControlPlane,
        *,
        ipv6: bool = False,
        nodes: int = 2,
        instance_type: str = TYPE,
        subnets: Sequence[str] = SUBNETS,
        primary_device: int = 0,
    ) -> Iterator["EniWorld"]:
        """Ends with the context, however that ends. With `ipv6`, subnets and instances have such addresses, too.

        The nodes are in the subnets by turns, `endpoint` is in the last one.
        """
        with ExitStack() as stack:
            apply_eni_access(plane)
            workspace = stack.enter_context(Workspace.create())
            network = Network.create(workspace)
            ec2 = stack.enter_context(StrictEc2.start(address=str(network.host4)))
            administrator.open_vpc(ec2, on_premises=ON_PREMISES)
            vpc = stack.enter_context(Vpc.up(workspace, network, ec2))
            metadata = MetadataService(ec2, netns=vpc.router.net, address=str(METADATA), port=80)
            stack.enter_context(metadata)
            count = len(subnets)
            free = administrator.open_ipv6(ec2).subnets(new_prefix=64) if ipv6 else repeat(None)
            blocks = list(islice(free, count))
            made = [ec2.subnet(cidr, ipv6=str(block or "")) for cidr, block in zip(subnets, blocks, strict=True)]

            def launch(name: str, index: int) -> Instance:
                launched = administrator.launch(
                    ec2, instance_type, made[index], ipv6=blocks[index], device=primary_device
                )
                return Instance(workspace, vpc, ec2, instance=launched, name=name)

            running = []
            for index in range(nodes):
                node = EniNode(workspace, plane, ec2, launch(f"node-{index}", index % count))
                stack.callback(node.destroy_sandboxes)
                running.append(node)
            endpoint = launch("endpoint", count - 1)
            yield cls(workspace, plane, ec2, vpc, metadata, running, endpoint)

    def isolate(self, *, silently: bool) -> None:
        """EC2, the metadata service and the API server do not answer any more; unless silently, nodes are told so."""
        self.cut_ec2(silently=silently)
        self.vpc.cut((str(self.plane.address), self.plane.port), silently=silently)
        if silently:
            self.metadata.speaks.clear()
        else:
            self.metadata.status = HTTPStatus.SERVICE_UNAVAILABLE

    def cut_ec2(self, *, silently: bool) -> None:
        """Only EC2 does not answer any more."""
        ec2 = urlsplit(self.ec2.endpoint)
        self.vpc.cut((str(ec2.hostname), ec2.port or 80), silently=silently)

    def rejoin(self) -> None:
        """The end of `isolate` and `cut_ec2`. Idempotent."""
        self.vpc.mend()
        self.metadata.status = 0
        self.metadata.speaks.set()

    def logs(self) -> Iterator[tuple[str, str]]:
        """Name and last lines of what each coild has logged, and what EC2 was asked."""
        for log in sorted((self.workspace.folder / "logs").glob("coild-*.log")):
            yield log.stem, "\n".join(complete_lines(log)[-_LOG_LINES:])
        yield "EC2", " ".join(f"{call.action} {call.error}".strip() for call in self.ec2.calls[-_LOG_LINES:])

    def spoofed(self) -> list[str]:
        """Every flow that an interface had no right to send: what a node with wrong rules does."""
        return [str(record) for record in self.vpc.flows() if record.action == "spoofed"]
