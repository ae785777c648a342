"""The demo's cloud, on the stage of the tests: namespaces become networks, pods ports, Services load balancers.

Every claim is checked against what others say: Neutron, and whoever answers on the other side of a connection. The
first that does not hold raises DemoError, or AssertionError where something was waited for in vain.
"""

import asyncio
import json
import secrets
from collections.abc import Iterable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, closing, contextmanager
from dataclasses import dataclass
from functools import partial
from ipaddress import ip_address
from itertools import permutations
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Final

from coil.crd.builtin import NAMESPACES, PODS, SERVICES
from coil.kube.client import KubeClient
from coil.neutron.resource import Port
from coil.openstack.client import OpenStackClient
from coil.openstack.neutron import NeutronApi
from integration.apiserver.bare_node import UPLINK_MTU
from integration.apiserver.neighbours import Neighbours, Station
from integration.apiserver.runtime import addresses_of
from integration.apiserver.sandbox import PodName, Sandbox
from integration.cluster.control_plane import ControlPlane
from integration.demo.narration import DemoError, print_table, step
from integration.deployment import grant_node_list
from integration.netns.greeter import Greeter, ask
from integration.netns.netns import exchange_inside
from integration.neutron.cloud_router import CloudRouter
from integration.neutron.neutron_server import NeutronServer
from integration.neutron.octavia_server import OctaviaServer
from integration.neutron.port_agent import PortAgent, port_links
from integration.neutron.raven_world import PUBLIC, SERVICE_FLAGS, RavenWorld
from integration.patience import wait_until

COILD_FLAGS: Final = ("--address-source=neutron", "--enable-egress=false")
PUBLIC_CIDR: Final = "192.0.2.0/24"
NAMESPACES_SHOWN: Final = ("red", "blue")
PODS_OF_EACH: Final = 4
PORT: Final = 80
TARGET_PORT: Final = 8080
ASKED: Final = 2 * PODS_OF_EACH
"""How often a Service is asked: each of its pods answers twice."""


@dataclass(frozen=True, slots=True)
class PluggedPod:
    """A pod whose ADD has succeeded. `addresses` are those of the result, IPv4 first."""

    name: PodName
    station: Station
    sandbox: Sandbox
    addresses: tuple[str, ...]

    @property
    def netns(self) -> Path:
        return Path(self.sandbox.netns)

    @property
    def title(self) -> str:
        return f"{self.name.namespace}/{self.name.name}"


@dataclass(frozen=True, slots=True)
class NeutronStage:
    """Make it with `up`. `empty` is what Neutron and Octavia had before anything was shown."""

    runner: asyncio.Runner
    neighbours: Neighbours
    neutron: NeutronServer
    octavia: OctaviaServer
    world: RavenWorld
    empty: dict[str, int]

    @classmethod
    @contextmanager
    def up(cls, plane: ControlPlane) -> Iterator["NeutronStage"]:
        """Everything runs, and the cluster's own namespaces have their networks."""
        with ExitStack() as stack:
            folder = Path(stack.enter_context(TemporaryDirectory(prefix="coil-demo-")))
            neighbours = stack.enter_context(Neighbours.up(plane))
            stations = neighbours.stations
            grant_node_list(plane)
            neutron = stack.enter_context(
                NeutronServer.start(folder, hosts=[station.name for station in stations], mtu=UPLINK_MTU)
            )
            neutron.add_public_network(PUBLIC, PUBLIC_CIDR)
            octavia = stack.enter_context(OctaviaServer.start(folder, neutron))
            nodes = {station.name: station.node.kernel for station in stations}
            stack.enter_context(PortAgent(neutron, nodes))
            router = stack.enter_context(
                CloudRouter(
                    neighbours.workspace,
                    neighbours.network,
                    plane,
                    octavia,
                    nodes=[station.node.ipv4 for station in stations],
                    public=PUBLIC_CIDR,
                )
            )
            router.announce()
            stack.enter_context(neighbours.coild(*COILD_FLAGS))
            runner = stack.enter_context(asyncio.Runner())
            client = KubeClient.connect(plane.admin_kubeconfig)
            kube = runner.run(client.__aenter__())
            stack.callback(lambda: runner.run(client.__aexit__(None, None, None)))
            flags = (*SERVICE_FLAGS, f"--public-network={PUBLIC}")
            world = stack.enter_context(RavenWorld.start(plane, kube, neutron, folder, *flags, octavia=octavia))
            runner.run(world.wait_for_networks())
            # That of the Service `kubernetes`.
            wait_until(lambda: octavia.snapshot()["pools"] == 1, what="the load balancer of the API server")
            yield cls(runner, neighbours, neutron, octavia, world, {**neutron.snapshot(), **octavia.snapshot()})

    def logs(self) -> Iterable[tuple[str, str]]:
        """Name and log of each program."""
        programs = [self.world.raven, *(station.coild for station in self.neighbours.stations)]
        return [(program.process.name, program.process.tail()) for program in programs]

    def counts(self) -> dict[str, int]:
        """What Neutron and Octavia have now."""
        return {**self.neutron.snapshot(), **self.octavia.snapshot()}


def show(stage: NeutronStage) -> None:
    """The scene proper."""
    names = step(
        "two namespaces: coil-raven makes a network for each, with subnets of both families, on one router",
        lambda: make_namespaces(stage),
    )
    pods = step(
        f"{PODS_OF_EACH} pods in each, on two nodes: each gets a port, coild plugs it in, and it becomes ACTIVE",
        lambda: add_pods(stage, names),
    )
    show_ports(stage, pods)
    asked = len(pods) * (len(pods) - 1) * 2
    step(
        f"TCP: every pod to every other, within a network and by the router, both families ({asked} connections)",
        lambda: check_reach(pods),
    )
    red = [pod for pod in pods if pod.name.namespace == names[0]]
    with ExitStack() as serving:
        for pod in red:
            serving.enter_context(closing(Greeter(pod.netns, pod.title, TARGET_PORT)))
        cluster_ip, floating_ip = step(
            f"a Service of type LoadBalancer in {NAMESPACES_SHOWN[0]}: a load balancer of Octavia, and a floating IP",
            lambda: make_service(stage, red),
        )
        show_answers(stage, pods, red, cluster_ip=cluster_ip, floating_ip=floating_ip)
    step(
        "all of it deleted: Neutron and Octavia are as empty as before, and the nodes have no links left",
        lambda: check_removal(stage, pods, names),
    )


def make_namespaces(stage: NeutronStage) -> list[str]:
    """Their names, once their networks are whole."""

    async def make() -> list[str]:
        names = [await stage.world.add_namespace(name) for name in NAMESPACES_SHOWN]
        await stage.world.wait_for_networks()
        return names

    return stage.runner.run(make())


def add_pods(stage: NeutronStage, namespaces: Sequence[str]) -> list[PluggedPod]:
    """Return when each has its addresses."""
    stations = stage.neighbours.stations

    async def create() -> list[tuple[PodName, Station]]:
        made = []
        for namespace in namespaces:
            for number in range(PODS_OF_EACH):
                name, station = f"web-{number}", stations[number % len(stations)]
                await stage.world.add_pod(namespace, name, node=station.name)
                pod = await stage.world.client.get(PODS, name, namespace=namespace)
                made.append((PodName(namespace, name, pod.metadata.uid), station))
        return made

    def plug(name: PodName, station: Station) -> PluggedPod:
        sandbox = station.node.make_sandbox(name, container_id=secrets.token_hex(32))
        return PluggedPod(name, station, sandbox, tuple(addresses_of(station.runtime.add(sandbox))))

    made = stage.runner.run(create())
    with ThreadPoolExecutor(len(made)) as kubelets:
        return list(kubelets.map(plug, *zip(*made, strict=True)))


def show_ports(stage: NeutronStage, pods: Sequence[PluggedPod]) -> None:
    """The pods as Neutron has them. Raises DemoError if that is something else than what they have."""
    ports = {port.device_id: port for port in read_ports(stage)}
    rows, mistakes = [], []
    for pod in pods:
        port = ports[pod.name.uid]
        own = json.loads(pod.sandbox.kernel.run("ip", "-json", "link", "show", "eth0"))[0]["address"]
        fixed = [each.ip_address for each in port.fixed_ips]
        rows.append((pod.title, port.host_id, port.mac_address, "  ".join(fixed), port.status))
        if (own, {*pod.addresses}, port.host_id, port.status) != (
            port.mac_address,
            {*fixed},
            pod.station.name,
            "ACTIVE",
        ):
            mistakes.append(f"{pod.title} has {own} and {pod.addresses} on {pod.station.name}, and Neutron has {port}")
    print()
    print_table(("POD", "HOST", "MAC", "ADDRESSES", "STATUS IN NEUTRON"), rows)
    if mistakes:
        raise DemoError("\n".join(mistakes))


def read_ports(stage: NeutronStage) -> list[Port]:
    with OpenStackClient(stage.neutron.connect) as client:
        return stage.runner.run(NeutronApi(client).ports(device_owner="compute:kuryr"))


def check_reach(pods: Sequence[PluggedPod]) -> None:
    """Raises DemoError if somebody is seen as somebody else."""
    for client, server in permutations(pods, 2):
        for own, address in zip(client.addresses, server.addresses, strict=True):
            seen = exchange_inside(client.netns, server.netns, ip_address(address))
            if seen != own:
                raise DemoError(f"{client.title} ({own}) is seen by {server.title} as {seen}")


def make_service(stage: NeutronStage, pods: Sequence[PluggedPod]) -> tuple[str, str]:
    """Its cluster IP and its floating IP. There is no controller here that makes its EndpointSlice."""
    namespace = pods[0].name.namespace
    members = [address for pod in pods for address in pod.addresses if ip_address(address).version == 4]

    async def make() -> str:
        service = await stage.world.add_service(namespace, type="LoadBalancer")
        await stage.world.put_endpoints(namespace, members)
        return service.spec.cluster_ip

    cluster_ip = stage.runner.run(make())
    wait_until(lambda: stage.runner.run(stage.world.ingress(namespace)), what="the floating IP in the status")
    [floating_ip] = stage.runner.run(stage.world.ingress(namespace))
    names = {pod.title for pod in pods}
    for netns, address in ((pods[0].netns, cluster_ip), (outside(stage), floating_ip)):
        wait_until(partial(is_answered_by, names, netns, address), what=f"an answer of each pod at {address}")
    return cluster_ip, floating_ip


def outside(stage: NeutronStage) -> Path:
    """The network namespace of a host that is no part of the cluster."""
    return Path(stage.neighbours.network.fabric.net)


def is_answered_by(names: set[str], netns: Path, address: str) -> bool:
    try:
        return read_answers(netns, address) == names
    except OSError:
        return False


def show_answers(
    stage: NeutronStage,
    pods: Sequence[PluggedPod],
    servers: Sequence[PluggedPod],
    *,
    cluster_ip: str,
    floating_ip: str,
) -> None:
    """Who answers whom. Raises DemoError unless all pods of the Service do, and nobody else."""
    names = {pod.title for pod in servers}
    others = [pod for pod in pods if pod.title not in names]
    clients = [
        *((pod.title, pod.netns, cluster_ip) for pod in (servers[0], others[0], others[1])),
        ("a host outside", outside(stage), floating_ip),
    ]
    rows = step(
        "the Service answers pods of both namespaces on its cluster IP, and a host outside on its floating IP",
        lambda: [(who, address, read_answers(netns, address)) for who, netns, address in clients],
    )
    print()
    print_table(
        ("WHO ASKED", "WHOM", "WHO ANSWERED"),
        [(who, f"{address}:{PORT}", "  ".join(sorted(answers))) for who, address, answers in rows],
    )
    if mistakes := [who for who, _, answers in rows if answers != names]:
        raise DemoError(f"not all pods of the Service answer {', '.join(mistakes)}")


def read_answers(netns: Path, address: str) -> set[str]:
    """The pods that have answered a client in that namespace. Raises OSError if nobody does."""
    return {ask(netns, address, port=PORT).split()[0] for _ in range(ASKED)}


def check_removal(stage: NeutronStage, pods: Sequence[PluggedPod], namespaces: Sequence[str]) -> None:
    """Return when nothing is left. Raises AssertionError."""
    for pod in pods:
        pod.station.runtime.delete(pod.sandbox)
        pod.sandbox.destroy()

    async def delete() -> None:
        for pod in pods:
            await stage.world.delete_pod(pod.name.namespace, pod.name.name)
        await stage.world.client.delete(SERVICES, "web", namespace=namespaces[0])
        for namespace in namespaces:
            await stage.world.client.delete(NAMESPACES, namespace)

    stage.runner.run(delete())
    wait_until(lambda: stage.counts() == stage.empty, what="Neutron and Octavia are as empty as before")
    for station in stage.neighbours.stations:
        if left := port_links(station.node.kernel):
            raise DemoError(f"{station.name} still has the links {', '.join(left)}")
