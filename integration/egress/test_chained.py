"""Egress alone, behind another CNI plugin that has wired the pods and given them their addresses."""

from collections.abc import Iterator
from ipaddress import ip_address, ip_network

import pytest

from integration.egress.capture import Capture
from integration.egress.chained import SUBNETS, chained_station
from integration.egress.conversation import Conversation, ask
from integration.egress.external_host import ADDRESSES, learn_routes, tunnelled
from integration.egress.pod import RunningPod
from integration.egress.station import Station
from integration.egress.world import EgressUnderTest, World
from integration.kernel_state import POD_TABLE

pytestmark = [pytest.mark.kernel, pytest.mark.slow]


@pytest.fixture(scope="module")
def chained(world: World) -> Iterator[Station]:
    with chained_station(world) as station:
        yield station


def is_of_the_plugin(pod: RunningPod) -> bool:
    return all(ip_address(each) in ip_network(SUBNETS[version]) for version, each in pod.addresses.items())


def test_clients_and_a_router_whose_addresses_are_another_plugins(world: World, chained: Station) -> None:
    """The router's clients are on its own node, and on one where Coil gives the addresses."""
    here = world.stations.index(chained)
    with (
        world.egress(template={"spec": {"nodeName": chained.name}}) as egress,
        world.client(egress.name, station=here) as client,
        world.client(egress.name, station=0) as elsewhere,
        world.client(station=here) as plain,
    ):
        [router] = egress.routers()
        assert router.station is chained
        learn_routes(chained, world.stations[:-1])
        assert [is_of_the_plugin(pod) for pod in (router, client, plain, elsewhere)] == [True, True, True, False]
        for version in client.addresses:
            outside = ADDRESSES[version]
            for asking in (client, elsewhere):
                with Capture(asking.netns) as wire:
                    assert ask(asking, world.external, outside) == router.addresses[version]
                    wire.wait_for(tunnelled, what="of the tunnel")
            assert ask(plain, world.external, outside) == plain.addresses[version]
        # A coild that starts again finds the other plugin's pods, and changes nothing under them.
        [first, *_] = client.addresses
        with Conversation(client, world.external, ADDRESSES[first]) as conversation:
            chained.coild.crash()
            chained.coild.wait_ready()
            conversation.goes_on()
        assert conversation.seen == {router.addresses[first]}
        assert chained.kernel.routes(POD_TABLE) == []


def test_a_client_of_a_router_with_addresses_of_coils(world: World, chained: Station, egress: EgressUnderTest) -> None:
    """Its annotation comes and goes while it runs."""
    [router] = egress.routers()
    assert router.station is not chained
    learn_routes(chained, world.stations[:-1])
    with world.client(station=world.stations.index(chained)) as client:
        for names, seen in (((egress.name,), router), ((), client)):
            world.annotate(client, *names)
            for version in client.addresses:
                world.await_seen(client, version, seen.addresses[version])
