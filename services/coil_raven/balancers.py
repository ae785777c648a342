"""The load balancers of Services in Octavia: one for each cluster IP, found again by the Service's UID.

Octavia takes one change at a time, and takes its time for it. So `advance` makes one change and returns; who calls it
comes again when that may be done. Nothing waits in between, and a process that ends anywhere goes on where it was.
"""

import asyncio
import random
import time
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Final, NamedTuple

from structlog.typing import FilteringBoundLogger

from coil.neutron.balancer import LoadBalancer, Member
from coil.neutron.balancer_step import (
    AdmitClients,
    BalancerState,
    CreateListener,
    CreatePool,
    DeleteListener,
    DeletePool,
    SetAffinity,
    SetMembers,
    Step,
    next_step,
)
from coil.neutron.identity import ClusterId, Identity, Kind, cluster_tag, describe, parse_identity
from coil.neutron.provider import Provider
from coil.neutron.resource import PortId, ProjectId, Subnet, SubnetId
from coil.neutron.service_plan import BalancerPlan, Remark
from coil.openstack.error import ImmutableError, NotFoundError, OpenStackError, UnavailableError
from coil.openstack.octavia import Octavia
from coil.reconcile.backoff import Backoff

KINDS: Final = {4: Kind.LOAD_BALANCER_IPV4, 6: Kind.LOAD_BALANCER_IPV6}
LOOK: Final = Backoff(base=0.5, cap=5.0)
"""Seconds to the next look at a load balancer that is pending."""
REBUILD: Final = Backoff(base=10.0, cap=600.0)
"""Seconds to the next look at one that was deleted because its provider had given up."""
LONG_PENDING: Final = 600.0
"""Seconds of being pending after which people are told."""


class ServiceName(NamedTuple):
    """A Service; one of its name that is created later has another UID."""

    namespace: str
    name: str
    uid: str

    def __str__(self) -> str:
        return f"{self.namespace}/{self.name}"


@dataclass(frozen=True, slots=True, kw_only=True)
class Progress:
    """How far a load balancer is: as planned if `wait` is None, else to be looked at again after so many seconds."""

    balancer: LoadBalancer | None = None
    wait: float | None = None
    remark: Remark | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class BalancerReport:
    """What is known of a load balancer of the Service with that UID. `balancer` is as it was last seen.

    `plan` is what it is brought to, None for one that nothing asks for; `as_planned` whether it is there.
    """

    uid: str
    balancer: LoadBalancer
    plan: BalancerPlan | None
    as_planned: bool


class Balancers:
    """Of one term. Calls for different Services may be under way at the same time, but not for the same.

    `clock` is in monotonic seconds, `random` gives [0, 1).
    """

    def __init__(
        self,
        octavia: Octavia,
        *,
        cluster: ClusterId,
        provider: Provider,
        log: FilteringBoundLogger,
        clock: Callable[[], float] = time.monotonic,
        random: Callable[[], float] = random.random,
    ) -> None:
        self._octavia = octavia
        self._cluster = cluster
        self._provider = provider
        self._log = log
        self._clock = clock
        self._random = random
        self._known: dict[Identity, LoadBalancer] = {}
        self._uncertain: set[Identity] = set()
        self._plans: dict[Identity, BalancerPlan] = {}
        self._applied: dict[Identity, BalancerPlan] = {}
        self._looks: dict[Identity, int] = {}
        self._pending_since: dict[Identity, float] = {}
        self._rebuilt: dict[Identity, int] = {}
        self._loaded = False
        self._loading = asyncio.Lock()

    async def load(self) -> None:
        """Find out which there are, once. Raises OpenStackError; then it is found out at the next call."""
        async with self._loading:
            if not self._loaded:
                for balancer in sorted(await self._octavia.load_balancers(), key=lambda each: each.id):
                    identity = self._identity_of(balancer)
                    if identity is not None:
                        self._known.setdefault(identity, balancer)
                self._loaded = True

    async def uids(self) -> frozenset[str]:
        """The UIDs of the Services that have load balancers, or may have. Raises OpenStackError."""
        await self.load()
        return frozenset(identity.uid for identity in (*self._known, *self._uncertain))

    def reports(self) -> list[BalancerReport]:
        """All of which this term knows."""
        return [
            BalancerReport(
                uid=identity.uid,
                balancer=balancer,
                plan=(plan := self._plans.get(identity)),
                as_planned=plan is not None and self._applied.get(identity) == plan,
            )
            for identity, balancer in self._known.items()
        ]

    def port_of(self, uid: str) -> PortId | None:
        """The port in Neutron of the Service's IPv4 address, as far as is known; floating IPs are bound to it."""
        balancer = self._known.get(Identity(self._cluster, Kind.LOAD_BALANCER_IPV4, uid))
        return None if balancer is None else balancer.vip_port_id

    def look_again(self) -> None:
        """Compare each load balancer with Octavia again when it is next advanced, though nothing was planned anew."""
        self._applied.clear()

    async def advance(self, service: ServiceName, plan: BalancerPlan, project: ProjectId, subnet: Subnet) -> Progress:
        """Bring the load balancer a step nearer to its plan. Without a call where it is known to be there.

        Raises OpenStackError.
        """
        await self.load()
        identity = Identity(self._cluster, KINDS[plan.vip.version], service.uid)
        self._plans[identity] = plan
        known = self._known.get(identity)
        if known is not None and self._applied.get(identity) == plan:
            return Progress(balancer=known)
        balancer = await self._look(identity)
        if balancer is None:
            return await self._create(identity, service, plan, project, subnet)
        if balancer.pending:
            return self._wait(identity, balancer)
        self._pending_since.pop(identity, None)
        if balancer.failed:
            return await self._rebuild(identity, balancer, "its provider has given up")
        if (balancer.vip_address, balancer.provider) != (str(plan.vip), self._provider.name):
            return await self._rebuild(identity, balancer, "it has another address or provider")
        return await self._change(identity, balancer, plan)

    async def _change(self, identity: Identity, balancer: LoadBalancer, plan: BalancerPlan) -> Progress:
        """Make the next change, if one is left to be made."""
        state = await read_state(self._octavia, balancer)
        step = next_step(plan, state, self._provider)
        if step is None:
            self._applied[identity] = plan
            self._looks.pop(identity, None)
            self._rebuilt.pop(identity, None)
            return Progress(balancer=balancer)
        try:
            await perform(self._octavia, step, state, self._provider)
        except ImmutableError:
            # Somebody else changes it, or a former leader did until just now.
            return self._wait(identity, balancer)
        self._looks.pop(identity, None)
        return self._wait(identity, balancer)

    async def remove(self, uid: str, *, keep: Iterable[int] = ()) -> bool:
        """Delete the Service's load balancers, but for those of the IP versions to keep; True once they are gone.

        Idempotent. Raises OpenStackError.
        """
        await self.load()
        gone = True
        for version, kind in KINDS.items():
            identity = Identity(self._cluster, kind, uid)
            if version not in keep and (identity in self._known or identity in self._uncertain):
                gone = await self._remove(identity) and gone
        return gone

    async def _remove(self, identity: Identity) -> bool:
        self._plans.pop(identity, None)
        self._applied.pop(identity, None)
        balancer = await self._look(identity)
        if balancer is None:
            for memory in (self._looks, self._pending_since, self._rebuilt):
                memory.pop(identity, None)
            return True
        if not balancer.pending:
            try:
                await self._octavia.delete_load_balancer(balancer.id)
            except ImmutableError:
                return False
        return False

    async def _look(self, identity: Identity) -> LoadBalancer | None:
        """The load balancer as it is now; None if there is none."""
        known = self._known.get(identity)
        if known is not None:
            try:
                found = await self._octavia.load_balancer(known.id)
            except NotFoundError:
                del self._known[identity]
                self._applied.pop(identity, None)
            else:
                self._known[identity] = found
                return found
        # After a lost answer there may be one of which nothing is known, and there may be two.
        if identity not in self._uncertain:
            return None
        named = [each for each in await self._octavia.load_balancers(name=identity.name) if each.name == identity.name]
        self._uncertain.discard(identity)
        if not named:
            return None
        self._known[identity] = min(named, key=lambda each: each.id)
        return self._known[identity]

    async def _create(
        self, identity: Identity, service: ServiceName, plan: BalancerPlan, project: ProjectId, subnet: Subnet
    ) -> Progress:
        self._uncertain.add(identity)
        try:
            balancer = await self._octavia.create_load_balancer(
                name=identity.name,
                description=describe("Service", service.namespace, service.name),
                project=project,
                subnet=subnet.id,
                address=plan.vip,
                provider=self._provider.name,
                tag=cluster_tag(self._cluster),
            )
        except UnavailableError:
            # It may exist. A cancellation, too, leaves it among the uncertain ones.
            raise
        except OpenStackError:
            self._uncertain.discard(identity)
            raise
        self._uncertain.discard(identity)
        self._known[identity] = balancer
        self._log.info("load balancer created", service=str(service), id=balancer.id)
        return self._wait(identity, balancer)

    def _wait(self, identity: Identity, balancer: LoadBalancer) -> Progress:
        attempt = self._looks.get(identity, 0)
        self._looks[identity] = attempt + 1
        since = self._pending_since.setdefault(identity, self._clock())
        remark = None
        if (seconds := self._clock() - since) > LONG_PENDING:
            message = (
                f"its load balancer {balancer.id} is {balancer.provisioning_status} for {seconds:.0f} s: see Octavia"
            )
            remark = Remark("BalancerPending", message)
        return Progress(balancer=balancer, wait=LOOK.delay(attempt, self._random), remark=remark)

    async def _rebuild(self, identity: Identity, balancer: LoadBalancer, reason: str) -> Progress:
        """Delete it, to be created again; less and less often, for whatever the reason is will often be the same."""
        attempt = self._rebuilt.get(identity, 0)
        self._rebuilt[identity] = attempt + 1
        self._log.warning("load balancer deleted, to be created again", id=balancer.id, reason=reason)
        await self._octavia.delete_load_balancer(balancer.id)
        remark = Remark("BalancerRebuilt", f"its load balancer {balancer.id} is made anew: {reason}")
        return Progress(balancer=balancer, wait=REBUILD.delay(attempt, self._random), remark=remark)

    def _identity_of(self, balancer: LoadBalancer) -> Identity | None:
        identity = parse_identity(balancer.name)
        if identity is None or identity.cluster != self._cluster or identity.kind not in KINDS.values():
            return None
        return identity


async def read_state(octavia: Octavia, balancer: LoadBalancer) -> BalancerState:
    """What the load balancer has. Raises OpenStackError."""
    listeners = await octavia.listeners(balancer.id)
    pools = await octavia.pools(balancer.id)
    return BalancerState(
        balancer=balancer,
        listeners=tuple(listeners),
        pools=tuple(pools),
        members={pool.id: tuple(await octavia.members(pool.id)) for pool in pools},
    )


async def perform(octavia: Octavia, step: Step, state: BalancerState, provider: Provider) -> None:
    """Make the change. Raises OpenStackError."""
    match step:
        case CreateListener(listener):
            await octavia.create_listener(
                state.balancer.id,
                name=listener.name,
                protocol=listener.protocol,
                port=listener.port,
                admitted=listener.admitted,
            )
        case AdmitClients(listener_id, networks):
            await octavia.admit_clients(listener_id, networks)
        case DeleteListener(listener_id):
            await octavia.delete_listener(listener_id)
        case CreatePool(listener_id, listener):
            await octavia.create_pool(
                listener_id,
                name=listener.name,
                protocol=listener.protocol,
                algorithm=provider.algorithm,
                affinity=listener.affinity,
            )
        case SetAffinity(pool, affinity):
            await octavia.set_affinity(pool, affinity=affinity)
        case DeletePool(pool):
            await octavia.delete_pool(pool)
        case SetMembers():
            await _set_members(octavia, step, state.balancer.vip_subnet_id if provider.member_subnets else None)


async def _set_members(octavia: Octavia, step: SetMembers, subnet: SubnetId | None) -> None:
    """At once; emptied one by one where the provider cannot do that (OVN's once answered 500 to an empty list)."""
    try:
        await octavia.set_members(step.pool, step.members, subnet=subnet)
    except UnavailableError:
        if step.members or not step.present:
            raise
        first: Member = min(step.present, key=lambda member: member.id)
        await octavia.delete_member(step.pool, first.id)
