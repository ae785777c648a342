"""Every load balancer comes to be as planned, in steps that Octavia takes, and no step undoes another."""

from ipaddress import ip_address

from hypothesis import given
from hypothesis import strategies as st

from coil.neutron.balancer import LoadBalancer, LoadBalancerId, PoolId
from coil.neutron.balancer_step import (
    AdmitClients,
    BalancerState,
    CreateListener,
    CreatePool,
    DeleteListener,
    DeletePool,
    SetMembers,
    Step,
    next_step,
)
from coil.neutron.provider import PROVIDERS, Provider
from coil.neutron.resource import ProjectId, SubnetId
from coil.neutron.service_plan import BalancerPlan, ListenerPlan, MemberPlan
from coil.openstack.octavia import Octavia
from coil_raven.balancers import perform, read_state
from tests.coil.openstack.memory_octavia import MemoryOctavia

SUBNET = SubnetId("subnet")
VIP = ip_address("10.96.0.5")

_members = st.frozensets(
    st.builds(MemberPlan, st.sampled_from(["10.0.0.5", "10.0.0.6", "10.0.0.7"]), st.sampled_from([80, 8080])),
    max_size=4,
)
_listeners = st.lists(
    st.builds(
        ListenerPlan,
        protocol=st.sampled_from(["TCP", "UDP"]),
        port=st.sampled_from([53, 80]),
        affinity=st.booleans(),
        admitted=st.sampled_from([(), ("10.0.0.0/8",), ("10.0.0.0/8", "192.0.2.0/24")]),
        members=_members,
    ),
    max_size=4,
    unique_by=lambda listener: listener.key,
)
_plans = st.builds(lambda listeners: BalancerPlan(vip=VIP, listeners=tuple(listeners)), _listeners)


async def create(octavia: MemoryOctavia, provider: Provider) -> LoadBalancerId:
    balancer = await octavia.create_load_balancer(
        name="lb",
        description="",
        project=ProjectId(""),
        subnet=SUBNET,
        address=VIP,
        provider=provider.name,
        tag="coil:stage",
    )
    octavia.settle()
    return balancer.id


async def converge(
    octavia: MemoryOctavia, balancer: LoadBalancerId, plan: BalancerPlan, provider: Provider
) -> list[Step]:
    steps: list[Step] = []
    while True:
        state = await read_state(octavia, await octavia.load_balancer(balancer))
        step = next_step(plan, state, provider)
        if step is None:
            return steps
        await perform(octavia, step, state, provider)
        octavia.settle()
        steps.append(step)
        assert len(steps) < 50


async def served(octavia: Octavia, balancer: LoadBalancerId) -> dict[tuple[str, int], ListenerPlan]:
    state = await read_state(octavia, await octavia.load_balancer(balancer))
    pools = {pool.id: pool for pool in state.pools}
    assert {listener.default_pool_id for listener in state.listeners} == set(pools)
    return {
        (listener.protocol, listener.protocol_port): ListenerPlan(
            protocol=listener.protocol,
            port=listener.protocol_port,
            affinity=pools[listener.default_pool_id or PoolId("")].session_persistence is not None,
            admitted=listener.allowed_cidrs or (),
            members=frozenset(
                MemberPlan(member.address, member.protocol_port)
                for member in state.members[listener.default_pool_id or PoolId("")]
            ),
        )
        for listener in state.listeners
    }


@given(history=st.lists(_plans, min_size=1, max_size=4))
async def test_it_comes_to_be_as_planned_and_stays_so(history: list[BalancerPlan]) -> None:
    octavia, provider = MemoryOctavia(), PROVIDERS["amphora"]
    balancer = await create(octavia, provider)
    for plan in history:
        steps = await converge(octavia, balancer, plan, provider)
        assert await served(octavia, balancer) == {listener.key: listener for listener in plan.listeners}
        assert len(steps) <= 4 * len(plan.listeners) + 8
        assert await converge(octavia, balancer, plan, provider) == []


async def test_the_last_member_is_taken_out_before_anything_else() -> None:
    octavia, provider = MemoryOctavia(), PROVIDERS["amphora"]
    balancer = await create(octavia, provider)
    member = frozenset({MemberPlan("10.0.0.5", 80)})
    http = ListenerPlan(protocol="TCP", port=80, members=member)
    old = ListenerPlan(protocol="TCP", port=81, members=member)
    await converge(octavia, balancer, BalancerPlan(vip=VIP, listeners=(http, old)), provider)
    empty = ListenerPlan(protocol="TCP", port=80)
    new = ListenerPlan(protocol="TCP", port=82, members=member)
    steps = await converge(octavia, balancer, BalancerPlan(vip=VIP, listeners=(empty, new)), provider)
    assert [type(step) for step in steps] == [
        SetMembers,
        DeleteListener,
        DeletePool,
        CreateListener,
        CreatePool,
        SetMembers,
    ]


async def test_clients_are_kept_out_before_anything_else() -> None:
    octavia, provider = MemoryOctavia(), PROVIDERS["amphora"]
    balancer = await create(octavia, provider)
    await converge(
        octavia, balancer, BalancerPlan(vip=VIP, listeners=(ListenerPlan(protocol="TCP", port=80),)), provider
    )
    members = frozenset({MemberPlan("10.0.0.5", 80)})
    limited = ListenerPlan(protocol="TCP", port=80, admitted=("10.0.0.0/8",), members=members)
    steps = await converge(octavia, balancer, BalancerPlan(vip=VIP, listeners=(limited,)), provider)
    assert [type(step) for step in steps] == [AdmitClients, SetMembers]


async def test_the_order_of_what_octavia_lists_means_nothing() -> None:
    octavia, provider = MemoryOctavia(), PROVIDERS["amphora"]
    balancer = await create(octavia, provider)
    listener = ListenerPlan(
        protocol="TCP",
        port=80,
        admitted=("10.0.0.0/8", "192.0.2.0/24"),
        members=frozenset({MemberPlan("10.0.0.5", 80), MemberPlan("10.0.0.6", 80)}),
    )
    plan = BalancerPlan(vip=VIP, listeners=(listener,))
    await converge(octavia, balancer, plan, provider)
    state = await read_state(octavia, LoadBalancer(id=balancer))
    turned = BalancerState(
        balancer=state.balancer,
        listeners=state.listeners,
        pools=state.pools,
        members={pool: tuple(reversed(members)) for pool, members in state.members.items()},
    )
    assert next_step(plan, turned, provider) is None


async def test_another_algorithm_takes_another_pool() -> None:
    octavia, amphora = MemoryOctavia(), PROVIDERS["amphora"]
    balancer = await create(octavia, amphora)
    plan = BalancerPlan(vip=VIP, listeners=(ListenerPlan(protocol="TCP", port=80),))
    await converge(octavia, balancer, plan, amphora)
    state = await read_state(octavia, await octavia.load_balancer(balancer))
    assert next_step(plan, state, PROVIDERS["ovn"]) == DeletePool(state.pools[0].id)
