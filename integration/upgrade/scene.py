"""Pods of every kind on two nodes, connections that are in use all the time, and what is seen of them at one moment."""

import json
import subprocess
from collections.abc import Iterator, Mapping
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from typing import Any, Final

from integration.cluster.node import Node
from integration.dashboard.exposition import ExportedMetric, parse_exposition
from integration.demo.outside_server import serve_outside
from integration.kernel_state import KernelState
from integration.nodes.coil_cluster import DEFAULT_POOL, CoilCluster, Families, Room
from integration.nodes.eip_gateway import (
    CHOSEN,
    LABEL,
    await_seen,
    carrier,
    eip_of,
    gateway_document,
    gateway_nodes,
    policy_document,
)
from integration.patience import wait_until, wait_until_clean
from integration.tcp_stream import TcpStream, flow
from integration.upgrade.kernel_dump import Dump, dump_kernel
from integration.upgrade.witness import metrics_page

METRICS: Final = {
    "coild": 9384,
    "coil-ipam-controller": 9386,
    "coil-egress-controller": 9396,
    "coil-egress-agent-node": 9398,
}
LEASE_NAMESPACES: Final = ("kube-system", "coil-eip-leases")
HERE: Final = "/proc/self/ns/net"
STILL_SECONDS: Final = 120.0
"""No floating address moves while no controller leads, and after that TCP takes as long again to send anew."""
_GONE: Final = 90.0


@dataclass(frozen=True, slots=True)
class View:
    """All that must not change."""

    pods: Mapping[str, Mapping[str, Any]]
    """By namespace and name: UID, addresses, and each container with the number of its restarts."""
    kernels: Mapping[str, Dump]
    """Of the nodes and of the pods, by name."""
    addresses: Mapping[str, Any]
    """By node, the pools of coild's inspection page: who has had which address since when, and what is cooling down."""
    leases: Mapping[str, Mapping[str, Any]]
    """By namespace and name."""
    metrics: Mapping[str, Mapping[str, ExportedMetric]]
    """By program, of all nodes together."""


class Scene:
    """Made by `play`."""

    def __init__(self, coil: CoilCluster, rooms: list[Room], urls: Mapping[int, str]) -> None:
        self.coil = coil
        self.rooms = rooms
        self.urls = urls
        self.streams: dict[str, TcpStream] = {}

    @classmethod
    @contextmanager
    def play(cls, coil: CoilCluster) -> Iterator["Scene"]:
        """All pods are Ready, the connections are in use, and the first node carries the floating addresses."""
        here, there = coil.nodes
        with ExitStack() as stack:
            urls = stack.enter_context(serve_outside(coil.cluster.network))
            # Pools of both families and of one; the first is the one for namespaces without an annotation.
            rooms = [coil.make_room(pool=DEFAULT_POOL), *(coil.make_room(families) for families in Families)]
            for room in rooms:
                room.create(room.pod("a", here), room.pod("b", here), room.pod("c", there))
            street = rooms[1]
            street.create(*(street.pod(name, there) for name in (CHOSEN, "plain")))
            for room in rooms:
                room.wait_ready("--all")
            for node in coil.nodes:
                stack.enter_context(gateway_nodes(coil, node))
            coil.release.apply(gateway_document(coil), policy_document(street))
            scene = cls(coil, rooms, urls)
            # A node that has carried an IPv6 address once goes on to be a proxy for neighbours on its uplink.
            scene.bring_eips(there)
            scene.bring_eips(here)
            scene._connect(stack)
            yield scene

    def bring_eips(self, target: Node) -> None:
        """Have that node carry the floating addresses; they do not move back by themselves."""
        [other] = [node for node in self.coil.nodes if node is not target]
        self.coil.plane.kubectl("label", "node", other.name, f"{LABEL}-")
        wait_until(lambda: carrier(self.coil) == target.name, what=f"{target.name} carries the floating addresses")
        self.coil.plane.kubectl("label", "node", other.name, f"{LABEL}=true")
        for family, url in self.urls.items():
            await_seen(self.rooms[1], url, as_=eip_of(self.coil, family))

    def counts(self) -> dict[str, int]:
        """How many messages went there and back on each connection. Raises AssertionError for one that has ended."""
        return {name: stream.count() for name, stream in self.streams.items()}

    def seen_outside(self) -> set[str]:
        """The addresses of those who have a connection to this machine's address on the nodes' network."""
        network = self.coil.cluster.network
        printed = "".join(
            subprocess.run(
                ["ss", "-Htn", "state", "established", "src", address],
                capture_output=True,
                text=True,
                timeout=20,
                check=True,
            ).stdout
            for address in (str(network.host4), f"[{network.host6}]")
        )
        peers = [line.split()[3].rpartition(":")[0].strip("[]") for line in printed.splitlines()]
        return set(peers)

    def find_gaps(self) -> list[str]:
        """A sentence for each pod that another one of its room, or a node, does not reach."""
        return [gap for room in self.rooms for gap in room.find_gaps()]

    def look(self) -> View:
        """All of it, now."""
        pods = {
            f"{room.namespace}/{item['metadata']['name']}": item
            for room in self.rooms
            for item in self.coil.read("pods", f"--namespace={room.namespace}")["items"]
        }
        namespaces = {node.name: str(node.netns) for node in self.coil.nodes}
        namespaces |= {name: self._netns(pod) for name, pod in pods.items()}
        return View(
            pods={name: _identity(pod) for name, pod in pods.items()},
            kernels={name: dump_kernel(KernelState(netns)) for name, netns in namespaces.items()},
            addresses={node.name: inspect(node) for node in self.coil.nodes},
            leases=self._leases(),
            metrics={program: self._metrics(port) for program, port in METRICS.items()},
        )

    def detach(self, room: Room, pod: str) -> None:
        """Delete a pod; its link, its routes and its address are given back."""
        item = self.coil.read("pod", pod, f"--namespace={room.namespace}")
        node = next(node for node in self.coil.nodes if node.name == item["spec"]["nodeName"])
        addresses = {entry["ip"] for entry in item["status"]["podIPs"]}
        kernel = self.coil.kernel(node)
        links = {kernel.destinations("116")[f"{address}/{128 if ':' in address else 32}"] for address in addresses}
        assert len(links) == 1

        def left() -> list[str]:
            found = [f"{node.name} has the link {link}" for link in links if kernel.link(link)]
            used = [each for each in used_addresses(inspect(node)) if addresses & {each["ipv4"], each["ipv6"]}]
            return found + [f"{each} is not given back" for each in used if each["state"] == "allocated"]

        room.kubectl("delete", "pod", pod, f"--timeout={_GONE:.0f}s")
        wait_until_clean(left, after=f"{pod} was deleted", timeout=_GONE)

    def _connect(self, stack: ExitStack) -> None:
        street = self.rooms[1]
        pods = {item["metadata"]["name"]: item for item in self._items(street)}
        for address in (entry["ip"] for entry in pods["c"]["status"]["podIPs"]):
            ends = self._netns(pods["a"]), self._netns(pods["c"])
            self.streams[f"across the nodes to {address}"] = stack.enter_context(flow(*ends, address))
        network = self.coil.cluster.network
        for address in (str(network.host4), str(network.host6)):
            through = flow(self._netns(pods[CHOSEN]), HERE, address, seconds=STILL_SECONDS)
            self.streams[f"through the floating address to {address}"] = stack.enter_context(through)

    def _items(self, room: Room) -> list[dict[str, Any]]:
        items: list[dict[str, Any]] = self.coil.read("pods", f"--namespace={room.namespace}")["items"]
        return items

    def _netns(self, pod: Mapping[str, Any]) -> str:
        node = next(node for node in self.coil.nodes if node.name == pod["spec"]["nodeName"])
        container = pod["status"]["containerStatuses"][0]["containerID"].partition("//")[2]
        return f"/proc/{node.container_pid(container)}/ns/net"

    def _leases(self) -> dict[str, dict[str, Any]]:
        items = [
            item
            for namespace in LEASE_NAMESPACES
            for item in self.coil.read("leases.coordination.k8s.io", f"--namespace={namespace}")["items"]
        ]
        return {f"{item['metadata']['namespace']}/{item['metadata']['name']}": item for item in items}

    def _metrics(self, port: int) -> dict[str, ExportedMetric]:
        found: dict[str, ExportedMetric] = {}
        for node in self.coil.nodes:
            for name, metric in parse_exposition(metrics_page(node, port)).items():
                if name not in found or metric.labels:
                    found[name] = metric
        return found


def inspect(node: Node) -> Any:
    """The pools of the page that coild serves on the node's localhost."""
    return json.loads(node.run(["curl", "--silent", "--max-time", "10", "http://127.0.0.1:6666/ip-manager"]))["pools"]


def used_addresses(pools: Any) -> list[dict[str, Any]]:
    """Those of all blocks that pods have or that are cooling down."""
    return [use for pool in pools for block in pool["blocks"] for use in block["used"]]


def _identity(pod: Mapping[str, Any]) -> dict[str, Any]:
    statuses = pod["status"]["containerStatuses"]
    return {
        "uid": pod["metadata"]["uid"],
        "addresses": pod["status"]["podIPs"],
        "containers": {status["containerID"]: status["restartCount"] for status in statuses},
    }
