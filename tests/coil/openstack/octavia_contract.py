"""What every `Octavia` does; run on the one in memory, and on the real one."""

from abc import ABC, abstractmethod
from collections.abc import Awaitable, Callable
from ipaddress import ip_address
from itertools import count

import pytest

from coil.neutron.balancer import LoadBalancer
from coil.neutron.provider import PROVIDERS
from coil.neutron.resource import ProjectId, SubnetId
from coil.neutron.service_plan import MemberPlan
from coil.openstack.error import ExistsError, ImmutableError, NotFoundError, UnsupportedError
from coil.openstack.octavia import Octavia

PROJECT = ProjectId("5e1f5a2c0d6b4b7e8d1c2a3b4c5d6e7f")
_NUMBERS = count(10)


class OctaviaContract(ABC):
    """A subclass gives `octavia`, its `subnet` 10.96.0.0/16 for VIPs, a `name` of nobody else's, and two controls."""

    @abstractmethod
    def hold(self) -> None:
        """What is pending from now on stays so, until `settle`."""

    @abstractmethod
    def settle(self) -> None:
        """Return when what is pending has come to an end."""

    @pytest.fixture
    async def create(self, octavia: Octavia, subnet: SubnetId, name: str) -> Callable[..., Awaitable[LoadBalancer]]:
        async def create(provider: str = "amphora", address: str = "") -> LoadBalancer:
            balancer = await octavia.create_load_balancer(
                name=name,
                description="Service default/web",
                project=PROJECT,
                subnet=subnet,
                address=ip_address(address or f"10.96.0.{next(_NUMBERS)}"),
                provider=provider,
                tag="coil:stage",
            )
            self.settle()
            return balancer

        return create

    async def test_what_was_created_is_found_by_its_name(
        self, octavia: Octavia, create: Callable[..., Awaitable[LoadBalancer]], name: str
    ) -> None:
        made = await create()
        (found,) = await octavia.load_balancers(name=name)
        assert (found.id, found.name, found.description) == (made.id, name, "Service default/web")
        assert (found.vip_address, found.vip_port_id, found.tags) == (
            made.vip_address,
            made.vip_port_id,
            ("coil:stage",),
        )
        assert (found.pending, found.failed, found.provider) == (False, False, "amphora")
        assert await octavia.load_balancer(made.id) == found
        assert await octavia.load_balancers(name=f"{name}-other") == []

    async def test_an_address_has_one_load_balancer(
        self, octavia: Octavia, create: Callable[..., Awaitable[LoadBalancer]]
    ) -> None:
        made = await create()
        with pytest.raises(ExistsError):
            await create(address=made.vip_address)

    async def test_a_port_of_a_service(self, octavia: Octavia, create: Callable[..., Awaitable[LoadBalancer]]) -> None:
        one, other = await create(), await create()
        listener = await octavia.create_listener(
            one.id, name="tcp-80", protocol="TCP", port=80, admitted=["10.0.0.0/8", "192.0.2.0/24"]
        )
        self.settle()
        pool = await octavia.create_pool(
            listener.id, name="tcp-80", protocol="TCP", algorithm="ROUND_ROBIN", affinity=True
        )
        self.settle()
        members = {MemberPlan("10.0.0.5", 8080), MemberPlan("10.0.0.6", 8080)}
        await octavia.set_members(pool.id, members, subnet=None)
        self.settle()
        (found,) = await octavia.listeners(one.id)
        assert (found.id, found.protocol, found.protocol_port, found.default_pool_id) == (
            listener.id,
            "TCP",
            80,
            pool.id,
        )
        assert sorted(found.allowed_cidrs or ()) == ["10.0.0.0/8", "192.0.2.0/24"]
        (found_pool,) = await octavia.pools(one.id)
        assert (found_pool.id, found_pool.protocol, found_pool.lb_algorithm) == (pool.id, "TCP", "ROUND_ROBIN")
        assert found_pool.session_persistence is not None
        present = await octavia.members(pool.id)
        assert {MemberPlan(each.address, each.protocol_port) for each in present} == members
        assert (await octavia.listeners(other.id), await octavia.pools(other.id)) == ([], [])

        await octavia.admit_clients(listener.id, [])
        self.settle()
        await octavia.set_affinity(pool.id, affinity=False)
        self.settle()
        await octavia.set_members(pool.id, {MemberPlan("10.0.0.6", 8080), MemberPlan("10.0.0.7", 80)}, subnet=None)
        self.settle()
        assert (await octavia.listeners(one.id))[0].allowed_cidrs is None
        assert (await octavia.pools(one.id))[0].session_persistence is None
        changed = {each.address: each.id for each in await octavia.members(pool.id)}
        assert set(changed) == {"10.0.0.6", "10.0.0.7"}
        assert changed["10.0.0.6"] in {each.id for each in present}

        await octavia.delete_member(pool.id, next(iter(changed.values())))
        self.settle()
        assert len(await octavia.members(pool.id)) == 1
        await octavia.set_members(pool.id, [], subnet=None)
        self.settle()
        assert await octavia.members(pool.id) == []

    async def test_one_change_at_a_time(self, octavia: Octavia, create: Callable[..., Awaitable[LoadBalancer]]) -> None:
        balancer = await create()
        self.hold()
        listener = await octavia.create_listener(balancer.id, name="tcp-80", protocol="TCP", port=80, admitted=[])
        assert (await octavia.load_balancer(balancer.id)).pending
        with pytest.raises(ImmutableError):
            await octavia.create_listener(balancer.id, name="tcp-81", protocol="TCP", port=81, admitted=[])
        with pytest.raises(ImmutableError):
            await octavia.delete_listener(listener.id)
        with pytest.raises(ImmutableError):
            await octavia.delete_load_balancer(balancer.id)
        self.settle()
        assert not (await octavia.load_balancer(balancer.id)).pending

    async def test_a_listener_and_its_pool_go_apart(
        self, octavia: Octavia, create: Callable[..., Awaitable[LoadBalancer]]
    ) -> None:
        balancer = await create()
        listener = await octavia.create_listener(balancer.id, name="udp-53", protocol="UDP", port=53, admitted=[])
        self.settle()
        with pytest.raises(ExistsError):
            await octavia.create_listener(balancer.id, name="udp-53", protocol="UDP", port=53, admitted=[])
        pool = await octavia.create_pool(
            listener.id, name="udp-53", protocol="UDP", algorithm="ROUND_ROBIN", affinity=False
        )
        self.settle()
        await octavia.delete_listener(listener.id)
        self.settle()
        assert await octavia.listeners(balancer.id) == []
        assert [each.id for each in await octavia.pools(balancer.id)] == [pool.id]
        await octavia.delete_pool(pool.id)
        self.settle()
        assert await octavia.pools(balancer.id) == []
        await octavia.delete_pool(pool.id)
        await octavia.delete_listener(listener.id)

    async def test_a_deletion_takes_all_with_it(
        self, octavia: Octavia, create: Callable[..., Awaitable[LoadBalancer]]
    ) -> None:
        balancer = await create()
        listener = await octavia.create_listener(balancer.id, name="tcp-80", protocol="TCP", port=80, admitted=[])
        self.settle()
        await octavia.create_pool(listener.id, name="tcp-80", protocol="TCP", algorithm="ROUND_ROBIN", affinity=False)
        self.settle()
        self.hold()
        await octavia.delete_load_balancer(balancer.id)
        assert (await octavia.load_balancer(balancer.id)).going
        self.settle()
        with pytest.raises(NotFoundError):
            await octavia.load_balancer(balancer.id)
        await octavia.delete_load_balancer(balancer.id)

    async def test_what_a_provider_lacks_is_refused(
        self, octavia: Octavia, create: Callable[..., Awaitable[LoadBalancer]], subnet: SubnetId
    ) -> None:
        assert await octavia.providers() >= set(PROVIDERS)
        balancer = await create("ovn")
        listener = await octavia.create_listener(balancer.id, name="tcp-80", protocol="TCP", port=80, admitted=[])
        self.settle()
        with pytest.raises(UnsupportedError):
            await octavia.create_pool(
                listener.id, name="tcp-80", protocol="TCP", algorithm="ROUND_ROBIN", affinity=False
            )
        self.settle()
        pool = await octavia.create_pool(
            listener.id, name="tcp-80", protocol="TCP", algorithm="SOURCE_IP_PORT", affinity=False
        )
        self.settle()
        with pytest.raises(UnsupportedError):
            await octavia.set_members(pool.id, [MemberPlan("10.0.0.5", 8080)], subnet=None)
        self.settle()
        await octavia.set_members(pool.id, [MemberPlan("10.0.0.5", 8080)], subnet=subnet)
        self.settle()
        assert [each.subnet_id for each in await octavia.members(pool.id)] == [subnet]
