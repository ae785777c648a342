"""Clients of egress NAT on a node that goes from Coil v2's own coild to ours and back: what that one makes is what is
written down of it, and the clients' conversations go on.
"""

import json
import secrets
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from typing import Final

import pytest

from integration.apiserver.sandbox import PodName
from integration.cluster.programs import Program
from integration.egress.capture import Capture
from integration.egress.chained import chained_station
from integration.egress.coil_v2 import go_coild_command, grant_coil_v2, programs_of_coil_v2
from integration.egress.conversation import Conversation, ask
from integration.egress.external_host import ADDRESSES, NETWORKS, learn_routes, tunnelled
from integration.egress.pod import RunningPod
from integration.egress.station import PATIENCE, Station
from integration.egress.world import EgressUnderTest, World
from integration.go_coild import Generation, GoClient, GoCoild, GoPod
from integration.kernel_state import KernelState, render_facts
from integration.patience import wait_until

pytestmark = [pytest.mark.kernel, pytest.mark.slow]

ADDED: Final = "198.51.100.0/24"
"""A destination that an Egress has for a while."""
_DRAWN: Final = {"ifindex", "link_index", "link_netnsid", "link", "permaddr"}
_SYSCTLS: Final = (
    *("ipv4/conf/all/rp_filter", "ipv4/conf/default/rp_filter", "ipv4/conf/eth0/rp_filter"),
    *("ipv4/ip_forward", "ipv6/conf/all/forwarding"),
)


@pytest.fixture
def station(world: World, egress: EgressUnderTest) -> Station:
    """Where the router is not."""
    grant_coil_v2(world)
    [router] = egress.routers()
    return next(each for each in world.stations if each is not router.station)


@pytest.fixture
def chained(world: World) -> Iterator[Station]:
    grant_coil_v2(world)
    with chained_station(world) as station:
        yield station


def test_a_client_is_what_is_recorded_and_is_taken_over(
    world: World, egress: EgressUnderTest, station: Station
) -> None:
    with ExitStack() as go:
        go.enter_context(station.other_coild(go_coild_command(world, station)))
        with world.client(egress.name, station=world.stations.index(station)) as client:
            twin = recorded_client(station, egress, client)
            assert_same(client_facts(client.kernel), client_facts(twin))
            assert_taken_over(world, egress, client, go)


def test_an_originating_only_client_is_what_is_recorded_and_is_taken_over(
    world: World, egress: EgressUnderTest, station: Station
) -> None:
    """What makes it so stays."""
    command = go_coild_command(world, station, "--backend=nftables", manifest="originatingonly/coild.yaml")
    with ExitStack() as go:
        go.enter_context(station.other_coild(command))
        with world.client(egress.name, station=world.stations.index(station)) as client:
            twin = recorded_client(station, egress, client)
            usual = client_facts(twin)
            recorded_of(egress, client).answer_where_asked(twin)
            assert_same(client_facts(client.kernel), client_facts(twin))
            assert_taken_over(world, egress, client, go)
            assert client_facts(twin) - usual <= client_facts(client.kernel)


def test_a_client_behind_another_plugin_is_what_is_recorded_and_is_taken_over(
    world: World, egress: EgressUnderTest, chained: Station
) -> None:
    learn_routes(chained, world.stations[:-1])
    with ExitStack() as go:
        go.enter_context(chained.other_coild(go_coild_command(world, chained, "--enable-ipam=false")))
        with world.client(egress.name, station=world.stations.index(chained)) as client:
            twin = recorded_client(chained, egress, client)
            assert_same(client_facts(client.kernel), client_facts(twin))
            assert f"COIL::{client.uid}:eth0" in chained.kernel.pod_links()
            assert_taken_over(world, egress, client, go)


def test_the_go_coild_follows_the_egress_for_a_client_of_ours(
    world: World, egress: EgressUnderTest, station: Station
) -> None:
    """It keeps rules and tunnels, as it finds what it looks for, and changes the routes."""
    with (
        world.client(egress.name, station=world.stations.index(station)) as client,
        named(station, client),
        talking(world, egress, client),
        station.other_coild(go_coild_command(world, station)),
    ):
        assert_followed(egress, client)


def test_a_router_of_coil_v2_serves_clients_of_ours_and_of_the_go_coild(world: World) -> None:
    """Clients that our coild has made on both nodes; and one of them when the Go coild has come. The template has the
    command and the argument of Coil v2's own.
    """
    grant_coil_v2(world)
    container = {"name": "egress", "command": ["coil-egress"], "args": ["--zap-stacktrace-level=panic"]}
    template = {"spec": {"containers": [container]}}
    program = programs_of_coil_v2() / Program.COIL_V2_ROUTER
    with world.kubelet.other_router(program), world.egress(template=template) as egress:
        [router] = egress.routers()
        assert router.kernel.link("egress-dummy"), "a link that only the Go router makes"
        for number, station in enumerate(world.stations):
            with world.client(egress.name, station=number) as client:
                with talking(world, egress, client):
                    assert_followed(egress, client)
                if station is not router.station:
                    with (
                        named(station, client),
                        talking(world, egress, client),
                        station.other_coild(go_coild_command(world, station)),
                    ):
                        assert_followed(egress, client)


def recorded_of(egress: EgressUnderTest, client: RunningPod) -> GoClient:
    return GoClient(client.addresses, egress.addresses, {version: NETWORKS[version] for version in client.addresses})


def recorded_client(station: Station, egress: EgressUnderTest, client: RunningPod) -> KernelState:
    """A pod like this one that is made from what is written down, in a namespace of its own, as is its node."""
    node, pod = (
        station.wired.make_sandbox(PodName("recorded", name), container_id=secrets.token_hex(32)).kernel
        for name in ("node", "pod")
    )
    pod.run("ip", "link", "set", "lo", "up")
    lengths = {4: 32, 6: 128}
    addresses = tuple(f"{address}/{lengths[version]}" for version, address in client.addresses.items())
    go = GoCoild(node, Generation.NO_QUEUE, (str(station.ipv4), str(station.ipv6)))
    go.attach(GoPod("default", client.sandbox.container_id, addresses), pod)
    recorded_of(egress, client).enroll(pod)
    return pod


def assert_same(real: set[str], recorded: set[str]) -> None:
    """Each fact that only one of them has is told."""
    different = [f"only real: {line}" for line in sorted(real - recorded)]
    different += [f"only recorded: {line}" for line in sorted(recorded - real)]
    assert not different, "\n".join(different)


def client_facts(kernel: KernelState) -> set[str]:
    """What a client has beside its link: tunnels, rules, routes, ports, the packet filter, sysctls."""
    facts: list[tuple[str, object]] = []
    words: dict[str, str] = {}
    for link in kernel.ip("link", "show"):
        if link["ifname"] == "fou-dummy":
            words[link["address"]] = "MAC"
        if link["ifname"] not in {"lo", "eth0"}:
            facts.append(("link", {key: value for key, value in link.items() if key not in _DRAWN}))
    for family in ("-4", "-6"):
        facts += [(f"rule {family}", rule) for rule in kernel.ip(family, "rule", "show")]
        for route in kernel.ip(family, "route", "show", "table", "all"):
            if route.get("table", "main") not in {"main", "local"}:
                facts.append((f"route {family}", route))
                if route.get("gateway", "").startswith("fe80:"):
                    words[route["gateway"]] = "GATEWAY"
    facts += [("fou", port) for port in json.loads(kernel.run("ip", "-json", "fou", "show"))]
    facts += [("nft", each) for each in kernel.nft("list", "ruleset") if "metainfo" not in each]
    facts += [(f"sysctl {name}", kernel.sysctl(f"net/{name}")) for name in _SYSCTLS]
    return render_facts(facts, words)


def assert_taken_over(world: World, egress: EgressUnderTest, client: RunningPod, go: ExitStack) -> None:
    """Our coild takes the place of the one that `go` ends, and follows the Egress in its place."""
    with talking(world, egress, client):
        go.close()
        assert_followed(egress, client)


@contextmanager
def talking(world: World, egress: EgressUnderTest, client: RunningPod) -> Iterator[None]:
    """The client talks to the host outside through all of the block and loses nothing; it keeps its tunnels."""
    wait_for_tunnel(world, egress, client)
    tunnels = tunnels_of(client.kernel)
    [router] = egress.routers()
    with ExitStack() as stack:
        conversations = {
            version: stack.enter_context(Conversation(client, world.external, ADDRESSES[version]))
            for version in client.addresses
        }
        yield
        for conversation in conversations.values():
            conversation.goes_on()
    assert {version: each.seen for version, each in conversations.items()} == {
        version: {router.addresses[version]} for version in client.addresses
    }
    assert tunnels_of(client.kernel) == tunnels
    wait_for_tunnel(world, egress, client)


def assert_followed(egress: EgressUnderTest, client: RunningPod) -> None:
    """A destination that the Egress gets and loses is one of the client's, and is none any more."""
    before = [NETWORKS[version] for version in client.addresses]
    egress.change(destinations=[*before, ADDED])
    wait_until(lambda: ADDED in client.kernel.destinations("118"), what="it has one more", timeout=PATIENCE)
    egress.change(destinations=before)
    wait_until(lambda: ADDED not in client.kernel.destinations("118"), what="it is gone", timeout=PATIENCE)


def wait_for_tunnel(world: World, egress: EgressUnderTest, client: RunningPod) -> None:
    """Return when the host outside sees the router in the client's place, and a packet of it was in a tunnel."""
    [router] = egress.routers()
    for version in client.addresses:
        world.await_seen(client, version, router.addresses[version])
        with Capture(client.netns) as wire:
            assert ask(client, world.external, ADDRESSES[version]) == router.addresses[version]
            wire.wait_for(tunnelled, what="of the tunnel")


def tunnels_of(kernel: KernelState) -> dict[str, int]:
    """The links of the tunnels, with their indexes."""
    links = kernel.ip("link", "show")
    return {link["ifname"]: link["ifindex"] for link in links if link["ifname"].startswith(("fou4_", "fou6_"))}


@contextmanager
def named(station: Station, client: RunningPod) -> Iterator[None]:
    """The client's namespace has a name on the node, as runtimes give it: the Go coild finds running pods by it."""
    process = client.netns.parts[2]
    station.wired.namespaces.run("ip", "netns", "attach", client.uid, process)
    try:
        yield
    finally:
        station.wired.namespaces.run("ip", "netns", "delete", client.uid)
