"""Follows which addresses are the node's own, for its host ports.

They are those that its Node has, as kubelet or a cloud controller writes them, and those in networks of the settings.
The kernel cannot tell: addresses of others are local to it as well.
"""

import asyncio
from collections.abc import Awaitable, Callable, Collection
from ipaddress import ip_network
from typing import Final

from structlog.typing import FilteringBoundLogger

from coil.crd.builtin import Node
from coil.kernel.family import IPNetwork
from coil.kube.errors import ApiError
from coil.netlink.error import BusyError
from coil.nft.netfilter import NftError
from coil.reconcile.backoff import Backoff
from coild.hostports.host_ports import HostPorts

PERIOD: Final = 60.0
"""Seconds between two looks at the Node. coild may read its own Node, and no role lets it watch that one alone."""
_PACE: Final = Backoff(base=0.5, cap=30.0)


def own_networks(node: Node, more: Collection[IPNetwork]) -> frozenset[IPNetwork]:
    """The Node's addresses, each as a network, and `more`. Pure."""
    return frozenset((*more, *map(ip_network, node.addresses())))


async def follow_own_addresses(
    ports: HostPorts,
    read: Callable[[], Awaitable[Node]],
    *,
    more: Collection[IPNetwork],
    random: Callable[[], float],
    log: FilteringBoundLogger,
) -> None:
    """Tell `ports` the node's addresses, for ever, from when it has any. `read` raises ApiError."""
    await ports.used.wait()
    attempt = 0
    while True:
        try:
            await ports.set_own(own_networks(await read(), more))
        except (ApiError, NftError, BusyError) as error:
            log.warning("the node's addresses are not known, host ports are at those known before", error=str(error))
            await asyncio.sleep(_PACE.delay(attempt, random))
            attempt += 1
        else:
            attempt = 0
            await asyncio.sleep(PERIOD * (1 - 0.1 * random()))
