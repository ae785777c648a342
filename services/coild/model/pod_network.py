"""What coild asks of the kernel: the one interface between its features and rtnetlink, sysctls and namespaces.

`coil.netlink.host.HostNetwork` implements it; the tests have one implementation in memory.
"""

from collections.abc import Callable, Collection, Sequence
from typing import Protocol

from coil.kernel.family import Family, IPAddress
from coil.kernel.link import LinkName, Neighbour, Sysctl
from coil.kernel.route import Route, RouteChanges
from coil.kernel.rule import Rule, RuleChanges
from coil.netlink.host import NetnsPath, PodLink
from coil.netlink.namespace import Namespace
from coil.netlink.route import RouteAdditions
from coil.podnet.host_link import PodAlias
from coil.podnet.plan import PodPlan


class PodNetwork(Protocol):
    """The promises, and the exceptions, are those of `HostNetwork`."""

    async def ensure_sysctls(self, sysctls: Collection[Sysctl]) -> None:
        """Write the sysctls, in the host's namespace. Idempotent."""
        ...

    async def ensure_forwarding(self, families: Collection[Family]) -> int:
        """Have the node forward packets of the families; how many settings were otherwise. Idempotent. For a pod's,
        `attach_pod` does it.
        """
        ...

    async def ensure_rules(self, rules: Collection[Rule]) -> RuleChanges:
        """Make each rule exist once, and no other of the same protocols. Idempotent."""
        ...

    async def ensure_neighbours(self, neighbours: Collection[Neighbour]) -> int:
        """Have the permanent neighbours in the host's namespace; how many were missing. Idempotent."""
        ...

    async def pod_links(self) -> list[PodLink]:
        """The host ends of all veths that carry an alias of ours."""
        ...

    async def mark_pod_links(self, names: Collection[LinkName]) -> None:
        """Put the host ends into the group of pods' links. Idempotent; a link that is gone is fine."""
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

    async def sync_routes(self, *, table: int, protocol: int, wanted: Collection[Route]) -> RouteChanges:
        """Make `wanted` the routes of the protocol in the table. Idempotent."""
        ...

    async def sync_planned_routes(
        self, *, table: int, protocol: int, plan: Callable[[list[Route]], Collection[Route]]
    ) -> RouteChanges:
        """As `sync_routes`, for what follows from the table's other routes, which `plan` is given."""
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

    async def name_host_end(self, ifname: LinkName, alias: PodAlias, netns: NetnsPath) -> LinkName | None:
        """Give the host's end of a pod's interface an alias; None where it has no other end on this node."""
        ...

    async def pods_with_link(self, names: Collection[LinkName]) -> frozenset[PodAlias]:
        """The pods that have one of these links, by the aliases of their veths."""
        ...

    async def ensure_pod_sysctls(self, sysctls: Collection[Sysctl], netns: NetnsPath | Namespace) -> None:
        """Write the sysctls, in the pod's namespace. Idempotent."""
        ...

    async def pods_in(self, numbers: Collection[int]) -> frozenset[PodAlias]:
        """The pods whose namespaces have one of these numbers, by the aliases of their veths."""
        ...

    async def ensure_pod_neighbours(self, neighbours: Collection[Neighbour], alias: PodAlias) -> int:
        """Have these permanent neighbours in the pod's namespace; how many were missing. Idempotent."""
        ...

    async def ensure_modules(self, names: Sequence[str]) -> None:
        """Load kernel modules where they are not part of the kernel; one that cannot be loaded is no error."""
        ...

    async def open_pod_namespace(self, alias: PodAlias) -> Namespace | None:
        """The namespace of the pod whose veth has this alias; the caller closes it. None if there is no such veth."""
        ...
