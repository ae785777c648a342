"""What a real BIRD on each node makes of table 119: routes appear, change and go at the neighbour, and only then."""

import signal
from collections.abc import Collection, Iterator
from contextlib import contextmanager

import pytest

from integration.apiserver.conversation import converse
from integration.apiserver.neighbours import Neighbours, Room, Station
from integration.kernel_state import EXPORT_TABLE, POD_TABLE
from integration.patience import wait_until
from integration.route_monitor import RouteEvent, RouteMonitor, watch_routes

pytestmark = pytest.mark.apiserver

FLAGS = ("--cooling=500ms", "--addressblock-gc-interval=2s")
STOP_TIMEOUT = 60.0
BIRD = "bird"
"""The protocol of its routes, as iproute2 calls it."""


@pytest.fixture(scope="module")
def announced(neighbours: Neighbours) -> Iterator[Neighbours]:
    with neighbours.bird(), neighbours.coild(*FLAGS):
        yield neighbours


@pytest.fixture
def world(announced: Neighbours) -> Neighbours:
    """With everything running, whatever the test before has done to it."""
    announced.plane.start_apiserver()
    announced.controller.ensure_running()
    for station in announced.stations:
        station.coild.ensure_running()
    return announced


def await_announced(room: Room, *, by: Station, to: Station) -> set[str]:
    """Return when the neighbour has a route to each of the node's blocks of the room; to which networks."""
    wanted = room.next_hops(by)

    def learned() -> bool:
        return wanted.items() <= to.gateways(BIRD).items()

    wait_until(learned, what=f"{to.name} knows the blocks of {by.name}")
    return set(wanted)


def await_unknown(networks: Collection[str], *, at: Station) -> None:
    wait_until(lambda: not set(networks) & at.gateways(BIRD).keys(), what=f"{at.name} forgets {', '.join(networks)}")


def told_of(networks: Collection[str], monitor: RouteMonitor) -> list[RouteEvent]:
    """What happened to routes to these networks, in whatever table."""
    return [event for event in monitor.events() if event.destination in networks]


def test_routes_come_and_go_at_the_neighbour_with_the_blocks(world: Neighbours) -> None:
    here, there = world.stations
    with world.room(bits=0) as room, watch_routes(there.netns) as monitor:
        first = room.start(here)
        one = await_announced(room, by=here, to=there)
        assert len(one) == 2, "one of each family"
        second = room.start(here)
        both = await_announced(room, by=here, to=there)
        assert len(both) == 4
        assert both > one
        assert not [event for event in told_of(one, monitor) if event.withdrawn], "the second did not disturb the first"

        third = room.start(there)
        await_announced(room, by=there, to=here)
        for version in (4, 6):
            for pod in (first, second):
                seen = converse(third.sandbox.netns, pod.sandbox.netns, pod.addresses[version])
                assert seen == third.addresses[version]

        room.end(first)
        await_unknown(one, at=there)
        assert both - one <= there.gateways(BIRD).keys()
        assert not [event for event in told_of(both - one, monitor) if event.withdrawn]
        for version in (4, 6):
            assert converse(third.sandbox.netns, second.sandbox.netns, second.addresses[version])
        room.end(second)
        await_unknown(both, at=there)
        assert not both & here.node.kernel.destinations(EXPORT_TABLE).keys()


def test_a_block_that_the_next_node_gets_leads_there(world: Neighbours) -> None:
    here, there = world.stations
    with world.room(bits=0) as room:
        pod = room.start(here)
        networks = await_announced(room, by=here, to=there)
        room.end(pod)
        await_unknown(networks, at=there)
        wait_until(lambda: not room.blocks(here), what="the block is free")
        # The lowest free index is given: the same block.
        pod = room.start(there)
        assert await_announced(room, by=there, to=here) == networks
        assert converse(here.netns, pod.sandbox.netns, pod.addresses[4])


def test_the_neighbour_does_not_notice_that_coild_is_killed_and_started_again(world: Neighbours) -> None:
    here, there = world.stations
    with world.room(bits=0) as room:
        pods = [room.start(station) for station in (here, here, there)]
        networks = await_announced(room, by=here, to=there)
        with watch_routes(there.netns) as neighbour, watch_routes(here.netns) as own:
            here.coild.kill()
            assert networks <= here.node.kernel.destinations(EXPORT_TABLE).keys()
            for version in (4, 6):
                assert converse(pods[2].sandbox.netns, pods[0].sandbox.netns, pods[0].addresses[version])
            here.coild.start()
            here.coild.wait_ready()
            newcomer = room.start(here)
            # It has made its first pass by then, and exported one more block.
            assert await_announced(room, by=here, to=there) > networks
            assert told_of(networks, own) == [], "not a route was touched"
            assert told_of(networks, neighbour) == []
        for version in (4, 6):
            for pod in (pods[0], pods[1], newcomer):
                assert converse(pods[2].sandbox.netns, pod.sandbox.netns, pod.addresses[version])


def test_an_outage_of_the_api_server_is_not_seen_at_the_neighbour(world: Neighbours) -> None:
    here, there = world.stations
    with world.room(bits=0) as room:
        room.start(here)
        networks = await_announced(room, by=here, to=there)
        lists = 'informer_lists_total{resource="addressblocks"}'
        before = here.metrics()[lists]
        with watch_routes(there.netns) as monitor:
            world.plane.stop_apiserver()
            world.plane.compact_etcd()
            world.plane.start_apiserver()
            room.start(there)
            wait_until(lambda: here.metrics()[lists] > before, what="the blocks are listed again")
            await_announced(room, by=there, to=here)
            assert told_of(networks, monitor) == []


@contextmanager
def coild_with(station: Station, *flags: str) -> Iterator[None]:
    """Another coild there as long as the block lasts, and the usual one afterwards."""
    station.coild.kill()
    usual, station.coild = station.coild, station.node.start_coild(*FLAGS, *flags)
    try:
        yield
    finally:
        station.stop_coild()
        station.coild = usual
        usual.ensure_running()


def stop(station: Station) -> None:
    """As a kubelet does it."""
    station.coild.process.send_signal(signal.SIGTERM)
    assert station.coild.process.wait(STOP_TIMEOUT) == 0


def test_a_node_that_is_deleted_is_not_announced_any_more_when_its_coild_has_stopped(world: Neighbours) -> None:
    """Kubernetes ends the pods of a deleted node, coild among them; BIRD goes on, and so do the node's pods."""
    here, there = world.stations
    with world.room(bits=0) as room:
        pod = room.start(here)
        networks = await_announced(room, by=here, to=there)
        to_pods = here.node.kernel.routes(POD_TABLE)
        with coild_with(here, "--clear-routes-on-shutdown"):
            stop(here)
            assert networks <= here.node.kernel.destinations(EXPORT_TABLE).keys(), "the node is still there"
            here.coild.start()
            here.coild.wait_ready()
            # It would collect the node's blocks, and that is another matter.
            world.controller.kill()
            try:
                world.plane.kubectl("delete", "node", here.node.name)
                stop(here)
                assert not here.node.kernel.destinations(EXPORT_TABLE)
                await_unknown(networks, at=there)
                assert here.node.kernel.routes(POD_TABLE) == to_pods
                assert converse(here.netns, pod.sandbox.netns, pod.addresses[4])
            finally:
                here.node.register()
                world.controller.ensure_running()
        assert await_announced(room, by=here, to=there) == networks


def test_routes_to_pods_that_somebody_flushed_are_back_with_the_next_sweep(world: Neighbours) -> None:
    here, there = world.stations
    with world.room(bits=0) as room:
        pod = room.start(here)
        await_announced(room, by=here, to=there)
        before = here.node.kernel.destinations(POD_TABLE)
        assert set(pod.addresses.values()) <= {network.split("/")[0] for network in before}
        with watch_routes(here.netns) as monitor:
            for family in ("-4", "-6"):
                here.node.kernel.run("ip", family, "route", "flush", "table", POD_TABLE)
            wait_until(lambda: here.node.kernel.destinations(POD_TABLE) == before, what="the routes are back")
            assert [event for event in told_of(before, monitor) if event.withdrawn], "they were gone"
        for version in (4, 6):
            assert converse(there.netns, pod.sandbox.netns, pod.addresses[version])
