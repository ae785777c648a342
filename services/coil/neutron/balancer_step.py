"""What separates a load balancer from its plan, one change at a time, as Octavia takes them. Pure.

What a server fills in by itself (time limits, limits of connections, descriptions) is never compared: a load balancer
that was changed for that in every round would be PENDING for ever.
"""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass

from coil.neutron.balancer import SOURCE_IP, Listener, ListenerId, LoadBalancer, Member, Pool, PoolId
from coil.neutron.provider import Provider
from coil.neutron.service_plan import BalancerPlan, ListenerPlan, MemberPlan


@dataclass(frozen=True, slots=True, kw_only=True)
class BalancerState:
    """A load balancer as it was read. `members` has an entry for each of `pools`."""

    balancer: LoadBalancer
    listeners: tuple[Listener, ...] = ()
    pools: tuple[Pool, ...] = ()
    members: Mapping[PoolId, tuple[Member, ...]]


@dataclass(frozen=True, slots=True)
class CreateListener:
    listener: ListenerPlan


@dataclass(frozen=True, slots=True)
class AdmitClients:
    """Set whom the listener admits: everybody, or these networks."""

    listener: ListenerId
    networks: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class DeleteListener:
    listener: ListenerId


@dataclass(frozen=True, slots=True)
class CreatePool:
    """Create the listener's pool, without members."""

    listener: ListenerId
    plan: ListenerPlan


@dataclass(frozen=True, slots=True)
class SetAffinity:
    """Keep clients with one member, or do not."""

    pool: PoolId
    affinity: bool


@dataclass(frozen=True, slots=True)
class DeletePool:
    pool: PoolId


@dataclass(frozen=True, slots=True)
class SetMembers:
    """Have these members and no others; `present` are the ones that there are."""

    pool: PoolId
    members: frozenset[MemberPlan]
    present: tuple[Member, ...]


Step = CreateListener | AdmitClients | DeleteListener | CreatePool | SetAffinity | DeletePool | SetMembers


def next_step(plan: BalancerPlan, state: BalancerState, provider: Provider) -> Step | None:
    """The next change, None where nothing is left to be changed.

    First what serves wrongly now (whom a listener admits, where its connections go), then what is to go, then what is
    to come. A pool that cannot be changed into the planned one is deleted and created anew.
    """
    wanted = {each.key: each for each in plan.listeners}
    pools = {pool.id: pool for pool in state.pools}
    kept: dict[tuple[str, int], Listener] = {}
    surplus: list[Listener] = []
    for listener in sorted(state.listeners, key=lambda each: each.id):
        key = (listener.protocol, listener.protocol_port)
        if key in wanted and key not in kept:
            kept[key] = listener
        else:
            surplus.append(listener)
    pairs = [(wanted[key], kept[key]) for key in sorted(kept)]
    return (
        _first(_admit(listener, found) for listener, found in pairs)
        or _first(_serve(listener, pools.get(found.default_pool_id or PoolId("")), state) for listener, found in pairs)
        or _first(DeleteListener(found.id) for found in surplus)
        or _first(_drop(pool, pairs, provider) for pool in sorted(state.pools, key=lambda each: each.id))
        or _first(CreateListener(wanted[key]) for key in sorted(wanted) if key not in kept)
        or _first(CreatePool(found.id, listener) for listener, found in pairs if found.default_pool_id not in pools)
    )


def _first(steps: Iterable[Step | None]) -> Step | None:
    return next((step for step in steps if step is not None), None)


def _admit(plan: ListenerPlan, listener: Listener) -> Step | None:
    if sorted(listener.allowed_cidrs or ()) == sorted(plan.admitted):
        return None
    return AdmitClients(listener.id, plan.admitted)


def _serve(plan: ListenerPlan, pool: Pool | None, state: BalancerState) -> Step | None:
    if pool is None:
        return None
    present = state.members[pool.id]
    if sorted((member.address, member.protocol_port) for member in present) != sorted(
        (member.address, member.port) for member in plan.members
    ):
        return SetMembers(pool.id, plan.members, present)
    if _affine(pool) != plan.affinity:
        return SetAffinity(pool.id, plan.affinity)
    return None


def _drop(pool: Pool, pairs: Iterable[tuple[ListenerPlan, Listener]], provider: Provider) -> Step | None:
    fits = any(
        found.default_pool_id == pool.id
        and (pool.protocol, pool.lb_algorithm) == (listener.protocol, provider.algorithm)
        for listener, found in pairs
    )
    return None if fits else DeletePool(pool.id)


def _affine(pool: Pool) -> bool:
    return pool.session_persistence is not None and pool.session_persistence.type == SOURCE_IP
