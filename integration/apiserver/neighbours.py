"""Two bare nodes on one layer 2 network, a real API server and an ipam-controller: for what nodes are to each other.

How blocks become routes at the neighbour is the test's choice: by `coild --route-sync`, or by a real BIRD on each node.
"""

import json
import secrets
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from ipaddress import ip_network
from typing import Any

from integration.apiserver.bare_node import BareNode
from integration.apiserver.runtime import Runtime, addresses_of
from integration.apiserver.sandbox import PodName, Sandbox
from integration.cluster.bird import Speaker, render_bird
from integration.cluster.control_plane import ControlPlane
from integration.cluster.network import Network
from integration.cluster.process import Process
from integration.cluster.workspace import Workspace
from integration.deployment import apply
from integration.service import Service

_START_SECONDS = 180.0
_NODES = 2


@dataclass
class Station:
    """One node. `coild` is set while it runs, or is dead for a test's reason."""

    node: BareNode
    runtime: Runtime
    coild: Service = field(init=False)

    @property
    def name(self) -> str:
        return self.node.name

    @property
    def netns(self) -> str:
        return str(self.node.namespaces.net)

    @property
    def addresses(self) -> dict[int, str]:
        """By IP version."""
        return {4: str(self.node.ipv4), 6: str(self.node.ipv6)}

    def gateways(self, protocol: str) -> dict[str, str]:
        """The routes of the main table that have that protocol: destination and gateway."""
        routes = self.node.kernel.routes("main")
        return {str(ip_network(route["dst"])): route["gateway"] for route in routes if route["protocol"] == protocol}

    def stop_coild(self) -> None:
        """End whatever runs by then. Idempotent."""
        self.coild.process.stop()

    def sandbox(self, namespace: str) -> Sandbox:
        """One for a new pod of the namespace, before its ADD."""
        pod = PodName(namespace, f"pod-{secrets.token_hex(3)}")
        return self.node.make_sandbox(pod, container_id=secrets.token_hex(32))

    def metrics(self) -> dict[str, float]:
        """See `PodHost.coild_metrics`."""
        return self.node.coild_metrics()


@dataclass(frozen=True, slots=True)
class LivePod:
    """A sandbox whose ADD has succeeded, and its addresses by IP version."""

    station: Station
    sandbox: Sandbox
    addresses: dict[int, str]

    def delete(self) -> None:
        """DEL, and the sandbox goes."""
        self.station.runtime.delete(self.sandbox)
        self.sandbox.destroy()


class Neighbours:
    """Make it with `up`. Pools and namespaces are a test's own, by `room`."""

    def __init__(self, workspace: Workspace, network: Network, plane: ControlPlane, stations: list[Station]) -> None:
        self.workspace = workspace
        self.network = network
        self.plane = plane
        self.stations = stations
        self.controller: Service

    @classmethod
    @contextmanager
    def up(cls, plane: ControlPlane) -> Iterator["Neighbours"]:
        """Everything but coild, on a control plane that has the chart. Takes some seconds; ends with the context."""
        with Workspace.create() as workspace, ExitStack() as undo:
            network = Network.create(workspace)
            stations = []
            for index in range(_NODES):
                node = BareNode(workspace, network, plane, name=f"node-{index}", index=index)
                undo.callback(node.destroy_sandboxes)
                node.register()
                stations.append(Station(node, node.install_plugin()))
            world = cls(workspace, network, plane, stations)
            world.controller = stations[0].node.start_controller()
            yield world

    @contextmanager
    def coild(self, *flags: str) -> Iterator[None]:
        """coild on each node, until the end of the block."""
        with ExitStack() as undo:
            for station in self.stations:
                station.coild = station.node.start_coild(*flags)
                undo.callback(station.stop_coild)
            yield

    @contextmanager
    def bird(self) -> Iterator[None]:
        """A routing daemon on each node, until the end of the block; it takes its routes away then."""
        with ExitStack() as undo:
            for station in self.stations:
                undo.callback(self._start_bird(station).stop)
            yield

    @contextmanager
    def room(self, *, bits: int) -> Iterator["Room"]:
        """A new pool of both families in blocks of 2 to the power of `bits`, and a namespace that draws from it."""
        name = f"room-{secrets.token_hex(3)}"
        number = secrets.randbits(12)
        node = self.stations[0].node
        ipv4 = f"10.{64 + (number >> 8)}.{number & 0xFF}.0/24"
        node.make_pool(name, {"ipv4": ipv4, "ipv6": f"fd10:{number:x}::/120"}, bits=bits)
        node.make_namespace(name, pool=name)
        room = Room(self, name)
        try:
            yield room
        finally:
            for pod in room.pods:
                pod.delete()
            self.plane.kubectl("delete", "addresspool", name, "--ignore-not-found", "--timeout=180s")

    def attempt(self, station: Station, *, namespace: str) -> None:
        """An ADD of a pod that is to fail. Raises CniError; nothing is left."""
        sandbox = station.sandbox(namespace)
        try:
            station.runtime.add(sandbox)
        finally:
            sandbox.destroy()

    def start(self, station: Station, *, namespace: str) -> LivePod:
        """A pod on that node, tried again as a kubelet does it. Raises CniError when that is of no use."""
        sandbox = station.sandbox(namespace)
        addresses = addresses_of(station.runtime.add_at_last(sandbox))
        return LivePod(station, sandbox, dict(zip((4, 6), addresses, strict=True)))

    def add_block(self, name: str, *, owner: str, ipv4: str, ipv6: str) -> None:
        """A reserved AddressBlock, as the migration from another program makes one."""
        labels = {"pool": "reserved", "node": owner, "reserved": "true"}
        document = {
            "apiVersion": "coil.cybozu.com/v2",
            "kind": "AddressBlock",
            "metadata": {"name": name, "labels": {f"coil.cybozu.com/{key}": value for key, value in labels.items()}},
            "index": 0,
            "ipv4": ipv4,
            "ipv6": ipv6,
        }
        apply(self.plane, document)

    def add_node(self, name: str, *addresses: str) -> None:
        """A Node without anything behind it."""
        apply(self.plane, {"apiVersion": "v1", "kind": "Node", "metadata": {"name": name}})
        entries = [{"type": "InternalIP", "address": address} for address in addresses]
        patch = json.dumps({"status": {"addresses": entries}})
        self.plane.kubectl("patch", "node", name, "--subresource=status", "--type=merge", f"--patch={patch}")

    def _start_bird(self, station: Station) -> Process:
        folder = self.workspace.make_folder(station.name)
        config, control = folder / "bird.conf", folder / "bird.ctl"
        own, *others = sorted((self._speaker(each) for each in self.stations), key=lambda one: one.name != station.name)
        config.write_text(render_bird(own, others))
        command = ["bird", "-f", "-c", str(config), "-s", str(control)]
        process = self.workspace.spawn(f"bird-{station.name}", [*station.node.namespaces.entrance, *command])
        process.wait_ready(control.is_socket, timeout=_START_SECONDS)
        return process

    @staticmethod
    def _speaker(station: Station) -> Speaker:
        return Speaker(name=station.name, ipv4=station.node.ipv4, ipv6=station.node.ipv6)


class Room:
    """A namespace and its pool, of the same name."""

    def __init__(self, world: Neighbours, name: str) -> None:
        self._world = world
        self.name = name
        self.pods: list[LivePod] = []

    def start(self, station: Station) -> LivePod:
        """A pod on that node. Raises CniError."""
        live = self._world.start(station, namespace=self.name)
        self.pods.append(live)
        return live

    def end(self, pod: LivePod) -> None:
        """End one of them."""
        pod.delete()
        self.pods.remove(pod)

    def blocks(self, station: Station) -> list[dict[str, Any]]:
        """The pool's blocks that the node has, by index."""
        labels = {"coil.cybozu.com/pool": self.name, "coil.cybozu.com/node": station.name}
        found = station.node.objects("addressblocks")
        own = [block for block in found if labels.items() <= block["metadata"]["labels"].items()]
        return sorted(own, key=lambda block: int(block["index"]))

    def next_hops(self, station: Station) -> dict[str, str]:
        """Where others should send packets for the node's blocks: network and the node's address."""
        return {
            block[family]: station.addresses[version]
            for block in self.blocks(station)
            for version, family in ((4, "ipv4"), (6, "ipv6"))
        }
