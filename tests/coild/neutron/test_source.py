"""Which port a pod gets, what an ADD waits for and how it fails, and that no port is ever plugged in twice."""

import asyncio
from collections.abc import AsyncIterator
from dataclasses import replace
from pathlib import Path

import pytest

from coil.crd.builtin import MIRROR_POD, PODS, STATIC_POD_UID, Pod, PodSpec
from coil.crd.meta import ObjectMeta
from coil.kube.errors import ApiError, ForbiddenError, UnavailableError
from coil.neutron.handoff import ANNOTATION_PORT, render_handoff
from coil.neutron.port_rules import make_rule_set, parse_rule
from coil.podnet.host_link import PodAlias, parse_alias, render_alias
from coil.podnet.host_port import PortMapping, Protocol
from coild.model.attachment import (
    AddressUnavailableError,
    InvalidPodError,
    PodName,
    PodUnknownError,
    RefusedHostPorts,
)
from coild.model.port_error import (
    BindError,
    BindTimeoutError,
    HandoffUnreadableError,
    PodForbiddenError,
    PortGoneError,
    PortInUseError,
    PortNotActiveError,
    PortTypeUnknownError,
)
from tests.coil.kube.memory_api import Call, Moment
from tests.coild.neutron.port_node import ACTIVE_TIMEOUT, NODE, PortNode, handoff, settled
from tests.coild.pods.source_contract import SourceContract, SourceNode
from tests.coild.scene import advance, key, now

PORT_1 = handoff(1, "").port


@pytest.fixture
async def node(tmp_path: Path) -> AsyncIterator[PortNode]:
    node = PortNode(tmp_path)
    await node.start()
    yield node
    await node.kill()


class TestContract(SourceContract):
    @pytest.fixture
    async def node(self, node: PortNode) -> SourceNode:
        absurd = PodName("apps", "p", "u" * 260)
        node.annotate_pod(absurd, render_handoff(handoff(300, absurd.uid)))
        return node


def test_the_alias_names_the_port_and_can_be_no_pools() -> None:
    alias = PodAlias("@neutron." + PORT_1, "c" * 64, "a-long-ifname01")
    assert parse_alias(render_alias(alias)) == alias
    assert not alias.tag[0].isalnum()


async def test_a_pod_is_plugged_into_its_port_and_leaves_nothing(node: PortNode) -> None:
    plan = await node.engine.add(node.request("c1"))
    assert plan is not None
    port = node.handoff("c1")
    assert (plan.mtu, plan.pod.mac, plan.nameservers) == (1450, port.mac, port.nameservers)
    assert [str(assignment.interface) for assignment in plan.assignments] == ["10.0.0.1/16", "fd00::1/64"]
    assert node.neutron.plugged == {port.port: (plan.host.name, "c1")}
    assert [alias.tag for alias in node.aliases] == [f"@neutron.{port.port}"]
    await node.engine.delete(key("c1"))
    assert node.remains == []


async def test_an_address_is_its_ports_and_can_be_used_again_at_once(node: PortNode) -> None:
    for _ in range(3):
        await node.add("c1")
        await node.engine.delete(key("c1"))
    assert now() == 0
    assert node.neutron.twice == []


async def test_a_pod_with_the_calico_names_has_its_link_by_its_name(tmp_path: Path) -> None:
    node = PortNode(tmp_path, compat_calico=True)
    await node.start()
    await node.add("c1")
    (name,) = node.kernel.veths
    assert len(name) == 15
    await node.start()
    await node.engine.delete(key("c1"))
    assert node.remains == []
    await node.kill()


# --- the annotation


async def test_an_add_waits_for_the_annotation(node: PortNode) -> None:
    node.annotate("c1", "")
    adding = asyncio.create_task(node.engine.add(node.request("c1")))
    await asyncio.sleep(9)
    assert not adding.done()
    node.annotate("c1")
    await adding
    assert now() == 9


async def test_no_annotation_in_time_is_to_be_tried_again(node: PortNode) -> None:
    node.annotate("c1", "")
    with pytest.raises(AddressUnavailableError, match=f"within 10.0 s.*{ANNOTATION_PORT}.*coil-raven"):
        await node.add("c1")
    assert now() == 10
    assert node.remains == []


async def test_an_unreadable_annotation_is_told_unless_it_is_mended(node: PortNode) -> None:
    node.annotate("c1", "{}")
    adding = asyncio.create_task(node.engine.add(node.request("c1")))
    await asyncio.sleep(1)
    node.annotate("c1")
    await adding
    node.annotate("c2", '{"version":9}')
    with pytest.raises(HandoffUnreadableError, match="version 9"):
        await node.add("c2")
    assert len(node.kernel.veths) == 1


async def test_the_annotation_of_another_pod_is_worth_nothing(node: PortNode) -> None:
    """A tenant has copied it."""
    await node.add("c1")
    node.annotate("c2", render_handoff(node.handoff("c1")))
    with pytest.raises(HandoffUnreadableError, match="uid-of-c1"):
        await node.add("c2")
    assert list(node.neutron.plugged.values()) == [(*node.kernel.veths, "c1")]


async def test_the_port_of_a_predecessor_of_the_same_name_is_not_taken(node: PortNode) -> None:
    node.annotate("c1")
    request = replace(node.request("c1"), pod=PodName("apps", "pod-of-c1", "uid-of-the-next"))
    with pytest.raises(AddressUnavailableError, match="no pod of that name with UID uid-of-the-next"):
        await node.engine.add(request)
    assert node.remains == []


async def test_a_static_pod_is_known_by_the_uid_of_its_file(node: PortNode) -> None:
    mirror = ObjectMeta(
        namespace="apps",
        name="static",
        uid="uid-of-mirror",
        annotations={
            MIRROR_POD: "hash",
            STATIC_POD_UID: "hash",
            ANNOTATION_PORT: render_handoff(handoff(7, "uid-of-mirror")),
        },
    )
    node.api.put(PODS, Pod(metadata=mirror, spec=PodSpec(node_name=NODE)))
    node.cache.look()
    await node.engine.add(replace(node.request("c1"), pod=PodName("apps", "static", "hash")))
    await node.start()
    assert node.source.pod_of(key("c1")) == PodName("apps", "static", "hash")


class TestWithoutUid:
    """Runtimes of old pass the pod's name only."""

    async def test_the_api_server_says_which_pod_has_the_name(self, node: PortNode) -> None:
        request = node.request("c1")
        await node.engine.add(replace(request, pod=replace(request.pod, uid="")))
        assert node.source.pod_of(key("c1")) == node.pod("c1")

    async def test_a_pod_that_it_does_not_have_waits(self, node: PortNode) -> None:
        with pytest.raises(PodUnknownError, match="no pod apps/other"):
            await node.engine.add(replace(node.request("c1"), pod=PodName("apps", "other")))

    async def test_a_pod_of_another_node_is_none(self, node: PortNode) -> None:
        node.api.put(PODS, Pod(metadata=ObjectMeta(namespace="apps", name="other"), spec=PodSpec(node_name="node-2")))
        with pytest.raises(PodUnknownError, match="node-2"):
            await node.engine.add(replace(node.request("c1"), pod=PodName("apps", "other")))

    @pytest.mark.parametrize(
        ("error", "kind"), [(ForbiddenError, PodForbiddenError), (UnavailableError, PodUnknownError)]
    )
    async def test_one_that_does_not_answer_is_told(
        self, node: PortNode, error: type[ApiError], kind: type[Exception]
    ) -> None:
        async def gate(call: Call, moment: Moment) -> None:
            raise error("no")

        node.client.gate = gate
        request = node.request("c1")
        with pytest.raises(kind):
            await node.engine.add(replace(request, pod=replace(request.pod, uid="")))


@pytest.mark.parametrize(
    ("error", "kind"),
    [
        (ForbiddenError("pods is forbidden"), PodForbiddenError),
        (UnavailableError("HTTP 429"), AddressUnavailableError),
        (None, AddressUnavailableError),
    ],
)
async def test_pods_that_cannot_be_watched_are_told(
    node: PortNode, error: ApiError | None, kind: type[Exception]
) -> None:
    node.annotate("c1", "")
    node.cache.synced, node.cache.last_error = False, error
    with pytest.raises(kind, match=str(error) if error else "cannot be watched: no answer yet"):
        await node.add("c1")
    assert node.remains == []


async def test_what_is_known_is_enough_while_the_api_server_is_silent(node: PortNode) -> None:
    node.annotate("c1")
    node.cache.last_error = UnavailableError("gone")
    await node.add("c1")


# --- ACTIVE


async def test_an_add_waits_until_the_port_is_active(node: PortNode) -> None:
    node.annotate("c1", active=False)
    adding = asyncio.create_task(node.engine.add(node.request("c1")))
    await asyncio.sleep(20)
    assert node.neutron.plugged, "Neutron waits for that"
    assert not adding.done()
    node.annotate("c1", active=True)
    await adding
    assert now() == 20


async def test_a_port_that_does_not_become_active_is_unplugged(node: PortNode) -> None:
    node.annotate("c1", active=False)
    with pytest.raises(PortNotActiveError, match=PORT_1):
        await node.add("c1")
    assert now() == ACTIVE_TIMEOUT
    assert node.remains == []


async def test_nobody_waits_for_active_where_the_admin_does_not_want_it(tmp_path: Path) -> None:
    node = PortNode(tmp_path)
    node.settings = replace(node.settings, neutron_active_timeout=0.0)
    await node.start()
    node.annotate("c1", active=False)
    await node.add("c1")
    await node.kill()


async def test_a_port_that_is_replaced_meanwhile_is_given_up_at_once(node: PortNode) -> None:
    node.annotate("c1", active=False)
    adding = asyncio.create_task(node.engine.add(node.request("c1")))
    await asyncio.sleep(3)
    node.annotate("c1", port=handoff(99, "").port, active=False)
    with pytest.raises(PortGoneError, match=PORT_1):
        await adding
    assert now() == 3
    assert node.remains == []
    node.annotate("c1", port=handoff(99, "").port)
    await node.add("c1")
    assert [*node.neutron.plugged] == [handoff(99, "").port]


async def test_a_pod_that_is_deleted_meanwhile_is_given_up_at_once(node: PortNode) -> None:
    node.annotate("c1", active=False)
    adding = asyncio.create_task(node.engine.add(node.request("c1")))
    await asyncio.sleep(3)
    node.api.remove(PODS, "pod-of-c1", namespace="apps")
    node.cache.look()
    with pytest.raises(PortGoneError, match="deleted"):
        await adding
    assert node.remains == []


async def test_a_repeated_add_does_not_go_back_to_a_port_that_was_replaced(node: PortNode) -> None:
    await node.add("c1")
    node.kernel.veths.clear()
    node.annotate("c1", port=handoff(99, "").port)
    with pytest.raises(PortGoneError):
        await node.add("c1")
    await node.add("c1")
    assert [*node.neutron.plugged] == [handoff(99, "").port]


# --- CNI_ARGS

ARGUMENTS = {"PORT_UUID": PORT_1, "IPV4": "10.0.0.15/16", "GW": "10.0.255.254", "PORT_TYPE": "midonet"}


async def test_cni_args_that_say_all_need_nobody(node: PortNode) -> None:
    arguments = ARGUMENTS | {"PORT_TYPE": "memory", "MAC": "fa:16:3e:00:00:77", "NETWORK_UUID": "f" * 32}
    arguments["TENANT_UUID"] = "e" * 32
    node.annotate("c1", "")
    plan = await node.engine.add(replace(node.request("c1"), arguments=arguments))
    assert plan is not None
    assert (plan.pod.mac, plan.mtu) == ("fa:16:3e:00:00:77", 1430)
    assert [str(assignment.interface) for assignment in plan.assignments] == ["10.0.0.15/16"]
    assert now() == 0
    await node.start()
    await node.engine.delete(key("c1"))
    assert node.remains == []


async def test_what_cni_args_lack_comes_from_the_annotation_of_the_same_port(node: PortNode) -> None:
    node.annotate("c1", "")
    arguments = {"PORT_UUID": PORT_1, "IPV4": "10.0.0.15/16"}
    adding = asyncio.create_task(node.engine.add(replace(node.request("c1"), arguments=arguments)))
    await asyncio.sleep(1)
    node.annotate("c1", port=handoff(99, "").port)
    await asyncio.sleep(1)
    node.annotate("c1")
    plan = await adding
    assert now() == 2
    assert plan is not None
    assert [str(each.interface) for each in plan.assignments] == ["10.0.0.15/16", "fd00::1/64"]


@pytest.mark.parametrize(
    ("arguments", "problem"),
    [
        ({"PORT_UUID": PORT_1, "PORT_TYPE": "memory"}, "IPV4, MAC, NETWORK_UUID, TENANT_UUID"),
        (ARGUMENTS | {"IPV4": "ten"}, "IPV4"),
        ({"GW": "10.0.0.1"}, "PORT_UUID"),
    ],
)
async def test_cni_args_that_are_not_enough_are_told_by_their_keys(
    node: PortNode, arguments: dict[str, str], problem: str
) -> None:
    node.annotate("c1", "")
    with pytest.raises(InvalidPodError, match=problem):
        await node.engine.add(replace(node.request("c1"), arguments=arguments))
    assert node.remains == []


# --- one port, one pod


async def test_a_port_that_another_pod_has_is_refused(node: PortNode) -> None:
    await node.add("c1")
    node.annotate("c2", port=PORT_1)
    with pytest.raises(PortInUseError, match="apps/pod-of-c1, container c1"):
        await node.add("c2")
    await node.check("c1")
    assert len(node.kernel.veths) == 1


async def test_two_at_once_that_claim_one_port(node: PortNode) -> None:
    node.annotate("c1")
    node.annotate("c2", port=PORT_1)
    outcomes = await asyncio.gather(node.add("c1"), node.add("c2"), return_exceptions=True)
    assert [type(outcome) for outcome in outcomes if isinstance(outcome, Exception)] == [PortInUseError]
    assert node.neutron.twice == []


async def test_the_next_sandbox_of_a_pod_comes_after_the_del_of_the_one_before(node: PortNode) -> None:
    await node.add("c1")
    again = replace(node.request("c1"), key=key("c9"), netns=node.kernel.namespace("c9"))
    with pytest.raises(PortInUseError, match="container c1 of the same pod"):
        await node.engine.add(again)
    await node.engine.delete(key("c1"))
    await node.engine.add(again)
    assert [endpoint for _, endpoint in node.neutron.plugged.values()] == ["c9"]
    assert node.neutron.twice == []


# --- bindings that fail


def fail(node: PortNode, **errors: Exception) -> None:
    """Have these steps of the binding fail, and no others."""

    async def gate(at: str) -> None:
        if (error := errors.get(at)) is not None:
            raise error

    node.binding.gate = gate


@pytest.mark.parametrize("error", [BindError("no bridge"), BindTimeoutError("10 s")])
@pytest.mark.parametrize("step", ["bind", "bound"])
async def test_a_port_that_cannot_be_plugged_in_leaves_nothing(node: PortNode, step: str, error: BindError) -> None:
    fail(node, **{step: error})
    with pytest.raises(type(error)):
        await node.add("c1")
    assert node.remains == []


async def test_a_type_that_nothing_plugs_in_is_told(node: PortNode) -> None:
    node.annotate("c1", type="unheard-of")
    with pytest.raises(PortTypeUnknownError, match="bin/unheard-of"):
        await node.add("c1")
    assert node.remains == []


async def test_a_bind_that_could_not_be_undone_is_undone_later_and_nobody_gets_the_port_before(node: PortNode) -> None:
    fail(node, bind=BindError("half", undone=False), unbind=BindError("away"))
    with pytest.raises(BindError, match="half"):
        await node.add("c1")
    assert not node.kernel.veths
    assert [holding.key for holding in node.ipam.ledger.left()] == [key("c1")]
    node.annotate("c2", port=PORT_1)
    with pytest.raises(BindError, match="away"):
        await node.add("c2")
    fail(node)
    await asyncio.sleep(2)
    assert node.remains == []


async def test_one_that_is_cancelled_while_it_is_plugged_in_is_unplugged_for_certain(node: PortNode) -> None:
    """coild is being stopped; what a binding has undone by then, nobody knows."""
    request = node.request("c1")
    attachment = await node.source.acquire(request.key, request, timeout=1.0)
    hanging, steps = asyncio.Event(), []

    async def gate(at: str) -> None:
        steps.append(at)
        if at == "bound":
            hanging.set()
            await asyncio.Event().wait()

    node.binding.gate = gate
    wiring = node.source.wiring
    attaching = asyncio.create_task(wiring.attach(attachment, wiring.plan(attachment), request.netns))
    await hanging.wait()
    attaching.cancel()
    with pytest.raises(asyncio.CancelledError):
        await attaching
    await settled()
    assert steps == ["bind", "bound", "unbind", "unbound"]
    assert node.remains == []


async def test_a_del_succeeds_though_the_port_cannot_be_unplugged(node: PortNode) -> None:
    await node.add("c1")
    fail(node, unbind=BindError("midolman is away"))
    await node.engine.delete(key("c1"))
    assert not node.kernel.veths
    assert node.traces == []
    assert [*node.neutron.plugged] == [PORT_1]
    again = replace(node.request("c1"), key=key("c9"), netns=node.kernel.namespace("c9"))
    with pytest.raises(BindError, match="midolman is away"):
        await node.engine.add(again)
    node.annotate("c2", port=PORT_1)
    with pytest.raises(BindError, match="midolman is away"):
        await node.add("c2")
    fail(node)
    await node.engine.add(again)
    assert [endpoint for _, endpoint in node.neutron.plugged.values()] == ["c9"]
    assert node.neutron.twice == []


async def test_what_is_left_is_unplugged_in_the_background_ever_more_rarely(node: PortNode) -> None:
    await node.add("c1")
    tries: list[float] = []

    async def gate(at: str) -> None:
        if at == "unbind":
            tries.append(now())
            raise BindError("away")

    node.binding.gate = gate
    await node.engine.delete(key("c1"))
    await asyncio.sleep(3600)
    assert 15 < len(tries) < 40
    fail(node)
    await asyncio.sleep(400)
    assert node.remains == []


async def test_what_is_left_survives_the_process(node: PortNode) -> None:
    await node.add("c1")
    fail(node, unbind=BindError("away"))
    await node.engine.delete(key("c1"))
    await node.start()
    await settled()
    assert node.remains == []


async def test_a_node_that_is_not_ready_for_a_type_says_so_and_serves_the_others(node: PortNode) -> None:
    node.binding.trouble = BindError("no module vxlan")
    await node.source.wiring.prepare()
    assert node.ipam.trouble == "ports of type memory: no module vxlan"
    node.binding.trouble = None
    await node.source.wiring.prepare()
    assert node.ipam.trouble is None


async def test_a_binding_is_prepared_with_what_is_bound(node: PortNode) -> None:
    assert node.binding.prepared == [()], "once, and after recovery"
    await node.add("c1")
    (name,) = node.kernel.veths
    await node.source.wiring.prepare()
    await node.start()
    for (binding,) in (node.binding.prepared[-1],):
        assert (binding.port.port, binding.ifname, binding.endpoint) == (PORT_1, name, "c1")


async def test_a_pod_that_asks_for_host_ports_is_refused(node: PortNode) -> None:
    await node.add("c1")
    (attachment,) = node.engine.attachments()
    mapping = PortMapping(protocol=Protocol.TCP, host_port=80, container_port=8080, host_address=None)
    await RefusedHostPorts().publish(attachment, ())
    with pytest.raises(InvalidPodError, match="80"):
        await RefusedHostPorts().publish(attachment, (mapping,))


# --- security groups

CLOSED = make_rule_set([parse_rule("egress 0.0.0.0/0")])


async def test_rules_are_followed_while_the_pod_runs(node: PortNode) -> None:
    port = node.handoff("c1").port
    await node.add("c1")
    assert node.neutron.rules == {port: None}
    node.annotate("c1", rules=CLOSED)
    await settled()
    assert node.neutron.rules == {port: CLOSED}
    # What cannot be read, or is gone, opens nothing.
    for text in ("{", ""):
        node.annotate("c1", text=text)
        await settled()
        assert node.neutron.rules == {port: CLOSED}
    await node.start()
    assert node.neutron.rules == {port: CLOSED}, "known without the API server"


async def test_rules_that_change_while_a_pod_is_plugged_in_hold_when_it_starts(node: PortNode) -> None:
    await settled()

    async def change(step: str) -> None:
        if step == "bound":
            node.annotate("c1", rules=CLOSED)

    node.binding.gate = change
    await node.add("c1")
    assert node.neutron.rules == {node.handoff("c1").port: CLOSED}


async def test_rules_that_cannot_be_applied_are_tried_again(node: PortNode) -> None:
    await node.add("c1")
    node.binding.trouble = BindError("no memory")
    node.annotate("c1", rules=CLOSED)
    await advance(5)
    assert node.neutron.rules == {node.handoff("c1").port: None}
    node.binding.trouble = None
    await advance(30)
    assert node.neutron.rules == {node.handoff("c1").port: CLOSED}


async def test_a_pod_whose_rules_cannot_be_applied_does_not_start(node: PortNode) -> None:
    async def change(step: str) -> None:
        if step == "bound":
            node.annotate("c1", rules=CLOSED)
        if step == "rules":
            raise BindError("no memory")

    node.binding.gate = change
    with pytest.raises(BindError):
        await node.engine.add(node.request("c1"))
    assert node.neutron.plugged == {}
