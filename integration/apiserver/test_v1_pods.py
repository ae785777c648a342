"""Pods that Coil v1 has wired, on two nodes with BIRD: our programs take v1's place under their traffic, and no pod
notices; then `coil-migrator replace` ends them, and nothing of v1 is left on the nodes.

The state on the nodes is that of `integration.coil_v1`, the objects are those that the migrator makes of v1's etcd.
"""

import json
import secrets
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from ipaddress import ip_address, ip_network
from typing import Any

import pytest

from integration.apiserver.conversation import converse
from integration.apiserver.migrator import RUN_SECONDS, Migrator
from integration.apiserver.neighbours import Neighbours, Station
from integration.apiserver.runtime import Runtime, addresses_of
from integration.apiserver.sandbox import PodName, Sandbox
from integration.apiserver.v1_etcd import V1Etcd
from integration.change_monitor import watch_changes
from integration.coil_v1 import CONFIGURATION, V1Node, host_link
from integration.kernel_state import EXPORT_TABLE
from integration.patience import wait_until
from integration.tcp_stream import flow
from tests.coil_migrator.v1_cluster import V1Cluster

pytestmark = pytest.mark.apiserver

SUBNET = "10.95.0.0/27"
BITS = 3
BLOCKS = {"10.95.0.0/29": 0, "10.95.0.8/29": 1}
"""And the node that v1 has given each to."""
PODS = {"web-0": (0, "10.95.0.1"), "web-1": (0, "10.95.0.6"), "web-2": (1, "10.95.0.8")}
FLAGS = ("--cooling=500ms", "--addressblock-gc-interval=200ms", "--compat-calico")
"""v1 names links as Calico does. With the last flag, coild does so as well: a pod's successor has a link of the same
name.
"""
BIRD = "bird"
"""The protocol of its routes, as iproute2 calls it."""


@dataclass
class V1Pod:
    """One that runs; `result` is what the runtime has cached of its ADD."""

    station: Station
    sandbox: Sandbox
    address: str
    result: dict[str, Any]

    @property
    def netns(self) -> str:
        return self.sandbox.netns


@dataclass
class V1World:
    """Our coild is not running yet. Pool and namespace have one name, as v1 wants it."""

    world: Neighbours
    migrator: Migrator
    name: str
    pods: dict[str, V1Pod] = field(default_factory=dict)

    def exported(self) -> dict[str, Station]:
        """v1's blocks, and where each is."""
        return {block: self.world.stations[number] for block, number in BLOCKS.items()}

    def add_pod(self, name: str) -> None:
        """A running pod, in the API server and on its node."""
        number, address = PODS[name]
        station = self.world.stations[number]
        sandbox = station.node.make_sandbox(PodName(self.name, name), container_id=secrets.token_hex(32))
        sandbox.kernel.run("ip", "link", "set", "lo", "up")
        result = V1Node(station.node.kernel).attach(sandbox, address)
        self.pods[name] = V1Pod(station, sandbox, address, result)
        plane, place = self.world.plane, f"--namespace={self.name}"
        station.node.make_pod(self.name, name)
        status = {"phase": "Running", "podIP": address, "podIPs": [{"ip": address}]}
        patch = f"--patch={json.dumps({'status': status})}"
        plane.kubectl("patch", "pod", name, place, "--subresource=status", "--type=merge", patch)

    def traces(self, pod: V1Pod) -> list[str]:
        """What the kernel of its node still has of the pod."""
        kernel, name = pod.station.node.kernel, host_link(pod.sandbox)
        left = [f"link {name}"] if kernel.link(name) is not None else []
        return left + [f"route {route}" for route in kernel.routes("main") if route["dst"] == pod.address]

    def is_about_v1(self, line: str) -> bool:
        """Whether a line of `ip monitor` is about what v1 has made."""
        names = {host_link(pod.sandbox) for pod in self.pods.values()} | {pod.address for pod in self.pods.values()}
        return any(word.partition("@")[0].rstrip(":") in names | set(BLOCKS) for word in line.split())

    def is_ending(self, name: str) -> bool:
        path = f"/api/v1/namespaces/{self.name}/pods/{name}"
        return "deletionTimestamp" in self.world.plane.read(path)["metadata"]

    def finish(self, name: str) -> None:
        """What runtime and kubelet do when a pod has ended: DEL, the sandbox goes, and then the object."""
        pod = self.pods[name]
        runtime = pod.station.runtime
        # A runtime may have kept v1's configuration, or have read ours; either way the plugin is ours.
        for former in (Runtime(runtime.plugin, {**runtime.configuration, **CONFIGURATION}), runtime):
            former.delete(pod.sandbox, version="0.3.1", cached=pod.result)
        pod.sandbox.destroy()
        self.world.plane.kubectl("delete", "pod", name, f"--namespace={self.name}", "--force", "--grace-period=0")


@pytest.fixture(scope="module")
def etcd() -> Iterator[V1Etcd]:
    with V1Etcd.up() as etcd:
        yield etcd


@pytest.fixture
def v1(neighbours: Neighbours, etcd: V1Etcd) -> Iterator[V1World]:
    name = f"v1-{secrets.token_hex(3)}"
    v1 = V1World(neighbours, Migrator(plane=neighbours.plane, etcd=etcd, prefix=f"/{name}/", coild=""), name)
    neighbours.stations[0].node.make_namespace(name)
    cluster = V1Cluster()
    cluster.add_pool(name, BITS, SUBNET)
    for block, station in v1.exported().items():
        cluster.assign(name, station.name, block)
        V1Node(station.node.kernel).start(block)
    for _, address in PODS.values():
        [block] = [text for text in BLOCKS if ip_address(address) in ip_network(text)]
        offset = int(ip_address(address)) - int(ip_network(block).network_address)
        cluster.use(block, offset, f"container-{address}")
    etcd.put(v1.migrator.prefix, cluster.entries())
    with neighbours.bird():
        for pod in PODS:
            v1.add_pod(pod)
        yield v1
        for pod in PODS:
            v1.pods[pod].sandbox.destroy()
    neighbours.plane.kubectl("delete", "namespace", name, "--wait=false")


def await_announced(v1: V1World, *, on: bool) -> None:
    """Return when every node has, or has not, a route to each of v1's blocks of the others."""

    def holds() -> bool:
        return all(
            (block in station.gateways(BIRD)) is on
            for block, owner in v1.exported().items()
            for station in v1.world.stations
            if station is not owner
        )

    wait_until(holds, what=f"v1's blocks are {'' if on else 'not '}announced")


def test_pods_of_v1_notice_nothing_until_they_are_replaced(v1: V1World) -> None:
    await_announced(v1, on=True)
    dump = v1.migrator.run("dump")
    assert dump.returncode == 0, dump.stderr
    v1.world.plane.kubectl("apply", "--filename=-", stdin=dump.stdout)
    with undisturbed(v1), v1.world.coild(*FLAGS):
        for _ in range(2):
            for station in v1.world.stations:
                await_sweep(v1, station)
                station.coild.crash()
                station.coild.wait_ready()
    assert all(v1.traces(pod) for pod in v1.pods.values())
    await_announced(v1, on=True)

    with v1.world.coild(*FLAGS):
        replace(v1)
        for pod in v1.pods.values():
            wait_until(lambda pod=pod: not v1.traces(pod), what=f"nothing is left of {pod.sandbox.pod}")  # type: ignore[misc]
        await_announced(v1, on=False)
        for block, station in v1.exported().items():
            assert block not in station.node.kernel.destinations(EXPORT_TABLE)
        assert_successors_talk(v1)
        v1.world.plane.kubectl("delete", "addresspool", v1.name, "--timeout=180s")


@contextmanager
def undisturbed(v1: V1World) -> Iterator[None]:
    """Connections from and to v1's pods go on through all of the block, and nobody changes what v1 has made for them,
    even for an instant; but the exported routes may be replaced in one step.
    """
    first, second, remote = v1.pods.values()
    ends = [
        (first.netns, second.netns, second.address),
        (remote.netns, first.netns, first.address),
        (first.netns, remote.netns, remote.address),
        (first.station.netns, second.netns, second.address),
    ]
    with ExitStack() as undo:
        streams = [undo.enter_context(flow(*each)) for each in ends]
        pods = {name: undo.enter_context(watch_changes(pod.netns)) for name, pod in v1.pods.items()}
        nodes = {station.name: undo.enter_context(watch_changes(station.netns)) for station in v1.world.stations}
        yield
        for stream in streams:
            seen = stream.count()
            wait_until(lambda stream=stream, seen=seen: stream.count() > seen + 10, what="messages come back")  # type: ignore[misc]
        assert {name: monitor.lines() for name, monitor in pods.items()} == {name: [] for name in pods}
        for name, monitor in nodes.items():
            lines = [line for line in monitor.lines() if v1.is_about_v1(line)]
            replaced = [line for line in lines if EXPORT_TABLE in line.split() and not line.startswith("Deleted")]
            assert [line for line in lines if line not in replaced] == [], name


def assert_successors_talk(v1: V1World) -> None:
    """Pods of the same names on the same nodes. With --compat-calico, each has the very link's name that is gone."""
    with ExitStack() as undo:
        ends = []
        for former in v1.pods.values():
            station = former.station
            sandbox = station.node.make_sandbox(former.sandbox.pod, container_id=secrets.token_hex(32))
            undo.callback(sandbox.destroy)
            undo.callback(station.runtime.delete, sandbox)
            result = station.runtime.add_at_last(sandbox)
            assert host_link(sandbox) in {entry["name"] for entry in result["interfaces"]}
            [address] = addresses_of(result)
            ends.append((station, sandbox, address))
        (here, one, own), _, (there, other, far) = ends
        for station, address in ((here, far), (there, own)):
            what = f"{station.name} knows the new block"
            wait_until(lambda to=station, at=address: block_of(at) in to.gateways(BIRD), what=what)  # type: ignore[misc]
        assert converse(one.netns, other.netns, far) == own


def block_of(address: str) -> str:
    return str(ip_network(f"{address}/{32 - BITS}", strict=False))


def await_sweep(v1: V1World, station: Station) -> None:
    """Return when the node's coild has looked through links, addresses and blocks: a pod of ours whose namespace went
    without a DEL is found out, and so is its block.
    """
    sandbox = station.sandbox(v1.name)
    [address] = addresses_of(station.runtime.add_at_last(sandbox))
    assert block_of(address) not in BLOCKS
    sandbox.destroy()
    labels = {"coil.cybozu.com/pool": v1.name, "coil.cybozu.com/node": station.name}

    def given_back() -> bool:
        blocks = station.node.objects("addressblocks")
        own = {block["ipv4"] for block in blocks if labels.items() <= block["metadata"]["labels"].items()}
        return not own - set(BLOCKS)

    wait_until(given_back, what="the block of a pod that vanished is given back")


def replace(v1: V1World) -> None:
    """The command, and the kubelets' part in it."""
    client = v1.pods["web-2"]
    with v1.migrator.start("replace", "--yes", "--timeout=2m") as process:
        for name, pod in v1.pods.items():
            wait_until(lambda name=name: v1.is_ending(name), what=f"{name} is evicted")  # type: ignore[misc]
            # It goes on until it has ended itself.
            if pod is not client:
                assert converse(client.netns, pod.netns, pod.address) == client.address
            v1.finish(name)
        _, said = process.communicate(timeout=RUN_SECONDS)
    assert process.returncode == 0, said
    blocks = v1.world.stations[0].node.objects("addressblocks")
    assert not {block["ipv4"] for block in blocks if block["metadata"]["labels"]["coil.cybozu.com/pool"] == v1.name}
