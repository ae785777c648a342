"""DESIGN.md's walks of one ADD, of an AddressBlock and of an Egress as far as its objects, followed by tracing: who it
says takes part does, in that order, and few others.

The rest of an Egress's walk is in integration/egress, a policy's in integration/eip.
"""

import json
import os
import secrets
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest

from integration.apiserver.bare_node import BareNode
from integration.apiserver.egress_world import EgressWorld
from integration.apiserver.runtime import Runtime
from integration.apiserver.sandbox import PodName, Sandbox
from integration.cluster.control_plane import ControlPlane
from integration.deployment import apply, coild_command
from integration.kernel_state import EXPORT_TABLE
from integration.patience import wait_until
from integration.service import Service
from integration.walk.recording import Recording
from integration.walk.story import called, check_order, named_modules, steps

pytestmark = [pytest.mark.apiserver, pytest.mark.timing]

ADD = "The way of one pod's ADD"
EGRESS = "The way of an Egress to its tunnels"
ELSEWHERE = {"coil_ipam_controller", "coil_freezer"}
"""Named in the walk, and not on the node at that time."""

WHEN_EMPTY = {"coild.addresses.pool_changes", "coild.addresses.block_requester"}
BLOCKS = {"coild.addresses.route_export", "coild.addresses.block_release"}
MOST_OF_AN_ADD = 70
MOST_OF_AN_EGRESS = 50


@dataclass(frozen=True, slots=True)
class TracedNode:
    node: BareNode
    runtime: Runtime
    coild: Service
    recording: Recording

    def make_pod(self) -> Sandbox:
        """A pod that the API server and coild know, with an empty sandbox."""
        name = f"p{secrets.token_hex(3)}"
        container = {"name": "main", "image": "none"}
        # Nobody here makes tokens, which the API server would wait for.
        spec = {"nodeName": self.node.name, "containers": [container], "automountServiceAccountToken": False}
        metadata = {"namespace": "walks", "name": name}
        apply(self.node.plane, {"apiVersion": "v1", "kind": "Pod", "metadata": metadata, "spec": spec})
        uid: str = self.node.plane.read(f"/api/v1/namespaces/walks/pods/{name}")["metadata"]["uid"]
        pod = PodName("walks", name, uid)
        return self.node.make_sandbox(pod, container_id=secrets.token_hex(32))

    def calls_of_add(self) -> list[str]:
        """The modules of coild for one more pod, by the plugin as a node has it."""
        sandbox = self.make_pod()
        return self.recording.during(self.coild.process, lambda: self.runtime.add(sandbox))


@pytest.fixture(scope="module")
def traced(plane: ControlPlane, tmp_path_factory: pytest.TempPathFactory) -> Iterator[TracedNode]:
    recording = Recording(tmp_path_factory.mktemp("walk") / "calls")
    with BareNode.up(plane) as node:
        node.make_pool("default", {"ipv4": "10.91.0.0/24", "ipv6": "fd91::/120"}, bits=2)
        node.make_namespace("walks")
        runtime = node.install_plugin()
        node.start_controller()
        coild = node.start_daemon(recording.traced(coild_command(node.plane, socket=node.socket)))
        coild.wait_ready()
        yield TracedNode(node, runtime, coild, recording)


def test_an_add_goes_the_way_that_the_design_tells(traced: TracedNode, tmp_path: Path) -> None:
    said = [name for name in named_modules(ADD) if name not in ELSEWHERE | BLOCKS]
    cold = traced.calls_of_add()
    warm = [traced.calls_of_add() for _ in range(3)]
    # Whatever is not in all of them happened beside them.
    modules = [module for module in warm[0] if all(module in each for each in warm)]
    plugin = plugin_modules(traced, tmp_path)
    print(f"a warm ADD runs {len(modules)} modules of coild and {len(plugin)} of the plugin: {modules + plugin}")
    steps = [name for name in said if name not in WHEN_EMPTY | {"coil_cni"}]
    check_order(steps, modules)
    assert [name for name in WHEN_EMPTY if not called(name, cold)] == []
    assert not [name for name in WHEN_EMPTY if called(name, modules)], "a free address needs nobody to be asked"
    assert len(modules) + len(plugin) <= MOST_OF_AN_ADD


def plugin_modules(traced: TracedNode, folder: Path) -> list[str]:
    """What the plugin calls for one ADD, run from its sources."""
    sandbox = traced.make_pod()
    recording = Recording(folder / "plugin")
    netconf = {"cniVersion": "1.0.0", "name": "pods", "type": "coil", "socket": str(traced.node.socket)}
    done = subprocess.run(
        recording.traced([sys.executable, "-m", "coil_cni"]),
        env={
            **os.environ,
            "CNI_COMMAND": "ADD",
            "CNI_CONTAINERID": sandbox.container_id,
            "CNI_NETNS": sandbox.netns,
            "CNI_IFNAME": "eth0",
            "CNI_PATH": "/nowhere",
            "CNI_ARGS": f"K8S_POD_NAMESPACE=walks;K8S_POD_NAME={sandbox.pod.name};K8S_POD_UID={sandbox.pod.uid}",
        },
        input=json.dumps(netconf).encode(),
        capture_output=True,
        timeout=60,
        check=False,
    )
    assert done.returncode == 0, (done.stdout, done.stderr)
    return recording.read()


def test_a_block_becomes_a_route_the_way_that_the_design_tells(traced: TracedNode) -> None:
    def fill_a_block() -> None:
        before = len(traced.node.objects("addressblocks"))
        while len(traced.node.objects("addressblocks")) == before:
            traced.runtime.add(traced.make_pod())
        wait_until(lambda: len(exported(traced.node)) == before + 1, what="the block's route in table 119")

    modules = traced.recording.during(traced.coild.process, fill_a_block)
    assert called("coild.addresses.route_export", modules)


def exported(node: BareNode) -> list[str]:
    return node.kernel.run("ip", "route", "show", "table", EXPORT_TABLE).splitlines()


@pytest.fixture
def egress_world(traced: TracedNode) -> Iterator[EgressWorld]:
    world = EgressWorld(traced.node.plane)
    yield world
    world.close()


def test_an_egress_gets_its_objects_the_way_that_the_design_tells(egress_world: EgressWorld, tmp_path: Path) -> None:
    recording = Recording(tmp_path / "calls")
    replica = egress_world.start_replica(recording=recording)
    wait_until(replica.leads, what="the controller leads")
    namespace = egress_world.add_namespace()
    recording.await_rest(replica.service.process, "coil.reconcile.controller")

    def make_an_egress() -> None:
        egress_world.apply_egress(namespace)
        for kind in ("deployment", "service"):
            egress_world.await_object(kind, namespace)
        egress_world.await_object("rolebinding", namespace, "coil-egress")

    modules = recording.during(replica.service.process, make_an_egress)
    print(f"an Egress runs {len(modules)} modules of the controller: {modules}")
    admission, objects, *_ = steps(EGRESS)
    check_order([*admission, *objects], modules)
    assert len(modules) <= MOST_OF_AN_EGRESS
