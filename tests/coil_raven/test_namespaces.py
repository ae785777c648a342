"""Networks of namespaces."""

from ipaddress import ip_network

import pytest

from coil.crd.builtin import NAMESPACES, PODS
from coil.crd.names import NEUTRON_FINALIZER
from coil.neutron.identity import Identity, Kind, cluster_tag
from coil.neutron.resource import (
    AUTO_DELETED_OWNERS,
    OWNER_ROUTER_SNAT,
    FixedIp,
    Network,
    NetworkId,
    Port,
    PortId,
    ProjectId,
    SecurityGroupId,
    SecurityGroupRule,
)
from coil.neutron.supernet import Supernet
from coil.openstack.error import (
    DeniedError,
    InvalidError,
    OpenStackError,
    QuotaError,
    ThrottledError,
    UnavailableError,
)
from coil.reconcile.controller import RequeueAfter
from coil_raven.namespace_reconciler import SLOW_RETRY
from coil_raven.owned import LOOK_AGAIN
from tests.coil.kube.memory_api import MemoryApi, MemoryClient
from tests.coil.openstack.memory_neutron import MemoryNeutron
from tests.coil_raven.life import CLUSTER, PROJECT, Life, add_namespace, add_pod, delete_namespace, handoff

EMPTY = {"networks": 0, "subnets": 0, "routers": 1, "ports": 0, "security-groups": 0, "floatingips": 0}
"""The router stays: it is the cluster's."""


@pytest.fixture
def api() -> MemoryApi:
    return MemoryApi()


@pytest.fixture
def neutron() -> MemoryNeutron:
    return MemoryNeutron(hosts=["node-a"])


@pytest.fixture
def life(api: MemoryApi, neutron: MemoryNeutron) -> Life:
    return Life(MemoryClient(api), neutron)


async def test_a_namespace_gets_a_network_with_subnets_of_both_families_on_the_router(
    api: MemoryApi, neutron: MemoryNeutron, life: Life
) -> None:
    add_namespace(api, "default")
    add_namespace(api, "shop")
    assert await life.settle() == []
    default, shop = life.networks.present["default"], life.networks.present["shop"]
    uid = api.get(NAMESPACES, "default").metadata.uid
    assert default.network.name == Identity(CLUSTER, Kind.NETWORK, uid).name
    assert default.network.description == "Namespace default"
    assert default.network.project_id == PROJECT
    assert [subnet.cidr for subnet in default.subnets] == ["10.0.0.0/16", "fd00::/64"]
    assert [subnet.cidr for subnet in shop.subnets] == ["10.1.0.0/16", "fd00:0:0:1::/64"]
    (router,) = await neutron.routers()
    assert len(await neutron.ports(device_id=router.id)) == 4
    assert {tag for network in await neutron.networks() for tag in network.tags} == {cluster_tag(CLUSTER)}
    assert NEUTRON_FINALIZER in api.get(NAMESPACES, "default").metadata.finalizers


async def test_nothing_is_written_when_everything_is_there(api: MemoryApi, neutron: MemoryNeutron, life: Life) -> None:
    add_namespace(api, "default")
    add_pod(api, "web")
    await life.settle()
    neutron.calls.clear()
    life.client.calls.clear()
    for _ in range(3):
        assert await life.settle() == []
    restarted = Life(MemoryClient(api), neutron)
    assert await restarted.settle() == []
    assert neutron.writes() == []
    assert [call for call in (*life.client.calls, *restarted.client.calls) if call.verb not in ("get", "list")] == []


async def test_all_of_it_goes_with_the_namespace(api: MemoryApi, neutron: MemoryNeutron, life: Life) -> None:
    add_namespace(api, "default")
    add_pod(api, "web")
    await life.settle()
    delete_namespace(api, "default")
    # Its pod runs, and uses its port, until it has ended.
    assert await life.settle() == []
    assert len(await neutron.ports(device_owner="compute:kuryr")) == 1
    api.remove(PODS, "web", "default")
    assert await life.settle() == []
    assert api.find(NAMESPACES, "default") is None
    assert await life.settle() == []
    assert neutron.snapshot() == EMPTY
    add_namespace(api, "again")
    await life.settle()
    assert life.networks.present["again"].subnets[0].cidr == "10.0.0.0/16"


async def test_a_namespace_that_went_while_nobody_worked_leaves_nothing(api: MemoryApi, neutron: MemoryNeutron) -> None:
    add_namespace(api, "default")
    await Life(MemoryClient(api), neutron).settle()
    delete_namespace(api, "default")
    assert api.find(NAMESPACES, "default") is not None
    await Life(MemoryClient(api), neutron).settle()
    assert api.find(NAMESPACES, "default") is None
    assert neutron.snapshot() == EMPTY


@pytest.mark.parametrize("owner", [*sorted(AUTO_DELETED_OWNERS), OWNER_ROUTER_SNAT])
async def test_ports_that_neutron_makes_for_itself_keep_no_network(
    api: MemoryApi, neutron: MemoryNeutron, life: Life, owner: str
) -> None:
    add_namespace(api, "default")
    await life.settle()
    whole = life.networks.present["default"]
    (router,) = await neutron.routers()
    neutron.put(
        "ports",
        Port(
            id=PortId("99999999-9999-4999-8999-999999999999"),
            network_id=whole.network.id,
            mac_address="fa:16:3e:00:00:99",
            device_owner=owner,
            device_id=router.id if owner == OWNER_ROUTER_SNAT else "ovnmeta",
            fixed_ips=(FixedIp(whole.subnets[0].id, "10.0.0.9"),),
        ),
    )
    delete_namespace(api, "default")
    await life.settle()
    assert life.events.told == []
    assert neutron.snapshot() == EMPTY


@pytest.mark.parametrize("owner", ["network:router_interface", OWNER_ROUTER_SNAT])
async def test_the_interface_of_a_foreign_router_is_left_alone(
    api: MemoryApi, neutron: MemoryNeutron, life: Life, owner: str
) -> None:
    add_namespace(api, "default")
    await life.settle()
    whole = life.networks.present["default"]
    foreign = Port(
        id=PortId("99999999-9999-4999-8999-999999999999"),
        network_id=whole.network.id,
        mac_address="fa:16:3e:00:00:99",
        device_owner=owner,
        device_id="a router of an administrator",
        fixed_ips=(FixedIp(whole.subnets[0].id, "10.0.0.9"),),
    )
    neutron.put("ports", foreign)
    delete_namespace(api, "default")
    await life.settle()
    assert await neutron.port(foreign.id) == foreign
    (told,) = life.events.told
    assert (told.reason, foreign.id in told.message) == ("NetworkInUse", True)


async def test_a_foreign_port_keeps_its_network_and_nothing_else(
    api: MemoryApi, neutron: MemoryNeutron, life: Life
) -> None:
    add_namespace(api, "default")
    add_namespace(api, "shop")
    await life.settle()
    network = life.networks.present["default"].network
    foreign = Port(
        id=PortId("99999999-9999-4999-8999-999999999999"),
        name="a virtual machine",
        network_id=network.id,
        mac_address="fa:16:3e:00:00:99",
        device_owner="compute:nova",
    )
    neutron.put("ports", foreign)
    delete_namespace(api, "default")
    delete_namespace(api, "shop")
    await life.settle()
    assert [each.id for each in await neutron.networks()] == [network.id]
    assert (await neutron.port(foreign.id)) == foreign
    (told,) = life.events.told
    assert (told.kind, told.name, told.reason) == ("Namespace", "default", "NetworkInUse")
    assert foreign.id in told.message
    assert "a virtual machine" in told.message
    await neutron.delete_port(foreign.id)
    await life.settle()
    assert api.all(NAMESPACES) == []
    assert neutron.snapshot() == EMPTY


async def test_a_quota_is_told_and_tried_again(api: MemoryApi, neutron: MemoryNeutron, life: Life) -> None:
    neutron.quotas["networks"] = 1
    add_namespace(api, "default")
    add_namespace(api, "shop")
    assert await life.settle() == []
    assert set(life.networks.present) == {"default"}
    (told,) = life.events.told
    assert (told.name, told.reason) == ("shop", "NoNetwork")
    assert "Quota exceeded" in told.message
    life.look()
    uid = api.get(NAMESPACES, "shop").metadata.uid
    assert await life.namespace_reconciler.reconcile(uid) == RequeueAfter(SLOW_RETRY)
    neutron.quotas["networks"] = 2
    await life.settle()
    assert set(life.networks.present) == {"default", "shop"}


async def test_an_exhausted_supernet_is_told_and_leaves_no_subnet(api: MemoryApi, neutron: MemoryNeutron) -> None:
    life = Life(MemoryClient(api), neutron, supernets=[Supernet(ip_network("10.0.0.0/15"), 16)])
    for name in ("a", "b", "c"):
        add_namespace(api, name)
    await life.settle()
    assert set(life.networks.present) == {"a", "b"}
    assert [told.name for told in life.events.told] == ["c"]
    assert "all 2 parts" in life.events.told[0].message
    delete_namespace(api, "a")
    await life.settle()
    await life.settle()
    assert set(life.networks.present) == {"b", "c"}


async def test_an_account_that_does_not_see_what_it_makes_stops_at_once(
    api: MemoryApi, neutron: MemoryNeutron, life: Life
) -> None:
    neutron.hidden.add("networks")
    add_namespace(api, "default")
    add_namespace(api, "shop")
    for _ in range(5):
        await life.settle()
    assert neutron.calls.count("create network") == 1
    assert {told.reason for told in life.events.told} == {"NoNetwork"}
    assert "does not see it" in life.events.told[0].message
    assert life.pauses == list(LOOK_AGAIN)


async def test_what_was_created_may_be_seen_later(api: MemoryApi, neutron: MemoryNeutron, life: Life) -> None:
    async def reveal(seconds: float) -> None:
        neutron.hidden.clear()

    neutron.hidden.add("networks")
    life.owned._sleep = reveal
    add_namespace(api, "default")
    assert await life.settle() == []
    assert neutron.snapshot()["networks"] == 1
    assert life.events.told == []


async def test_a_lost_answer_makes_no_second_network(api: MemoryApi, neutron: MemoryNeutron, life: Life) -> None:
    add_namespace(api, "default")
    for call in ("create network", "create subnet", "create security_group", "create router", "add router interface"):
        neutron.faults.lost_answers[call] = 1
    for _ in range(8):
        await life.settle()
    assert neutron.snapshot() == {
        "networks": 1,
        "subnets": 2,
        "routers": 1,
        "ports": 2,
        "security-groups": 1,
        "floatingips": 0,
    }
    assert "default" in life.networks.present


async def test_one_that_is_killed_after_each_call_is_gone_on_with(api: MemoryApi, neutron: MemoryNeutron) -> None:
    """Each life ends with the first write that takes place: as kill -9 between any two calls would have it."""
    add_namespace(api, "default")
    writes = ("create network", "create subnet", "create security_group", "create security_group_rule")
    for _ in range(20):
        for call in (*writes, "create router", "add router interface", "set tag"):
            neutron.faults.lost_answers[call] = 1
        life = Life(MemoryClient(api), neutron)
        if not await life.settle():
            break
    assert neutron.snapshot() == {
        "networks": 1,
        "subnets": 2,
        "routers": 1,
        "ports": 2,
        "security-groups": 1,
        "floatingips": 0,
    }


async def test_another_clusters_network_is_never_touched(api: MemoryApi, neutron: MemoryNeutron, life: Life) -> None:
    name = Identity(CLUSTER, Kind.NETWORK, "uid-1").name.replace("stage", "other")
    foreign = neutron.put("networks", Network(id=NetworkId("other"), name=name, mtu=1500))
    add_namespace(api, "default")
    await life.settle()
    delete_namespace(api, "default")
    await life.settle()
    assert await neutron.networks() == [foreign]


async def test_the_project_is_the_namespaces_and_cannot_be_changed(
    api: MemoryApi, neutron: MemoryNeutron, life: Life
) -> None:
    add_namespace(api, "shop", **{"kuryr.org/project": "project-of-the-shop"})
    await life.settle()
    assert {each.project_id for each in await neutron.networks()} == {ProjectId("project-of-the-shop")}
    api.patch(NAMESPACES, "shop", {"metadata": {"annotations": {"kuryr.org/project": "another"}}}, subresource="")
    await life.settle()
    assert {each.project_id for each in await neutron.networks()} == {ProjectId("project-of-the-shop")}
    assert [told.reason for told in life.events.told] == ["ProjectNotChanged"]


@pytest.mark.parametrize("isolated", [False, True])
async def test_pods_receive_from_all_or_from_their_own_namespace(
    api: MemoryApi, neutron: MemoryNeutron, isolated: bool
) -> None:
    add_namespace(api, "default")
    await Life(MemoryClient(api), neutron, isolated=not isolated).settle()
    life = Life(MemoryClient(api), neutron, isolated=isolated)
    await life.settle()
    (group,) = await neutron.security_groups()
    ingress = [rule for rule in group.security_group_rules if rule.direction == "ingress"]
    assert {rule.ethertype for rule in ingress} == {"IPv4", "IPv6"}
    assert {rule.remote_group_id for rule in ingress} == {group.id if isolated else None}
    assert len(group.security_group_rules) == 4


async def test_isolated_pods_receive_from_load_balancers(api: MemoryApi, neutron: MemoryNeutron) -> None:
    add_namespace(api, "default")
    add_pod(api, "web")
    life = Life(MemoryClient(api), neutron, isolated=True, balancers=[ip_network("10.96.0.0/11")])
    await life.settle()
    told = handoff(api, "web")
    assert told is not None
    assert list(map(str, told.rules or ())) == [
        *("egress 0.0.0.0/0", "egress ::/0"),
        *("ingress 10.0.0.0/16", "ingress 10.96.0.0/11", "ingress fd00::/64"),
    ]
    # Without them their rule goes, as it is coil-raven's own.
    await Life(MemoryClient(api), neutron, isolated=True).settle()
    told = handoff(api, "web")
    assert told is not None
    assert not [rule for rule in told.rules or () if "10.96" in str(rule)]


async def test_an_administrators_rules_stay_and_reach_the_nodes(api: MemoryApi, neutron: MemoryNeutron) -> None:
    add_namespace(api, "default")
    add_pod(api, "web")
    life = Life(MemoryClient(api), neutron, isolated=True)
    await life.settle()
    (group,) = await neutron.security_groups()
    added = [
        SecurityGroupRule(direction="ingress", ethertype="IPv4", remote_ip_prefix="192.0.2.0/24", protocol="tcp"),
        SecurityGroupRule(direction="ingress", ethertype="IPv4", protocol="112"),
        SecurityGroupRule(direction="ingress", ethertype="IPv6", remote_group_id=SecurityGroupId("foreign")),
    ]
    await neutron.create_security_group_rules(group.id, added, project=PROJECT)
    uids = [uid async for uid in life.namespace_reconciler.rule_changes()]
    assert uids == [api.get(NAMESPACES, "default").metadata.uid]
    await life.settle()
    told = handoff(api, "web")
    assert told is not None
    assert "ingress 192.0.2.0/24 tcp" in map(str, told.rules or ())
    assert len(told.rules or ()) == 5
    [event] = [event for event in life.events.told if event.reason == "RulesLeftOut"]
    assert "the protocol 112" in event.message
    assert "its remote group foreign" in event.message
    assert [uid async for uid in life.namespace_reconciler.rule_changes()] == []
    neutron.calls.clear()
    restarted = Life(MemoryClient(api), neutron, isolated=True)
    await restarted.settle()
    assert neutron.writes() == []


async def test_a_rule_for_another_namespace_holds_from_the_start_on(api: MemoryApi, neutron: MemoryNeutron) -> None:
    for name in ("first", "second"):
        add_namespace(api, name)
        add_pod(api, "web", namespace=name)
    life = Life(MemoryClient(api), neutron, isolated=True)
    await life.settle()
    first, second = (life.networks.present[name] for name in ("first", "second"))
    for mine, other in ((first, second), (second, first)):
        rule = SecurityGroupRule(direction="ingress", ethertype="IPv4", remote_group_id=other.group)
        await neutron.create_security_group_rules(mine.group, [rule], project=PROJECT)
    assert len([uid async for uid in life.namespace_reconciler.rule_changes()]) == 2
    await life.settle()
    told = handoff(api, "web", "first")
    assert told is not None
    assert {"ingress 10.0.0.0/16", "ingress 10.1.0.0/16"} <= set(map(str, told.rules or ()))
    # Whichever namespace comes first after a start, no pod loses a rule for a while.
    restarted = Life(MemoryClient(api), neutron, isolated=True)
    await restarted.settle()
    assert [call for call in restarted.client.calls if call.verb == "patch"] == []
    assert restarted.events.told == []


async def test_nodes_are_told_nothing_where_everything_passes(api: MemoryApi, life: Life) -> None:
    add_namespace(api, "default")
    add_pod(api, "web")
    await life.settle()
    told = handoff(api, "web")
    assert told is not None
    assert told.rules is None


async def test_what_fails_is_raised_for_the_queue(api: MemoryApi, neutron: MemoryNeutron, life: Life) -> None:
    add_namespace(api, "default")
    neutron.faults.refusals["list networks"] = [UnavailableError("list networks", "503", "away")]
    (error,) = await life.settle()
    assert isinstance(error, UnavailableError)
    neutron.faults.refusals["create subnet"] = [QuotaError("create subnet", "OverQuota", "no more subnets")]
    await life.settle()
    assert "default" not in life.networks.present
    await life.settle()
    assert "default" in life.networks.present


@pytest.mark.parametrize("error", [DeniedError, InvalidError])
async def test_what_only_people_can_change_is_told(
    api: MemoryApi, neutron: MemoryNeutron, life: Life, error: type[OpenStackError]
) -> None:
    neutron.faults.refusals["create network"] = [error("create network", "PolicyNotAuthorized", "rule:create_network")]
    add_namespace(api, "default")
    assert await life.settle() == []
    (told,) = life.events.told
    assert (told.name, told.reason) == ("default", "NoNetwork")
    assert "rule:create_network" in told.message


async def test_too_many_calls_are_told_and_back_off(api: MemoryApi, neutron: MemoryNeutron, life: Life) -> None:
    neutron.faults.refusals["create network"] = [ThrottledError("create network", "429", "too many requests")]
    add_namespace(api, "default")
    (error,) = await life.settle()
    assert isinstance(error, ThrottledError)
    assert [told.reason for told in life.events.told] == ["NoNetwork"]


async def test_a_network_whose_finalizer_was_removed_by_hand_is_deleted(
    api: MemoryApi, neutron: MemoryNeutron, life: Life
) -> None:
    add_namespace(api, "default")
    add_namespace(api, "stays")
    await life.settle()
    uid = api.get(NAMESPACES, "default").metadata.uid
    api.remove(NAMESPACES, "default")
    later = Life(MemoryClient(api), neutron)
    later.look()
    assert [uid async for uid in later.namespace_reconciler.orphans()] == [uid]
    await later.namespace_reconciler.reconcile(uid)
    assert {each.description for each in await neutron.networks()} == {"Namespace stays"}
    assert [uid async for uid in later.namespace_reconciler.orphans()] == []


async def test_a_namespace_that_the_cache_has_not_seen_keeps_its_network(
    api: MemoryApi, neutron: MemoryNeutron, life: Life
) -> None:
    late = Life(MemoryClient(api), neutron)
    late.look()
    add_namespace(api, "default")
    await life.settle()
    assert [uid async for uid in late.namespace_reconciler.orphans()] == []


async def test_the_next_namespace_of_a_name_gets_a_network_of_its_own(
    api: MemoryApi, neutron: MemoryNeutron, life: Life
) -> None:
    """Also where both changes arrive as one."""
    add_namespace(api, "default")
    await life.settle()
    first = life.networks.present["default"]
    api.remove(NAMESPACES, "default")
    add_namespace(api, "default")
    life.look()
    uid = api.get(NAMESPACES, "default").metadata.uid
    # The new one first: nothing of the old one may be taken for its network.
    await life.namespace_reconciler.reconcile(uid)
    await life.namespace_reconciler.reconcile(first.uid)
    second = life.networks.present["default"]
    assert second.uid == uid
    assert second.network.id != first.network.id
    assert [each.id for each in await neutron.networks()] == [second.network.id]


async def test_a_subnet_that_the_router_refuses_makes_way_for_another(
    api: MemoryApi, neutron: MemoryNeutron, life: Life
) -> None:
    """Somebody connects a subnet with the same addresses, after they were chosen."""
    add_namespace(api, "default")
    neutron.faults.refusals["add router interface"] = [
        InvalidError("add router interface", "HTTPBadRequest", "Cidr 10.0.0.0/16 of subnet overlaps")
    ]
    await life.settle()
    assert "default" not in life.networks.present
    assert [subnet for subnet in await neutron.subnets() if subnet.ip_version == 4] == []
    assert await life.settle() == []
    assert "default" in life.networks.present
