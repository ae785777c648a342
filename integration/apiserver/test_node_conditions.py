"""What the whole coild says of its node in the Node's conditions, puts back on it, and records of it."""

import secrets
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest

from coil.crd.node_condition import NETWORK_UNAVAILABLE, STATE_REMOVED, TRAFFIC_DROPPED
from integration.apiserver.bare_node import BareNode
from integration.apiserver.runtime import Runtime
from integration.apiserver.sandbox import PodName, Sandbox
from integration.cluster.control_plane import ControlPlane
from integration.patience import wait_until
from integration.service import Service

pytestmark = pytest.mark.apiserver

NAMESPACE = "conditions"
FORWARDING = "net.ipv4.ip_forward", "net.ipv6.conf.all.forwarding"


@dataclass(frozen=True, slots=True)
class World:
    """A node with one pod, and coild."""

    node: BareNode
    runtime: Runtime
    coild: Service
    sandbox: Sandbox
    record: Path

    def conditions(self) -> dict[str, tuple[str, str]]:
        """Status and message by type."""
        status = self.node.plane.read(f"/api/v1/nodes/{self.node.name}")["status"]
        return {each["type"]: (each["status"], each["message"]) for each in status.get("conditions", [])}

    def run(self, *command: str) -> str:
        """Run a program in the node's namespace; what it says."""
        return self.node.kernel.run(*command)

    def look_again(self) -> None:
        """coild looks at the filters when it starts, and then once a minute."""
        self.coild.kill()
        self.coild.start()
        self.coild.wait_ready()

    def forwarding(self) -> list[str]:
        return [self.run("sysctl", "-n", name).strip() for name in FORWARDING]


@pytest.fixture(scope="module")
def world(plane: ControlPlane) -> Iterator[World]:
    with BareNode.up(plane) as node:
        node.make_pool("conditions", {"ipv4": "10.97.0.0/24", "ipv6": "fd97::/120"}, bits=3)
        node.make_namespace(NAMESPACE, pool="conditions")
        runtime = node.install_plugin()
        controller = node.start_controller()
        record = node.socket.with_name("sysctls.json")
        flags = ("--node-conditions=true", "--set-network-unavailable=true", f"--sysctl-record={record}")
        coild = node.start_coild(*flags)
        pod = PodName(NAMESPACE, f"pod-{secrets.token_hex(3)}")
        sandbox = node.make_sandbox(pod, container_id=secrets.token_hex(32))
        runtime.add_at_last(sandbox)
        yield World(node, runtime, coild, sandbox, record)
        coild.process.stop()
        controller.process.stop()


def test_a_filter_that_drops_packets_of_pods_is_told_until_it_is_gone(world: World) -> None:
    expected = {TRAFFIC_DROPPED: "False", STATE_REMOVED: "False", NETWORK_UNAVAILABLE: "False"}

    def statuses() -> dict[str, str]:
        return {type_: status for type_, (status, _) in world.conditions().items() if type_ in expected}

    wait_until(lambda: statuses() == expected, what="the Node says that nothing is wrong")
    world.run("iptables-nft", "-P", "FORWARD", "DROP")
    world.look_again()
    wait_until(lambda: statuses()[TRAFFIC_DROPPED] == "True", what="the Node says that packets are dropped")
    told = world.conditions()[TRAFFIC_DROPPED][1]
    assert "IPv4 from pods: nftables chain ip filter FORWARD: its policy drops it" in told
    assert "IPv6" not in told
    for option in ("-i", "-o"):
        world.run("iptables-nft", "-A", "FORWARD", option, "veth+", "-j", "ACCEPT")
    world.look_again()
    wait_until(lambda: statuses() == expected, what="the Node says that nothing is wrong any more")


def test_what_somebody_removes_is_back(world: World) -> None:
    def rules() -> list[str]:
        return [line for line in world.run("ip", "rule", "show").splitlines() if "2000:" in line]

    before = rules()
    assert before
    world.run("ip", "rule", "delete", "priority", "2000")
    world.run("sysctl", "-w", f"{FORWARDING[0]}=0")
    wait_until(lambda: rules() == before and world.forwarding() == ["1", "1"], what="rule and forwarding are back")


def test_when_the_last_pod_is_gone_the_node_is_what_it_was(world: World) -> None:
    """The last one, as it takes the pod away. The node did not forward before Coil came."""
    restore = (sys.executable, "-m", "coil_installer.main", "restore-sysctls", str(world.record))
    world.run(*restore)
    assert world.forwarding() == ["1", "1"], "while the pod is connected"
    world.runtime.delete(world.sandbox)
    world.coild.process.stop()
    world.run(*restore)
    assert world.forwarding() == ["0", "0"]
