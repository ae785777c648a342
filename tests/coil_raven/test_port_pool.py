"""Ports that wait for pods."""

import asyncio

import pytest
from msgspec.structs import replace

from coil.crd.builtin import PODS
from coil.neutron.identity import Identity, Kind, parse_identity
from coil.neutron.resource import Port
from coil.openstack.error import ConflictError, QuotaError, ThrottledError, UnavailableError
from coil.reconcile.controller import DONE, RequeueAfter
from coil_raven.pool_reconciler import SLOW_RETRY
from coil_raven.port_pool import KEEP_SECONDS, LONGEST_PAUSE, QUIET_SECONDS, PoolKey
from tests.coil.kube.memory_api import MemoryApi, MemoryClient
from tests.coil.openstack.memory_neutron import MemoryNeutron
from tests.coil_raven.life import CLUSTER, Life, add_namespace, add_pod, delete_namespace, handoff
from tests.coild.virtual_loop import pass_turns

SIZE = 4


@pytest.fixture
def api() -> MemoryApi:
    api = MemoryApi()
    add_namespace(api, "default")
    return api


@pytest.fixture
def neutron() -> MemoryNeutron:
    return MemoryNeutron(hosts=["node-a", "node-b"])


def new_life(api: MemoryApi, neutron: MemoryNeutron, *, size: int = SIZE) -> Life:
    return Life(MemoryClient(api), neutron, pool_size=size)


@pytest.fixture
async def life(api: MemoryApi, neutron: MemoryNeutron) -> Life:
    """Its first pod has come, so there is a pool for the node-a."""
    life = new_life(api, neutron)
    add_pod(api, "first")
    assert await life.settle() == []
    neutron.calls.clear()
    return life


def waiting(neutron: MemoryNeutron, host: str = "node-a") -> list[Port]:
    """What Neutron has of them."""
    ports = [each for each in neutron.everything().values() if isinstance(each, Port)]
    return [
        port
        for port in ports
        if (who := parse_identity(port.name)) and who.kind is Kind.POOLED_PORT and port.host_id == host
    ]


async def test_they_are_created_by_one_call_and_serve_nobody(neutron: MemoryNeutron, life: Life) -> None:
    ports = waiting(neutron)
    assert len(ports) == SIZE
    for port in ports:
        assert (port.device_id, port.device_owner, port.security_groups) == ("", "compute:kuryr", frozenset())
        assert [str(fixed.ip_address) for fixed in port.fixed_ips] != []
    assert waiting(neutron, "node-b") == []


async def test_a_pod_takes_one_by_one_call(api: MemoryApi, neutron: MemoryNeutron, life: Life) -> None:
    before = {port.id for port in waiting(neutron)}
    pod = add_pod(api, "web")
    assert await life.settle() == []
    assert neutron.calls == ["assign port"]
    found = handoff(api, "web")
    assert found is not None
    assert found.port in before
    port = await neutron.port(found.port)
    assert port.name == Identity(CLUSTER, Kind.PORT, pod.metadata.uid).name
    assert (port.device_id, port.description) == (pod.metadata.uid, "Pod default/web")
    assert port.security_groups == {life.networks.present["default"].group}


async def test_a_crowd_takes_what_is_there_and_creates_the_rest(
    api: MemoryApi, neutron: MemoryNeutron, life: Life
) -> None:
    for number in range(2 * SIZE):
        add_pod(api, f"web-{number}")
    assert await life.settle() == []
    assert neutron.calls == [*["assign port"] * SIZE, *["create port"] * SIZE, "create ports"]
    assert len(waiting(neutron)) == SIZE


async def test_a_pool_is_filled_up_when_half_of_it_is_gone(api: MemoryApi, neutron: MemoryNeutron, life: Life) -> None:
    add_pod(api, "web-0")
    await life.settle()
    assert len(waiting(neutron)) == SIZE - 1
    add_pod(api, "web-1")
    await life.settle()
    assert neutron.calls == ["assign port", "assign port", "create ports"]
    assert len(waiting(neutron)) == SIZE


async def test_pods_that_come_together_do_not_wait_for_it_to_be_filled(
    api: MemoryApi, neutron: MemoryNeutron, life: Life
) -> None:
    for number in range(SIZE):
        add_pod(api, f"web-{number}")
        await life.settle(seconds=QUIET_SECONDS / 2)
    assert neutron.calls == ["assign port"] * SIZE
    [key] = life.pools.pool_keys()
    assert await life.pool_reconciler.reconcile(str(key)) == RequeueAfter(QUIET_SECONDS / 2)
    await life.settle(seconds=QUIET_SECONDS / 2)
    assert len(waiting(neutron)) == SIZE


async def test_it_is_filled_though_pods_keep_coming(api: MemoryApi, neutron: MemoryNeutron, life: Life) -> None:
    for number in range(int(1.5 * LONGEST_PAUSE)):
        add_pod(api, f"web-{number}")
        await life.settle(seconds=QUIET_SECONDS / 2)
        await life.settle(seconds=QUIET_SECONDS / 2 - 0.1)
    assert neutron.calls.count("create ports") == 1


async def test_a_port_that_a_pod_has_had_does_not_come_back(api: MemoryApi, neutron: MemoryNeutron, life: Life) -> None:
    found = handoff(api, "first")
    assert found is not None
    api.remove(PODS, "first", "default")
    await life.settle()
    assert found.port not in neutron.everything()
    assert found.port not in life.pools.ids()


async def test_a_new_leader_goes_on_with_what_is_there(api: MemoryApi, neutron: MemoryNeutron, life: Life) -> None:
    later = new_life(api, neutron)
    assert await later.settle() == []
    assert neutron.writes() == []
    add_pod(api, "web")
    assert await later.settle() == []
    assert neutron.writes() == ["assign port"]


async def test_without_a_size_what_is_left_of_one_is_deleted(
    api: MemoryApi, neutron: MemoryNeutron, life: Life
) -> None:
    later = new_life(api, neutron, size=0)
    add_pod(api, "web")
    assert await later.settle() == []
    assert waiting(neutron) == []
    assert neutron.writes() == ["create port", *["delete port"] * SIZE]


async def test_a_node_without_pods_keeps_its_pool_for_a_while(
    api: MemoryApi, neutron: MemoryNeutron, life: Life
) -> None:
    [key] = life.pools.pool_keys()
    api.remove(PODS, "first", "default")
    assert await life.settle() == []
    assert len(waiting(neutron)) == SIZE
    result = await life.pool_reconciler.reconcile(str(key))
    assert isinstance(result, RequeueAfter)
    assert result.seconds <= KEEP_SECONDS
    # As though it had not been needed for that long.
    life.pools._pools[key].used_at -= KEEP_SECONDS
    assert await life.pool_reconciler.reconcile(str(key)) == DONE
    assert waiting(neutron) == []
    assert life.pools.pool_keys() == []


async def test_they_go_with_the_network_of_their_namespace(api: MemoryApi, neutron: MemoryNeutron, life: Life) -> None:
    add_namespace(api, "jobs")
    add_pod(api, "job", namespace="jobs")
    await life.settle()
    assert len(waiting(neutron)) == 2 * SIZE
    api.remove(PODS, "job", "jobs")
    delete_namespace(api, "jobs")
    assert await life.settle() == []
    assert len(waiting(neutron)) == SIZE
    await life.ports.refresh()
    assert len(life.pools.ids()) == SIZE


async def test_they_keep_no_security_group_from_being_deleted(neutron: MemoryNeutron, life: Life) -> None:
    group = life.networks.present["default"].group
    for port in [each for each in neutron.everything().values() if isinstance(each, Port) and each.device_id]:
        await neutron.delete_port(port.id)
    await neutron.delete_security_group(group)
    assert len(waiting(neutron)) == SIZE


@pytest.mark.parametrize("deleted", [True, False])
async def test_one_that_somebody_has_deleted_or_changed_is_passed_over(
    api: MemoryApi, neutron: MemoryNeutron, life: Life, deleted: bool
) -> None:
    first, second, *_ = waiting(neutron)
    if deleted:
        await neutron.delete_port(first.id)
    else:
        neutron.put("ports", replace(first, description="changed"))
    add_pod(api, "web")
    assert await life.settle() == []
    found = handoff(api, "web")
    assert found is not None
    assert found.port == second.id
    await life.ports.refresh()
    assert life.pools.ids() == {port.id for port in waiting(neutron)}


async def test_a_lost_answer_leads_to_no_second_port(api: MemoryApi, neutron: MemoryNeutron, life: Life) -> None:
    neutron.faults.lost_answers["assign port"] = 1
    pod = add_pod(api, "web")
    [error] = await life.settle()
    assert isinstance(error, UnavailableError)
    assert await life.settle() == []
    ports = await neutron.ports(name=Identity(CLUSTER, Kind.PORT, pod.metadata.uid).name)
    found = handoff(api, "web")
    assert found is not None
    assert [port.id for port in ports] == [found.port]


async def test_what_was_asked_for_and_not_answered_is_looked_for(
    api: MemoryApi, neutron: MemoryNeutron, life: Life
) -> None:
    neutron.faults.lost_answers["create ports"] = 1
    for number in range(2):
        add_pod(api, f"web-{number}")
    [error] = await life.settle()
    assert isinstance(error, UnavailableError)
    assert await life.settle() == []
    # The pool was half full when it was to be filled.
    assert len(waiting(neutron)) == SIZE
    assert life.pools.ids() == {port.id for port in waiting(neutron)}


async def test_two_leaders_never_give_one_port_to_two_pods(api: MemoryApi, neutron: MemoryNeutron, life: Life) -> None:
    """The first has asked for it, and its call arrives after that of the second."""
    late: list[object] = []
    neutron.late = lambda _call, work: late.append(work)
    old = add_pod(api, "old")
    task = asyncio.create_task(life.settle())
    while neutron.calls[-1:] != ["assign port"]:
        await pass_turns(1)
    task.cancel()
    await asyncio.gather(task, return_exceptions=True)
    [arrive] = late

    later = new_life(api, neutron)
    assert await later.settle() == []
    found = handoff(api, "old")
    assert found is not None
    with pytest.raises(ConflictError):
        arrive()  # type: ignore[operator]
    assert (await neutron.port(found.port)).device_id == old.metadata.uid


async def test_pods_come_before_ports_that_wait(api: MemoryApi, neutron: MemoryNeutron, life: Life) -> None:
    """The quota is used up by ports that wait on another node."""
    neutron.quotas["ports"] = neutron.snapshot()["ports"]
    add_pod(api, "web", node="node-b")
    await life.settle()
    assert handoff(api, "web") is not None
    assert len(waiting(neutron)) == SIZE - 1
    assert life.events.told == []


async def test_a_quota_that_keeps_a_pool_empty_keeps_nobody_else(
    api: MemoryApi, neutron: MemoryNeutron, life: Life
) -> None:
    neutron.faults.refusals["create ports"] = [QuotaError("create ports", "OverQuota", "no more")] * 2
    add_pod(api, "web", node="node-b")
    assert await life.settle() == []
    assert handoff(api, "web") is not None
    network = life.networks.present["default"].network.id
    assert await life.pool_reconciler.reconcile(str(PoolKey(network, "node-b"))) == RequeueAfter(SLOW_RETRY)
    assert await life.settle() == []
    assert len(waiting(neutron, "node-b")) == SIZE


async def test_what_is_refused_takes_no_port_out_of_the_pool(
    api: MemoryApi, neutron: MemoryNeutron, life: Life
) -> None:
    before = life.pools.ids()
    neutron.faults.refusals["assign port"] = [ThrottledError("assign port", "429", "too many")]
    add_pod(api, "web")
    [error] = await life.settle()
    assert isinstance(error, ThrottledError)
    assert life.pools.ids() == before
    assert await life.settle() == []
    assert len(life.pools.ids()) == SIZE - 1


async def test_too_many_calls_are_tried_again_by_the_controller(
    api: MemoryApi, neutron: MemoryNeutron, life: Life
) -> None:
    neutron.faults.refusals["create ports"] = [ThrottledError("create ports", "429", "too many")]
    add_pod(api, "web", node="node-b")
    [error] = await life.settle()
    assert isinstance(error, ThrottledError)
    assert await life.settle() == []
    assert len(waiting(neutron, "node-b")) == SIZE


async def test_a_port_without_an_address_of_a_subnet_is_not_taken(
    api: MemoryApi, neutron: MemoryNeutron, life: Life
) -> None:
    for port in waiting(neutron):
        neutron.put("ports", replace(port, fixed_ips=port.fixed_ips[:1]))
    later = new_life(api, neutron)
    add_pod(api, "web")
    assert await later.settle() == []
    assert neutron.writes() == ["create port"]


def test_a_key_is_text_and_back() -> None:
    key = PoolKey.parse("0f6f4fd5/node-a.example")
    assert (key.network, key.host) == ("0f6f4fd5", "node-a.example")
    assert PoolKey.parse(str(key)) == key
