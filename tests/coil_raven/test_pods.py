"""Ports of pods."""

import asyncio
from ipaddress import ip_address, ip_interface
from typing import Any

import pytest
from msgspec.structs import replace

from coil.crd.builtin import NAMESPACES, NODES, PODS
from coil.kube.errors import UnavailableError as ApiUnavailableError
from coil.neutron.handoff import ANNOTATION_PORT
from coil.neutron.identity import Identity, Kind
from coil.neutron.resource import Port, PortId
from coil.openstack.error import (
    DeniedError,
    ExhaustedError,
    InvalidError,
    OpenStackError,
    ThrottledError,
    UnavailableError,
)
from coil.reconcile.controller import DONE, RequeueAfter
from coil_raven.pod_reconciler import SLOW_RETRY
from tests.coil.kube.memory_api import Call, MemoryApi, MemoryClient, Moment
from tests.coil.openstack.memory_neutron import MemoryNeutron
from tests.coil.reconcile.virtual_time import run_virtual
from tests.coil_raven.life import CLUSTER, Life, add_namespace, add_pod, delete_namespace, handoff


@pytest.fixture
def api() -> MemoryApi:
    api = MemoryApi()
    add_namespace(api, "default")
    return api


@pytest.fixture
def neutron() -> MemoryNeutron:
    return MemoryNeutron(hosts=["node-a", "host-of-b"])


@pytest.fixture
async def life(api: MemoryApi, neutron: MemoryNeutron) -> Life:
    life = Life(MemoryClient(api), neutron)
    await life.settle()
    neutron.calls.clear()
    return life


async def pod_ports(neutron: MemoryNeutron) -> list[str]:
    return sorted(port.device_id for port in await neutron.ports(device_owner="compute:kuryr"))


async def test_a_pod_gets_a_port_and_its_node_is_told(api: MemoryApi, neutron: MemoryNeutron, life: Life) -> None:
    pod = add_pod(api, "web")
    assert await life.settle() == []
    (port,) = await neutron.ports(device_owner="compute:kuryr")
    assert port.name == Identity(CLUSTER, Kind.PORT, pod.metadata.uid).name
    assert (port.device_id, port.host_id, port.description) == (pod.metadata.uid, "node-a", "Pod default/web")
    found = handoff(api, "web")
    network = life.networks.present["default"]
    assert found is not None
    assert (found.port, found.mac, found.network) == (port.id, port.mac_address, network.network.id)
    assert [address.interface for address in found.addresses] == [
        ip_interface("10.0.0.2/16"),
        ip_interface("fd00::2/64"),
    ]
    assert [address.gateway for address in found.addresses] == [ip_address("10.0.0.1"), ip_address("fd00::1")]
    assert (found.type, found.mtu, found.segmentation) == ("bridge", 1450, network.network.segmentation_id)
    assert port.security_groups == {network.group}


async def test_a_pod_takes_one_call(api: MemoryApi, neutron: MemoryNeutron, life: Life) -> None:
    for number in range(20):
        add_pod(api, f"web-{number}")
    await life.settle()
    assert neutron.calls == ["create port"] * 20


async def test_pods_without_a_node_or_in_its_network_or_finished_have_none(
    api: MemoryApi, neutron: MemoryNeutron, life: Life
) -> None:
    add_pod(api, "pending", node="")
    add_pod(api, "host", hostNetwork=True)
    api.put(
        PODS,
        {
            "metadata": {"name": "done", "namespace": "default"},
            "spec": {"nodeName": "node-a"},
            "status": {"phase": "Succeeded"},
        },
    )
    await life.settle()
    assert await pod_ports(neutron) == []


async def test_a_port_ends_with_its_pod(api: MemoryApi, neutron: MemoryNeutron, life: Life) -> None:
    add_pod(api, "gone")
    job = add_pod(api, "job")
    stays = add_pod(api, "stays")
    await life.settle()
    api.remove(PODS, "gone", "default")
    api.put(
        PODS,
        {"metadata": {"name": "job", "namespace": "default", "uid": job.metadata.uid}, "status": {"phase": "Failed"}},
    )
    await life.settle()
    assert await pod_ports(neutron) == [stays.metadata.uid]


def test_a_port_is_kept_for_a_while_after_its_pod(api: MemoryApi, neutron: MemoryNeutron) -> None:
    async def run() -> None:
        life = Life(MemoryClient(api), neutron, cooling=30.0)
        pod = add_pod(api, "gone")
        await life.settle()
        api.remove(PODS, "gone", "default")
        life.look()
        for seconds in (29.0, 1.1):
            result = await life.pod_reconciler.reconcile(pod.metadata.uid)
            assert isinstance(result, RequeueAfter)
            assert await pod_ports(neutron) == [pod.metadata.uid]
            await asyncio.sleep(seconds)
        assert await life.pod_reconciler.reconcile(pod.metadata.uid) == DONE
        assert await pod_ports(neutron) == []

    run_virtual(run)


async def test_a_port_is_not_kept_longer_than_its_namespace(api: MemoryApi, neutron: MemoryNeutron) -> None:
    life = Life(MemoryClient(api), neutron, cooling=30.0)
    add_namespace(api, "jobs")
    add_pod(api, "job", namespace="jobs")
    await life.settle()
    api.remove(PODS, "job", "jobs")
    delete_namespace(api, "jobs")
    await life.settle()
    assert await pod_ports(neutron) == []
    assert [namespace.metadata.name for namespace in api.all(NAMESPACES)] == ["default"]


async def test_what_ended_while_nobody_worked_leaves_no_port(
    api: MemoryApi, neutron: MemoryNeutron, life: Life
) -> None:
    add_pod(api, "gone")
    await life.settle()
    api.remove(PODS, "gone", "default")
    next_life = Life(MemoryClient(api), neutron)
    next_life.look()
    uids = [uid async for uid in next_life.pod_reconciler.discrepancies()]
    assert len(uids) == 1
    for uid in uids:
        await next_life.pod_reconciler.reconcile(uid)
    assert await pod_ports(neutron) == []


async def test_a_pod_that_the_cache_has_not_seen_keeps_its_port(
    api: MemoryApi, neutron: MemoryNeutron, life: Life
) -> None:
    late = Life(MemoryClient(api), neutron)
    late.look()
    pod = add_pod(api, "web")
    await life.settle()
    assert [uid async for uid in late.pod_reconciler.discrepancies()] == []
    assert await pod_ports(neutron) == [pod.metadata.uid]


async def test_no_answer_of_the_api_server_deletes_no_port(api: MemoryApi, neutron: MemoryNeutron, life: Life) -> None:
    async def fail(call: Call, moment: Moment) -> None:
        raise ApiUnavailableError("no route to host")

    pod = add_pod(api, "web")
    await life.settle()
    late = Life(MemoryClient(api, fail), neutron)
    assert [uid async for uid in late.pod_reconciler.discrepancies()] == []
    assert await pod_ports(neutron) == [pod.metadata.uid]


async def test_the_next_pod_of_a_name_gets_a_port_of_its_own(
    api: MemoryApi, neutron: MemoryNeutron, life: Life
) -> None:
    add_pod(api, "web-0")
    await life.settle()
    api.remove(PODS, "web-0", "default")
    second = add_pod(api, "web-0")
    await life.settle()
    assert await pod_ports(neutron) == [second.metadata.uid]
    found = handoff(api, "web-0")
    assert found is not None
    assert found.pod_uid == second.metadata.uid


async def test_a_lost_answer_makes_no_second_port(api: MemoryApi, neutron: MemoryNeutron, life: Life) -> None:
    neutron.faults.lost_answers["create port"] = 1
    pod = add_pod(api, "web")
    (error,) = await life.settle()
    assert isinstance(error, UnavailableError)
    assert handoff(api, "web") is None
    assert await life.settle() == []
    assert await pod_ports(neutron) == [pod.metadata.uid]
    assert handoff(api, "web") is not None


async def test_a_lost_answer_for_a_pod_that_is_gone_leaves_no_port(
    api: MemoryApi, neutron: MemoryNeutron, life: Life
) -> None:
    neutron.faults.lost_answers["create port"] = 1
    add_pod(api, "web")
    await life.settle()
    api.remove(PODS, "web", "default")
    await life.settle()
    assert await pod_ports(neutron) == []


@pytest.mark.parametrize("restarted", [False, True])
async def test_a_doubled_port_is_deleted(api: MemoryApi, neutron: MemoryNeutron, life: Life, restarted: bool) -> None:
    pod = add_pod(api, "web")
    await life.settle()
    (port,) = await neutron.ports(device_owner="compute:kuryr")
    neutron.put("ports", replace(port, id=PortId("00000000-first")))
    assert len(await pod_ports(neutron)) == 2
    later = Life(MemoryClient(api), neutron) if restarted else life
    later.look()
    assert [uid async for uid in later.pod_reconciler.discrepancies()] == []
    assert await later.settle() == []
    assert await pod_ports(neutron) == [pod.metadata.uid]
    found = handoff(api, "web")
    assert found is not None
    (left,) = await neutron.ports(device_owner="compute:kuryr")
    assert found.port == left.id
    assert restarted or left == port, "the one that the pod's node was told of"


async def test_a_quota_is_told_and_tried_again(api: MemoryApi, neutron: MemoryNeutron, life: Life) -> None:
    neutron.quotas["ports"] = 3
    pods = [add_pod(api, f"web-{number}") for number in range(2)]
    assert await life.settle() == []
    (told,) = life.events.told
    assert (told.kind, told.reason) == ("Pod", "NoPort")
    assert "Quota exceeded" in told.message
    left = next(pod for pod in pods if handoff(api, pod.metadata.name) is None)
    assert await life.pod_reconciler.reconcile(left.metadata.uid) == RequeueAfter(SLOW_RETRY)
    neutron.quotas["ports"] = 4
    await life.settle()
    assert all(handoff(api, pod.metadata.name) is not None for pod in pods)


@pytest.mark.parametrize("error", [DeniedError, InvalidError, ExhaustedError])
async def test_what_only_people_can_change_is_told_and_tried_again_slowly(
    api: MemoryApi, neutron: MemoryNeutron, life: Life, error: type[OpenStackError]
) -> None:
    neutron.faults.refusals["create port"] = [error("create port", "PolicyNotAuthorized", "create_port is disallowed")]
    pod = add_pod(api, "web")
    life.look()
    assert await life.pod_reconciler.reconcile(pod.metadata.uid) == RequeueAfter(SLOW_RETRY)
    (told,) = life.events.told
    assert (told.name, told.reason) == ("web", "NoPort")
    assert "create_port is disallowed" in told.message
    assert await life.settle() == []
    assert handoff(api, "web") is not None


async def test_too_many_calls_are_told_and_back_off(api: MemoryApi, neutron: MemoryNeutron, life: Life) -> None:
    neutron.faults.refusals["create port"] = [ThrottledError("create port", "429", "too many requests")]
    add_pod(api, "web")
    (error,) = await life.settle()
    assert isinstance(error, ThrottledError)
    assert [told.reason for told in life.events.told] == ["NoPort"]


async def test_a_node_may_have_another_name_in_neutron(api: MemoryApi, neutron: MemoryNeutron, life: Life) -> None:
    api.create(NODES, {"metadata": {"name": "node-b", "annotations": {"kuryr.org/host": "host-of-b"}}})
    add_pod(api, "web", node="node-b")
    await life.settle()
    (port,) = await neutron.ports(device_owner="compute:kuryr")
    assert (port.host_id, port.binding_failed) == ("host-of-b", False)
    assert life.events.told == []


async def test_a_port_that_no_agent_binds_is_told_to_people_and_not_to_the_node(
    api: MemoryApi, neutron: MemoryNeutron, life: Life
) -> None:
    pod = add_pod(api, "web", node="node-c")
    life.look()
    assert await life.pod_reconciler.reconcile(pod.metadata.uid) == RequeueAfter(SLOW_RETRY)
    (told,) = life.events.told
    assert (told.name, told.reason) == ("web", "PortNotBound")
    assert "'node-c'" in told.message
    assert handoff(api, "web") is None
    (port,) = await neutron.ports(device_owner="compute:kuryr")
    neutron.hosts = ["node-c"]
    await life.settle()
    found = handoff(api, "web")
    assert found is not None
    assert found.port == port.id


async def test_a_port_follows_the_name_of_its_node_in_neutron(
    api: MemoryApi, neutron: MemoryNeutron, life: Life
) -> None:
    api.create(NODES, {"metadata": {"name": "node-b"}})
    pod = add_pod(api, "web", node="node-b")
    other = add_pod(api, "other")
    await life.settle()
    heard: list[str] = []
    life.nodes.subscribe(lambda old, new: heard.extend(life.pod_reconciler._pods_on(old, new)))
    patch = {"metadata": {"annotations": {"kuryr.org/host": "host-of-b"}}}
    api.patch(NODES, "node-b", patch, subresource="")
    await life.settle()
    assert heard == [pod.metadata.uid]
    hosts = {port.device_id: port.host_id for port in await neutron.ports(device_owner="compute:kuryr")}
    assert hosts == {pod.metadata.uid: "host-of-b", other.metadata.uid: "node-a"}
    assert handoff(api, "web") is not None


async def test_an_account_that_is_shown_no_hosts_binds_nothing_again(
    api: MemoryApi, neutron: MemoryNeutron, life: Life
) -> None:
    add_pod(api, "web")
    await life.settle()
    (port,) = await neutron.ports(device_owner="compute:kuryr")
    neutron.put("ports", replace(port, host_id="", vif_type=""))
    neutron.calls.clear()
    assert await Life(MemoryClient(api), neutron).settle() == []
    assert neutron.writes() == []


async def test_a_port_that_somebody_has_deleted_is_replaced_and_the_pod_is_told(
    api: MemoryApi, neutron: MemoryNeutron, life: Life
) -> None:
    pod = add_pod(api, "web")
    stays = add_pod(api, "stays")
    await life.settle()
    before = handoff(api, "web")
    assert before is not None
    await neutron.delete_port(before.port)
    life.look()
    assert [uid async for uid in life.pod_reconciler.discrepancies()] == [pod.metadata.uid]
    await life.settle()
    after = handoff(api, "web")
    assert after is not None
    assert after.port != before.port
    (told,) = life.events.told
    assert (told.name, told.reason) == ("web", "PortReplaced")
    assert before.port in told.message
    assert after.port in told.message
    assert await pod_ports(neutron) == sorted([pod.metadata.uid, stays.metadata.uid])


async def test_a_port_that_is_deleted_before_it_is_bound_again_is_made_again(
    api: MemoryApi, neutron: MemoryNeutron, life: Life
) -> None:
    add_pod(api, "web", node="node-c")
    await life.settle()
    (port,) = await neutron.ports(device_owner="compute:kuryr")
    await neutron.delete_port(port.id)
    neutron.hosts = ["node-c"]
    assert await life.settle() == []
    assert handoff(api, "web") is not None


async def test_what_is_done_while_neutron_lists_ports_stands_against_the_list(
    api: MemoryApi, neutron: MemoryNeutron, life: Life
) -> None:
    """The list is that of before: it has the deleted port, and lacks the new one."""
    old = add_pod(api, "old")
    await life.settle()

    class Late(MemoryNeutron):
        async def ports(self, **query: Any) -> list[Port]:
            found = await neutron.ports(**query)
            new = add_pod(api, "new")
            api.remove(PODS, "old", "default")
            life.look()
            await life.pod_reconciler.reconcile(new.metadata.uid)
            await life.pod_reconciler.reconcile(old.metadata.uid)
            return found

    life.ports._neutron, real = Late(), life.ports._neutron
    life.ports._neutron.create_port, life.ports._neutron.delete_port = real.create_port, real.delete_port  # type: ignore[method-assign]
    assert await life.ports.refresh() == frozenset()
    assert life.ports.uids() == set(await pod_ports(neutron))


async def test_an_annotation_that_a_tenant_has_written_is_put_right(
    api: MemoryApi, neutron: MemoryNeutron, life: Life
) -> None:
    add_pod(api, "web")
    await life.settle()
    text = api.get(PODS, "web", "default").metadata.annotations[ANNOTATION_PORT]
    patch = {"metadata": {"annotations": {ANNOTATION_PORT: text.replace("10.0.0.2", "10.0.0.9")}}}
    api.patch(PODS, "web", patch, namespace="default", subresource="")
    await life.settle()
    assert api.get(PODS, "web", "default").metadata.annotations[ANNOTATION_PORT] == text
