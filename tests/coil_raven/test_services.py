"""Load balancers and floating IPs of Services."""

from ipaddress import ip_address, ip_network

import pytest

from coil.crd.builtin import SERVICES
from coil.crd.endpoint_slice import ENDPOINT_SLICES
from coil.crd.names import NEUTRON_FINALIZER
from coil.neutron.balancer import LoadBalancer, LoadBalancerId
from coil.neutron.identity import Identity, Kind
from coil.neutron.resource import FloatingIp, FloatingIpId, NetworkId, PortId
from coil.neutron.vip_range import VipRange
from coil.openstack.error import OpenStackError, QuotaError, ThrottledError, UnavailableError
from coil_raven.balancers import LONG_PENDING
from coil_raven.vip_subnets import VipSubnetError, check_subnet
from tests.coil.kube.memory_api import MemoryApi, MemoryClient
from tests.coil.openstack.memory_neutron import MemoryNeutron
from tests.coil.openstack.memory_octavia import MemoryOctavia
from tests.coil_raven.life import CLUSTER
from tests.coil_raven.service_life import (
    ServiceLife,
    add_service,
    change_service,
    ingress,
    put_endpoints,
)

NOTHING = {"loadbalancers": 0, "listeners": 0, "pools": 0}


@pytest.fixture
def api() -> MemoryApi:
    return MemoryApi()


@pytest.fixture
def neutron() -> MemoryNeutron:
    return MemoryNeutron()


@pytest.fixture
def public(neutron: MemoryNeutron) -> NetworkId:
    return neutron.add_external("public").id


@pytest.fixture
def octavia() -> MemoryOctavia:
    return MemoryOctavia()


@pytest.fixture
def life(api: MemoryApi, neutron: MemoryNeutron, octavia: MemoryOctavia, public: NetworkId) -> ServiceLife:
    return ServiceLife(MemoryClient(api), neutron, octavia, public=public)


async def members(octavia: MemoryOctavia) -> dict[str, set[str]]:
    """Where connections to each address and port go."""
    found: dict[str, set[str]] = {}
    for balancer in await octavia.load_balancers():
        for listener in await octavia.listeners(balancer.id):
            assert listener.default_pool_id is not None
            found[f"{balancer.vip_address}:{listener.protocol_port}"] = {
                f"{member.address}:{member.protocol_port}" for member in await octavia.members(listener.default_pool_id)
            }
    return found


async def floating(neutron: MemoryNeutron) -> dict[str, PortId | None]:
    return {each.floating_ip_address: each.port_id for each in await neutron.floating_ips()}


async def vip_port(octavia: MemoryOctavia) -> PortId | None:
    (balancer,) = await octavia.load_balancers()
    return balancer.vip_port_id


async def test_a_service_answers_on_its_cluster_ip(
    api: MemoryApi, neutron: MemoryNeutron, octavia: MemoryOctavia, life: ServiceLife
) -> None:
    uid = add_service(api).metadata.uid
    put_endpoints(api, ["10.1.0.7", "10.1.0.8"])
    assert await life.settle() == []
    (balancer,) = await octavia.load_balancers()
    assert balancer.name == Identity(CLUSTER, Kind.LOAD_BALANCER_IPV4, uid).name
    assert (balancer.vip_address, balancer.description) == ("10.96.0.5", "Service default/web")
    assert await members(octavia) == {"10.96.0.5:80": {"10.1.0.7:8080", "10.1.0.8:8080"}}
    subnet = next(each for each in await neutron.subnets() if each.id == balancer.vip_subnet_id)
    assert subnet.cidr == "10.96.0.0/15"
    assert NEUTRON_FINALIZER in api.get(SERVICES, "web", "default").metadata.finalizers
    assert life.events.told == []


async def test_steady_state_makes_no_write(
    api: MemoryApi, neutron: MemoryNeutron, octavia: MemoryOctavia, life: ServiceLife, public: NetworkId
) -> None:
    add_service(api, type="LoadBalancer")
    put_endpoints(api, ["10.1.0.7"])
    await life.settle()
    assert await members(octavia) == {"10.96.0.5:80": {"10.1.0.7:8080"}}
    octavia.calls.clear()
    neutron.calls.clear()
    await life.settle(rounds=5)
    await ServiceLife(MemoryClient(api), neutron, octavia, public=public).settle(rounds=5)
    assert (octavia.writes(), neutron.writes()) == ([], [])


async def test_it_follows_scale_and_ports(api: MemoryApi, octavia: MemoryOctavia, life: ServiceLife) -> None:
    add_service(api)
    put_endpoints(api, ["10.1.0.7"])
    await life.settle()
    put_endpoints(api, ["10.1.0.7", "10.1.0.9"], port=9090)
    change_service(api, ports=[{"name": "http", "port": 8000, "protocol": "TCP"}])
    assert await life.settle() == []
    assert await members(octavia) == {"10.96.0.5:8000": {"10.1.0.7:9090", "10.1.0.9:9090"}}


async def test_the_last_endpoint_goes(api: MemoryApi, octavia: MemoryOctavia, life: ServiceLife) -> None:
    add_service(api)
    put_endpoints(api, ["10.1.0.7"])
    await life.settle()
    put_endpoints(api, [])
    await life.settle()
    assert await members(octavia) == {"10.96.0.5:80": set()}
    put_endpoints(api, ["10.1.0.7"])
    await life.settle()
    api.delete(ENDPOINT_SLICES, "web-1", namespace="default")
    await life.settle()
    assert await members(octavia) == {"10.96.0.5:80": set()}


async def test_a_provider_that_cannot_empty_a_pool_at_once(
    api: MemoryApi, octavia: MemoryOctavia, life: ServiceLife
) -> None:
    add_service(api)
    put_endpoints(api, ["10.1.0.7", "10.1.0.8"])
    await life.settle()
    put_endpoints(api, [])
    octavia.faults.refusals["set members"] = [UnavailableError("set members", "500", "it failed")] * 2
    await life.settle()
    assert await members(octavia) == {"10.96.0.5:80": set()}


async def test_all_of_it_goes_with_the_service(
    api: MemoryApi, neutron: MemoryNeutron, octavia: MemoryOctavia, life: ServiceLife
) -> None:
    add_service(api, type="LoadBalancer")
    await life.settle()
    assert len(await floating(neutron)) == 1
    api.delete(SERVICES, "web", namespace="default")
    await life.settle()
    assert octavia.snapshot() == NOTHING
    assert await floating(neutron) == {}
    assert api.find(SERVICES, "web", "default") is None


@pytest.mark.parametrize("finalizer", [True, False], ids=["with", "without"])
async def test_what_went_while_nobody_worked_goes(
    api: MemoryApi,
    neutron: MemoryNeutron,
    octavia: MemoryOctavia,
    life: ServiceLife,
    public: NetworkId,
    finalizer: bool,
) -> None:
    add_service(api, type="LoadBalancer")
    await life.settle()
    if finalizer:
        api.delete(SERVICES, "web", namespace="default")
    else:
        api.remove(SERVICES, "web", "default")
    other = ServiceLife(MemoryClient(api), neutron, octavia, public=public)
    assert await other.settle() == []
    assert octavia.snapshot() == NOTHING
    assert await floating(neutron) == {}


async def test_others_have_load_balancers_too(api: MemoryApi, octavia: MemoryOctavia, life: ServiceLife) -> None:
    foreign = LoadBalancer(id=LoadBalancerId("foreign"), name="web", vip_address="10.96.0.5", provider="amphora")
    theirs = LoadBalancer(
        id=LoadBalancerId("theirs"), name=Identity(CLUSTER, Kind.NETWORK, "1").name, vip_address="10.96.0.6"
    )
    octavia.put(foreign)
    octavia.put(theirs)
    add_service(api)
    await life.settle(rounds=3)
    assert life.events.reasons == ["NoLoadBalancer"] * 3
    assert "already in use" in life.events.told[0].message
    api.delete(SERVICES, "web", namespace="default")
    await life.settle()
    assert await octavia.load_balancers() == [foreign, theirs]


async def test_a_load_balancer_gets_a_floating_ip_once_it_works(
    api: MemoryApi, neutron: MemoryNeutron, octavia: MemoryOctavia, life: ServiceLife, public: NetworkId
) -> None:
    uid = add_service(api, type="LoadBalancer").metadata.uid
    put_endpoints(api, ["10.1.0.7"])
    await life.step()
    assert (await floating(neutron), ingress(api)) == ({}, [])
    await life.settle()
    ((address, port),) = (await floating(neutron)).items()
    assert (port, ingress(api)) == (await vip_port(octavia), [address])
    (made,) = await neutron.floating_ips()
    assert (made.description or "").startswith(Identity(CLUSTER, Kind.FLOATING_IP, uid).name + " ")
    assert (made.floating_network_id, made.tags) == (public, ("coil:stage",))


async def test_changes_of_type(
    api: MemoryApi, neutron: MemoryNeutron, octavia: MemoryOctavia, life: ServiceLife
) -> None:
    add_service(api)
    await life.settle()
    assert (await floating(neutron), ingress(api)) == ({}, [])
    change_service(api, type="LoadBalancer")
    await life.settle()
    assert ingress(api) == list(await floating(neutron)) != []
    change_service(api, type="NodePort")
    await life.settle()
    assert (await floating(neutron), ingress(api)) == ({}, [])
    assert octavia.snapshot()["loadbalancers"] == 1
    change_service(api, type="ExternalName", clusterIP="", clusterIPs=[])
    await life.settle()
    assert octavia.snapshot() == NOTHING
    assert NEUTRON_FINALIZER not in api.get(SERVICES, "web", "default").metadata.finalizers


def put_floating(neutron: MemoryNeutron, public: NetworkId, address: str, port: str | None = None) -> FloatingIp:
    return neutron.put(
        "floatingips",
        FloatingIp(
            id=FloatingIpId(f"id-of-{address}"),
            description="the administrator's",
            floating_ip_address=address,
            floating_network_id=public,
            port_id=None if port is None else PortId(port),
        ),
    )


async def test_an_administrators_address_is_bound_and_never_deleted(
    api: MemoryApi, neutron: MemoryNeutron, octavia: MemoryOctavia, life: ServiceLife, public: NetworkId
) -> None:
    put_floating(neutron, public, "192.0.2.200")
    add_service(api, type="LoadBalancer", loadBalancerIP="192.0.2.200")
    await life.settle()
    assert await floating(neutron) == {"192.0.2.200": await vip_port(octavia)}
    assert ingress(api) == ["192.0.2.200"]
    api.delete(SERVICES, "web", namespace="default")
    await life.settle()
    assert await floating(neutron) == {"192.0.2.200": None}


async def test_an_address_that_changes_again_and_again_is_one_at_any_time(
    api: MemoryApi, neutron: MemoryNeutron, octavia: MemoryOctavia, life: ServiceLife, public: NetworkId
) -> None:
    for number in (200, 201):
        put_floating(neutron, public, f"192.0.2.{number}")
    add_service(api, type="LoadBalancer")
    wishes = ["", "192.0.2.200", "192.0.2.201", "", "192.0.2.200", ""]
    for wish in wishes:
        change_service(api, loadBalancerIP=wish)
        await life.settle()
        found = await floating(neutron)
        bound = [address for address, port in found.items() if port is not None]
        assert bound == ingress(api)
        assert len(bound) == 1
        assert bound == [wish] if wish else bound[0] not in ("192.0.2.200", "192.0.2.201")
        assert len(found) == (2 if wish else 3)


@pytest.mark.parametrize("case", ["absent", "bound elsewhere", "another network", "another service's"])
async def test_an_address_that_is_not_to_be_had(
    api: MemoryApi, neutron: MemoryNeutron, octavia: MemoryOctavia, life: ServiceLife, public: NetworkId, case: str
) -> None:
    wanted = "192.0.2.200"
    if case == "bound elsewhere":
        put_floating(neutron, public, wanted, "a port of somebody else")
    elif case == "another network":
        put_floating(neutron, neutron.add_external("other").id, wanted)
    elif case == "another service's":
        add_service(api, "first", type="LoadBalancer", clusterIP="10.96.0.6", clusterIPs=["10.96.0.6"])
        await life.settle()
        wanted = ingress(api, "first")[0]
    before = await floating(neutron)
    add_service(api, type="LoadBalancer", loadBalancerIP=wanted)
    await life.settle()
    assert ingress(api) == []
    assert set(life.events.reasons) == {"NoFloatingIP"}
    assert await floating(neutron) == before


async def test_a_lost_answer_makes_no_second_one(
    api: MemoryApi, neutron: MemoryNeutron, octavia: MemoryOctavia, life: ServiceLife
) -> None:
    octavia.faults.lost_answers.update(
        {"create loadbalancer": 1, "create listener": 1, "create pool": 1, "set members": 1}
    )
    neutron.faults.lost_answers.update({"create floatingip": 1, "create network": 1, "create subnet": 1})
    add_service(api, type="LoadBalancer")
    put_endpoints(api, ["10.1.0.7"])
    await life.settle()
    assert octavia.snapshot() == {"loadbalancers": 1, "listeners": 1, "pools": 1}
    assert await members(octavia) == {"10.96.0.5:80": {"10.1.0.7:8080"}}
    assert list(await floating(neutron)) == ingress(api) != []


async def test_a_process_that_is_replaced_after_each_round_gets_there(
    api: MemoryApi, neutron: MemoryNeutron, octavia: MemoryOctavia, public: NetworkId
) -> None:
    add_service(api, type="LoadBalancer")
    put_endpoints(api, ["10.1.0.7"])
    for _ in range(12):
        await ServiceLife(MemoryClient(api), neutron, octavia, public=public).step()
        octavia.settle()
    assert octavia.snapshot() == {"loadbalancers": 1, "listeners": 1, "pools": 1}
    assert await members(octavia) == {"10.96.0.5:80": {"10.1.0.7:8080"}}
    assert list(await floating(neutron)) == ingress(api) != []


async def test_one_in_error_is_built_anew(api: MemoryApi, octavia: MemoryOctavia, life: ServiceLife) -> None:
    add_service(api)
    put_endpoints(api, ["10.1.0.7"])
    await life.step()
    octavia.settle(failed=True)
    await life.settle()
    assert await members(octavia) == {"10.96.0.5:80": {"10.1.0.7:8080"}}
    assert life.events.reasons == ["BalancerRebuilt"]


async def test_one_that_stays_pending_is_told(api: MemoryApi, octavia: MemoryOctavia, life: ServiceLife) -> None:
    add_service(api)
    rounds = int(LONG_PENDING / 5)
    await life.settle(rounds=rounds, settling=False)
    assert life.events.told == []
    await life.settle(rounds=5, settling=False)
    assert set(life.events.reasons) == {"BalancerPending"}
    assert octavia.writes() == ["create loadbalancer"]
    put_endpoints(api, ["10.1.0.7"])
    await life.settle()
    assert await members(octavia) == {"10.96.0.5:80": {"10.1.0.7:8080"}}


async def test_a_quota_is_told_and_waited_for(api: MemoryApi, neutron: MemoryNeutron, public: NetworkId) -> None:
    octavia = MemoryOctavia(quotas={"loadbalancers": 0})
    life = ServiceLife(MemoryClient(api), neutron, octavia, public=public)
    add_service(api)
    await life.step()
    assert [told.reason for told in life.events.told] == ["NoLoadBalancer"]
    assert "Quota" in life.events.told[0].message
    octavia.quotas.clear()
    await life.settle()
    assert octavia.snapshot()["loadbalancers"] == 1


@pytest.mark.parametrize("error", [QuotaError, ThrottledError, UnavailableError])
async def test_refusals_in_the_middle_lose_nothing(
    api: MemoryApi, neutron: MemoryNeutron, octavia: MemoryOctavia, life: ServiceLife, error: type[OpenStackError]
) -> None:
    for call in ("create loadbalancer", "create listener", "create pool", "set members"):
        octavia.faults.refusals[call] = [error(call, "409", "not now")]
    neutron.faults.refusals["create floatingip"] = [error("create floatingip", "409", "not now")]
    add_service(api, type="LoadBalancer")
    put_endpoints(api, ["10.1.0.7"])
    await life.settle()
    assert await members(octavia) == {"10.96.0.5:80": {"10.1.0.7:8080"}}
    assert list(await floating(neutron)) == ingress(api) != []


async def test_both_families(api: MemoryApi, neutron: MemoryNeutron, octavia: MemoryOctavia, life: ServiceLife) -> None:
    add_service(api, clusterIPs=["10.96.0.5", "fd00:96::5"])
    await life.settle()
    assert {each.vip_address for each in await octavia.load_balancers()} == {"10.96.0.5", "fd00:96::5"}
    change_service(api, clusterIPs=["10.96.0.5"])
    await life.settle()
    assert {each.vip_address for each in await octavia.load_balancers()} == {"10.96.0.5"}


async def test_an_address_outside_of_the_service_network(
    api: MemoryApi, octavia: MemoryOctavia, life: ServiceLife
) -> None:
    add_service(api, clusterIP="10.200.0.1", clusterIPs=["10.200.0.1"])
    await life.step()
    assert octavia.snapshot() == NOTHING
    assert "10.200.0.1 is in no Service network" in life.events.told[0].message


@pytest.mark.parametrize(
    ("services", "subnet", "first", "last"),
    [
        ("10.96.0.0/16", "10.96.0.0/15", "10.97.0.0", "10.97.255.254"),
        ("10.97.0.0/16", "10.96.0.0/15", "10.96.0.1", "10.96.255.255"),
        ("10.96.0.0/12", "10.96.0.0/11", "10.112.0.0", "10.127.255.254"),
        ("fd00:96::/112", "fd00:96::/111", "fd00:96::1:0", "fd00:96::1:fffe"),
    ],
)
def test_neutron_gives_nothing_of_the_service_network(services: str, subnet: str, first: str, last: str) -> None:
    around = VipRange.around(ip_network(services))
    assert around == VipRange(ip_network(services), ip_network(subnet))
    assert around.rest == (ip_address(first), ip_address(last))
    start, end = around.rest
    assert start in around.subnet
    assert end in around.subnet
    assert start not in around.services
    assert end not in around.services


@pytest.mark.parametrize("subnet", ["10.96.0.0/16", "10.96.0.0/17", "10.98.0.0/15", "fd00::/64"])
def test_a_subnet_without_room_is_refused(subnet: str) -> None:
    with pytest.raises(ValueError, match="Service network"):
        VipRange(ip_network("10.96.0.0/16"), ip_network(subnet))


async def test_a_subnet_that_gives_cluster_ips_away_is_refused(
    neutron: MemoryNeutron, public: NetworkId, api: MemoryApi, octavia: MemoryOctavia, life: ServiceLife
) -> None:
    add_service(api)
    await life.settle()
    (subnet,) = [each for each in await neutron.subnets() if each.cidr == "10.96.0.0/15"]
    check_subnet(subnet, ip_network("10.96.0.0/16"))
    for services in ("10.97.0.0/16", "10.96.0.0/14", "10.200.0.0/16"):
        with pytest.raises(VipSubnetError):
            check_subnet(subnet, ip_network(services))
