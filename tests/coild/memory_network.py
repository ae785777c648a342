"""The kernel in memory, as far as coild asks it about pods. It keeps the promises of `coil.netlink.host.HostNetwork`.

`Kernel` is what survives a process; a `MemoryNetwork` is one process's way to it. The kernel itself watches over the
one rule that all of coild is for: it notes every address that comes to a second pod while a first still has it.
"""

import asyncio
import errno
from collections.abc import Awaitable, Callable, Collection, Sequence
from dataclasses import dataclass, field
from enum import Enum
from pathlib import Path
from typing import cast

from coil.kernel.family import Family, IPAddress
from coil.kernel.link import LinkGroup, LinkName, Neighbour, Sysctl, forwarding_sysctls
from coil.kernel.route import Route, RouteChanges, diff_routes
from coil.kernel.rule import Rule, RuleChanges, diff_rules
from coil.netlink.error import KernelError, LinkExistsError, NamespaceError, PodCheckError
from coil.netlink.host import NetnsPath, PodLink
from coil.netlink.namespace import Namespace
from coil.netlink.route import RouteAdditions
from coil.podnet.host_link import PodAlias, parse_alias
from coil.podnet.plan import PodPlan


class MemoryNamespace:
    """An open namespace: only its name matters."""

    def __init__(self, path: Path) -> None:
        self.path = path

    def __enter__(self) -> "MemoryNamespace":
        return self

    def __exit__(self, *error: object) -> None:
        pass

    def close(self) -> None:
        pass


class Stage(Enum):
    """How far a veth has come: an ADD makes it in three steps, and a crash may stop it after each."""

    BARE = "bare"
    """The link alone, with neither alias nor route."""
    NAMED = "named"
    """With its alias, but no route yet."""
    ROUTED = "routed"
    """The host's end is complete, the pod's is not."""
    WHOLE = "whole"


@dataclass(slots=True)
class Veth:
    plan: PodPlan
    netns: NetnsPath
    stage: Stage = Stage.BARE
    lost: set[Route] = field(default_factory=set)
    """Of its routes, those that somebody took out of the table."""
    extra: tuple[IPAddress, ...] = ()
    """Addresses that the pod gave itself."""
    group: int = LinkGroup.NONE

    @property
    def addresses(self) -> set[str]:
        return {str(assignment.address) for assignment in self.plan.assignments}

    @property
    def routes(self) -> set[Route]:
        return {*self.plan.host.routes} - self.lost if self.stage in {Stage.ROUTED, Stage.WHOLE} else set()


@dataclass
class Kernel:
    namespaces: set[NetnsPath] = field(default_factory=set)
    veths: dict[LinkName, Veth] = field(default_factory=dict)
    exported: set[Route] = field(default_factory=set)
    foreign: list[Route] = field(default_factory=list)
    """Routes that somebody else made."""
    named: dict[NetnsPath, PodAlias] = field(default_factory=dict)
    """The host's ends of veths that another plugin made, by namespace of the pod: those with an alias of ours."""
    links_in: dict[NetnsPath, set[LinkName]] = field(default_factory=dict)
    """What else is in the pods' namespaces."""
    pod_sysctls: dict[Path, set[Sysctl]] = field(default_factory=dict)
    neighbours: dict[PodAlias, set[Neighbour]] = field(default_factory=dict)
    """Those of pods that were put back."""
    lost_neighbours: set[Neighbour] = field(default_factory=set)
    """Those of the node that somebody deleted, or that a former version has not made."""
    numbers: dict[int, PodAlias] = field(default_factory=dict)
    """Of pods' namespaces."""
    modules: set[str] = field(default_factory=set)
    main: set[Route] = field(default_factory=set)
    """Routes of ours in the main table."""
    flat: set[NetnsPath] = field(default_factory=set)
    """Namespaces of pods whose interfaces have no other end on the host."""
    rules: set[Rule] = field(default_factory=set)
    sysctls: set[Sysctl] = field(default_factory=set)
    twice: list[str] = field(default_factory=list)
    """Addresses that two pods had at one time: must stay empty."""

    def namespace(self, name: str) -> NetnsPath:
        netns = NetnsPath(Path("/run/netns") / name)
        self.namespaces.add(netns)
        return netns

    @property
    def routes(self) -> list[Route]:
        return [*self.foreign, *(route for veth in self.veths.values() for route in veth.routes)]

    def flush(self) -> None:
        """`ip route flush table 116`, both families."""
        for veth in self.veths.values():
            veth.lost |= veth.routes

    def remove_namespace(self, netns: NetnsPath) -> None:
        """A veth goes with the namespace that holds its end."""
        self.namespaces.discard(netns)
        self.veths = {name: veth for name, veth in self.veths.items() if veth.netns != netns}
        self.named.pop(netns, None)

    def advance(self, veth: Veth, stage: Stage) -> None:
        veth.stage = stage
        if stage is Stage.ROUTED:
            for other in self.veths.values():
                if other is not veth and other.stage in {Stage.ROUTED, Stage.WHOLE}:
                    self.twice += sorted(veth.addresses & other.addresses)


class Step(Enum):
    ATTACH = "attach"
    DETACH = "detach"
    CHECK = "check"
    READ = "read"
    EXPORT = "export"
    RESTORE = "restore"
    PREPARE = "prepare"
    NAME = "name"


Gate = Callable[[Step], Awaitable[None]]
"""Awaited before each step takes effect: waits, or raises a NetlinkError."""


async def _open(step: Step) -> None:
    pass


class MemoryNetwork:
    """A `PodNetwork`. `killed` stands for a process that does not even get to undo things."""

    def __init__(self, kernel: Kernel, gate: Gate = _open) -> None:
        self.kernel = kernel
        self.gate = gate
        self.killed = False

    async def ensure_sysctls(self, sysctls: Collection[Sysctl]) -> None:
        await self.gate(Step.PREPARE)
        self.kernel.sysctls.update(sysctls)

    async def ensure_forwarding(self, families: Collection[Family]) -> int:
        wanted = forwarding_sysctls(families)
        missing = [sysctl for sysctl in wanted if sysctl not in self.kernel.sysctls]
        await self.ensure_sysctls(wanted)
        return len(missing)

    async def ensure_rules(self, rules: Collection[Rule]) -> RuleChanges:
        await self.gate(Step.PREPARE)
        changes = diff_rules(self.kernel.rules, rules)
        self.kernel.rules = set(rules)
        return changes

    async def name_host_end(self, ifname: LinkName, alias: PodAlias, netns: NetnsPath) -> LinkName | None:
        await self.gate(Step.NAME)
        if netns not in self.kernel.namespaces:
            raise NamespaceError(netns, "does not exist")
        if netns in self.kernel.flat:
            return None
        self.kernel.named[netns] = alias
        return LinkName(f"cali{netns.name}")

    async def open_pod_namespace(self, alias: PodAlias) -> Namespace | None:
        await self.gate(Step.READ)
        own = (veth.netns for veth in self.kernel.veths.values() if parse_alias(veth.plan.host.alias) == alias)
        found = [*own, *(netns for netns, known in self.kernel.named.items() if known == alias)]
        return cast(Namespace, MemoryNamespace(found[0])) if found else None

    async def pod_links(self) -> list[PodLink]:
        await self.gate(Step.READ)
        return [
            PodLink(name=name, index=index, mac=veth.plan.host.mac, alias=alias, group=veth.group)
            for index, (name, veth) in enumerate(self.kernel.veths.items(), start=10)
            if veth.stage is not Stage.BARE and (alias := parse_alias(veth.plan.host.alias)) is not None
        ] + [
            PodLink(name=LinkName(f"cali{netns.name}"), index=index, mac=None, alias=alias)
            for index, (netns, alias) in enumerate(self.kernel.named.items(), start=1000)
        ]

    async def mark_pod_links(self, names: Collection[LinkName]) -> None:
        await self.gate(Step.PREPARE)
        for name in names:
            if name in self.kernel.veths:
                self.kernel.veths[name].group = LinkGroup.POD

    async def pod_routes(self, table: int) -> list[Route]:
        await self.gate(Step.READ)
        return [route for route in self.kernel.routes if route.table == table]

    async def pod_addresses(self, links: Collection[LinkName]) -> dict[LinkName, tuple[IPAddress, ...]]:
        await self.gate(Step.READ)
        return {
            name: (*(assignment.address for assignment in veth.plan.assignments), *veth.extra)
            if veth.stage is Stage.WHOLE
            else ()
            for name, veth in self.kernel.veths.items()
            if name in links
        }

    async def add_routes(self, routes: Collection[Route]) -> RouteAdditions:
        added: list[Route] = []
        refused: list[Route] = []
        for route in routes:
            await self.gate(Step.RESTORE)
            veth = self.kernel.veths.get(LinkName(str(route.device)))
            if veth is None or route in veth.routes:
                continue
            if route.destination in {other.destination for other in self.kernel.routes}:
                refused.append(route)
                continue
            veth.lost.discard(route)
            assert route in veth.routes, "a route that its plan does not have"
            added.append(route)
        return RouteAdditions(tuple(added), tuple(refused))

    async def attach_pod(self, plan: PodPlan, netns: NetnsPath) -> object:
        await self.gate(Step.ATTACH)
        if netns not in self.kernel.namespaces:
            raise NamespaceError(netns, "does not exist")
        if plan.host.name in self.kernel.veths:
            raise LinkExistsError(f"{plan.host.name} exists")
        veth = Veth(plan, netns)
        self.kernel.veths[plan.host.name] = veth
        try:
            for stage in (Stage.NAMED, Stage.ROUTED, Stage.WHOLE):
                await self.gate(Step.ATTACH)
                if self.kernel.veths.get(plan.host.name) is not veth:
                    raise KernelError(doing=f"configure {plan.host.name}", errno=errno.ENODEV)
                self.kernel.advance(veth, stage)
            veth.group = plan.host.group
        except BaseException:
            if not self.killed and self.kernel.veths.get(plan.host.name) is veth:
                del self.kernel.veths[plan.host.name]
            raise
        return veth

    async def check_pod(self, plan: PodPlan, netns: NetnsPath) -> None:
        await self.gate(Step.CHECK)
        if netns not in self.kernel.namespaces:
            raise NamespaceError(netns, "does not exist")
        veth = self.kernel.veths.get(plan.host.name)
        if veth is None or (veth.plan, veth.netns, veth.stage) != (plan, netns, Stage.WHOLE):
            raise PodCheckError((f"link {plan.host.name}",))

    async def detach_pod(self, host_name: LinkName) -> None:
        await self.gate(Step.DETACH)
        self.kernel.veths.pop(host_name, None)

    async def sync_routes(self, *, table: int, protocol: int, wanted: Collection[Route]) -> RouteChanges:
        await self.gate(Step.EXPORT)
        changes = diff_routes(self.kernel.exported, wanted)
        self.kernel.exported = set(wanted)
        return changes

    async def sync_planned_routes(
        self, *, table: int, protocol: int, plan: Callable[[list[Route]], Collection[Route]]
    ) -> RouteChanges:
        await self.gate(Step.EXPORT)
        others = [route for route in self.kernel.foreign if route.table == table]
        wanted = plan(others)
        changes = diff_routes(self.kernel.main, wanted, others)
        self.kernel.main = set(wanted)
        return changes

    async def pods_with_link(self, names: Collection[LinkName]) -> frozenset[PodAlias]:
        await self.gate(Step.READ)
        inside = {netns for netns, links in self.kernel.links_in.items() if links & {*names}}
        own = (parse_alias(veth.plan.host.alias) for veth in self.kernel.veths.values() if veth.netns in inside)
        named = (alias for netns, alias in self.kernel.named.items() if netns in inside)
        return frozenset(alias for alias in (*own, *named) if alias is not None)

    async def ensure_pod_sysctls(self, sysctls: Collection[Sysctl], netns: NetnsPath | Namespace) -> None:
        await self.gate(Step.PREPARE)
        path = netns if isinstance(netns, Path) else netns.path
        self.kernel.pod_sysctls.setdefault(path, set()).update(sysctls)

    async def pods_in(self, numbers: Collection[int]) -> frozenset[PodAlias]:
        await self.gate(Step.READ)
        return frozenset(alias for number, alias in self.kernel.numbers.items() if number in numbers)

    async def ensure_neighbours(self, neighbours: Collection[Neighbour]) -> int:
        await self.gate(Step.READ)
        missing = {each for each in neighbours if each.device in self.kernel.veths} & self.kernel.lost_neighbours
        if missing:
            await self.gate(Step.RESTORE)
        self.kernel.lost_neighbours -= missing
        return len(missing)

    async def ensure_pod_neighbours(self, neighbours: Collection[Neighbour], alias: PodAlias) -> int:
        await self.gate(Step.RESTORE)
        there = self.kernel.neighbours.setdefault(alias, set())
        missing = {*neighbours} - there
        there |= missing
        return len(missing)

    async def ensure_modules(self, names: Sequence[str]) -> None:
        await self.gate(Step.PREPARE)
        self.kernel.modules.update(names)


async def slow(step: Step) -> None:
    """A gate: every step of the kernel takes ten milliseconds."""
    await asyncio.sleep(0.01)
