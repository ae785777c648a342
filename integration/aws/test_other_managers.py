"""Nodes on which other programs manage links and routing, too: what they flush is put back, what catches packets of
pods is named in the Node, and with the files of docs/node-network they leave coild's links alone.
"""

import re
import subprocess
from collections.abc import Iterator
from functools import partial
from pathlib import Path
from typing import Final

import pytest

from coil.crd.node_condition import TRAFFIC_DIVERTED
from coild.eni.node_condition import FOREIGN_ROUTING
from integration.aws.networkd import Networkd
from integration.aws.node import EniNode, EniPod
from integration.aws.talk import ask, is_silent
from integration.aws.vpc_plan import INTERNET as INTERNET_LINK
from integration.aws.vpc_plan import OUTSIDE
from integration.aws.world import FLAGS, EniWorld
from integration.cluster.control_plane import ControlPlane
from integration.docs.page import DOCS
from integration.patience import wait_until

pytestmark = pytest.mark.apiserver

FILES: Final = DOCS / "node-network" / "etc"
NETWORK: Final = "systemd/network/05-coil.network"
OTHERS: Final = {
    # As the image of a distribution has it for all interfaces; the address is in the place of a DHCP server's.
    "network/80-ec2.network": """
[Match]
Name=eth1 eth2 other
[Network]
ConfigureWithoutCarrier=yes
LinkLocalAddressing=no
Address=192.0.2.9/24
"""
}
ADDRESS: Final = "192.0.2.9"
OTHER: Final = "other"
"""A link that is not of an interface."""
PRIMARY: Final = "eth0"
RULE_OF_ADDRESS: Final = 1536
INTERNET: Final = str(OUTSIDE[INTERNET_LINK])


@pytest.fixture
def world(plane: ControlPlane) -> Iterator[EniWorld]:
    with EniWorld.up(plane, nodes=1) as world:
        yield world


@pytest.fixture
def node(world: EniWorld) -> EniNode:
    return world.nodes[0]


def shipped() -> dict[str, str]:
    """The files for systemd-networkd, for a node whose links are veths and whose primary interface is eth0."""
    folder = FILES / "systemd"
    paths = [folder / "networkd.conf.d" / "90-coil.conf", FILES / NETWORK]
    wanted = {str(path.relative_to(folder)): path.read_text() for path in paths}
    name = NETWORK.removeprefix("systemd/")
    found = wanted[name].replace("Driver=ena ixgbevf vif\n", "Driver=veth\n").replace("!ens5\n", f"!{PRIMARY}\n")
    assert found.count("veth") == found.count(PRIMARY) == 1
    return {**wanted, name: found}


def rules(node: EniNode) -> list[str]:
    """Those for single addresses."""
    return sorted(each["src"] for each in node.kernel.ip("rule") if each["priority"] == RULE_OF_ADDRESS)


def addresses(node: EniNode, *links: str) -> list[str]:
    found = [each for link in links for each in node.kernel.ip("address", "show", "dev", link)]
    return [str(address["local"]) for each in found for address in each["addr_info"]]


def check_traffic(world: EniWorld, *pods: EniPod) -> None:
    """Each is seen as itself in the VPC and as its node outside."""
    for pod in pods:
        assert ask(pod.host, world.endpoint.host, world.endpoint.primary) == str(pod.address)
        assert ask(pod.host, world.vpc.internet, INTERNET) == str(pod.node.instance.primary)


def test_what_networkd_flushes_when_a_link_appears_is_put_back(world: EniWorld, node: EniNode) -> None:
    """It configures each link that appears, and then deletes all rules that are not its own."""
    with (
        node.running_coild(*FLAGS),
        Networkd.up(world.workspace, node.instance, OTHERS) as networkd,
    ):
        pods = node.pods_on(0, 1, 2)
        for link in ("eth1", "eth2"):
            networkd.wait_link(link, "configured")
        assert networkd.removals > 0, "it has deleted nothing: this is no example"
        wanted = sorted(str(pod.address) for pod in pods if pod.link != PRIMARY)
        wanted += [str(each.addresses[0]) for each in node.instance.interfaces[1:]]
        wait_until(lambda: rules(node) == sorted(wanted), what="the rules are back")
        check_traffic(world, *pods[:3])
        assert addresses(node, "eth1", "eth2").count(ADDRESS) == 2
    assert world.spoofed() == []


def test_with_the_files_networkd_leaves_rules_and_links_alone(world: EniWorld, node: EniNode) -> None:
    with (
        node.running_coild(*FLAGS),
        Networkd.up(world.workspace, node.instance, OTHERS | shipped()) as networkd,
    ):
        pods = node.pods_on(0, 1, 2)
        for link in ("eth1", "eth2"):
            networkd.wait_link(link, "unmanaged")
        before = rules(node), node.kernel.routes("10001")
        node.kernel.run("ip", "link", "add", OTHER, "type", "bridge")
        networkd.wait_link(OTHER, "configured")
        assert ADDRESS in addresses(node, OTHER)
        assert (rules(node), node.kernel.routes("10001")) == before
        check_traffic(world, *pods[:3])
        assert networkd.removals == 0
        assert ADDRESS not in addresses(node, "eth1", "eth2")
    assert world.spoofed() == []


@pytest.mark.slow
def test_the_node_names_what_catches_its_pods_packets(world: EniWorld, node: EniNode) -> None:
    """A second default route, as a DHCP client makes it for a new interface, and a rule for a pod's address."""

    def says(*words: str) -> bool:
        found = node.conditions().get(TRAFFIC_DIVERTED, {})
        return found.get("status") == ("True" if words else "False") and all(word in found["message"] for word in words)

    gateway = str(node.instance.primary_interface.subnet.ipv4[1])
    default = ("default", "via", gateway, "dev")
    with node.running_coild(*FLAGS):
        pod, other = node.pods_on(0, 1)[:2]
        wait_until(says, what="all is well")
        check_traffic(world, pod, other)
        # A metric as a DHCP client gives it, behind which the second interface's is.
        node.kernel.run("ip", "route", "add", *default, PRIMARY, "metric", "512")
        node.kernel.run("ip", "route", "delete", *default, PRIMARY, "metric", "0")
        assert says()
        for add, delete, words, silent in (
            (
                ("route", "add", *default, "eth1", "onlink", "metric", "100"),
                ("route", "delete", *default, "eth1", "metric", "100"),
                ("route 0.0.0.0/0", "dev eth1", f"what pods of {PRIMARY} send"),
                pod,
            ),
            (
                ("rule", "add", "from", str(other.address), "priority", "100", "prohibit"),
                ("rule", "delete", "priority", "100"),
                (f"rule 100 from {other.address}/32 prohibit", "what pods of eth1 send"),
                other,
            ),
        ):
            node.kernel.run("ip", *add)
            wait_until(partial(says, *words), what=f"the Node names {' '.join(add)}")
            assert node.conditions()[TRAFFIC_DIVERTED]["reason"] == FOREIGN_ROUTING
            assert is_silent(silent.host, world.endpoint.host, world.endpoint.primary)
            node.kernel.run("ip", *delete)
            wait_until(says, what="the Node has nothing to say any more")
            check_traffic(world, pod, other)


@pytest.mark.parametrize("unit", ["policy-routes@eth1.service", "refresh-policy-routes@eth1.service"])
def test_with_the_files_the_units_of_ec2_net_utils_are_skipped(unit: str, tmp_path: Path) -> None:
    """As systemd reads them: a unit of that name, with the file, has a condition that does not hold."""
    [condition] = [line for line in dropin(unit.replace("@eth1", "@")).splitlines() if line.startswith("Condition")]
    judged = subprocess.run(["systemd-analyze", "condition", condition], capture_output=True, text=True, check=False)
    assert (judged.returncode, "Conditions failed" in judged.stdout + judged.stderr) == (1, True)
    assert verify(unit, tmp_path) == ""


def test_the_file_for_nm_cloud_setup_comes_after_the_images_and_is_read(tmp_path: Path) -> None:
    """Of two settings of a variable, systemd takes that of the file whose name comes last."""
    unit = "nm-cloud-setup.service"
    [path] = (FILES / "systemd" / "system" / f"{unit}.d").iterdir()
    assert path.name > "10-rh-enable-for-ec2.conf"
    assert "Environment=NM_CLOUD_SETUP_EC2=no" in dropin(unit).splitlines()
    assert verify(unit, tmp_path) == ""


def dropin(unit: str) -> str:
    return (FILES / "systemd" / "system" / f"{unit}.d" / "90-coil.conf").read_text()


def verify(unit: str, folder: Path) -> str:
    """What systemd finds wrong with a unit that has nothing but a command, and the file."""
    template = re.sub("@.*[.]", "@.", unit)
    (folder / template).write_text("[Service]\nType=oneshot\nExecStart=/bin/true\n")
    (folder / f"{template}.d").mkdir()
    (folder / f"{template}.d" / "90-coil.conf").write_text(dropin(template))
    command = ["systemd-analyze", "verify", "--man=no", "--generators=no", str(folder / unit)]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    return done.stdout + done.stderr
