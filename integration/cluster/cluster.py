"""A whole cluster: a control plane and nodes on one network, up and down as one. See ``Cluster.up``.

It starts in the order programs, network, control plane and at the same time the nodes' runtimes, then the nodes' other
programs. It goes in no order: everything is killed, and what remains is removed by name (``cleanup``).
"""

from __future__ import annotations

import enum
import json
import time
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from types import TracebackType
from typing import Any

from integration.cluster.bird import Speaker, render_bird
from integration.cluster.command_line import Version
from integration.cluster.control_plane import Controllers, ControlPlane
from integration.cluster.family import ClusterFamilies
from integration.cluster.image import busybox_images, write_archive
from integration.cluster.network import Namespaces, Network
from integration.cluster.node import Node, Software
from integration.cluster.process import ComponentError
from integration.cluster.programs import CLUSTER, NODE, Program, locate
from integration.cluster.requirement import check_requirements
from integration.cluster.workspace import Workspace

CONTROL_PLANE = "control-plane"
RECORD = "cluster.json"  # in the cluster's folder: what `status` tells about it
REGISTER_TIMEOUT = 180.0  # seconds in which all nodes must be known to the API server
READY_TIMEOUT = 180.0  # seconds in which all nodes must be Ready once they have a CNI configuration
_POLL = 0.2


class Ending(enum.Enum):
    """What ends a cluster when its owner does."""

    WITH_OWNER = enum.auto()
    ON_REQUEST = enum.auto()


class Cluster:
    """A running cluster. Make one with ``up``; a context manager that takes it down."""

    def __init__(self, workspace: Workspace, network: Network, plane: ControlPlane, nodes: Sequence[Node]) -> None:
        self.workspace = workspace
        self.network = network
        self.plane = plane
        self.nodes = list(nodes)

    @classmethod
    def up(
        cls,
        *,
        nodes: int = 2,
        ending: Ending = Ending.WITH_OWNER,
        families: ClusterFamilies = ClusterFamilies.IPV4_FIRST,
        kube_proxy: bool = True,
    ) -> Cluster:
        """Start a cluster of ``nodes`` nodes named node-1, node-2, …; root, some 15 s once the programs are built.

        When it returns the nodes are registered, and not Ready: that takes a CNI configuration and plugin, which is the
        caller's to install. Raises RequirementError, BuildError, ComponentError, NetworkError or NodeCommandError; then
        nothing is left. With Ending.ON_REQUEST the cluster outlives this process and ``remove_cluster`` ends it.
        """
        check_requirements()
        programs = locate(CLUSTER)
        with ExitStack() as undo:
            workspace = undo.enter_context(Workspace.create())
            network = Network.create(workspace, families)
            software = Software(
                programs={program: programs[program] for program in NODE},
                version=Version.of(programs[Program.KUBELET]),
                containerd=Version.of(programs[Program.CONTAINERD]),
                images=write_archive(workspace.folder / "images.tar", busybox_images()),
                kube_proxy=kube_proxy,
            )
            members = [
                Node(workspace, network, software, name=f"node-{index + 1}", index=index) for index in range(nodes)
            ]
            seat = Namespaces.hold(workspace, CONTROL_PLANE)
            network.attach(seat, port=CONTROL_PLANE, addresses=network.control_plane)
            router = Speaker(CONTROL_PLANE, *network.control_plane)
            speakers = [router, *(node.speaker for node in members)]
            with ThreadPoolExecutor(max_workers=nodes) as pool:
                starts = [
                    pool.submit(node.start, others=[other for other in speakers if other.name != node.name])
                    for node in members
                ]
                plane = ControlPlane.start(
                    controllers=Controllers.RUNNING,
                    workspace=workspace,
                    address=families.pick(*network.control_plane)[0],
                    namespaces=seat,
                    families=families,
                )
                # So that the API server reaches pods: webhooks and aggregated APIs behind Services, and its proxy.
                config = workspace.folder / f"{CONTROL_PLANE}.bird.conf"
                config.write_text(render_bird(router, speakers[1:], families.value))
                control = workspace.folder / f"{CONTROL_PLANE}.bird.ctl"
                workspace.spawn(
                    f"{CONTROL_PLANE}.bird", [*seat.entrance, "bird", "-f", "-c", str(config), "-s", str(control)]
                )
                for node, start in zip(members, starts, strict=True):
                    start.result()
                    node.join(plane.credentials.for_node(node.name, (node.ipv4, node.ipv6)))
            cluster = cls(workspace, network, plane, members)
            cluster.wait_registered()
            cluster._record()
            if ending is Ending.ON_REQUEST:
                workspace.release()
            undo.pop_all()
        return cluster

    def wait_registered(self) -> None:
        """Return when the API server knows every node. Raises ComponentError as `wait_ready`."""
        wanted = {node.name for node in self.nodes}
        self._wait_nodes(
            "registered",
            lambda nodes: {node["metadata"]["name"] for node in nodes} == wanted,
            timeout=REGISTER_TIMEOUT,
        )

    def wait_ready(self, *, timeout: float = READY_TIMEOUT) -> None:
        """Return when every node is Ready. Raises ComponentError with what the nodes say otherwise."""
        self._wait_nodes("Ready", lambda nodes: all(map(_is_ready, nodes)), timeout=timeout)

    def down(self) -> None:
        """Take the cluster down; nothing of it is left. Idempotent."""
        self.workspace.close()

    def __enter__(self) -> Cluster:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.down()

    def _wait_nodes(self, what: str, holds: Callable[[list[Any]], bool], *, timeout: float) -> None:
        deadline = time.monotonic() + timeout
        while True:
            nodes = self.plane.read("/api/v1/nodes")["items"]
            if holds(nodes):
                return
            for process in self.workspace.processes:
                if (code := process.poll()) is not None:
                    raise process.failure(f"ended with code {code} while the nodes were not yet {what}")
            if time.monotonic() > deadline:
                raise ComponentError(f"the nodes are not {what} after {timeout:.0f} s:\n{self._describe(nodes)}")
            time.sleep(_POLL)

    def _describe(self, nodes: list[Any]) -> str:
        """What the API server knows about the nodes, and the last words of the kubelets."""
        conditions = [
            f"{node['metadata']['name']}: {condition['type']}={condition['status']}: {condition.get('message', '')}"
            for node in nodes
            for condition in node["status"].get("conditions", [])
        ]
        kubelets = [process for process in self.workspace.processes if process.name.endswith(".kubelet")]
        return "\n".join([*conditions, *(f"{kubelet.log}:\n{kubelet.tail()}" for kubelet in kubelets)])

    def _record(self) -> None:
        record = {
            "kubeconfig": str(self.plane.admin_kubeconfig),
            "nodes": [
                {"name": node.name, "ipv4": str(node.ipv4), "ipv6": str(node.ipv6), "folder": str(node.folder)}
                for node in self.nodes
            ],
        }
        (self.workspace.folder / RECORD).write_text(json.dumps(record, indent=2))


def _is_ready(node: Any) -> bool:
    conditions = node["status"].get("conditions", [])
    return any(condition["type"] == "Ready" and condition["status"] == "True" for condition in conditions)
