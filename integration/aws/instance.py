"""An instance as its operating system has it: namespaces, the primary interface configured, all others left alone."""

from ipaddress import IPv4Address, IPv6Address
from pathlib import Path

from integration.aws.ec2_state import Interface, read_state
from integration.aws.strict_ec2 import StrictEc2
from integration.aws.vpc import GATEWAY6, Host, Vpc
from integration.cluster.network import Namespaces
from integration.cluster.workspace import Workspace


class Instance:
    """One that EC2 has launched. `start` switches it on, `stop` off; what is not on a disk is new after that."""

    def __init__(
        self,
        workspace: Workspace,
        vpc: Vpc,
        ec2: StrictEc2,
        *,
        instance: str,
        name: str,
        namespaces: Namespaces | None = None,
    ) -> None:
        """Switched on, in `namespaces` if they are there already."""
        self.id = instance
        self.name = name
        self.namespaces: Namespaces
        self._workspace = workspace
        self._vpc = vpc
        self._ec2 = ec2
        self._start_in(namespaces or Namespaces.hold(workspace, name))

    @property
    def interfaces(self) -> list[Interface]:
        """As EC2 has them now, by device number."""
        return read_state(self._ec2).attached_to(self.id)

    @property
    def primary_interface(self) -> Interface:
        """The one that it was launched with."""
        return read_state(self._ec2).primary_of(self.id)

    @property
    def primary(self) -> IPv4Address:
        """The primary address of the primary interface."""
        return self.primary_interface.addresses[0]

    @property
    def ipv6(self) -> IPv6Address:
        """The first IPv6 address of the primary interface."""
        return self.primary_interface.ipv6_addresses[0]

    @property
    def host(self) -> Host:
        """Its own namespace."""
        return Host(Path(self.namespaces.net))

    def start(self) -> None:
        """New namespaces, in which the interfaces appear; the first one as DHCP would have it."""
        self._start_in(Namespaces.hold(self._workspace, self.name))

    def wait_up(self, interface: Interface) -> None:
        """Return when nothing is lost any more that goes over the interface, which is up here."""
        self._vpc.wait_up(interface.id)

    def configure(self, interface: Interface) -> None:
        """Use another interface than the first one by its own address, as a machine does that is no node."""
        link, subnet, address = f"eth{interface.device}", interface.subnet.ipv4, str(interface.addresses[0])
        table = str(100 + interface.device)
        for command in (
            ("link", "set", link, "up"),
            ("address", "add", f"{address}/32", "dev", link),
            ("route", "add", str(subnet[1]), "dev", link, "table", table),
            ("route", "add", "default", "via", str(subnet[1]), "dev", link, "table", table),
            ("rule", "add", "from", address, "table", table),
        ):
            self.namespaces.run("ip", *command)
        self.wait_up(interface)

    def stop(self) -> None:
        """Nothing of it runs on. EC2 keeps the interfaces."""
        self._vpc.unplug(self.id)
        self.namespaces.holder.kill()
        self.namespaces.holder.wait()

    def _start_in(self, namespaces: Namespaces) -> None:
        self.namespaces = namespaces
        self.namespaces.run("ip", "link", "set", "lo", "up")
        # Strict everywhere, as several images have it: whatever shall be otherwise for pods is to be set for them.
        self.namespaces.set_sysctls(["net.ipv4.conf.all.rp_filter=1", "net.ipv4.conf.default.rp_filter=1"])
        self._vpc.plug(self.id, self.namespaces)
        primary = self.primary_interface
        subnet, link = primary.subnet.ipv4, f"eth{primary.device}"
        self.namespaces.run("ip", "address", "add", f"{self.primary}/{subnet.prefixlen}", "dev", link)
        self.namespaces.run("ip", "link", "set", link, "up")
        self.namespaces.run("ip", "route", "add", "default", "via", str(subnet[1]), "dev", link)
        for address in primary.ipv6_addresses:
            self.namespaces.run("ip", "address", "add", f"{address}/128", "dev", link, "nodad")
        # As the VPC's router advertises it.
        self.namespaces.run("ip", "-6", "route", "add", "default", "via", GATEWAY6, "dev", link)
        self.wait_up(primary)
