"""How many addresses a node keeps ready, and what EC2 is asked for next to get there.

The targets are those of amazon-vpc-cni-k8s, by its names: WARM_ENI_TARGET, WARM_IP_TARGET, MINIMUM_IP_TARGET,
WARM_PREFIX_TARGET and MAX_ENI. `wanted_addresses` turns them into one number, `decide` compares it with what is there.
Whoever carries out each decision and asks again comes to an end, and then nothing is decided until pods come or go:
what is given back was not wanted, and what is fetched is.

The targets are for what is ready before pods come. For a pod that waits there is to be an address whatever they are, up
to what EC2 and MAX_ENI allow: no combination of targets keeps a node from growing.

Addresses that are cooling down are neither free nor to be given back; for as long as they are, others take their place.

All of it counts addresses of one IP version, IPv4: a /80 of IPv6 is enough for any node, and nothing is decided of it.
`uses` and limits are those of the interfaces that are Coil's; one that somebody else attached takes a place in the
limits (`NodeLimits.less`) and nothing more.
"""

from collections.abc import Collection, Sequence
from dataclasses import dataclass, replace
from typing import TypeAlias

from coil.eni.interface import InterfaceId
from coil.eni.ledger import InterfaceUse
from coil.kernel.family import IPNetwork

ADDRESSES_OF_PREFIX = 16


@dataclass(frozen=True, slots=True, kw_only=True)
class WarmTargets:
    """What shall be ready beyond what pods have. None: not set, and without effect.

    With `ips` or `minimum` set, `interfaces` and `prefixes` do not count; with `prefixes`, `interfaces` does not.
    """

    interfaces: int = 1
    ips: int | None = None
    minimum: int | None = None
    prefixes: int | None = None
    max_interfaces: int | None = None

    @property
    def counts_interfaces(self) -> bool:
        """Whether interfaces come and go as a whole."""
        return self.ips is None and self.minimum is None and self.prefixes is None


@dataclass(frozen=True, slots=True, kw_only=True)
class NodeLimits:
    """What EC2 allows the instance's type, and how many pods the node may run at most (its allocatable pods)."""

    interfaces: int
    slots: int
    """IPv4 addresses of an interface, its primary one included."""
    pods: int
    prefixes: bool = True
    """Whether the type can have prefixes in their place."""

    def less(self, interfaces: int) -> "NodeLimits":
        """What is left beside so many interfaces that do not count."""
        return replace(self, interfaces=max(0, self.interfaces - interfaces))


@dataclass(frozen=True, slots=True, kw_only=True)
class Demand:
    """`waiting` pods need an address and have none. `range_size` is 16 where prefixes are to be had, otherwise 1."""

    waiting: int
    range_size: int = 1


@dataclass(frozen=True, slots=True, kw_only=True)
class Obstacles:
    """What EC2 would refuse now, as far as is known: ranges for the interfaces that are `full`, whatever slots they
    have left, and new interfaces.
    """

    full: frozenset[InterfaceId] = frozenset()
    no_creation: bool = False


NO_OBSTACLES = Obstacles()


@dataclass(frozen=True, slots=True)
class AssignRanges:
    """Have EC2 assign so many more ranges to an interface."""

    interface: InterfaceId
    count: int


@dataclass(frozen=True, slots=True)
class CreateInterface:
    """Have EC2 make an interface with so many ranges, and attach it."""

    count: int


@dataclass(frozen=True, slots=True)
class UnassignRanges:
    """Give these ranges back, of which nothing is in use."""

    interface: InterfaceId
    ranges: tuple[IPNetwork, ...]


@dataclass(frozen=True, slots=True)
class DeleteInterface:
    """Detach an interface of which nothing is in use, and delete it."""

    interface: InterfaceId
    ranges: tuple[IPNetwork, ...]


Step: TypeAlias = AssignRanges | CreateInterface | UnassignRanges | DeleteInterface


def max_addresses(limits: NodeLimits, *, range_size: int) -> int:
    """The most that pods of the node can have: the proposal's N·M − N, or 16 times that with prefixes."""
    return limits.interfaces * (limits.slots - 1) * range_size


def wanted_addresses(uses: Collection[InterfaceUse], targets: WarmTargets, limits: NodeLimits, demand: Demand) -> int:
    """How many addresses are to be there, those that cool down not counted: at least one for each pod that has or needs
    one, and beyond that no more than the node may run pods.
    """
    needed = sum(use.held for use in uses) + demand.waiting
    if targets.ips is not None or targets.minimum is not None:
        wanted = max(needed + (targets.ips or 0), targets.minimum or 0)
    elif targets.prefixes is not None:
        wanted = needed + targets.prefixes * ADDRESSES_OF_PREFIX
    else:
        wanted = needed + targets.interfaces * (limits.slots - 1) * demand.range_size
    return min(wanted, max(limits.pods, needed))


def surplus_addresses(uses: Collection[InterfaceUse], targets: WarmTargets, limits: NodeLimits, demand: Demand) -> int:
    """How many addresses are there beyond those that are wanted; negative: so many are missing."""
    return sum(use.held + use.free for use in uses) - wanted_addresses(uses, targets, limits, demand)


def decide(
    uses: Sequence[InterfaceUse],
    targets: WarmTargets,
    limits: NodeLimits,
    demand: Demand,
    *,
    give_back: int,
    obstacles: Obstacles = NO_OBSTACLES,
) -> Step | None:
    """The next call to EC2, or None if there is nothing to do, or nothing that can be done.

    `uses` are by device number. Of what is too many, up to `give_back` addresses go: as many as have been too many for
    a while, which is for the caller to know.
    """
    surplus = surplus_addresses(uses, targets, limits, demand)
    if surplus < 0:
        return _fetch(uses, targets, limits, demand, missing=-surplus, obstacles=obstacles)
    if (returned := min(surplus, give_back)) > 0:
        return _give_back(uses, surplus=returned, whole=targets.counts_interfaces)
    return None


def _fetch(
    uses: Sequence[InterfaceUse],
    targets: WarmTargets,
    limits: NodeLimits,
    demand: Demand,
    *,
    missing: int,
    obstacles: Obstacles,
) -> Step | None:
    # As many ranges as are missing, or, where whole interfaces are counted, as go into one: a call is what is scarce.
    count = -(-missing // demand.range_size)
    if targets.counts_interfaces:
        room = max(0, limits.pods - sum(use.held + use.free for use in uses))
        count = max(count, min(limits.slots - 1, -(-room // demand.range_size)))
    for use in uses:
        slots = limits.slots - use.interface.slots_used
        if slots > 0 and use.interface.id not in obstacles.full:
            return AssignRanges(use.interface.id, min(slots, count))
    most = limits.interfaces if targets.max_interfaces is None else min(limits.interfaces, targets.max_interfaces)
    if len(uses) < most and limits.slots > 1 and not obstacles.no_creation:
        return CreateInterface(min(limits.slots - 1, count))
    return None


def _give_back(uses: Sequence[InterfaceUse], *, surplus: int, whole: bool) -> Step | None:
    # The emptiest first, and of those the one that came last.
    for use in sorted(uses, key=lambda each: (each.held + each.cooling, -each.interface.device_number)):
        removable = not use.interface.is_primary
        if removable and use.held == use.cooling == 0 and use.total <= surplus and use.free == use.total:
            return DeleteInterface(use.interface.id, use.idle)
        if not whole and (ranges := _ranges_within(use.idle, surplus)):
            return UnassignRanges(use.interface.id, ranges)
    return None


def _ranges_within(ranges: Sequence[IPNetwork], addresses: int) -> tuple[IPNetwork, ...]:
    chosen: list[IPNetwork] = []
    for network in ranges:
        if network.version == 4 and network.num_addresses <= addresses:
            chosen.append(network)
            addresses -= network.num_addresses
    return tuple(chosen)
