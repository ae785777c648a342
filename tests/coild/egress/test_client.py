"""What a pod with an annotation has when its ADD returns, and what happens to it afterwards."""

import asyncio
from collections.abc import AsyncIterator
from dataclasses import replace
from ipaddress import ip_address
from pathlib import Path

import pytest
from msgspec.structs import replace as msgspec_replace

from coil.crd.builtin import MIRROR_POD, NAMESPACES, PODS, SERVICES, STATIC_POD_UID, ConfigMap
from coil.crd.egress import EGRESSES
from coil.crd.meta import LabelSelector, ObjectMeta
from coil.egress.client_plan import GatewayProblem
from coil.egress.client_pod import EgressRef
from coil.kube.errors import UnavailableError
from coil.netlink.error import NetlinkError
from coil.nft.netfilter import NftError
from coild.egress.directory import ANSWER_SECONDS
from coild.model.api_reader import CONCURRENT_READS, READ_SECONDS
from coild.model.attachment import Attachment, EgressRefusedError, EgressUnresolvedError, PodName, PodUnknownError
from tests.coild.egress_scene import FAIL_OPEN, EgressNode, apps, egress, pod, service
from tests.coild.scene import advance, now
from tests.coild.virtual_loop import never

WORLD = {"net": "world"}


@pytest.fixture
async def node() -> AsyncIterator[EgressNode]:
    node = EgressNode()
    yield node
    await node.close()


def refuse(path: Path) -> Exception:
    return NetlinkError("FOU is not supported")


async def unresolved(node: EgressNode, attachment: Attachment) -> None:
    with pytest.raises(EgressUnresolvedError):
        await node.add(attachment)


async def refused(node: EgressNode, attachment: Attachment) -> None:
    with pytest.raises(EgressRefusedError):
        await node.add(attachment)


# --- ADD


async def test_a_pod_has_its_tunnels_when_the_add_returns(node: EgressNode) -> None:
    node.world()
    node.pods.put(pod("c1", names=WORLD))
    await node.add(node.attachment("c1"))
    assert node.routes("c1") == {"10.96.0.9": ["0.0.0.0/0"]}
    assert (node.server.asked, node.recorder.told) == ([], [])
    assert node.kernel.modules == {"fou"}
    assert node.metric("coil_node_egress_clients") == 1
    assert node.metric("coil_node_egress_sync_seconds_count", occasion="add") == 1


async def test_other_pods_cost_nothing(node: EgressNode) -> None:
    node.world()
    node.pods.put(pod("c1"))
    before = now()
    await node.add(node.attachment("c1"))
    assert (node.take_syncs(), node.server.asked, node.kernel.sysctls, now()) == ([], [], {}, before)
    assert node.metric("coil_node_egress_clients") == 0


def of_interface(attachment: Attachment, ifname: str, *addresses: str) -> Attachment:
    key = replace(attachment.key, ifname=ifname)
    return replace(attachment, key=key, addresses=tuple(map(ip_address, addresses)))


def uplink(node: EgressNode, container: str) -> str:
    return node.kernel.specs[Path("/run/netns") / container].policy.uplink


async def test_a_pod_has_its_tunnels_by_one_interface(node: EgressNode) -> None:
    node.world()
    node.pods.put(pod("c1", names=WORLD))
    attachment = node.attachment("c1")
    await node.add(attachment)
    await node.add(of_interface(attachment, "net1", "10.7.0.9"))
    assert node.take_syncs() == ["c1"]
    assert uplink(node, "c1") == "eth0"
    assert node.clients.addresses(EgressRef("net", "world")).certain == {*attachment.addresses}


async def test_where_eth0_is_another_plugins_a_pod_has_its_tunnels_by_the_first_interface(node: EgressNode) -> None:
    node.world()
    node.pods.put(pod("c1", names=WORLD))
    first = of_interface(node.attachment("c1"), "net1", "10.7.0.9")
    await node.add(first)
    await node.add(of_interface(first, "net2", "10.7.0.10"))
    await node.add(first)
    assert node.take_syncs() == ["c1", "c1"]
    assert node.routes("c1") == {"10.96.0.9": ["0.0.0.0/0"]}
    assert uplink(node, "c1") == "net1"
    assert node.clients.addresses(EgressRef("net", "world")).certain == {ip_address("10.7.0.9")}


async def test_what_the_caches_lack_is_asked_for_once(node: EgressNode) -> None:
    node.server.put(PODS, pod("c1", names=WORLD))
    node.server.put(EGRESSES, egress("world", "0.0.0.0/0"))
    node.server.put(SERVICES, service("world", "10.96.0.9"))
    await node.add(node.attachment("c1"))
    assert node.routes("c1") == {"10.96.0.9": ["0.0.0.0/0"]}
    assert sorted(node.server.asked) == [("egresses", "net/world"), ("pods", "apps/c1"), ("services", "net/world")]
    # What was told counts until the informers know, and a refresh in between takes nothing away.
    node.pods.put(pod("c1", names=WORLD))
    await node.clients.refresh(node.attachment("c1").key)
    assert node.routes("c1") == {"10.96.0.9": ["0.0.0.0/0"]}
    node.egresses.put(egress("world", "0.0.0.0/0"))
    node.egresses.remove("net/world")
    await node.clients.refresh(node.attachment("c1").key)
    assert node.routes("c1") == {}


async def test_a_service_that_is_not_an_egress_s_does_not_count(node: EgressNode) -> None:
    node.pods.put(pod("c1", names=WORLD))
    node.egresses.put(egress("world", "0.0.0.0/0"))
    node.server.put(SERVICES, service("world", "10.96.0.9", labels={}))
    await unresolved(node, node.attachment("c1"))
    assert node.take_syncs() == []
    assert node.events() == [("c1", "EgressNoService")]


WRONG = pytest.mark.parametrize(
    ("names", "reason"),
    [
        ({"net": "mars"}, "EgressNotFound"),
        ({"Net": "world"}, "EgressAnnotationInvalid"),
        ({"net": ""}, "EgressAnnotationInvalid"),
        ({"net": "bare"}, "EgressNoService"),
        ({"net": "headless"}, "EgressNoAddress"),
        ({"net": "bad"}, "EgressInvalid"),
    ],
)


def put_wrong(node: EgressNode, names: dict[str, str]) -> None:
    """A good Egress, wrong ones, and a pod that names the good one beside `names`."""
    node.world()
    node.egresses.put(egress("bare", "8.0.0.0/8"))
    node.egresses.put(egress("headless", "8.0.0.0/8"))
    node.services.put(service("headless", "None"))
    node.egresses.put(egress("bad", "8.8.8.8"))
    node.services.put(service("bad", "10.96.0.4"))
    node.pods.put(pod("c1", names=names | {"net": "world, " + names["net"]} if "net" in names else names | WORLD))


@WRONG
async def test_a_pod_whose_egress_is_missing_or_invalid_is_not_wired(
    node: EgressNode, names: dict[str, str], reason: str
) -> None:
    put_wrong(node, names)
    await unresolved(node, node.attachment("c1"))
    assert node.take_syncs() == [], "the sandbox goes; nothing is made in it"
    assert node.events() == [("c1", reason)]
    assert "the pod is not started until this is mended or the annotation is removed" in node.recorder.told[0][3]
    assert node.recorder.subjects[0].uid == "uid-of-c1"
    assert node.metric("coil_node_egress_refused_adds_total", reason=reason) == 1
    # The next ADD is told of again: it is the kubelet's next attempt.
    await unresolved(node, node.attachment("c1"))
    assert node.events() == [("c1", reason)] * 2


@WRONG
async def test_with_fail_open_such_a_pod_starts_and_is_told(names: dict[str, str], reason: str) -> None:
    node = EgressNode(options=FAIL_OPEN)
    put_wrong(node, names)
    await node.add(node.attachment("c1"))
    assert node.routes("c1") == {"10.96.0.9": ["0.0.0.0/0"]}
    assert node.blocked("c1") == []
    assert node.events() == [("c1", reason)]
    assert "--egress-fail-open" in node.recorder.told[0][3]
    assert node.metric("coil_node_egress_problems", reason=reason) == 1
    assert node.metric("coil_node_egress_refused_adds_total", reason=reason) == 0
    # Said once, not each time that something is looked at.
    await node.clients.refresh(node.attachment("c1").key)
    assert len(node.recorder.told) == 1
    await node.close()


async def test_an_add_that_is_tried_again_succeeds_when_the_egress_is_there(node: EgressNode) -> None:
    node.pods.put(pod("c1", names=WORLD))
    await unresolved(node, node.attachment("c1"))
    node.clients.forget(node.attachment("c1").key)
    node.world()
    await node.add(node.attachment("c1"))
    assert node.routes("c1") == {"10.96.0.9": ["0.0.0.0/0"]}


async def test_a_name_that_is_written_twice_or_served_already_stops_no_pod(node: EgressNode) -> None:
    node.world()
    node.egresses.put(egress("zoo", "0.0.0.0/0"))
    node.services.put(service("zoo", "10.96.0.5"))
    node.pods.put(pod("c1", names={"net": "world, world, zoo"}))
    await node.add(node.attachment("c1"))
    assert node.routes("c1") == {"10.96.0.9": ["0.0.0.0/0"]}
    assert node.events() == [("c1", "EgressAnnotationInvalid"), ("c1", "EgressConflict")]


async def test_what_the_plan_of_the_tunnels_leaves_out_fails_the_add(node: EgressNode) -> None:
    node.world()
    node.pods.put(pod("c1", names=WORLD))
    node.kernel.problems = (GatewayProblem(gateway="net/world", text="MTU too small", unserved=True),)
    await unresolved(node, node.attachment("c1"))
    assert node.events() == [("c1", "EgressUnusable")]
    assert node.take_syncs() == ["c1", "c1"], "what was made is taken away"
    node.clients.forget(node.attachment("c1").key)
    node.kernel.problems = (GatewayProblem(gateway="net/world", text="fe80::/64 is link-local"),)
    await node.add(node.attachment("c1"))


async def test_an_egress_that_does_not_exist_needs_no_kernel(node: EgressNode) -> None:
    node.kernel.fault = refuse
    node.pods.put(pod("c1", names={"net": "mars"}))
    await unresolved(node, node.attachment("c1"))
    assert node.take_syncs() == []
    assert node.events() == [("c1", "EgressNotFound")]


@pytest.mark.parametrize("fault", ["fails", "hangs"])
@pytest.mark.parametrize("lacking", ["egress", "service"])
async def test_what_the_api_server_does_not_answer_is_not_what_does_not_exist(
    node: EgressNode, lacking: str, fault: str
) -> None:
    async def fail() -> None:
        if fault == "hangs":
            await never()
        raise UnavailableError("away")

    node.world()
    (node.egresses if lacking == "egress" else node.services).remove("net/world")
    node.server.fault = fail
    node.pods.put(pod("c1", names=WORLD))
    with pytest.raises(EgressUnresolvedError, match="did not return"):
        await node.add(node.attachment("c1"))
    assert now() <= READ_SECONDS
    assert node.events() == [("c1", "EgressUnknown")]
    assert node.metric("coil_node_egress_refused_adds_total", reason="EgressUnknown") == 1
    # A running pod that the caches know all of does not notice the outage.
    node.world()
    await node.add(node.attachment("c1"))
    assert node.routes("c1") == {"10.96.0.9": ["0.0.0.0/0"]}


async def test_with_fail_open_an_egress_that_nobody_can_look_up_is_followed() -> None:
    async def fail() -> None:
        raise UnavailableError("away")

    node = EgressNode(options=FAIL_OPEN)
    node.server.fault = fail
    node.pods.put(pod("c1", names=WORLD))
    await node.follow()
    await node.add(node.attachment("c1"))
    assert node.take_syncs() == []
    node.world()
    await advance()
    assert node.routes("c1") == {"10.96.0.9": ["0.0.0.0/0"]}
    await node.close()


async def test_a_repeated_add_of_a_running_pod_holds_back_what_its_egress_was_for(node: EgressNode) -> None:
    node.world("8.0.0.0/8")
    node.pods.put(pod("c1", names=WORLD))
    await node.add(node.attachment("c1"))
    node.egresses.remove("net/world")
    await unresolved(node, node.attachment("c1"))
    assert (node.routes("c1"), node.blocked("c1")) == ({}, ["8.0.0.0/8"])


@pytest.mark.parametrize("error", [NetlinkError("no FoU"), NftError(doing="load", reason="no")])
async def test_a_kernel_that_refuses_fails_the_add_and_is_told(node: EgressNode, error: Exception) -> None:
    node.world()
    node.pods.put(pod("c1", names=WORLD))
    refusals = [error]
    node.kernel.fault = lambda path: refusals.pop() if refusals else None
    await refused(node, node.attachment("c1"))
    assert [told[2] for told in node.recorder.told] == ["EgressRefused"]
    assert node.take_syncs() == ["c1", "c1"], "what was half made is taken away"
    assert node.metric("coil_node_egress_sync_failures_total", occasion="add") == 1
    await node.add(node.attachment("c1"))
    assert node.routes("c1") == {"10.96.0.9": ["0.0.0.0/0"]}


async def test_a_kernel_without_tunnels_troubles_nobody_else(node: EgressNode) -> None:
    node.world()
    node.kernel.fault = refuse
    node.pods.put(pod("c1", names=WORLD))
    node.pods.put(pod("c2"))
    await refused(node, node.attachment("c1"))
    await node.add(node.attachment("c2"))


@pytest.mark.parametrize("fault", ["fails", "hangs"])
async def test_a_pod_that_nobody_knows_is_not_wired(node: EgressNode, fault: str) -> None:
    """Not after 2 s either: its annotations may name an Egress."""

    async def fail() -> None:
        if fault == "hangs":
            await never()
        raise UnavailableError("away")

    node.world()
    node.server.fault = fail
    for _ in range(3):
        before = now()
        with pytest.raises(PodUnknownError, match="did not return Pod apps/c1"):
            await node.add(node.attachment("c1"))
        assert now() - before <= READ_SECONDS
        node.clients.forget(node.attachment("c1").key)
    assert node.take_syncs() == []
    assert node.recorder.told == [], "there is no object that an Event could be about"
    assert node.metric("coil_node_egress_refused_adds_total", reason="PodUnknown") == 3
    node.pods.put(pod("c1"))
    await node.add(node.attachment("c1"))


@pytest.mark.parametrize("fault", ["fails", "hangs"])
async def test_with_fail_open_an_api_server_that_is_away_holds_no_pod_up(fault: str) -> None:
    """Kubelets that start pods without an API server know them from their disk."""

    async def fail() -> None:
        if fault == "hangs":
            await never()
        raise UnavailableError("away")

    node = EgressNode(options=FAIL_OPEN)
    node.world()
    node.server.fault = fail
    await node.follow()
    await node.add(node.attachment("c1"))
    assert now() <= READ_SECONDS
    assert node.take_syncs() == []
    node.pods.put(pod("c1", names=WORLD))
    await advance()
    assert node.routes("c1") == {"10.96.0.9": ["0.0.0.0/0"]}
    await node.close()


async def test_nothing_is_asked_beyond_the_deadline(node: EgressNode) -> None:
    node.server.fault = never
    with pytest.raises(PodUnknownError):
        await node.add(node.attachment("c1"), deadline=now() + 0.5)
    assert now() == 0.5


async def test_a_burst_of_unknown_pods_asks_a_few_at_a_time_and_none_waits_for_long(node: EgressNode) -> None:
    asked: list[int] = []

    async def slow() -> None:
        asked.append(1)
        await asyncio.sleep(1.5)
        asked.pop()

    for number in range(CONCURRENT_READS):
        node.server.put(PODS, pod(f"c{number}"))
    node.server.fault = slow
    adding = [asyncio.create_task(node.add(node.attachment(f"c{number}"))) for number in range(50)]
    await advance(1.0)
    assert len(asked) == CONCURRENT_READS
    outcomes = await asyncio.gather(*adding, return_exceptions=True)
    assert now() <= READ_SECONDS
    assert outcomes[:CONCURRENT_READS] == [None] * CONCURRENT_READS
    assert {type(outcome) for outcome in outcomes[CONCURRENT_READS:]} == {PodUnknownError}
    assert node.take_syncs() == []


async def test_the_pod_of_an_earlier_sandbox_is_not_its_successor(node: EgressNode) -> None:
    """A StatefulSet's pod has the name of the one before; the runtime says by its UID which one it means."""
    node.world()
    node.pods.put(pod("c1", uid="second", names=WORLD))
    node.server.put(PODS, pod("c1", uid="second", names=WORLD))
    attachment = node.attachment("c1", uid="first")
    with pytest.raises(PodUnknownError, match="has UID second now, and this is the sandbox of first"):
        await node.add(attachment)
    await node.clients.refresh(attachment.key)
    assert node.take_syncs() == []
    await node.add(node.attachment("c2", "c1", uid="second"))
    assert node.take_syncs() == ["c2"]


@pytest.mark.parametrize(
    ("found", "reason"),
    [(None, "the API server has no pod apps/c1"), ("node-2", "is bound to node 'node-2', not to 'node-1'")],
)
async def test_a_pod_that_is_not_this_node_s_is_not_wired(node: EgressNode, found: str | None, reason: str) -> None:
    if found is not None:
        other = pod("c1")
        node.server.put(PODS, msgspec_replace(other, spec=msgspec_replace(other.spec, node_name=found)))
    with pytest.raises(PodUnknownError, match=reason):
        await node.add(node.attachment("c1"))


@pytest.mark.parametrize("cached", [True, False])
async def test_a_static_pod_has_two_uids(node: EgressNode, cached: bool) -> None:
    """The runtime tells the one that the kubelet has made of the file, the API server has given the mirror another."""
    node.world()
    mirror = pod("c1", uid="mirror", names=WORLD, annotations={MIRROR_POD: "hash", STATIC_POD_UID: "hash"})
    if cached:
        node.pods.put(mirror)
    else:
        node.server.put(PODS, mirror)
    attachment = node.attachment("c1", uid="hash")
    await node.add(attachment)
    assert node.routes("c1") != {}
    assert node.server.asked == ([] if cached else [("pods", "apps/c1")])
    # It is followed as every other pod.
    assert node.clients.of_pod(mirror) == [attachment.key]
    node.pods.put(mirror)
    node.egresses.remove("net/world")
    await node.clients.refresh(attachment.key)
    assert node.routes("c1") == {}


@pytest.mark.parametrize("mirror", [{}, {MIRROR_POD: "first"}], ids=["annotated", "created as a mirror"])
async def test_no_pod_passes_for_another_by_an_annotation(node: EgressNode, mirror: dict[str, str]) -> None:
    """Whoever owns a pod may annotate it, and may create one that looks like a kubelet's mirror."""
    node.world()
    node.pods.put(pod("c1", uid="first", names=WORLD))
    impostor = pod("c2", uid="second", annotations={STATIC_POD_UID: "first", **mirror})
    node.pods.put(impostor)
    attachment = node.attachment("c1", uid="first")
    await node.add(attachment)
    assert bool(mirror) or node.clients.of_pod(impostor) == []
    node.egresses.remove("net/world")
    await node.clients.refresh(attachment.key)
    assert node.routes("c1") == {}


@pytest.mark.parametrize("is_there", [True, False], ids=["beside the mirror", "alone"])
async def test_no_pod_passes_for_the_mirror_of_a_static_pod(node: EgressNode, is_there: bool) -> None:
    """It has another name, and nobody but an owner of the static pod's namespace can take that."""
    node.world()
    mirror = {MIRROR_POD: "hash", STATIC_POD_UID: "hash"}
    node.pods.put(pod("c1", uid="mirror", names=WORLD, annotations=mirror))
    attachment = node.attachment("c1", uid="hash")
    await node.add(attachment)
    assert node.routes("c1") != {}
    node.pods.put(pod("c2", uid="impostor", annotations=mirror))
    if is_there:
        # It is followed all the same.
        node.egresses.remove("net/world")
    else:
        node.pods.remove("apps/c1")
    await node.clients.refresh(attachment.key)
    assert (node.routes("c1") == {}) is is_there


async def test_a_runtime_that_tells_no_uid(node: EgressNode) -> None:
    """Then the cached pod may be the one before, which names no Egress: the API server is asked."""
    node.world()
    node.pods.put(pod("c1", uid="before"))
    node.server.put(PODS, pod("c1", names=WORLD))
    await node.add(node.attachment("c1", uid=""))
    assert node.routes("c1") != {}
    # From then on it is that pod, and not the next of its name.
    node.pods.remove("apps/c1")
    node.pods.put(pod("c1", uid="second"))
    await node.clients.refresh(node.attachment("c1").key)
    assert node.take_syncs() == ["c1"]


async def test_a_repeated_add_makes_sure(node: EgressNode) -> None:
    node.world()
    node.pods.put(pod("c1", names=WORLD))
    await node.add(node.attachment("c1"))
    node.kernel.specs.clear()
    await node.add(node.attachment("c1"))
    assert node.routes("c1") != {}


# --- router pods

ROUTER = {"app.kubernetes.io/name": "coil", "app.kubernetes.io/component": "egress", "app.kubernetes.io/instance": "w"}


async def test_a_router_pod_gets_its_sysctls(node: EgressNode) -> None:
    node.pods.put(pod("c1", labels=ROUTER))
    await node.add(node.attachment("c1", ips=("10.1.0.7", "fd01::7")))
    written = {sysctl.path: sysctl.value for sysctl in node.kernel.sysctls[Path("/run/netns/c1")]}
    assert written["net/ipv4/ip_forward"] == "1"
    assert written["net/ipv6/conf/all/forwarding"] == "1"
    assert written["net/ipv4/conf/all/rp_filter"] == "0"
    assert node.take_syncs() == []


@pytest.mark.parametrize("label", [*ROUTER][:2])
async def test_with_another_label_it_is_none(node: EgressNode, label: str) -> None:
    node.pods.put(pod("c1", labels=ROUTER | {label: "another"}))
    await node.add(node.attachment("c1"))
    assert node.kernel.sysctls == {}


async def test_a_router_pod_without_sysctls_does_not_start(node: EgressNode) -> None:
    node.pods.put(pod("c1", labels=ROUTER))
    node.kernel.fault = refuse
    await refused(node, node.attachment("c1"))


# --- what changes later


@pytest.fixture
async def followed(node: EgressNode) -> EgressNode:
    """Two clients of "world", one of "lab", and a pod without."""
    node.world()
    node.egresses.put(egress("lab", "9.0.0.0/8"))
    node.services.put(service("lab", "10.96.0.5"))
    for name, names in (("c1", WORLD), ("c2", WORLD), ("c3", {"net": "lab"}), ("c4", {})):
        node.pods.put(pod(name, names=names))
        await node.add(node.attachment(name))
    await node.follow()
    await advance()
    assert node.take_syncs() == ["c1", "c2", "c3"]
    return node


async def test_narrower_destinations_reach_the_clients_of_that_egress_only(followed: EgressNode) -> None:
    followed.egresses.put(egress("world", "8.0.0.0/8"))
    await advance()
    assert followed.take_syncs() == ["c1", "c2"]
    assert followed.routes("c1") == followed.routes("c2") == {"10.96.0.9": ["8.0.0.0/8"]}
    assert followed.metric("coil_node_egress_sync_seconds_count", occasion="follow") == 2


def networks(*texts: str) -> ConfigMap:
    metadata = ObjectMeta(namespace="kube-system", name="coil-cluster-networks", uid="uid-of-networks")
    return ConfigMap(metadata=metadata, data={"networks": "".join(f"{text}\n" for text in texts)})


async def test_the_clusters_networks_reach_the_clients_and_no_other(followed: EgressNode) -> None:
    followed.config_maps.put(networks("100.64.0.0/13", "2600:1f14::/32", "nonsense"))
    await advance()
    assert followed.take_syncs() == ["c1", "c2", "c3"]
    spec = followed.kernel.specs[Path("/run/netns/c1")]
    assert list(map(str, spec.cluster)) == ["100.64.0.0/13"], "the pod has no IPv6"
    followed.config_maps.put(networks("100.64.0.0/13", "2600:1f14::/32", "nonsense"))
    await advance()
    assert followed.take_syncs() == []
    # A pod that starts has them at once, also when the ConfigMap has gone: what was told last counts on.
    followed.config_maps.remove("kube-system/coil-cluster-networks")
    await advance()
    assert followed.take_syncs() == []
    followed.pods.put(pod("c5", names=WORLD))
    await followed.add(followed.attachment("c5"))
    assert followed.kernel.specs[Path("/run/netns/c5")].cluster == spec.cluster


async def test_what_does_not_concern_the_tunnels_touches_nothing(followed: EgressNode) -> None:
    followed.egresses.put(egress("world", "0.0.0.0/0", replicas=7))
    followed.services.put(service("world", "10.96.0.9"))
    followed.pods.put(pod("c1", names=WORLD, ips=("10.1.0.7",)))
    followed.pods.put(pod("c1", names=WORLD, annotations={"other": "thing"}))
    followed.egresses.put(egress("nobody-s", "0.0.0.0/0"))
    await advance()
    assert followed.take_syncs() == []


async def test_changes_that_come_together_are_one(followed: EgressNode) -> None:
    for number in range(20):
        followed.egresses.put(egress("lab", f"9.{number}.0.0/16"))
    await advance()
    assert followed.take_syncs() == ["c3"]


CHOSEN = LabelSelector(match_labels={"egress": "yes"})


async def test_a_pod_of_a_namespace_that_is_not_allowed_is_not_wired(node: EgressNode) -> None:
    node.world()
    node.egresses.put(egress("world", "0.0.0.0/0", allowed=CHOSEN))
    node.pods.put(pod("c1", names=WORLD))
    node.server.put(NAMESPACES, apps(egress="no"))
    await unresolved(node, node.attachment("c1"))
    assert node.take_syncs() == []
    assert node.events() == [("c1", "EgressNotAllowed")]
    assert node.clients.addresses(EgressRef("net", "world")).certain == frozenset()
    # Its namespace is read where the cache has not heard of it.
    node.server.put(NAMESPACES, apps(egress="yes"))
    await advance(ANSWER_SECONDS)
    await node.add(node.attachment("c1"))
    assert node.routes("c1") == {"10.96.0.9": ["0.0.0.0/0"]}


async def test_whom_an_egress_serves_is_followed(followed: EgressNode) -> None:
    """Running pods lose their tunnels, and what these led to is held back."""
    followed.namespaces.put(apps())
    followed.egresses.put(egress("world", "0.0.0.0/0", allowed=CHOSEN))
    await advance()
    assert (followed.routes("c1"), followed.blocked("c1")) == ({}, ["0.0.0.0/0"])
    assert followed.events() == [(name, "EgressNotAllowed") for name in ("c1", "c2")]
    told = followed.clients.addresses(EgressRef("net", "world"))
    assert (told.certain, told.pods) == (frozenset(), 0)
    followed.namespaces.put(apps(egress="yes"))
    await advance()
    assert (followed.routes("c1"), followed.blocked("c1")) == ({"10.96.0.9": ["0.0.0.0/0"]}, [])
    assert followed.clients.addresses(EgressRef("net", "world")).pods == 2
    followed.namespaces.put(apps(egress="yes", more="labels"))
    await advance()
    followed.namespaces.put(apps(egress="no"))
    await advance()
    assert (followed.routes("c1"), followed.blocked("c1")) == ({}, ["0.0.0.0/0"])


async def test_what_a_deleted_egress_was_for_is_held_back_until_it_returns(followed: EgressNode) -> None:
    followed.egresses.remove("net/world")
    followed.services.remove("net/world")
    await advance()
    assert set(followed.take_syncs()) == {"c1", "c2"}
    assert (followed.routes("c1"), followed.blocked("c1")) == ({}, ["0.0.0.0/0"])
    assert followed.events() == [(name, "EgressNotFound") for name in ("c1", "c2")]
    assert "what it is for is unreachable from the pod" in followed.recorder.told[0][3]
    assert followed.metric("coil_node_egress_clients") == 1
    assert followed.metric("coil_node_egress_blocked_pods") == 2
    followed.world()
    await advance()
    assert (followed.routes("c1"), followed.blocked("c1")) == ({"10.96.0.9": ["0.0.0.0/0"]}, [])
    assert followed.metric("coil_node_egress_problems", reason="EgressNotFound") == 0
    assert followed.metric("coil_node_egress_blocked_pods") == 0


async def test_what_a_deleted_egress_was_for_is_held_back_until_the_annotation_goes(followed: EgressNode) -> None:
    followed.egresses.remove("net/world")
    await advance()
    assert followed.blocked("c1") == ["0.0.0.0/0"]
    followed.pods.put(pod("c1"))
    await advance()
    assert followed.kernel.specs.keys() == {Path("/run/netns/c2"), Path("/run/netns/c3")}


async def test_only_what_the_egress_was_for_is_held_back(followed: EgressNode) -> None:
    followed.pods.put(pod("c1", names={"net": "lab,world"}))
    await advance()
    followed.egresses.remove("net/lab")
    await advance()
    assert (followed.routes("c1"), followed.blocked("c1")) == ({"10.96.0.9": ["0.0.0.0/0"]}, ["9.0.0.0/8"])


async def test_a_service_that_goes_holds_back_what_its_egress_is_for(followed: EgressNode) -> None:
    followed.services.remove("net/world")
    await advance()
    assert (followed.routes("c1"), followed.blocked("c1")) == ({}, ["0.0.0.0/0"])
    assert followed.events() == [(name, "EgressNoService") for name in ("c1", "c2")]
    followed.services.put(service("world", "10.96.0.10"))
    await advance()
    assert followed.routes("c1") == {"10.96.0.10": ["0.0.0.0/0"]}


@pytest.mark.parametrize("names", [{"net": "mars"}, {"net": "No/Name"}])
async def test_a_running_pod_that_comes_to_name_what_does_not_exist_is_held_back(
    followed: EgressNode, names: dict[str, str]
) -> None:
    followed.pods.put(pod("c4", names=names))
    await advance()
    spec = followed.kernel.specs[Path("/run/netns/c4")]
    assert (followed.blocked("c4"), spec.block_unclaimed) == (["0.0.0.0/0"], True)
    followed.pods.put(pod("c4"))
    await advance()
    assert Path("/run/netns/c4") not in followed.kernel.specs


async def test_with_fail_open_an_egress_that_goes_leaves_its_clients() -> None:
    node = EgressNode(options=FAIL_OPEN)
    node.world()
    node.pods.put(pod("c1", names=WORLD))
    await node.add(node.attachment("c1"))
    await node.follow()
    node.egresses.remove("net/world")
    await advance()
    assert node.kernel.specs == {}
    assert node.events() == [("c1", "EgressNotFound")]
    await node.close()


async def test_a_start_while_the_egress_is_away_holds_back_all_that_it_may_be_for(followed: EgressNode) -> None:
    """And what the namespace led into a tunnel, whatever that was: the kernel remembers it."""
    followed.pods.put(pod("c1", names=WORLD, ips=("10.1.0.7",)))
    followed.egresses.remove("net/world")
    await advance()
    node = await restart(followed, later(followed.attachment("c1")))
    spec = node.kernel.specs[Path("/run/netns/c1")]
    assert (node.blocked("c1"), spec.block_unclaimed) == (["0.0.0.0/0"], True)
    assert node.events() == [("c1", "EgressNotFound")]
    node.world("8.0.0.0/8")
    await advance()
    assert (node.routes("c1"), node.blocked("c1")) == ({"10.96.0.9": ["8.0.0.0/8"]}, [])
    await node.close()


async def test_a_service_made_anew_with_another_address(followed: EgressNode) -> None:
    followed.services.put(service("world", "10.96.0.10"))
    await advance()
    assert followed.routes("c2") == {"10.96.0.10": ["0.0.0.0/0"]}


async def test_annotations_come_and_go(followed: EgressNode) -> None:
    followed.pods.put(pod("c1"))
    followed.pods.put(pod("c4", names={"net": "lab,world"}))
    await advance()
    assert sorted(followed.take_syncs()) == ["c1", "c4"]
    assert followed.routes("c1") == {}
    assert followed.routes("c4") == {"10.96.0.5": ["9.0.0.0/8"], "10.96.0.9": ["0.0.0.0/0"]}


async def test_a_pod_that_fails_stops_no_other_and_is_tried_again(followed: EgressNode) -> None:
    followed.kernel.fault = lambda path: NetlinkError("busy") if path.name == "c1" else None
    followed.egresses.put(egress("world", "8.0.0.0/8"))
    await advance()
    assert followed.routes("c2") == {"10.96.0.9": ["8.0.0.0/8"]}
    assert followed.routes("c1") == {"10.96.0.9": ["0.0.0.0/0"]}
    followed.kernel.fault = lambda path: None
    await advance(1.1)
    assert followed.routes("c1") == {"10.96.0.9": ["8.0.0.0/8"]}


async def test_a_del_waits_for_the_kernel_and_for_nothing_else(followed: EgressNode) -> None:
    followed.kernel.delay = 0.01
    followed.egresses.put(egress("world", "8.0.0.0/8"))
    await advance()
    before = now()
    await followed.delete(followed.attachment("c1"))
    assert now() - before <= 0.01
    followed.egresses.put(egress("world", "9.0.0.0/8"))
    await advance(1.0)
    assert followed.routes("c1") == {}


async def test_a_veth_that_went_without_a_del_is_forgotten(followed: EgressNode) -> None:
    attachment = followed.attachment("c1")
    assert attachment.alias is not None
    del followed.kernel.veths[attachment.alias]
    followed.egresses.put(egress("world", "8.0.0.0/8"))
    await advance()
    assert followed.take_syncs() == ["c2"]
    assert followed.recorder.told == []


# --- after a restart


def later(attachment: Attachment, *, name: str | None = "", uid: str = "") -> Attachment:
    """As it is known to the next process: by the journal at best."""
    assert attachment.pod is not None
    known = None if name is None else replace(attachment.pod, name=name or attachment.pod.name, uid=uid)
    return replace(attachment, netns=None, pod=known)


async def restart(earlier: EgressNode, *attachments: Attachment) -> EgressNode:
    await earlier.close()
    earlier.take_syncs()
    node = EgressNode(earlier)
    await node.adopt(*attachments)
    await node.follow()
    await advance()
    return node


@pytest.mark.parametrize("known", ["by name", "by address"])
async def test_the_next_process_finds_its_clients_again(followed: EgressNode, known: str) -> None:
    await followed.close()
    attachments = []
    for number in range(1, 5):
        name = f"c{number}"
        names = {1: WORLD, 2: WORLD, 3: {"net": "lab"}}.get(number, {})
        followed.pods.put(pod(name, names=names, ips=(f"10.1.0.{number}",)))
        attachment = followed.attachment(name, ips=(f"10.1.0.{number}",))
        attachments.append(later(attachment, name="" if known == "by name" else None))
    followed.egresses.put(egress("world", "8.0.0.0/8"))
    followed.pods.put(pod("c2", ips=("10.1.0.2",)))
    node = await restart(followed, *attachments)
    # Clients come first; then those whose annotation has gone meanwhile, as that of c2. Nothing is done for c4.
    assert node.take_syncs() == ["c1", "c3", "c2"]
    assert node.routes("c1") == {"10.96.0.9": ["8.0.0.0/8"]}
    assert node.routes("c2") == node.routes("c4") == {}
    await node.close()


async def test_the_next_process_knows_the_interface_and_the_pod_though_its_address_is_not_the_pods(
    followed: EgressNode,
) -> None:
    await followed.close()
    followed.egresses.put(egress("world", "8.0.0.0/8"))
    followed.pods.put(pod("c1", names=WORLD))
    eth0 = followed.attachment("c1")
    uid = eth0.pod.uid if eth0.pod is not None else ""
    followed.pods.put(pod("c2", names=WORLD, ips=("10.5.0.2",)))
    net1 = of_interface(followed.attachment("c2"), "net1", "10.7.0.9")
    others = (of_interface(eth0, "net1", "10.7.0.8"), of_interface(net1, "net2", "10.7.0.10"))
    known = [later(each, uid=each.pod.uid if each.pod is not None else "") for each in (*others, net1, eth0)]
    assert uid
    node = await restart(followed, *known)
    assert (uplink(node, "c1"), uplink(node, "c2")) == ("eth0", "net1")
    assert node.clients.addresses(EgressRef("net", "world")).certain == {*eth0.addresses, ip_address("10.7.0.9")}
    await node.close()


async def test_two_pods_that_claim_one_address_are_left_alone(followed: EgressNode) -> None:
    """One of them has it no more, and its status says otherwise for a moment."""
    await followed.close()
    followed.pods.put(pod("c1", names=WORLD, ips=("10.1.0.1",)))
    followed.pods.put(pod("c4", names={"net": "lab"}, ips=("10.1.0.1",)))
    node = await restart(followed, later(followed.attachment("c1", ips=("10.1.0.1",)), name=None))
    assert node.take_syncs() == []
    node.pods.put(pod("c4", names={"net": "lab"}, ips=("10.1.0.4",)))
    await advance()
    assert node.take_syncs() == ["c1"]
    await node.close()


async def test_a_journal_that_names_another_pod_is_not_believed(followed: EgressNode) -> None:
    followed.pods.put(pod("c1", names=WORLD, ips=("10.1.0.1",)))
    node = await restart(followed, later(followed.attachment("c1", ips=("10.1.0.1",)), name="c3"))
    assert node.take_syncs() == []
    await node.close()


@pytest.mark.parametrize("others", [1, 10, 100])
async def test_a_restart_does_nothing_for_pods_without_an_annotation(node: EgressNode, others: int) -> None:
    node.world()
    node.pods.put(pod("client", names=WORLD, ips=("10.1.0.7",)))
    await node.add(node.attachment("client"))
    attachments = [later(node.attachment("client"))]
    for number in range(others):
        ip = f"10.1.1.{number}"
        node.pods.put(pod(f"c{number}", ips=(ip,)))
        await node.add(node.attachment(f"c{number}", ips=(ip,)))
        attachments.append(later(node.attachment(f"c{number}", ips=(ip,)), name="" if number % 2 else None))
    node.kernel.probes = 0
    after = await restart(node, *attachments)
    assert (after.take_syncs(), len(after.kernel.opened), after.kernel.probes) == (["client"], 1, 1)
    await advance(1.0)
    after.pods.put(pod("c0", names=WORLD, ips=("10.1.1.0",)))
    await advance(1.0)
    assert after.take_syncs() == ["c0"], "but it is followed"
    await after.close()


async def test_where_nobody_can_tell_which_pods_have_tunnels_each_is_looked_at(followed: EgressNode) -> None:
    followed.pods.put(pod("c4", ips=("10.1.0.4",)))
    followed.kernel.probe_fault = NetlinkError("answers of the kernel were lost")
    node = await restart(followed, later(followed.attachment("c4", ips=("10.1.0.4",))))
    assert node.take_syncs() == ["c4"]
    await node.close()


async def test_where_tunnels_are_impossible_a_start_asks_once(followed: EgressNode) -> None:
    followed.pods.put(pod("c4", ips=("10.1.0.4",)))
    followed.kernel.fault = refuse
    followed.kernel.probe_fault = NetlinkError("answers of the kernel were lost")
    node = await restart(followed, later(followed.attachment("c4", ips=("10.1.0.4",))))
    await advance(60)
    assert node.take_syncs() == ["c4"]
    assert node.recorder.told == []
    await node.close()


async def test_a_router_of_an_earlier_process_gets_its_sysctls(node: EgressNode) -> None:
    node.pods.put(pod("c1", labels=ROUTER, ips=("10.1.0.7",)))
    after = await restart(node, later(node.attachment("c1")))
    assert after.kernel.sysctls.keys() == {Path("/run/netns/c1")}
    await after.close()


async def test_events_during_an_add_are_not_missed(node: EgressNode) -> None:
    node.world()
    node.pods.put(pod("c1", names=WORLD))
    await node.follow()
    node.kernel.delay = 1.0
    adding = asyncio.create_task(node.add(node.attachment("c1")))
    await advance(0.5)
    node.egresses.put(egress("world", "8.0.0.0/8"))
    await adding
    await advance(2.0)
    assert node.routes("c1") == {"10.96.0.9": ["8.0.0.0/8"]}


async def test_of_a_pod_that_another_plugin_has_wired_the_api_server_tells_the_addresses(node: EgressNode) -> None:
    node.world()
    node.pods.put(pod("c1", names=WORLD))
    attachment = replace(node.attachment("c1"), addresses=(), netns=None, pod=PodName("", "", "uid-of-c1"))
    after = await restart(node, attachment)
    assert after.take_syncs() == [], "without an address it cannot have lost its tunnels"
    after.pods.put(pod("c1", names=WORLD, ips=("10.1.0.9",)))
    await advance()
    (spec,) = after.kernel.specs.values()
    assert [*map(str, spec.addresses)] == ["10.1.0.9"]
    await after.close()
