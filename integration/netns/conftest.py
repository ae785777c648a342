"""A host's namespace and pods' namespaces for each test, and the network under test bound to the former."""

from collections.abc import AsyncIterator, Callable

import pytest

from coil.kernel.family import Family
from coil.netlink.host import HostNetwork
from coil.podnet.plan import plan_rules
from integration.netns.netns import Netns


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
        await network.ensure_forwarding(tuple(Family))
        await network.ensure_rules(plan_rules())
        yield network
