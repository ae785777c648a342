"""What coild asks of the kernel about pods. `coil.netlink.host.HostNetwork` is one; tests have another, in memory."""

from collections.abc import Collection
from typing import Protocol

from coil.kernel.family import IPAddress
from coil.kernel.link import LinkName
from coil.kernel.route import Route
from coil.netlink.host import NetnsPath, PodLink
from coil.netlink.route import RouteAdditions
from coil.podnet.plan import PodPlan


class PodNetwork(Protocol):
    """The promises, and the exceptions, are those of `HostNetwork`."""

    async def pod_links(self) -> list[PodLink]:
        """The host ends of all veths that carry an alias of ours."""
        ...

    async def pod_routes(self, table: int) -> list[Route]:
        """The routes of one table, of both families."""
        ...

    async def pod_addresses(self, links: Collection[LinkName]) -> dict[LinkName, tuple[IPAddress, ...]]:
        """What addresses the pods have; in each family the oldest first. Links that are gone are not in the answer."""
        ...

    async def add_routes(self, routes: Collection[Route]) -> RouteAdditions:
        """Add what is not there, and replace nothing."""
        ...

    async def attach_pod(self, plan: PodPlan, netns: NetnsPath) -> object:
        """All or nothing. Not idempotent: LinkExistsError."""
        ...

    async def check_pod(self, plan: PodPlan, netns: NetnsPath) -> None:
        """Raises PodCheckError when the kernel does not hold the plan; other errors say nothing about it."""
        ...

    async def detach_pod(self, host_name: LinkName) -> None:
        """Returns when veth and routes are gone. Idempotent."""
        ...
