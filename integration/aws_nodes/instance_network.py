"""The VPC as the network of a cluster's nodes: each node is an instance, with the VPC as its only way to anywhere."""

from collections.abc import Sequence
from ipaddress import IPv4Address, IPv6Address

from integration.aws.ec2_state import Interface, read_state
from integration.aws.instance import Instance
from integration.aws.strict_ec2 import StrictEc2
from integration.aws.vpc import Vpc
from integration.cluster.family import ClusterFamilies
from integration.cluster.network import Namespaces
from integration.cluster.workspace import Workspace

_NO_ADDRESS = IPv6Address("::")


class InstanceNetwork:
    """A NodeNetwork. Node number i is the i-th of the instances that EC2 has launched."""

    def __init__(
        self, workspace: Workspace, vpc: Vpc, ec2: StrictEc2, *, instances: Sequence[str], families: ClusterFamilies
    ) -> None:
        self.families = families
        self.started: dict[str, Instance] = {}
        """Those that are attached, by their nodes' names."""
        self._workspace = workspace
        self._vpc = vpc
        self._ec2 = ec2
        self._instances = list(instances)

    def node_addresses(self, index: int) -> tuple[IPv4Address, IPv6Address]:
        """The primary interface's primary address, and its first IPv6 address; `::` if it has none."""
        interface = self._interface(self._instances[index])
        return interface.addresses[0], next(iter(interface.ipv6_addresses), _NO_ADDRESS)

    def attach(self, namespaces: Namespaces, *, port: str, addresses: tuple[IPv4Address, IPv6Address]) -> None:
        """Switch the instance on that has the addresses, in these namespaces."""
        instance = next(each for each in self._instances if self._interface(each).addresses[0] == addresses[0])
        # As machine images for nodes of Kubernetes have it.
        namespaces.set_sysctls(["net.ipv4.ip_forward=1"])
        self.started[port] = Instance(
            self._workspace, self._vpc, self._ec2, instance=instance, name=port, namespaces=namespaces
        )

    def _interface(self, instance: str) -> Interface:
        """The primary one."""
        return read_state(self._ec2).attached_to(instance)[0]
