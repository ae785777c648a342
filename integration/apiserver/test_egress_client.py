"""coild and pods with an annotation, on real nodes against a real API server: what ADD answers, which Events there are,
and egress alone behind another plugin. Both daemons fail closed, as is the default.

What tunnels do is shown where the kernel has them. Here it is shown what happens where it has not, and all that does
not depend on it.
"""

import json
import secrets
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from dataclasses import dataclass
from typing import Any

import pytest

from coil.crd.egress_client_slice import EGRESS_CLIENT_SLICES
from coil.crd.names import LABEL_EGRESS
from integration.apiserver.bare_node import NAME, BareNode
from integration.apiserver.refusal_log import missing_rights
from integration.apiserver.runtime import TRY_AGAIN_LATER, CniError, Runtime
from integration.apiserver.sandbox import PodName, Sandbox
from integration.cluster.control_plane import ControlPlane
from integration.cluster.network import Network
from integration.cluster.workspace import Workspace
from integration.deployment import apply
from integration.kernel_state import EXPORT_TABLE, POD_TABLE
from integration.patience import wait_until
from integration.service import Service
from integration.vm.feature import missing_features

pytestmark = pytest.mark.apiserver

APPS = "apps"
NET = "internet"
CHAINED = "chained-node"
ROUTER = {"app.kubernetes.io/name": "coil", "app.kubernetes.io/component": "egress"}
INVALID_NETWORK_CONFIG = 7
FAIL_CLOSED = "--egress-fail-open=false"
PREV_RESULT: dict[str, Any] = {
    "cniVersion": "1.0.0",
    "interfaces": [{"name": "plug0"}, {"name": "eth0", "sandbox": "/run/netns/pod"}],
    "ips": [{"interface": 1, "address": "10.55.0.2/24"}],
    "routes": [{"dst": "0.0.0.0/0"}],
}


@dataclass
class World:
    """A node with addresses of ours, and one where another plugin gives them."""

    node: BareNode
    chained: BareNode
    runtime: Runtime
    chained_runtime: Runtime
    coild: Service
    chained_coild: Service
    controller: Service

    def make_pod(self, *, names: str = "", node: str = NAME, labels: dict[str, str] | None = None) -> PodName:
        """A Pod on the node, whose annotation names Egresses of the namespace `NET`."""
        name = f"pod-{secrets.token_hex(3)}"
        metadata: dict[str, Any] = {"name": name, "namespace": APPS, "labels": labels or {}}
        if names:
            metadata["annotations"] = {f"egress.coil.cybozu.com/{NET}": names}
        spec = {
            "nodeName": node,
            "containers": [{"name": "main", "image": "none"}],
            "automountServiceAccountToken": False,
        }
        apply(self.node.plane, {"apiVersion": "v1", "kind": "Pod", "metadata": metadata, "spec": spec})
        uid = self.node.plane.kubectl("get", "pod", name, f"--namespace={APPS}", "--output=jsonpath={.metadata.uid}")
        return PodName(APPS, name, uid)

    def make_egress(self, name: str, *, served: bool = True) -> None:
        """An Egress, and unless told otherwise the Service that its controller makes."""
        documents: list[dict[str, Any]] = [
            {
                "apiVersion": "coil.cybozu.com/v2",
                "kind": "Egress",
                "metadata": {"name": name, "namespace": NET},
                "spec": {"destinations": ["0.0.0.0/0"]},
            }
        ]
        if served:
            labels = ROUTER | {"app.kubernetes.io/instance": name}
            spec = {"ports": [{"port": 5555, "protocol": "UDP"}], "selector": labels}
            metadata = {"name": name, "namespace": NET, "labels": labels}
            documents.append({"apiVersion": "v1", "kind": "Service", "metadata": metadata, "spec": spec})
        apply(self.node.plane, *documents)

    def annotate(self, pod: PodName, names: str | None) -> None:
        """Change the pod's annotation, or remove it."""
        annotation = f"egress.coil.cybozu.com/{NET}" + ("-" if names is None else f"={names}")
        self.node.plane.kubectl("annotate", "--overwrite", f"--namespace={APPS}", "pod", pod.name, annotation)

    def await_pods_known(self) -> None:
        """Until the coild of the first node has all pods of its node in its cache."""
        path = f"/api/v1/pods?fieldSelector=spec.nodeName={NAME}"

        def are_known() -> bool:
            known = self.node.coild_metrics().get('informer_objects{resource="pods"}')
            return known == len(self.node.plane.read(path)["items"])

        wait_until(are_known, what="coild knows the pods")

    def report(self, pod: PodName, addresses: list[str]) -> None:
        """The pod's addresses in its status, as its kubelet does it."""
        status = {"podIP": addresses[0], "podIPs": [{"ip": address} for address in addresses]}
        patch = json.dumps({"status": status})
        self.node.plane.kubectl(
            *("patch", "pod", pod.name, f"--namespace={APPS}"),
            *("--subresource=status", "--type=merge", f"--patch={patch}"),
        )

    def slices(self, egress: str) -> list[dict[str, Any]]:
        """The EgressClientSlices that its router pods would see."""
        path = EGRESS_CLIENT_SLICES.path(namespace=NET)
        found: list[dict[str, Any]] = self.node.plane.read(f"{path}?labelSelector={LABEL_EGRESS}%3D{egress}")["items"]
        return found

    def clients(self, egress: str) -> list[str]:
        """The addresses in them."""
        return sorted(address for slice_ in self.slices(egress) for address in slice_["addresses"])

    def told(self, pod: PodName) -> dict[str, str]:
        """Messages of the Events on the pod, by reason."""
        path = f"/api/v1/namespaces/{APPS}/events?fieldSelector=involvedObject.name={pod.name}"
        return {entry["reason"]: entry["message"] for entry in self.node.plane.read(path)["items"]}


@pytest.fixture(scope="module")
def world(plane: ControlPlane) -> Iterator[World]:
    with Workspace.create() as workspace:
        network = Network.create(workspace)
        node = BareNode(workspace, network, plane)
        chained = BareNode(workspace, network, plane, name=CHAINED, index=1)
        for each in (node, chained):
            each.register()
        node.make_pool("default", {"ipv4": "10.86.0.0/24", "ipv6": "fd86::/120"}, bits=4)
        for name in (APPS, NET):
            node.make_namespace(name)
        # No controller-manager makes it, and no pod is admitted without.
        account = {"apiVersion": "v1", "kind": "ServiceAccount", "metadata": {"name": "default", "namespace": APPS}}
        apply(plane, account)
        controller = node.start_controller()
        world = World(
            node,
            chained,
            node.install_plugin(),
            chained.install_plugin(),
            node.start_coild("--cooling=500ms", FAIL_CLOSED),
            chained.start_coild("--enable-ipam=false", "--addressblock-gc-interval=200ms", FAIL_CLOSED),
            controller,
        )
        try:
            yield world
        finally:
            for each in (node, chained):
                each.destroy_sandboxes()
        for service in (controller, world.coild, world.chained_coild):
            assert missing_rights(service.process.log) == []


Start = Callable[[PodName], Sandbox]


@pytest.fixture
def start(world: World) -> Iterator[Start]:
    """A sandbox for a pod of the first node, gone with its network after the test."""
    with ExitStack() as undo:

        def make(pod: PodName) -> Sandbox:
            sandbox = world.node.make_sandbox(pod, container_id=secrets.token_hex(32))
            undo.callback(sandbox.destroy)
            undo.callback(world.runtime.delete, sandbox)
            return sandbox

        yield make


@pytest.fixture
def plugged(world: World) -> Iterator[Start]:
    """A sandbox that another plugin has wired on the second node."""
    with ExitStack() as undo:

        def make(pod: PodName) -> Sandbox:
            sandbox = world.chained.make_sandbox(pod, container_id=secrets.token_hex(32))
            undo.callback(sandbox.destroy)
            holder = sandbox.netns.split("/")[2]
            link = f"plug{secrets.token_hex(3)}"
            world.chained.kernel.run("ip", "link", "add", link, "type", "veth", "peer", "eth0", "netns", holder)
            sandbox.kernel.run("ip", "address", "add", "10.55.0.2/24", "dev", "eth0")
            return sandbox

        yield make


def add_behind(world: World, sandbox: Sandbox) -> dict[str, Any]:
    return world.chained_runtime.begin("ADD", sandbox, cached=PREV_RESULT).result()


# --- with addresses of ours


def refusal(world: World, sandbox: Sandbox) -> str:
    """The message of an ADD that fails, after which nothing of it is left; as a runtime does, with the DEL."""
    with pytest.raises(CniError) as failure:
        world.runtime.add(sandbox)
    assert failure.value.code == TRY_AGAIN_LATER
    assert not [alias for alias in world.node.kernel.pod_links() if sandbox.container_id in alias]
    assert sandbox.kernel.link("eth0") is None
    world.runtime.delete(sandbox)
    return failure.value.message


def test_a_pod_whose_egress_is_missing_or_invalid_waits_until_it_is_mended(world: World, start: Start) -> None:
    pod = world.make_pod(names="mars, No-Name")
    message = refusal(world, start(pod))
    assert "the pod's egress is not available" in message
    assert f"there is no Egress {NET}/mars" in message
    assert "No-Name" in message
    wait_until(lambda: len(world.told(pod)) == 2, what="the pod's Events")
    assert f"{NET}/mars" in world.told(pod)["EgressNotFound"]
    assert "No-Name" in world.told(pod)["EgressAnnotationInvalid"]
    # As soon as there is such an Egress, something else is missing.
    world.make_egress("mars", served=False)
    world.annotate(pod, "mars")
    wait_until(lambda: "has no Service yet" in refusal(world, start(pod)), what="the Service is missed")
    wait_until(lambda: "EgressNoService" in world.told(pod), what="the Event about it")
    world.annotate(pod, None)
    wait_until(lambda: adds(world, start(pod)), what="without the annotation it starts")


def test_a_pod_of_a_namespace_that_the_egress_does_not_serve_waits_until_it_does(world: World, start: Start) -> None:
    plane = world.node.plane
    world.make_egress("chosen")
    selector = {"spec": {"allowedNamespaces": {"matchLabels": {"egress": "yes"}}}}
    plane.kubectl("patch", "egress", "chosen", f"--namespace={NET}", "--type=merge", f"--patch={json.dumps(selector)}")
    pod = world.make_pod(names="chosen")
    said = f"Egress {NET}/chosen does not serve pods of namespace {APPS}"
    wait_until(lambda: said in refusal(world, start(pod)), what="the refusal")
    wait_until(lambda: said in world.told(pod).get("EgressNotAllowed", ""), what="the Event about it")
    assert world.clients("chosen") == []
    plane.kubectl("label", "namespace", APPS, "egress=yes")
    try:
        # Where the kernel has no tunnels, it goes on to that.
        if missing_features():
            wait_until(lambda: said not in refusal(world, start(pod)), what="the namespace's label is seen")
        else:
            wait_until(lambda: adds(world, start(pod)), what="it starts")
    finally:
        plane.kubectl("label", "namespace", APPS, "egress-")


def adds(world: World, sandbox: Sandbox) -> bool:
    """Whether the ADD succeeds."""
    try:
        return len(world.runtime.add(sandbox)["ips"]) == 2
    except CniError:
        return False


def test_a_pod_that_the_api_server_does_not_know_waits(world: World, start: Start) -> None:
    assert "the API server has no pod" in refusal(world, start(PodName(APPS, "ghost", secrets.token_hex(8))))
    pod = world.make_pod()
    another = PodName(pod.namespace, pod.name, "the-uid-of-its-predecessor")
    assert "this is the sandbox of the-uid-of-its-predecessor" in refusal(world, start(another))
    elsewhere = world.make_pod(node=CHAINED)
    assert f"is bound to node '{CHAINED}'" in refusal(world, start(elsewhere))
    assert adds(world, start(pod))


def test_while_the_api_server_accepts_and_is_silent_a_pod_whose_egress_is_not_known_waits(
    world: World, start: Start
) -> None:
    pod, plain, unseen = world.make_pod(names="silent"), world.make_pod(), world.make_pod(names="silent")
    world.await_pods_known()
    # The node has addresses from now on.
    assert world.runtime.add_at_last(start(plain))
    asked, other, by_name = (start(name) for name in (pod, plain, PodName(APPS, unseen.name)))
    with world.node.plane.silent_apiserver():
        # It gives the API server a moment, and not all of the time that the runtime gives it.
        said = refusal(world, asked)
        assert f"the API server did not return Egress {NET}/silent: no answer in time" in said
        # Nor does it start a pod of which it does not know whether it has an annotation.
        said = refusal(world, by_name)
        assert f"the API server did not return Pod {APPS}/{unseen.name}: no answer in time" in said
        assert adds(world, other)
    # The election may have been lost meanwhile.
    world.controller.ensure_running()
    wait_until(lambda: f"there is no Egress {NET}/silent" in refusal(world, start(pod)), what="the answer")
    wait_until(lambda: "EgressUnknown" in world.told(pod), what="the Event")


def test_it_fails_open_only_if_told_so(world: World, start: Start) -> None:
    world.coild.kill()
    opened = world.node.start_coild("--cooling=500ms", "--egress-fail-open=true")
    try:
        pod = world.make_pod(names="jupiter, No-Name")
        sandbox = start(pod)
        assert len(world.runtime.add(sandbox)["ips"]) == 2
        wait_until(lambda: len(world.told(pod)) == 2, what="the pod's Events")
        assert "--egress-fail-open" in world.told(pod)["EgressNotFound"]
        assert len(world.runtime.add(start(PodName(APPS, "ghost", secrets.token_hex(8))))["ips"]) == 2
        # It is followed: as soon as there is such an Egress, something else is missing.
        world.make_egress("jupiter", served=False)
        wait_until(lambda: "EgressNoService" in world.told(pod), what="the Egress without a Service is told")
        assert [rule["priority"] for rule in sandbox.kernel.ip("rule")] == [0, 32766, 32767]
    finally:
        opened.kill()
        world.coild.ensure_running()


def test_a_pod_with_an_egress_has_its_tunnel_or_does_not_start(world: World, start: Start) -> None:
    world.make_egress("world")
    pod, other = world.make_pod(names="world"), world.make_pod()
    sandbox = start(pod)
    if missing_features():
        with pytest.raises(CniError) as failure:
            world.runtime.add(sandbox)
        assert failure.value.code == TRY_AGAIN_LATER
        assert "egress" in failure.value.message
        wait_until(lambda: "EgressRefused" in world.told(pod), what="the refusal is told")
        assert not [alias for alias in world.node.kernel.pod_links() if sandbox.container_id in alias]
        assert sandbox.kernel.link("eth0") is None
    else:
        world.runtime.add(sandbox)
        assert [link["mtu"] for link in sandbox.kernel.ip("link") if link["ifname"].startswith("fou4_")] == [1372]
    # Nobody else notices.
    unrelated = start(other)
    world.runtime.add(unrelated)
    assert {link["ifname"] for link in unrelated.kernel.ip("link") if "link_index" in link} == {"eth0"}
    assert [rule["priority"] for rule in unrelated.kernel.ip("rule")] == [0, 32766, 32767]
    assert world.told(other) == {}


def test_router_pods_are_told_of_clients_while_these_are_attached(world: World, start: Start) -> None:
    """Though no kubelet has reported the clients' addresses. Whether there are tunnels does not matter."""
    world.make_egress("told")
    pods = [world.make_pod(), world.make_pod()]
    sandboxes = [start(pod) for pod in pods]
    addresses = [[each["address"].partition("/")[0] for each in world.runtime.add(one)["ips"]] for one in sandboxes]
    world.annotate(pods[0], "told")
    wait_until(lambda: world.clients("told") == sorted(addresses[0]), what="the slice has the first client")
    world.annotate(pods[1], "told")
    wait_until(lambda: world.clients("told") == sorted(addresses[0] + addresses[1]), what="the slice has both clients")
    [slice_] = world.slices("told")
    assert (slice_["metadata"]["namespace"], slice_["nodeName"]) == (NET, NAME)
    [owner] = slice_["metadata"]["ownerReferences"]
    assert (owner["kind"], owner["name"]) == ("Node", NAME)
    # A restart withdraws nothing, and what goes meanwhile goes afterwards. By its addresses a pod is known again.
    for pod, some in zip(pods, addresses, strict=True):
        world.report(pod, some)
    world.coild.crash()
    world.annotate(pods[0], None)
    world.coild.wait_ready()
    wait_until(lambda: world.clients("told") == sorted(addresses[1]), what="the first is no client any more")
    world.runtime.delete(sandboxes[1])
    wait_until(lambda: world.slices("told") == [], what="there is no slice without clients")


def test_a_router_pod_gets_its_sysctls(world: World, start: Start) -> None:
    router, other = start(world.make_pod(labels=ROUTER)), start(world.make_pod())
    for sandbox in (router, other):
        world.runtime.add(sandbox)
    assert router.kernel.sysctl("net/ipv4/ip_forward") == "1"
    assert router.kernel.sysctl("net/ipv6/conf/all/forwarding") == "1"
    assert router.kernel.sysctl("net/ipv4/conf/all/rp_filter") == "0"
    assert other.kernel.sysctl("net/ipv6/conf/all/forwarding") == "0"


def test_a_result_so_far_is_refused(world: World, start: Start) -> None:
    sandbox = start(world.make_pod())
    with pytest.raises(CniError) as failure:
        world.runtime.begin("ADD", sandbox, cached=PREV_RESULT).finish()
    assert failure.value.code == INVALID_NETWORK_CONFIG
    assert "--enable-ipam=false" in failure.value.message
    assert sandbox.kernel.link("eth0") is None


# --- behind another plugin


def test_behind_another_plugin_the_link_gets_an_alias_and_the_result_stays(world: World, plugged: Start) -> None:
    pod = world.make_pod(node=CHAINED)
    sandbox = plugged(pod)
    assert add_behind(world, sandbox) == PREV_RESULT
    alias = f"COIL::{pod.uid}:eth0"
    link = world.chained.kernel.link(world.chained.kernel.pod_links()[alias])
    assert link is not None
    assert link["ifname"].startswith("plug")
    world.chained_runtime.check(sandbox, cached=PREV_RESULT)

    # A restart knows it again; an ADD again changes nothing.
    world.chained_coild.crash()
    world.chained_coild.wait_ready()
    world.chained_runtime.check(sandbox, cached=PREV_RESULT)
    assert add_behind(world, sandbox) == PREV_RESULT
    world.chained_runtime.delete(sandbox, cached=PREV_RESULT)
    world.chained_runtime.delete(sandbox)
    assert world.chained.kernel.link(link["ifname"]) is not None, "it is the other plugin's to delete"
    with pytest.raises(CniError) as failure:
        world.chained_runtime.check(sandbox, cached=PREV_RESULT)
    assert failure.value.code == 3


def test_a_pod_that_goes_without_a_del_is_forgotten(world: World, plugged: Start) -> None:
    sandbox = plugged(world.make_pod(node=CHAINED))
    add_behind(world, sandbox)
    sandbox.kernel.run("ip", "link", "delete", "eth0")

    def is_forgotten() -> bool:
        with pytest.raises(CniError) as failure:
            world.chained_runtime.check(sandbox, cached=PREV_RESULT)
        return failure.value.code == 3

    wait_until(is_forgotten, what="the sweep has seen that the veth is gone")


def test_behind_another_plugin_nothing_is_done_for_addresses(world: World, plugged: Start) -> None:
    add_behind(world, plugged(world.make_pod(node=CHAINED)))
    kernel = world.chained.kernel
    assert [*kernel.routes(POD_TABLE), *kernel.routes(EXPORT_TABLE)] == []
    assert [rule["priority"] for rule in kernel.ip("rule")] == [0, 32766, 32767]
    assert kernel.sysctl("net/ipv4/ip_forward") == "0"
    for plural in ("addressblocks", "blockrequests"):
        assert not [entry for entry in world.node.objects(plural) if CHAINED in json.dumps(entry)]


def test_without_a_result_so_far_it_says_what_is_wrong(world: World, plugged: Start) -> None:
    sandbox = plugged(world.make_pod(node=CHAINED))
    with pytest.raises(CniError) as failure:
        world.chained_runtime.add(sandbox)
    assert failure.value.code == INVALID_NETWORK_CONFIG
    assert "--enable-ipam" in failure.value.message


def test_behind_another_plugin_wrong_annotations_and_refusals_are_told(world: World, plugged: Start) -> None:
    pod = world.make_pod(names="venus", node=CHAINED)
    with pytest.raises(CniError) as failure:
        add_behind(world, plugged(pod))
    assert failure.value.code == TRY_AGAIN_LATER
    assert f"there is no Egress {NET}/venus" in failure.value.message
    wait_until(lambda: "EgressNotFound" in world.told(pod), what="the pod's Event")
    with pytest.raises(CniError) as failure:
        add_behind(world, plugged(PodName(APPS, "ghost", secrets.token_hex(8))))
    assert failure.value.code == TRY_AGAIN_LATER
    world.make_egress("near")
    client = world.make_pod(names="near", node=CHAINED)
    sandbox = plugged(client)
    if missing_features():
        with pytest.raises(CniError) as failure:
            add_behind(world, sandbox)
        assert failure.value.code == TRY_AGAIN_LATER
    else:
        assert add_behind(world, sandbox) == PREV_RESULT
        assert [link for link in sandbox.kernel.ip("link") if link["ifname"].startswith("fou4_")]


# --- switched off


def test_switched_off_annotations_say_nothing(world: World, start: Start) -> None:
    world.coild.kill()
    plain = world.node.start_coild("--cooling=500ms", "--enable-egress=false")
    try:
        pod = world.make_pod(names="world")
        world.runtime.add(start(pod))
        assert world.told(pod) == {}
        world.runtime.add(start(PodName(APPS, "ghost", secrets.token_hex(8))))
    finally:
        plain.kill()
        world.coild.ensure_running()
