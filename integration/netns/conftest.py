"""A host's namespace and pods' namespaces for each test, and the network under test bound to the former."""

import os
from collections.abc import AsyncIterator, Callable, Iterator

import pytest

from coil.netlink.host import HostNetwork
from coil.podnet.plan import plan_forwarding, plan_rules
from integration.netns.netns import Netns


@pytest.fixture
def new_netns() -> Iterator[Callable[[], Netns]]:
    """Makes namespaces that are gone after the test."""
    assert os.geteuid() == 0, "tests marked `kernel` make network namespaces, which takes root"
    made: list[Netns] = []

    def new() -> Netns:
        netns = Netns()
        made.append(netns)
        return netns

    yield new
    for netns in made:
        netns.delete()


@pytest.fixture
def host(new_netns: Callable[[], Netns]) -> Netns:
    """The node, so to speak."""
    return new_netns()


@pytest.fixture
def pod(new_netns: Callable[[], Netns]) -> Netns:
    """A pod on it."""
    return new_netns()


@pytest.fixture
async def network(host: Netns) -> AsyncIterator[HostNetwork]:
    """The network under test, on a node that is ready for pods."""
    async with HostNetwork(host.path) as network:
        await network.ensure_sysctls(plan_forwarding())
        await network.ensure_rules(plan_rules())
        yield network
