"""A pod that an EIP policy selects starts when the policy holds, by coild and the EIP agent of its node together."""

import json
import secrets
import sys
from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack, contextmanager
from functools import partial

import pytest

from integration.apiserver.bare_node import BareNode
from integration.apiserver.runtime import TRY_AGAIN_LATER, CniError, Runtime, addresses_of
from integration.apiserver.sandbox import PodName, Sandbox
from integration.cluster.control_plane import ControlPlane
from integration.cluster.process import Process
from integration.deployment import apply, grant_node_list, revoke_node_list

pytestmark = pytest.mark.apiserver

NAMESPACE = "shop"
LABELS = {"app": "payments"}
SUBNET = {"ipv4": "10.31.0.0/24", "ipv6": "fd31::/120"}


class StartWorld:
    """A node with a policy for `LABELS` that no node carries, and with coild, which asks the agent."""

    def __init__(self, node: BareNode, runtime: Runtime) -> None:
        self.node = node
        self.runtime = runtime
        self.socket = node.socket.with_name("agent.sock")
        command = [
            *(sys.executable, "-m", "coil_egress_agent.eip"),
            f"--kubeconfig={node.plane.kubeconfig_for('coil-egress-node')}",
            f"--node-name={node.name}",
            f"--pod-start-socket={self.socket}",
        ]
        self._spawn = partial(node.spawn, "coil-egress-agent-node", command)

    @contextmanager
    def agent(self) -> Iterator[Process]:
        """The agent runs; it is not waited for."""
        process = self._spawn()
        try:
            yield process
        finally:
            process.stop(timeout=60.0)

    def make_pod(self, labels: Mapping[str, str]) -> PodName:
        name = f"pod-{secrets.token_hex(3)}"
        spec = {
            "nodeName": self.node.name,
            "containers": [{"name": "main", "image": "none"}],
            "automountServiceAccountToken": False,
        }
        metadata = {"name": name, "namespace": NAMESPACE, "labels": dict(labels)}
        apply(self.node.plane, {"apiVersion": "v1", "kind": "Pod", "metadata": metadata, "spec": spec})
        uid = self.node.plane.kubectl(
            "get", "pod", name, f"--namespace={NAMESPACE}", "--output=jsonpath={.metadata.uid}"
        )
        return PodName(NAMESPACE, name, uid)

    def classified(self) -> set[str]:
        """The addresses that policies are about, as the kernel has them."""
        found: set[str] = set()
        for name in ("class4", "class6"):
            listed = self.node.kernel.run("nft", "-j", "list", "map", "inet", "coil-eip", name)
            [entry] = [entry["map"] for entry in json.loads(listed)["nftables"] if "map" in entry]
            found |= {key for key, _ in entry.get("elem", [])}
        return found


@pytest.fixture(scope="module")
def world(plane: ControlPlane) -> Iterator[StartWorld]:
    grant_node_list(plane)
    with BareNode.up(plane) as node, ExitStack() as undo:
        controller = node.start_controller()
        undo.callback(lambda: controller.process.stop(timeout=60.0))
        node.make_namespace(NAMESPACE)
        node.make_pool("default", SUBNET, bits=4)
        group = "egressgateway.spidernet.io/v1beta1"
        apply(
            plane,
            {"apiVersion": "v1", "kind": "ServiceAccount", "metadata": {"name": "default", "namespace": NAMESPACE}},
            {
                "apiVersion": group,
                "kind": "EgressGateway",
                "metadata": {"name": "office"},
                "spec": {
                    "ranges": {"ipv4": ["203.0.113.10"], "ipv6": ["2001:db8::10"]},
                    "nodeSelector": {"selector": {"matchLabels": {"egress": "true"}}},
                },
            },
            {
                "apiVersion": group,
                "kind": "EgressGatewayPolicy",
                "metadata": {"name": "payments", "namespace": NAMESPACE},
                "spec": {"egressGatewayName": "office", "appliedTo": {"podSelector": {"matchLabels": LABELS}}},
            },
        )
        world = StartWorld(node, node.install_plugin())
        coild = node.start_coild(f"--eip-agent-socket={world.socket}", "--enable-egress=false")
        undo.callback(lambda: coild.process.stop(timeout=60.0))
        yield world
    revoke_node_list(plane)


@pytest.fixture
def sandbox_of(world: StartWorld) -> Iterator[Callable[[PodName], Sandbox]]:
    made: list[Sandbox] = []

    def make(pod: PodName) -> Sandbox:
        made.append(world.node.make_sandbox(pod, container_id=secrets.token_hex(32)))
        return made[-1]

    yield make
    for sandbox in made:
        world.runtime.delete(sandbox)
        sandbox.destroy()


def test_the_kernel_has_its_addresses_before_it_starts(
    world: StartWorld, sandbox_of: Callable[[PodName], Sandbox]
) -> None:
    with world.agent():
        for _ in range(5):
            addresses = addresses_of(world.runtime.add_at_last(sandbox_of(world.make_pod(LABELS))))
            assert len(addresses) == 2
            assert {*addresses} <= world.classified()
        others = addresses_of(world.runtime.add_at_last(sandbox_of(world.make_pod({"app": "other"}))))
        assert not {*others} & world.classified()


def test_it_waits_for_the_agent(world: StartWorld, sandbox_of: Callable[[PodName], Sandbox]) -> None:
    sandbox = sandbox_of(world.make_pod(LABELS))
    adding = world.runtime.begin("ADD", sandbox)
    with world.agent():
        try:
            result = adding.result()
        except CniError:  # the agent's start took longer than an ADD may
            result = world.runtime.add_at_last(sandbox)
        assert {*addresses_of(result)} <= world.classified()


def test_without_the_agent_it_does_not_start(world: StartWorld, sandbox_of: Callable[[PodName], Sandbox]) -> None:
    with pytest.raises(CniError, match="coil-egress-agent-node has not answered in time") as error:
        world.runtime.add(sandbox_of(world.make_pod(LABELS)))
    assert error.value.code == TRY_AGAIN_LATER
