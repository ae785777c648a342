"""The stage inside: a node with kubelet, containerd and kube-proxy, the host outside, and the node's pods."""

import os
import secrets
import socket
from collections.abc import Callable, Iterator, Sequence
from contextlib import closing, contextmanager
from dataclasses import dataclass
from ipaddress import IPv4Address, IPv6Address
from pathlib import Path
from typing import Any

from coil.egress.router_pod import ROUTER_CONTAINER
from integration.cluster.command_line import Version
from integration.cluster.image import BUSYBOX_IMAGE, busybox_images, write_archive
from integration.cluster.network import Network, run_command
from integration.cluster.node import Node, NodeCommandError, Software
from integration.cluster.programs import NODE as NODE_PROGRAMS
from integration.cluster.programs import Program, locate
from integration.cluster.workspace import Workspace
from integration.egress.api import Api, Document
from integration.egress.external_host import NETWORKS, ExternalHost, family_of
from integration.egress.pod import child_of
from integration.egress.station import PATIENCE, PAUSE, masquerade_to
from integration.egress_kubelet.outside import CLIENT_NAMESPACE, EGRESS_NAMESPACE, EMULATED, NODE, KubeletStage
from integration.kernel_state import EXPORT_TABLE, KernelState
from integration.netns.netns import call_inside
from integration.patience import wait_until
from integration.vm.passage import ensure_passage
from integration.vm.run import INSIDE_VARIABLE

EGRESSES = f"/apis/coil.cybozu.com/v2/namespaces/{EGRESS_NAMESPACE}/egresses"
ANNOTATION = f"egress.coil.cybozu.com/{EGRESS_NAMESPACE}"
COILD_PODS = "/api/v1/namespaces/kube-system/pods?labelSelector=app.kubernetes.io%2Fcomponent%3Dcoild"
START_SECONDS = 600.0
_LOG_LINES = 60
_SECONDS = 60.0


@dataclass(frozen=True, slots=True)
class Pod:
    """A pod whose containers run. Its namespaces are those of its first container's program, `pid`."""

    document: Document
    pid: str

    @property
    def name(self) -> str:
        name: str = self.document["metadata"]["name"]
        return name

    @property
    def path(self) -> str:
        """In the API."""
        return f"/api/v1/namespaces/{self.document['metadata']['namespace']}/pods/{self.name}"

    @property
    def addresses(self) -> dict[int, str]:
        """By IP version."""
        return {6 if ":" in each["ip"] else 4: each["ip"] for each in self.document["status"]["podIPs"]}

    @property
    def netns(self) -> Path:
        return Path(f"/proc/{self.pid}/ns/net")

    @property
    def kernel(self) -> KernelState:
        return KernelState(str(self.netns))

    @property
    def supervised(self) -> int | None:
        """The process that the container's first one runs; None while there is none."""
        return child_of(int(self.pid))

    def socket(self, kind: socket.SocketKind, address: str) -> socket.socket:
        """A socket of the pod's namespace, of that address's family."""
        made = call_inside(self.netns, lambda: socket.socket(family_of(address), kind))
        made.settimeout(_SECONDS)
        return made


@dataclass(frozen=True, slots=True)
class KubeletNode:
    """The node, as the host outside and the tests see it."""

    node: Node

    @property
    def ipv4(self) -> IPv4Address:
        return self.node.ipv4

    @property
    def ipv6(self) -> IPv6Address:
        return self.node.ipv6

    @property
    def kernel(self) -> KernelState:
        return KernelState(str(self.node.netns))

    def run(self, *argv: str) -> str:
        """Standard output of a short command. Raises NodeCommandError."""
        return self.node.run(argv)

    def exported(self) -> list[str]:
        """The blocks that a routing daemon would announce."""
        return list(self.kernel.destinations(EXPORT_TABLE))

    def route(self, destination: str, *, via: str) -> None:
        """A route of the administrator's."""
        self.run("ip", "route", "replace", destination, "via", via)


class World:
    """Make it with `up`. Egresses and pods are a test's own."""

    def __init__(self, api: Api, *, workspace: Workspace, node: KubeletNode, external: ExternalHost) -> None:
        self.api = api
        self.node = node
        self.external = external
        self._workspace = workspace

    @classmethod
    @contextmanager
    def up(cls, begun: Callable[["World"], object]) -> Iterator["World"]:
        """The node is Ready, which takes coild. Ends with the context.

        `begun` is called with what is not ready yet, for its logs.
        """
        stage = KubeletStage.read()
        with Workspace.create() as workspace, closing(Api(stage)) as api:
            ensure_passage(stage.address)
            if os.environ.get(INSIDE_VARIABLE):
                # The guest's root is an overlay, on which containerd could lay none of its own.
                run_command(["mount", "-t", "tmpfs", "tmpfs", str(workspace.make_folder(NODE))])
            programs = locate(NODE_PROGRAMS)
            software = Software(
                programs=programs,
                version=Version.of(programs[Program.KUBELET]),
                containerd=Version.of(programs[Program.CONTAINERD]),
                images=write_archive(workspace.folder / "images.tar", busybox_images()),
                patience=EMULATED if os.environ.get(INSIDE_VARIABLE) else 1.0,
            )
            network = Network.create(workspace)
            node = KubeletNode(Node(workspace, network, software, name=NODE, index=0))
            world = cls(api, workspace=workspace, node=node, external=ExternalHost(workspace, network))
            begun(world)
            node.node.start(others=[])
            # The API server's machine has no routes to pods.
            masquerade_to(stage.address, node)
            node.node.import_images(stage.image)
            node.node.join(stage.node)
            world.external.be_known([node])
            wait_until(world._is_ready, what="the node is Ready", timeout=START_SECONDS, pause=PAUSE)
            yield world

    def logs(self) -> Iterator[tuple[str, str]]:
        """Name and last lines of what every program has logged, containers included."""
        folder = self._workspace.folder
        for path in sorted([*(folder / "logs").glob("*.log"), *(folder / NODE / "log" / "pods").glob("*/*/*.log")]):
            try:
                lines = path.read_text(errors="replace").splitlines()
            except OSError as error:
                lines = [str(error)]
            yield str(path.relative_to(folder)), "\n".join(lines[-_LOG_LINES:])

    def coild(self) -> Pod:
        """The DaemonSet's pod on the node, once it runs."""
        return self.wait_for(lambda: next(iter(self._running(self.api.items(COILD_PODS))), None), what="coild runs")

    @contextmanager
    def egress(self, **spec: Any) -> Iterator["Egress"]:
        """An Egress with its routers ready; deleted at the end of the block, and its routers gone."""
        name = f"nat-{secrets.token_hex(3)}"
        wanted = {"destinations": list(NETWORKS.values()), "replicas": 1, "template": _template(), **spec}
        document = {"apiVersion": "coil.cybozu.com/v2", "kind": "Egress", "metadata": {"name": name}, "spec": wanted}
        self.api.create(EGRESSES, document)
        egress = Egress(self, name)
        try:
            self.wait(lambda: len(egress.routers()) == wanted["replicas"], what=f"{name} has its ready routers")
            self.external.learn([self.node])
            yield egress
        finally:
            self.api.delete(f"{EGRESSES}/{name}")
            self.wait(lambda: not egress.pods(), what=f"the routers of {name} are gone")

    @contextmanager
    def client(self, *egresses: str) -> Iterator[Pod]:
        """A pod with the annotation for those Egresses, or with none; deleted at the end of the block, and gone."""
        name = f"client-{secrets.token_hex(3)}"
        annotations = {ANNOTATION: ",".join(egresses)} if egresses else {}
        container = {
            "name": "client",
            "image": BUSYBOX_IMAGE,
            "imagePullPolicy": "Never",
            "command": ["busybox", "sleep", "infinity"],
        }
        document = {
            "metadata": {"name": name, "annotations": annotations},
            "spec": {
                "nodeName": NODE,
                "automountServiceAccountToken": False,
                "terminationGracePeriodSeconds": 0,
                "containers": [container],
            },
        }
        pods = f"/api/v1/namespaces/{CLIENT_NAMESPACE}/pods"
        self.api.create(pods, document)
        path = f"{pods}/{name}"
        try:
            pod = self.wait_for(lambda: next(iter(self._running([self.api.get(path)])), None), what=f"{name} runs")
            self.external.learn([self.node])
            yield pod
        finally:
            self.api.delete(path, grace=0)
            self.wait(lambda: self.api.find(path) is None, what=f"{name} is gone")

    def wait(self, holds: Callable[[], object], *, what: str) -> None:
        """Return when `holds` does. Raises AssertionError."""
        wait_until(holds, what=what, timeout=PATIENCE, pause=PAUSE)

    def wait_for(self, find: Callable[[], Pod | None], *, what: str) -> Pod:
        """The pod, as soon as there is one. Raises AssertionError."""
        found: list[Pod] = []

        def look() -> bool:
            if (pod := find()) is not None:
                found.append(pod)
            return bool(found)

        self.wait(look, what=what)
        return found[0]

    def running(self, namespace: str, *, instance: str) -> list[Pod]:
        """The ready pods of an Egress."""
        return self._running(self.pods(namespace, instance=instance))

    def pods(self, namespace: str, *, instance: str) -> list[Document]:
        """All of its pods that the API server has."""
        selector = f"labelSelector=app.kubernetes.io%2Finstance%3D{instance}"
        return self.api.items(f"/api/v1/namespaces/{namespace}/pods?{selector}")

    def _running(self, documents: Sequence[Document]) -> list[Pod]:
        running = []
        for document in documents:
            conditions = {each["type"]: each["status"] for each in document["status"].get("conditions", [])}
            if conditions.get("Ready") != "True" or "deletionTimestamp" in document["metadata"]:
                continue
            container = document["status"]["containerStatuses"][0]["containerID"].partition("://")[2]
            try:
                running.append(Pod(document, self.node.node.container_pid(container)))
            except (LookupError, NodeCommandError):
                continue  # it has just ended
        return running

    def _is_ready(self) -> bool:
        node = self.api.find(f"/api/v1/nodes/{NODE}")
        if node is None:
            return False
        return any(
            each["type"] == "Ready" and each["status"] == "True" for each in node["status"].get("conditions", [])
        )


def _template() -> Document:
    """A router's, for which a restart of its agent is no reason to lose its clients: where it takes longer, too."""
    slowness = int(EMULATED) if os.environ.get(INSIDE_VARIABLE) else 1
    probes = {"readinessProbe": {"failureThreshold": 3 * slowness}, "livenessProbe": {"failureThreshold": 6 * slowness}}
    return {"spec": {"containers": [{"name": ROUTER_CONTAINER, **probes}]}}


@dataclass(frozen=True, slots=True)
class Egress:
    """One Egress and what has become of it."""

    world: World
    name: str

    def pods(self) -> list[Document]:
        """Those of its router pods that are not gone."""
        return self.world.pods(EGRESS_NAMESPACE, instance=self.name)

    def routers(self) -> list[Pod]:
        """Those that are ready."""
        return self.world.running(EGRESS_NAMESPACE, instance=self.name)
