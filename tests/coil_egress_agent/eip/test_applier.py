"""The agent of a node as a whole: what it has the kernel do, in which order, and what it does not."""

import asyncio
from ipaddress import ip_address

import msgspec
import pytest

from coil.crd.builtin import Node, NodeAddress, NodeStatus, PodIP, PodSpec, PodStatus
from coil.crd.egress_gateway import GatewayNode
from coil.crd.egress_gateway_policy import AppliedTo
from coil.crd.eip_limit import NamespaceLimits
from coil.crd.meta import ObjectMeta
from coil.eip.eip_set import CLOSED, DECISIONS, HERE, MOST_POLICIES, SETS, VALID
from coil.kernel.family import Family
from coil.kube.errors import ConflictError, UnavailableError
from coil.kube.lease_lock import Lease, LeaseSpec
from coil_egress_agent.eip.applier import MESH_SECONDS
from coil_egress_agent.eip.lease_renewer import parse_lease
from coil_egress_agent.eip.node_pods import PODS_OVER_POLICY_LIMIT, NodePod
from tests.coil.eip.packet_oracle import fate_by_sets
from tests.coil_egress_agent.eip.memory_lease import Trip
from tests.coil_egress_agent.eip.node_scene import (
    Scene,
    eip,
    endpoints,
    gateway,
    listed,
    policy,
    running,
    tunnel,
    until,
)

POD = ("10.244.1.5", "n1")
FAR_POD = ("10.244.2.5", "n2")
MARK = 0x26000000


def fill(scene: Scene, *nodes: GatewayNode, revision: int = 1, fail_policy: str = "Closed") -> None:
    scene.cluster.gateways.put(gateway(*nodes, revision=revision, fail_policy=fail_policy))
    scene.cluster.policies.put(policy())
    scene.cluster.slices.put(endpoints(POD, FAR_POD))


def unlabel(scene: Scene) -> None:
    [node] = scene.cluster.nodes.items()
    scene.cluster.nodes.put(Node(metadata=msgspec.structs.replace(node.metadata, labels={})))


def held_scene() -> Scene:
    """The lease of an earlier process is there, in its first term, and the address is given for it."""
    scene = Scene()
    spec = LeaseSpec(holder_identity="n1", lease_transitions=1)
    scene.lease.put(Lease(metadata=ObjectMeta(name="coil-eip-n1"), spec=spec))
    fill(scene, listed("n1", eip()), listed("n2"))
    return scene


def position(scene: Scene, call: str, what: object = None) -> int:
    for deps, (_, name, content) in enumerate(scene.journal.entries):
        if name == call and (what is None or content == what):
            return deps
    raise AssertionError(f"{call} {what} is not among {scene.journal.entries}")


def path_element(scene: Scene) -> object:
    return next(iter(scene.agent.tables.of("way4").values()), None)


def chosen_policies(scene: Scene) -> set[object]:
    """The numbers of those that have any destinations."""
    return {word for name in SETS[Family.IPV4].ranges for word in scene.agent.tables.of(name.name).values()}


async def test_a_node_that_no_gateway_selects_has_the_mesh_and_no_lease() -> None:
    scene = Scene()
    unlabel(scene)
    fill(scene, listed("n2", eip()))
    async with running(scene):
        await until(lambda: not scene.agent.applier.missing())
        await asyncio.sleep(5)
        assert scene.lease.calls == []
        assert len(scene.agent.overlay.peers) == 2
        assert scene.agent.overlay.marks == {MARK + 0x200: scene.agent.overlay.marks[MARK + 0x200]}
        assert path_element(scene) == MARK + 0x200
        assert "refresh" not in scene.journal.calls()
        assert scene.agent.tables.of("class4").keys() == {"10.244.1.5"}
        own = scene.cluster.tunnels.get("n1")
        assert own is not None
        assert (own.status.phase, own.status.tunnel.parent.ipv4) == ("Ready", "10.6.0.1/16")


async def test_an_address_is_taken_in_order() -> None:
    scene = Scene()
    fill(scene)
    async with running(scene):
        await until(lambda: scene.agent.renewer.term == 1)
        await asyncio.sleep(0.5)
        scene.journal.clear()
        fill(scene, listed("n1", eip()), revision=2)
        await until(lambda: "announce" in scene.journal.calls())
        assert position(scene, "change") < position(scene, "eips", ["10.6.1.1"]) < position(scene, "announce")
        assert path_element(scene) == HERE
        [chosen] = chosen_policies(scene)
        assert scene.agent.tables.of("eip4") == {chosen: "10.6.1.1"}
        assert scene.agent.tables.of("eips4").keys() == {"10.6.1.1"}
        # Back to pods of this policy: the mark of their node.
        assert set(scene.agent.overlay.marks) == {MARK + 0x200}
        await asyncio.sleep(4)
        told = [when for when, call, what in scene.journal.entries if call == "announce" and what == ["10.6.1.1"]]
        assert [round(when - told[0], 1) for when in told] == [0.0, 0.1, 0.3, 1.0, 3.0]
        assert scene.agent.tables.alive


async def test_nothing_of_another_term_is_taken() -> None:
    scene = Scene()
    fill(scene, listed("n1", eip(), term=7))
    async with running(scene):
        await until(lambda: scene.agent.renewer.term)
        await asyncio.sleep(1)
        assert scene.agent.renewer.term == 8
        assert scene.eips == []
        assert path_element(scene) == CLOSED
        fill(scene, listed("n1", eip(), term=8), revision=2)
        await until(lambda: scene.eips == ["10.6.1.1"])


async def test_an_address_of_the_node_itself_is_never_taken() -> None:
    """Also if it becomes the node's own while it is an EIP there; its policy's traffic is held back."""
    scene = held_scene()
    async with running(scene):
        await until(lambda: scene.eips == ["10.6.1.1"] and path_element(scene) == HERE)
        [node] = scene.cluster.nodes.items()
        addresses = (NodeAddress(type="InternalIP", address="10.6.1.1"),)
        scene.cluster.nodes.put(msgspec.structs.replace(node, status=NodeStatus(addresses=addresses)))
        await until(lambda: scene.eips == [])
        await until(lambda: path_element(scene) == CLOSED)
        assert not scene.agent.tables.of("floating4"), "or what comes to the node's own address would be dropped"
        fill(scene, listed("n1", eip(), eip("10.6.1.2", "p2")), revision=2)
        await until(lambda: scene.eips == ["10.6.1.2"])
        assert path_element(scene) == CLOSED
        scene.cluster.nodes.put(node)
        await until(lambda: scene.eips == ["10.6.1.1", "10.6.1.2"] and path_element(scene) == HERE)


async def test_an_address_of_another_node_is_not_taken_either() -> None:
    """That one came later, with what is an EIP here: what is sent to it must not come here."""
    scene = held_scene()
    fill(scene, listed("n1", eip(), eip("10.6.1.2", "p2")))
    async with running(scene):
        await until(lambda: scene.eips == ["10.6.1.1", "10.6.1.2"] and path_element(scene) == HERE)
        late = tunnel(4)
        status = msgspec.structs.replace(late.status, node_addresses=("10.6.1.1", "none"))
        scene.cluster.tunnels.put(msgspec.structs.replace(late, status=status))
        await until(lambda: scene.eips == ["10.6.1.2"] and path_element(scene) == CLOSED)
        assert "10.6.1.1" not in scene.agent.tables.of("floating4"), "or what is sent to the Node would be dropped"
        [line] = [entry for entry in scene.agent.logged.entries if "addresses of Nodes" in entry["event"]]
        assert (line["log_level"], line["addresses"]) == ("error", ["10.6.1.1"])
        scene.cluster.tunnels.remove("n4")
        await until(lambda: scene.eips == ["10.6.1.1", "10.6.1.2"] and path_element(scene) == HERE)


async def test_what_is_sent_to_a_node_passes_whoever_carries_its_address() -> None:
    """On a node that only leads to the gateway, a packet to a Node is none to a floating address."""
    scene = held_scene()
    fill(scene, listed("n2", eip("10.6.0.3")))
    async with running(scene):
        await until(lambda: path_element(scene) is not None)
        assert "10.6.0.3" not in scene.agent.tables.of("floating4")


async def test_a_leaving_address_is_off_before_it_is_said_to_be() -> None:
    scene = held_scene()
    async with running(scene):
        await until(lambda: scene.eips)
        await asyncio.sleep(0.55)
        scene.journal.clear()
        scene.journal.stall["eips"] = 0.05
        fill(scene, listed("n1", eip(leaving=2)), revision=2)

        def applied() -> int:
            assert scene.lease.lease is not None
            renewer = parse_lease(scene.lease.lease)
            assert renewer is not None
            return renewer.applied.get("uid-eg1", 0)

        loop = asyncio.get_running_loop()
        began = loop.time()
        await until(lambda: applied() == 2)
        assert scene.eips == []
        # Not with the next renewal in its time, but at once.
        assert loop.time() - began < 0.12
        assert position(scene, "eips", []) < position(scene, "change")
        assert path_element(scene) == CLOSED
        await asyncio.sleep(4)
        assert "announce" not in [call for _, call, what in scene.journal.entries if what]


async def test_without_a_renewal_everything_is_withdrawn_when_the_fence_is_over() -> None:
    scene = held_scene()
    async with running(scene):
        await until(lambda: scene.eips)
        await asyncio.sleep(0.3)
        scene.lease.usual = Trip(reaches=False)
        last = scene.lease.writes[-1][0]
        loop = asyncio.get_running_loop()
        await until(lambda: not scene.eips)
        assert loop.time() - last < 0.61
        assert not scene.agent.tables.alive
        await asyncio.sleep(1)
        assert path_element(scene) == CLOSED
        scene.lease.usual = Trip()
        await until(lambda: scene.eips == ["10.6.1.1"])
        assert scene.agent.renewer.term == 1
        await until(lambda: scene.agent.tables.alive)
        assert path_element(scene) == HERE


async def test_the_fence_does_not_wait_for_a_round_that_hangs() -> None:
    scene = held_scene()
    async with running(scene):
        await until(lambda: scene.eips)
        scene.journal.stall.update({"change": 20.0, "peers": 20.0})
        fill(scene, listed("n1", eip(), eip("10.6.1.2", "p2")), revision=2)
        await asyncio.sleep(0.3)
        scene.lease.usual = Trip(reaches=False)
        await asyncio.sleep(0.65)
        assert scene.eips == []
        await asyncio.sleep(30)
        assert scene.eips == []
        assert not scene.agent.tables.alive


async def test_the_kernel_is_not_kept_alive_for_what_it_holds_of_an_earlier_term() -> None:
    scene = held_scene()
    async with running(scene):
        await until(lambda: scene.eips and scene.agent.tables.alive)
        scene.journal.stall["eips"] = 5.0  # the address cannot be taken off soon
        scene.lease.revoke()
        await until(lambda: scene.agent.renewer.term == 2)
        await asyncio.sleep(0.7)
        assert not scene.agent.tables.alive
        await asyncio.sleep(12)
        assert scene.eips == []
        assert scene.agent.tables.alive


async def test_an_address_that_goes_to_another_node_is_followed() -> None:
    scene = Scene()
    fill(scene, listed("n2", eip()), listed("n3"))
    async with running(scene):
        await until(lambda: path_element(scene) == MARK + 0x200)
        scene.journal.clear()
        fill(scene, listed("n2"), listed("n3", eip()), revision=2)
        await until(lambda: set(scene.agent.overlay.marks) == {MARK + 0x300})
        assert path_element(scene) == MARK + 0x300
        both = [MARK + 0x200, MARK + 0x300]
        assert position(scene, "marks", both) < position(scene, "change") < position(scene, "marks", both[1:])


async def test_no_node_left_closed_and_open() -> None:
    scene = Scene()
    fill(scene, listed("n2"))
    async with running(scene):
        await until(lambda: path_element(scene) == CLOSED)
        fill(scene, listed("n2"), fail_policy="Open", revision=2)
        await until(lambda: path_element(scene) is None and chosen_policies(scene))


async def test_a_mesh_that_cannot_be_made_is_said_and_closes_what_it_would_carry() -> None:
    scene = held_scene()
    scene.journal.refuse.add("tunnel")
    fill(scene, listed("n2", eip(), term=1), listed("n1", eip("10.6.1.2", "p2")))
    async with running(scene):
        await until(lambda: scene.eips == ["10.6.1.2"])
        assert path_element(scene) == CLOSED
        assert scene.agent.applier.missing() == "tunnel: no"
        own = scene.cluster.tunnels.get("n1")
        assert own is not None
        assert own.status.phase == "Failed"
        scene.journal.refuse.clear()
        await until(lambda: path_element(scene) == MARK + 0x200)
        assert not scene.agent.applier.missing()
        await until(lambda: scene.cluster.tunnels.get("n1").status.phase == "Ready")  # type: ignore[union-attr]


async def test_a_status_that_is_not_taken_is_written_again() -> None:
    """Whoever has changed the object meanwhile, and however long the API server is away."""
    scene = Scene()
    fill(scene)
    scene.cluster.refusals = [ConflictError("changed meanwhile"), *[UnavailableError("away")] * 5]
    async with running(scene):
        await until(lambda: scene.cluster.tunnels.get("n1").status.phase == "Ready")  # type: ignore[union-attr]
        assert scene.cluster.refusals == []
        # Somebody takes it back.
        scene.cluster.tunnels.put(tunnel(1))
        await until(lambda: scene.cluster.tunnels.get("n1").status.phase == "Ready")  # type: ignore[union-attr]


@pytest.mark.parametrize("call", ["sync", "change", "eips", "marks", "device"])
async def test_what_the_kernel_refuses_is_tried_again(call: str) -> None:
    scene = Scene()
    fill(scene)
    async with running(scene):
        await until(lambda: scene.agent.renewer.term)
        scene.journal.refuse.add(call)
        fill(scene, listed("n1", eip()), listed("n2", eip("10.6.1.2", "p2")), revision=2)
        scene.cluster.policies.put(policy("p2", destinations=("9.9.9.0/24",)))
        scene.cluster.slices.put(endpoints(POD, name="p2"))
        scene.agent.applier.look_around()
        await asyncio.sleep(5)
        scene.journal.refuse.clear()
        await until(lambda: scene.eips == ["10.6.1.1"])
        await until(lambda: not scene.agent.applier.missing())
        assert set(scene.agent.tables.of("way4").values()) == {HERE, MARK + 0x200}
        assert MARK + 0x200 in scene.agent.overlay.marks


async def test_a_foreign_change_of_addresses_is_mended_and_told() -> None:
    scene = held_scene()
    async with running(scene):
        await until(lambda: scene.eips)
        await asyncio.sleep(4)
        scene.journal.clear()
        scene.agent.overlay.eips = frozenset()
        scene.agent.applier.look_at_overlay()
        await until(lambda: scene.eips)
        await until(lambda: "announce" in scene.journal.calls())
        assert scene.agent.registry.get_sample_value("coil_egress_eip_repairs_total", {"what": "addresses"}) == 1
        assert "sync" not in scene.journal.calls()


async def test_a_foreign_change_of_tables_is_mended() -> None:
    scene = held_scene()
    async with running(scene):
        await until(lambda: scene.eips)
        await asyncio.sleep(1)
        scene.agent.tables.elements.clear()
        scene.agent.applier.look_around()
        await until(lambda: path_element(scene) == HERE)
        assert scene.agent.registry.get_sample_value("coil_egress_eip_repairs_total", {"what": "tables"}) == 1


async def test_the_elements_in_the_kernel_are_counted_by_set() -> None:
    def exported(scene: Scene) -> dict[str, float]:
        families = [family for family in scene.agent.registry.collect() if family.name == "coil_egress_eip_elements"]
        return {sample.labels["set"]: sample.value for family in families for sample in family.samples}

    def actual(scene: Scene) -> dict[str, float]:
        return {name.name: len(words) for name, words in scene.agent.tables.elements.items()}

    scene = held_scene()
    async with running(scene):
        await until(lambda: scene.eips)
        await asyncio.sleep(1)
        before = actual(scene)
        assert before["eip4"] == 1
        assert {name: count for name, count in exported(scene).items() if count} == before
        scene.cluster.policies.remove("t1/p1")
        await until(lambda: not actual(scene).get("eip4"))
        await asyncio.sleep(1)
        assert {name: count for name, count in exported(scene).items() if count} == actual(scene)
        assert exported(scene)["eip4"] == 0


async def test_a_change_of_tables_that_was_told_is_looked_for_there_alone() -> None:
    scene = held_scene()
    async with running(scene):
        await until(lambda: scene.eips)
        await asyncio.sleep(1)
        scene.journal.clear()
        scene.agent.tables.elements.clear()
        scene.agent.applier.look_at_tables()
        await until(lambda: path_element(scene) == HERE)
        assert scene.journal.calls().count("sync") == 1
        assert "tunnel" not in scene.journal.calls()
        assert scene.eips == ["10.6.1.1"]
        scene.agent.applier.look_around()
        await until(lambda: "tunnel" in scene.journal.calls())
        await asyncio.sleep(1)
        assert scene.journal.calls().count("sync") == 2


async def test_a_refused_change_of_elements_ends_in_a_comparison() -> None:
    scene = Scene()
    fill(scene, listed("n2", eip()))
    async with running(scene):
        await until(lambda: path_element(scene) == MARK + 0x200)
        scene.agent.tables.elements.clear()
        fill(scene, listed("n3", eip()), revision=2)
        await until(lambda: path_element(scene) == MARK + 0x300)


async def test_leaving_takes_off_gives_back_and_waits_for_the_others() -> None:
    scene = held_scene()
    async with running(scene):
        await until(lambda: scene.eips and scene.agent.tables.alive)
        leaving = asyncio.create_task(scene.agent.applier.leave(seconds=5))
        await until(lambda: not scene.lease.holder)
        assert scene.eips == []
        assert (scene.lease.holder, scene.lease.term) == ("", 1)
        assert not leaving.done()
        fill(scene, listed("n1"), listed("n2", eip()), revision=2)
        await leaving
        assert path_element(scene) == MARK + 0x200
        assert MARK + 0x200 in scene.agent.overlay.marks
        assert scene.lease.holder == ""


async def test_leaving_a_node_without_anything_takes_no_time() -> None:
    scene = Scene()
    fill(scene, listed("n2", eip()))
    async with running(scene):
        await until(lambda: path_element(scene))
        began = asyncio.get_running_loop().time()
        await scene.agent.applier.leave(seconds=5)
        assert asyncio.get_running_loop().time() - began < 0.5


async def test_a_node_that_is_not_selected_any_more_keeps_its_lease_until_its_addresses_have_left() -> None:
    scene = held_scene()
    async with running(scene):
        await until(lambda: scene.eips)
        unlabel(scene)
        await asyncio.sleep(1)
        assert scene.eips == ["10.6.1.1"]
        fill(scene, listed("n1", eip(leaving=2)), revision=2)
        await until(lambda: not scene.eips)
        await asyncio.sleep(1)
        assert scene.lease.holder == "n1"
        fill(scene, listed("n2", eip()), revision=3)
        await until(lambda: not scene.lease.holder)
        await until(lambda: scene.agent.renewer.idle)


async def test_a_status_older_than_what_was_applied_is_not_believed() -> None:
    scene = Scene()
    fill(scene, revision=5)
    async with running(scene):
        await until(lambda: scene.agent.renewer.term)
        fill(scene, listed("n1", eip()), revision=6)
        await until(lambda: scene.eips)
        await asyncio.sleep(0.5)
        fill(scene, listed("n1", eip(), eip("10.6.1.9")), revision=3)
        await until(lambda: not scene.eips)
        fill(scene, listed("n1", eip()), revision=7)
        await until(lambda: scene.eips == ["10.6.1.1"])


async def test_a_mesh_that_cannot_be_made_is_tried_again_once_in_its_time_however_many_rounds_there_were() -> None:
    """Each round of a burst used to leave a retry behind, and each of those another, for as long as the trouble
    lasted.
    """
    scene = Scene()
    scene.journal.refuse.add("tunnel")
    async with running(scene):
        await until(lambda: scene.agent.mesh.trouble == "tunnel: no")
        for number in range(50):
            scene.cluster.gateways.put(gateway(revision=number + 2))
            await asyncio.sleep(0.03)
        scene.agent.logged.entries.clear()
        before = scene.agent.registry.get_sample_value("coil_egress_eip_apply_seconds_count", {"operation": "compute"})
        await asyncio.sleep(20 * MESH_SECONDS)
        after = scene.agent.registry.get_sample_value("coil_egress_eip_apply_seconds_count", {"operation": "compute"})
    assert before is not None
    assert after is not None
    assert 15 <= after - before <= 21


async def test_a_refresh_that_is_held_up_gives_the_kernel_no_more_than_what_is_left() -> None:
    scene = Scene()
    async with running(scene):
        fill(scene)
        await until(lambda: scene.agent.renewer.term)
        fill(scene, listed("n1", eip()), revision=2)
        await until(lambda: scene.eips and scene.agent.tables.alive)
        scene.journal.stall["refresh"] = 0.15
        for _ in range(200):
            await asyncio.sleep(0.01)
            now = asyncio.get_running_loop().time()
            # The kernel may answer until then, and this process may act for the term until now plus what is left.
            assert scene.agent.tables.alive_until <= now + scene.agent.renewer.remaining + 1e-6


async def test_connections_bear_what_was_decided_when_a_change_has_rested() -> None:
    scene = held_scene()

    def marks() -> set[object]:
        tables = scene.agent.tables
        found: set[object] = set(tables.of(DECISIONS.name).values())
        assert len(tables.of(VALID.name)) == len(found)
        return found

    async with running(scene):
        await until(lambda: scene.eips and marks())
        before = marks()
        fill(scene, listed("n1"), listed("n2", eip()), revision=2)
        await until(lambda: path_element(scene) == MARK + 0x200)
        assert marks() == set()
        await asyncio.sleep(1)
        assert marks() == set(), "another node carries it"
        fill(scene, listed("n1", eip()), listed("n2"), revision=3)
        await until(lambda: path_element(scene) == HERE)
        assert marks() == set()
        await until(marks)
        assert not marks() & before


async def test_what_somebody_else_has_changed_may_have_decided_for_connections() -> None:
    scene = held_scene()
    async with running(scene):
        await until(lambda: scene.eips and scene.agent.tables.of(DECISIONS.name))
        before = set(scene.agent.tables.of(DECISIONS.name).values())
        scene.agent.tables.elements.clear()
        scene.agent.applier.look_around()
        await until(lambda: set(scene.agent.tables.of(DECISIONS.name).values()).isdisjoint(before))
        await until(lambda: scene.agent.tables.of(DECISIONS.name))


async def test_marks_that_the_kernel_refuses_are_tried_again() -> None:
    scene = held_scene()
    async with running(scene):
        await until(lambda: path_element(scene) == HERE)
        scene.journal.refuse.add("change")
        await asyncio.sleep(1)
        assert not scene.agent.tables.of(DECISIONS.name)
        scene.journal.refuse.clear()
        await until(lambda: scene.agent.tables.of(DECISIONS.name))


@pytest.mark.parametrize("by_subnet", [False, True])
async def test_a_pod_with_more_policies_than_apply_to_it_is_told(by_subnet: bool) -> None:
    """By the node's tunnel, a metric and the log; of this node's pods, and whatever selects them."""
    scene = held_scene()
    subnets = AppliedTo(pod_subnet=("10.244.1.0/24", "10.244.2.0/24"))
    for number in range(MOST_POLICIES):
        name = f"q{number}"
        scene.cluster.policies.put(policy(name, applied_to=subnets) if by_subnet else policy(name))
        if not by_subnet:
            scene.cluster.slices.put(endpoints(POD, FAR_POD, name=name))
    pod = NodePod(
        metadata=ObjectMeta(name="web", namespace="t1", uid="uid-web"),
        spec=PodSpec(node_name="n1"),
        status=PodStatus(pod_ips=(PodIP(ip=POD[0]),)),
    )

    def told(scene: Scene) -> dict[str, str]:
        known = scene.cluster.tunnels.get("n1")
        assert known is not None
        return {each.status: each.message for each in known.status.conditions if each.type == PODS_OVER_POLICY_LIMIT}

    def count(scene: Scene) -> float | None:
        return scene.agent.registry.get_sample_value("coil_egress_eip_pods_over_policy_limit")

    async with running(scene):
        await until(lambda: "False" in told(scene))
        assert count(scene) == 0
        scene.cluster.pods.put(pod)
        await until(lambda: "True" in told(scene))
        assert told(scene) == {
            "True": "more than 8 policies select t1/web: the first 7 of each pod apply, and what else it sends out of "
            "the cluster is dropped"
        }
        assert count(scene) == 1
        assert len([entry for entry in scene.agent.logged.entries if "more policies" in entry["event"]]) == 1
        scene.cluster.policies.remove("t1/q0")
        await until(lambda: "False" in told(scene))
        assert count(scene) == 0


async def test_policies_beyond_what_their_namespace_may_have_are_dropped_and_no_others() -> None:
    def fates(scene: Scene) -> list[object]:
        elements = scene.agent.tables.elements
        return [
            fate_by_sets(elements, ip_address(pod), ip_address(server)).mark
            for pod in ("10.244.1.5", "10.244.1.6")
            for server in ("8.8.8.8", "9.9.9.9")
        ]

    limit = NamespaceLimits().networks
    scene = held_scene()
    fill(scene, listed("n1", eip(), eip("10.6.1.2", "p2")))
    scene.cluster.policies.put(policy("p2"))
    scene.cluster.slices.put(endpoints(("10.244.1.6", "n1"), name="p2"))
    async with running(scene):
        await until(lambda: fates(scene) == [HERE, None, HERE, None])
        many = tuple(f"10.{number >> 8}.{number & 255}.0/24" for number in range(limit - 1))
        scene.cluster.policies.put(policy("p2", destinations=("8.8.8.0/24", *many)))
        await until(lambda: fates(scene) == [HERE, None, CLOSED, CLOSED])
        assert scene.agent.registry.get_sample_value("coil_egress_eip_policies_over_limit") == 1
        [line] = [entry for entry in scene.agent.logged.entries if "limits" in entry["event"]]
        assert line["namespaces"] == ["t1"]
        scene.cluster.policies.put(policy("p2", destinations=("8.8.8.0/24", *many[:-1])))
        await until(lambda: fates(scene) == [HERE, None, HERE, None])
        assert scene.agent.registry.get_sample_value("coil_egress_eip_policies_over_limit") == 0
