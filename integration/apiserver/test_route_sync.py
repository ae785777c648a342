"""`coild --route-sync` on two real nodes without a routing daemon: real processes, API server, plugin and kernel."""

import signal
from collections.abc import Collection, Iterator, Mapping
from contextlib import ExitStack, contextmanager

import pytest

from integration.apiserver.conversation import converse
from integration.apiserver.neighbours import LivePod, Neighbours, Room, Station
from integration.deployment import grant_node_list, revoke_node_list
from integration.kernel_state import EXPORT_TABLE
from integration.patience import wait_until
from integration.route_monitor import RouteMonitor, watch_routes

pytestmark = pytest.mark.apiserver

FLAGS = ("--route-sync", "--route-sync-interval=2s", "--cooling=500ms")
PROTOCOL = "31"
GHOSTS = ("ghost-1", "ghost-2")
BLOCK = {"ipv4": "10.90.0.0/28", "ipv6": "fd90::/124"}
POOL = "reserved"
SUBNETS = ({"ipv4": "10.90.0.0/24", "ipv6": "fd90::/120"}, {"ipv4": "10.91.0.0/24", "ipv6": "fd91::/120"})
STOP_TIMEOUT = 60.0

SYNCS = 'coil_router_syncs_total{node="node-0"}'
TROUBLED = 'coil_router_troubled_networks{{trouble="{}"}}'


@pytest.fixture(scope="module")
def flat(neighbours: Neighbours) -> Iterator[Neighbours]:
    grant_node_list(neighbours.plane)
    neighbours.stations[0].node.make_pool(POOL, *SUBNETS, bits=4)
    with neighbours.coild(*FLAGS):
        for station in neighbours.stations:
            await_ready(station)
        yield neighbours
    neighbours.plane.kubectl("delete", "addresspool", POOL, "--timeout=180s")
    revoke_node_list(neighbours.plane)


@pytest.fixture
def world(flat: Neighbours) -> Neighbours:
    """With everything running, whatever the test before has done to it."""
    flat.plane.start_apiserver()
    flat.controller.ensure_running()
    for station in flat.stations:
        station.coild.ensure_running()
    return flat


@pytest.fixture
def ghosts(world: Neighbours) -> Iterator[list[dict[str, str]]]:
    """Two Nodes on the same network that nobody is behind: the routes of `BLOCK`, were it the one's or the other's.

    None of them stays.
    """
    own = world.stations[0].node
    # Far from the numbers that nodes get.
    addresses = [(str(own.ipv4 + number), str(own.ipv6 + number)) for number in (150, 151)]
    for name, pair in zip(GHOSTS, addresses, strict=True):
        world.add_node(name, *pair)
    yield [{BLOCK["ipv4"]: ipv4, BLOCK["ipv6"]: ipv6} for ipv4, ipv6 in addresses]
    world.plane.kubectl("delete", "node", *GHOSTS, "--ignore-not-found")
    world.plane.kubectl("delete", "addressblock", "reserved-0", "--ignore-not-found")
    for station in world.stations:
        await_none(station, BLOCK.values())


def await_routes(station: Station, wanted: Mapping[str, str]) -> None:
    """Return when the node has these routes of ours: network and gateway."""
    what = f"routes of {station.name} to {', '.join(wanted)}"
    wait_until(lambda: wanted.items() <= station.gateways(PROTOCOL).items(), what=what)


def await_none(station: Station, networks: Collection[str]) -> None:
    """Return when the node has no route of ours to any of these networks."""
    what = f"no routes of {station.name} to {', '.join(networks)}"
    wait_until(lambda: not set(networks) & station.gateways(PROTOCOL).keys(), what=what)


def await_trouble(station: Station, trouble: str, networks: int) -> None:
    """Return when the node tells of so many networks with that trouble: it does when the routes are there."""
    wait_until(lambda: station.metrics()[TROUBLED.format(trouble)] == networks, what=f"{networks} with {trouble}")


def await_ready(station: Station) -> None:
    wait_until(lambda: not station.node.unready(), what=f"coild of {station.name} is ready")


def await_each_other(world: Neighbours, room: Room) -> None:
    """Return when each node routes all blocks that the other has."""
    here, there = world.stations
    await_routes(here, room.next_hops(there))
    await_routes(there, room.next_hops(here))


@contextmanager
def monitoring(stations: list[Station]) -> Iterator[list[RouteMonitor]]:
    with ExitStack() as stack:
        yield [stack.enter_context(watch_routes(station.netns)) for station in stations]


def assert_all_talk(*pods: LivePod) -> None:
    """Each pod, and its node, reach each pod in both families."""
    for client in pods:
        for server in pods:
            if client is server:
                continue
            for version, address in server.addresses.items():
                seen = converse(client.sandbox.netns, server.sandbox.netns, address)
                assert seen == client.addresses[version]
                seen = converse(client.station.netns, server.sandbox.netns, address)
                assert seen in {client.station.addresses[version], "169.254.1.1", "fe80::1"}


def withdrawn(monitor: RouteMonitor) -> set[str]:
    """The networks that were, even for an instant, without their route of ours."""
    return {event.destination for event in monitor.events() if event.withdrawn and event.protocol == PROTOCOL}


def test_pods_of_two_nodes_reach_each_other_without_a_routing_daemon(world: Neighbours) -> None:
    here, there = world.stations
    with world.room(bits=1) as room:
        pods = [room.start(station) for station in (here, there, there, there)]
        await_each_other(world, room)
        for station in world.stations:
            own = room.next_hops(station).keys()
            assert not own & station.gateways(PROTOCOL).keys()
            assert own <= station.node.kernel.destinations(EXPORT_TABLE).keys(), "a routing daemon may follow"
        assert len(room.blocks(there)) == 2
        assert_all_talk(pods[0], pods[1], pods[3])


def test_a_block_that_is_given_back_is_unknown_at_the_other_node(world: Neighbours) -> None:
    here, there = world.stations
    with world.room(bits=0) as room:
        leaving, staying = room.start(there), room.start(there)
        await_each_other(world, room)
        first, second = ({block["ipv4"], block["ipv6"]} for block in room.blocks(there))
        with watch_routes(here.netns) as monitor:
            room.end(leaving)
            await_none(here, first)
            assert withdrawn(monitor) == first
        room.start(here)
        await_each_other(world, room)
        assert_all_talk(*room.pods)
        room.end(staying)
        await_none(here, second)


def test_neither_coilds_death_nor_its_return_moves_a_route(world: Neighbours) -> None:
    with world.room(bits=1) as room:
        pods = [room.start(station) for station in world.stations]
        await_each_other(world, room)
        with monitoring(world.stations) as monitors:
            for station in world.stations:
                station.coild.kill()
            assert_all_talk(*pods)
            for station in world.stations:
                station.coild.start()
                station.coild.wait_ready()
                await_ready(station)
            for monitor in monitors:
                assert [event for event in monitor.events() if event.protocol == PROTOCOL] == []
        assert_all_talk(*pods)


@pytest.mark.slow
def test_an_api_server_that_is_away_and_forgets_moves_no_route(world: Neighbours) -> None:
    here, there = world.stations
    lists = 'informer_lists_total{resource="addressblocks-of-all-nodes"}'
    with world.room(bits=1) as room:
        pod = room.start(here)
        room.start(there)
        await_each_other(world, room)
        with monitoring(world.stations) as monitors:
            before = here.metrics()
            world.plane.stop_apiserver()
            wait_until(lambda: here.metrics()[SYNCS] > before[SYNCS] + 2, what="passes go on without the API server")
            assert_all_talk(*room.pods)
            world.plane.compact_etcd()
            world.plane.start_apiserver()
            newcomers = [room.start(there), room.start(there)]
            wait_until(lambda: here.metrics()[lists] > before[lists], what="the cluster is listed again")
            await_each_other(world, room)
            for monitor in monitors:
                assert withdrawn(monitor) == set()
        assert_all_talk(pod, newcomers[-1])


def test_the_routes_of_a_node_go_with_it(world: Neighbours, ghosts: list[dict[str, str]]) -> None:
    world.add_block("reserved-0", owner=GHOSTS[0], **BLOCK)
    for station in world.stations:
        await_routes(station, ghosts[0])
    world.plane.kubectl("delete", "node", GHOSTS[0])
    for station in world.stations:
        await_none(station, BLOCK.values())
    assert world.plane.kubectl("get", "addressblock", "reserved-0", "--output=name"), "its block is still there"
    await_trouble(world.stations[0], "no_node", 2)


def test_a_block_that_changes_hands_is_routed_at_every_instant(world: Neighbours, ghosts: list[dict[str, str]]) -> None:
    world.add_block("reserved-0", owner=GHOSTS[0], **BLOCK)
    for station in world.stations:
        await_routes(station, ghosts[0])
    with monitoring(world.stations) as monitors:
        for owner in (1, 0, 1):
            label = f"coil.cybozu.com/node={GHOSTS[owner]}"
            world.plane.kubectl("label", "--overwrite", "addressblock", "reserved-0", label)
            for station in world.stations:
                await_routes(station, ghosts[owner])
        for monitor in monitors:
            assert withdrawn(monitor) == set()
            for network in BLOCK.values():
                told = [event.gateway for event in monitor.events() if event.destination == network]
                assert told == [ghosts[owner][network] for owner in (1, 0, 1)]


def test_a_route_that_the_admin_made_stays(world: Neighbours, ghosts: list[dict[str, str]]) -> None:
    here = world.stations[0]
    network, other = BLOCK["ipv4"], BLOCK["ipv6"]
    here.node.kernel.run("ip", "route", "add", network, "via", ghosts[1][network], "proto", "static")
    try:
        theirs = here.gateways("static")
        world.add_block("reserved-0", owner=GHOSTS[0], **BLOCK)
        await_routes(here, {other: ghosts[0][other]})
        assert here.gateways("static") == theirs
        assert network not in here.gateways(PROTOCOL)
        await_trouble(here, "foreign_route", 1)
    finally:
        here.node.kernel.run("ip", "route", "delete", network, "proto", "static")
    await_routes(here, ghosts[0])


def test_a_node_on_another_network_is_reported_and_stops_nothing(
    world: Neighbours, ghosts: list[dict[str, str]]
) -> None:
    here = world.stations[0]
    world.add_node("far", "203.0.113.7")
    try:
        world.add_block("reserved-1", owner="far", ipv4="10.91.0.0/28", ipv6="fd91::/124")
        world.add_block("reserved-0", owner=GHOSTS[0], **BLOCK)
        await_routes(here, ghosts[0])
        await_trouble(here, "not_on_link", 1)
        await_trouble(here, "no_address", 1)
        assert not {"10.91.0.0/28", "fd91::/124"} & here.gateways(PROTOCOL).keys()
        assert "10.91.0.0/28 of block reserved-1 on far" in here.coild.process.log.read_text()
    finally:
        world.plane.kubectl("delete", "addressblock", "reserved-1", "--ignore-not-found")
        world.plane.kubectl("delete", "node", "far")


def test_a_block_that_is_in_no_pool_is_reported_and_not_routed(world: Neighbours, ghosts: list[dict[str, str]]) -> None:
    """A node's token can write blocks: it does not decide on the traffic of others for that."""
    here = world.stations[0]
    try:
        world.add_block("reserved-1", owner=GHOSTS[0], ipv4="0.0.0.0/1", ipv6="fd90::/64")
        world.add_block("reserved-0", owner=GHOSTS[0], **BLOCK)
        await_routes(here, ghosts[0])
        await_trouble(here, "no_pool", 2)
        assert not {"0.0.0.0/1", "fd90::/64"} & here.gateways(PROTOCOL).keys()
        assert "0.0.0.0/1 of block reserved-1 on ghost-1" in here.coild.process.log.read_text()
    finally:
        world.plane.kubectl("delete", "addressblock", "reserved-1", "--ignore-not-found")


def test_routes_that_somebody_took_away_are_back_after_a_sweep(world: Neighbours, ghosts: list[dict[str, str]]) -> None:
    here = world.stations[0]
    world.add_block("reserved-0", owner=GHOSTS[0], **BLOCK)
    await_routes(here, ghosts[0])
    for family, network in (("-4", BLOCK["ipv4"]), ("-6", BLOCK["ipv6"])):
        here.node.kernel.run("ip", family, "route", "delete", network, "proto", PROTOCOL)
    await_routes(here, ghosts[0])


@pytest.mark.parametrize(
    ("flags", "gone", "left"),
    [([], True, True), (["--clear-routes-on-shutdown"], False, True), (["--clear-routes-on-shutdown"], True, False)],
    ids=["by-default", "restarted", "node-gone"],
)
def test_a_stop_leaves_the_routes_unless_told_otherwise_and_the_node_is_gone(
    world: Neighbours, ghosts: list[dict[str, str]], flags: list[str], *, gone: bool, left: bool
) -> None:
    here = world.stations[0]
    world.add_block("reserved-0", owner=GHOSTS[0], **BLOCK)
    here.coild.kill()
    usual, here.coild = here.coild, here.node.start_coild(*FLAGS, *flags)
    try:
        await_ready(here)
        await_routes(here, ghosts[0])
        before = here.gateways(PROTOCOL)
        if gone:
            world.plane.kubectl("delete", "node", here.node.name)
        here.coild.process.send_signal(signal.SIGTERM)
        assert here.coild.process.wait(STOP_TIMEOUT) == 0
        assert here.gateways(PROTOCOL) == (before if left else {})
    finally:
        here.node.register()
        here.coild = usual
        here.coild.start()
        here.coild.wait_ready()


def test_without_the_right_to_read_nodes_pods_are_served_and_readiness_says_what_is_missing(world: Neighbours) -> None:
    here = world.stations[0]
    revoke_node_list(world.plane)
    here.coild.crash()
    here.coild.wait_ready()
    with world.room(bits=1) as room:
        room.start(here)
        wait_until(lambda: "forbidden" in here.node.unready().get("route-sync", ""), what="readiness says why")
        grant_node_list(world.plane)
        await_ready(here)
