"""coild with `--address-source=neutron` on a real node against a real API server, called by the real plugin. The test
plays coil-raven; an executable plugs links into a Linux bridge.
"""

import json
import secrets
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import pytest

from coil.neutron.handoff import ANNOTATION_PORT, render_handoff
from integration.apiserver.bare_node import BareNode
from integration.apiserver.port_pods import APPS, PortPods
from integration.apiserver.refusal_log import missing_rights
from integration.apiserver.runtime import TRY_AGAIN_LATER, CniError, Runtime
from integration.apiserver.sandbox import PodName, Sandbox
from integration.cluster.control_plane import ControlPlane, KubectlError
from integration.deployment import apply, grant_node_list, revoke_node_list
from integration.patience import wait_until
from integration.service import Service
from tests.coild.neutron.port_node import handoff

pytestmark = pytest.mark.apiserver

BRIDGE = "switch"
PATIENT = ("--acquire-timeout=20s", "--neutron-bind-timeout=10s", "--neutron-active-timeout=20s")
HASTY = ("--acquire-timeout=1s", "--neutron-bind-timeout=1s", "--neutron-active-timeout=1s")
INVALID_ENVIRONMENT = 4
UNREADABLE, TYPE_UNKNOWN, BIND_FAILED, BIND_TIMED_OUT, NOT_ACTIVE, FORBIDDEN, IN_USE = 101, 103, 104, 105, 106, 107, 108

_SCRIPT = f"""#!/bin/sh
set -eu
case $1 in
bind) ip link set dev "$3" master {BRIDGE} ;;
unbind) ip link set dev "$3" nomaster || ! ip link show dev "$3" ;;
esac
"""
_FAILING = "#!/bin/sh\n[ $1 = unbind ] || { echo no such bridge; exit 1; }\n"
_HANGING = "#!/bin/sh\n[ $1 = unbind ] || exec sleep 100000\n"


@dataclass
class PortWorld:
    node: BareNode
    runtime: Runtime
    folder: Path
    pods: PortPods

    @property
    def numbers(self) -> dict[str, int]:
        return self.pods.numbers

    @contextmanager
    def coild(self, *flags: str, complete: bool = True) -> Iterator[Service]:
        """coild runs; if its rights are `complete`, it had every right that it wanted."""
        service = self.node.start_coild(
            "--address-source=neutron",
            "--enable-egress=false",
            f"--neutron-binding-dir={self.folder}",
            *flags,
        )
        try:
            yield service
            if complete:
                assert missing_rights(service.process.log) == []
        finally:
            service.process.stop(timeout=60.0)

    def make_pod(self) -> PodName:
        return self.pods.make(self.node)

    def annotate(self, pod: PodName, text: str | None = None, **changes: Any) -> None:
        """As coil-raven does it, or with any text."""
        self.pods.annotate(pod, text, **{"type": "switch"} | changes)

    @property
    def plugged(self) -> set[str]:
        return {link["ifname"] for link in self.node.kernel.ip("link", "show", "master", BRIDGE)}


@pytest.fixture(scope="module")
def world(plane: ControlPlane, tmp_path_factory: pytest.TempPathFactory) -> Iterator[PortWorld]:
    folder = tmp_path_factory.mktemp("kuryr")
    folder.chmod(0o755)
    for name, script in (("switch", _SCRIPT), ("failing", _FAILING), ("hanging", _HANGING)):
        (folder / name).write_text(script)
        (folder / name).chmod(0o755)
    grant_node_list(plane)
    with BareNode.up(plane) as node:
        node.namespaces.run("ip", "link", "add", BRIDGE, "type", "bridge")
        node.namespaces.run("ip", "link", "set", BRIDGE, "up")
        yield PortWorld(node, node.install_plugin(), folder, PortPods.prepare(node))
    revoke_node_list(plane)


MakeSandbox = Callable[[PodName], Sandbox]


@pytest.fixture
def sandbox_of(world: PortWorld) -> Iterator[MakeSandbox]:
    """Makes sandboxes; each is deleted and destroyed, and nothing is plugged in any more after the test."""
    made: list[Sandbox] = []

    def make(pod: PodName) -> Sandbox:
        made.append(world.node.make_sandbox(pod, container_id=secrets.token_hex(32)))
        return made[-1]

    with ExitStack() as undo:
        yield make
        for sandbox in made:
            undo.callback(sandbox.destroy)
            world.runtime.delete(sandbox)
        assert world.plugged == set()
        assert world.node.kernel.pod_links() == {}


@pytest.fixture(scope="class")
def patient(world: PortWorld) -> Iterator[None]:
    with world.coild(*PATIENT):
        yield


@pytest.fixture(scope="class")
def hasty(world: PortWorld) -> Iterator[None]:
    with world.coild(*HASTY):
        yield


@pytest.mark.usefixtures("patient")
class TestPatient:
    """A coild that waits long enough for everything."""

    @pytest.mark.parametrize("version", ["0.1.0", "1.0.0"])
    def test_the_result_is_the_port(self, world: PortWorld, sandbox_of: MakeSandbox, version: str) -> None:
        pod = world.make_pod()
        world.annotate(pod)
        number = world.numbers[pod.name]
        sandbox = sandbox_of(pod)
        result = world.runtime.add(sandbox, version=version)
        gateways = {"4": "10.0.255.254", "6": "fd00::ffff:1"}
        addresses = {"4": f"10.0.0.{number}/16", "6": f"fd00::{number:x}/64"}
        assert result["dns"] == {"nameservers": ["10.96.0.10"]}
        if version == "0.1.0":
            for family, everywhere in (("4", "0.0.0.0/0"), ("6", "::/0")):
                assert result[f"ip{family}"] == {
                    "ip": addresses[family],
                    "gateway": gateways[family],
                    "routes": [{"dst": everywhere, "gw": gateways[family]}],
                }
        else:
            assert [(ip["address"], ip["gateway"]) for ip in result["ips"]] == [
                (addresses[family], gateways[family]) for family in "46"
            ]
            assert result["interfaces"][0]["mac"] == f"fa:16:3e:00:00:{number:02x}"
            assert world.plugged == {result["interfaces"][1]["name"]}
        eth0 = sandbox.kernel.link("eth0")
        assert eth0 is not None
        assert (eth0["address"], eth0["mtu"]) == (f"fa:16:3e:00:00:{number:02x}", 1450)

    def test_an_add_waits_for_the_annotation_and_then_for_active(
        self, world: PortWorld, sandbox_of: MakeSandbox
    ) -> None:
        pod = world.make_pod()
        adding = world.runtime.begin("ADD", sandbox_of(pod))
        world.annotate(pod, active=False)
        wait_until(lambda: world.plugged, what="the port plugged in")
        world.annotate(pod, active=True)
        assert adding.result()["ips"][0]["address"] == f"10.0.0.{world.numbers[pod.name]}/16"

    def test_a_runtime_that_passes_no_uid(self, world: PortWorld, sandbox_of: MakeSandbox) -> None:
        """The API server is asked which pod has the name."""
        pod = world.make_pod()
        world.annotate(pod)
        result = world.runtime.add(sandbox_of(replace(pod, uid="")))
        assert result["ips"][0]["address"] == f"10.0.0.{world.numbers[pod.name]}/16"

    @pytest.mark.parametrize("separator", [";", ","])
    def test_a_port_in_cni_args(self, world: PortWorld, sandbox_of: MakeSandbox, separator: str) -> None:
        pod = world.make_pod()
        arguments = {
            "PORT_UUID": secrets.token_hex(16),
            "PORT_TYPE": "switch",
            "IPV4": "10.7.0.15/16",
            "GW": "10.7.0.1",
            "MAC": "fa:16:3e:77:00:15",
            "NETWORK_UUID": secrets.token_hex(16),
            "TENANT_UUID": secrets.token_hex(16),
        }
        text = "".join(f"{separator}{key}={value}" for key, value in arguments.items())
        result = world.runtime.add(sandbox_of(pod), more_args=text)
        assert [(ip["address"], ip["gateway"]) for ip in result["ips"]] == [("10.7.0.15/16", "10.7.0.1")]
        assert result["interfaces"][0]["mac"] == "fa:16:3e:77:00:15"

    def test_a_port_is_one_pods(self, world: PortWorld, sandbox_of: MakeSandbox) -> None:
        first, second = world.make_pod(), world.make_pod()
        world.annotate(first)
        world.runtime.add(sandbox_of(first))
        world.numbers[second.name] = world.numbers[first.name]
        world.annotate(second)
        with pytest.raises(CniError, match=f"{APPS}/{first.name}") as caught:
            world.runtime.add(sandbox_of(second))
        assert caught.value.code == IN_USE
        assert len(world.plugged) == 1


def refusal(world: PortWorld, sandbox: Sandbox, **more: Any) -> CniError:
    with pytest.raises(CniError) as caught:
        world.runtime.add(sandbox, **more)
    return caught.value


@pytest.mark.usefixtures("hasty")
class TestHasty:
    """A coild that gives everything a second: each failure has its code, and leaves nothing."""

    @pytest.mark.parametrize(
        ("text", "changes", "code", "said"),
        [
            ('{"version":7}', {}, UNREADABLE, "version 7"),
            (render_handoff(handoff(99, "another")), {}, UNREADABLE, "UID another"),
            (None, {"type": "unheard-of"}, TYPE_UNKNOWN, "there is no"),
            (None, {"type": "failing"}, BIND_FAILED, "no such bridge"),
            (None, {"type": "hanging"}, BIND_TIMED_OUT, "has not ended within 1 s"),
            (None, {"active": False}, NOT_ACTIVE, "ACTIVE"),
        ],
    )
    def test_the_code_of_a_failure(
        self,
        world: PortWorld,
        sandbox_of: MakeSandbox,
        text: str | None,
        changes: dict[str, Any],
        code: int,
        said: str,
    ) -> None:
        pod = world.make_pod()
        world.annotate(pod, text, **changes)
        sandbox = sandbox_of(pod)
        before = sandbox.kernel.ip("link", "show")
        error = refusal(world, sandbox)
        assert (error.code, said in error.message) == (code, True), error
        assert world.node.kernel.pod_links() == {}
        assert sandbox.kernel.ip("link", "show") == before

    def test_no_annotation_in_time_is_to_be_tried_again(self, world: PortWorld, sandbox_of: MakeSandbox) -> None:
        error = refusal(world, sandbox_of(world.make_pod()))
        assert (error.code, ANNOTATION_PORT in error.message) == (TRY_AGAIN_LATER, True), error

    def test_a_key_that_is_missing_is_named(self, world: PortWorld, sandbox_of: MakeSandbox) -> None:
        error = refusal(world, sandbox_of(world.make_pod()), more_args=f";PORT_UUID={secrets.token_hex(16)}")
        assert error.code == INVALID_ENVIRONMENT
        assert "PORT_TYPE, IPV4" in error.message


@contextmanager
def without_rights(plane: ControlPlane) -> Iterator[None]:
    """The chart's account of coild may do nothing."""
    binding = json.loads(plane.kubectl("get", "clusterrolebinding", "coild", "--output=json"))
    plane.kubectl("delete", "clusterrolebinding", "coild")
    wait_until(lambda: not may_read_pods(plane), what="the API server has taken in that the right is gone")
    try:
        yield
    finally:
        metadata = {"name": "coild", "labels": binding["metadata"]["labels"]}
        apply(plane, {**binding, "metadata": metadata})
        wait_until(lambda: may_read_pods(plane), what="the API server has taken in that the right is back")


def may_read_pods(plane: ControlPlane) -> bool:
    try:
        plane.kubectl("get", "pods", f"--namespace={APPS}", kubeconfig=plane.kubeconfig_for("coild"))
    except KubectlError:
        return False
    return True


def test_an_account_without_the_right_to_read_pods(world: PortWorld, sandbox_of: MakeSandbox) -> None:
    pod = world.make_pod()
    world.annotate(pod)
    with without_rights(world.node.plane), world.coild(*HASTY, complete=False):
        for name in (pod, replace(pod, uid="")):
            sandbox = sandbox_of(name)
            error = refusal(world, sandbox)
            assert (error.code, "forbidden" in error.message) == (FORBIDDEN, True), error
            world.runtime.delete(sandbox)


@pytest.mark.slow
def test_a_killed_coild_deletes_while_the_api_server_is_away(world: PortWorld, sandbox_of: MakeSandbox) -> None:
    pod = world.make_pod()
    world.annotate(pod)
    sandbox = sandbox_of(pod)
    with world.coild(*PATIENT, complete=False) as coild:
        world.runtime.add(sandbox)
        coild.kill()
        world.node.plane.kill_apiserver()
        try:
            coild.start()
            coild.wait_ready()
            world.runtime.check(sandbox)
            world.runtime.delete(sandbox)
            assert world.plugged == set()
        finally:
            world.node.plane.start_apiserver()
