"""A pod that a kubelet has started on an instance: who it is to Kubernetes, to EC2, and in the network."""

from dataclasses import dataclass
from ipaddress import ip_address
from pathlib import Path
from typing import Any

from coil.kernel.family import IPAddress
from integration.aws.ec2_state import Interface
from integration.aws.instance import Instance
from integration.aws.vpc import Host
from integration.cluster.node import Node
from integration.demo.inventory import PodRow


@dataclass(frozen=True, slots=True, kw_only=True)
class NodePod:
    """A pod of one container, which runs. `document` is the object as it was read."""

    document: dict[str, Any]
    node: Node
    instance: Instance

    @property
    def name(self) -> str:
        return str(self.document["metadata"]["name"])

    @property
    def namespace(self) -> str:
        return str(self.document["metadata"]["namespace"])

    @property
    def address(self) -> IPAddress:
        [entry] = self.document["status"]["podIPs"]
        return ip_address(entry["ip"])

    @property
    def interface(self) -> Interface:
        """The one of its node that has its address, as EC2 has it now. Raises LookupError."""
        for each in self.instance.interfaces:
            if self.address in each.addresses[1:] or any(self.address in prefix for prefix in each.prefixes):
                return each
        raise LookupError(f"no interface of {self.node.name} has {self.address}, the address of {self.name}")

    @property
    def device(self) -> int:
        return self.interface.device

    @property
    def host(self) -> Host:
        """Its network namespace. Raises NodeCommandError or LookupError."""
        [status] = self.document["status"]["containerStatuses"]
        pid = self.node.container_pid(status["containerID"].partition("//")[2])
        return Host(Path(f"/proc/{pid}/ns/net"))

    @property
    def row(self) -> PodRow:
        address = str(self.address)
        ipv4, ipv6 = (address, "") if self.address.version == 4 else ("", address)
        return PodRow(self.namespace, self.name, self.node.name, ipv4, ipv6, block="", pool="")
