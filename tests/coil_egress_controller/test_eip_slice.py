"""Slices follow the pods that policies select, with few writes."""

import math
from collections import deque

import msgspec

from coil.crd.egress_gateway_policy import EGRESS_ENDPOINT_SLICES, EGRESS_GATEWAY_POLICIES, EgressEndpointSlice
from coil.kube.errors import NamespaceTerminatingError, UnavailableError
from coil_egress_controller.eip.endpoint_index import EIP_PODS, EipPod
from coil_egress_controller.eip.slice_reconciler import BATCH_WINDOW
from tests.coil_egress_controller.eip_world import CALL, LATE, World, play

LIMIT = 100


def slices(world: World, policy: str = "web", namespace: str = "shop") -> list[EgressEndpointSlice]:
    label = "egressgateway.spidernet.io/egressgatewaypolicy"
    every = world.api.all(EGRESS_ENDPOINT_SLICES)
    return [one for one in every if one.metadata.namespace == namespace and one.metadata.labels.get(label) == policy]


def endpoints(world: World, policy: str = "web", namespace: str = "shop") -> dict[str, str]:
    """Address by pod; each pod is in one slice."""
    found = [end for one in slices(world, policy, namespace) for end in one.endpoints]
    assert len({end.pod_name for end in found}) == len(found)
    return {end.pod_name: ",".join(end.ipv4_list + end.ipv6_list) for end in found}


def add_pods(world: World, *numbers: int, app: str = "web") -> None:
    for number in numbers:
        world.add_pod(f"{app}-{number}", app=app, ip=f"10.0.{number // 250}.{number % 250 + 1}")


def test_the_pods_of_the_policys_own_namespace_and_no_others() -> None:
    async def script(world: World) -> None:
        world.add_policy("web")
        world.lead()
        add_pods(world, 1, 2)
        world.add_pod("web-1", "other", app="web", ip="10.9.0.1")
        world.add_pod("api-1", app="api", ip="10.0.0.9")
        world.add_pod("bare", app="web", ip="10.0.0.10", podIPs=[])
        world.add_pod("done", app="web", ip="10.0.0.11", phase="Succeeded")
        await world.until(lambda: len(endpoints(world)) == 2)
        await world.rest(1)
        assert endpoints(world) == {"web-1": "10.0.0.2", "web-2": "10.0.0.3"}
        (one,) = slices(world)
        assert one.metadata.name.startswith("web-")
        owner = one.metadata.owner_references[0]
        assert (owner.kind, owner.name, owner.uid) == ("EgressGatewayPolicy", "web", world.policy("web").metadata.uid)

    play(script)


def test_pods_that_change_finish_and_come_again_under_their_name() -> None:
    async def script(world: World) -> None:
        world.add_policy("web")
        add_pods(world, 1, 2, 3)
        world.lead()
        await world.until(lambda: len(endpoints(world)) == 3)
        world.change(EIP_PODS, "web-1", "shop", status={"phase": "Failed", "podIPs": [{"ip": "10.0.0.2"}]})
        world.change(EIP_PODS, "web-2", "shop", labels={"app": "other"})
        world.api.remove(EIP_PODS, "web-3", "shop")
        world.add_pod("web-3", app="web", ip="10.0.0.77")
        await world.until(lambda: endpoints(world) == {"web-3": "10.0.0.77"})

    play(script)


def test_a_thousand_pods_cost_few_writes_and_churn_is_gathered() -> None:
    async def script(world: World) -> None:
        world.add_policy("web")
        add_pods(world, *range(1000))
        world.lead()
        await world.until(lambda: len(endpoints(world)) == 1000)
        await world.rest(1)
        assert world.writes("egressendpointslices") == 1000 / LIMIT
        # A rolling update: each pod is replaced by another, ten every 20 ms.
        before = world.writes("egressendpointslices")
        for start in range(0, 200, 10):
            for number in range(start, start + 10):
                world.api.remove(EIP_PODS, f"web-{number}", "shop")
                add_pods(world, 1000 + number)
            await world.rest(0.02)
        await world.until(lambda: "web-1199" in endpoints(world) and "web-199" not in endpoints(world))
        rounds = math.ceil(20 * 0.02 / 0.15) + 1
        assert world.writes("egressendpointslices") - before <= rounds * 10
        assert all(len(one.endpoints) <= LIMIT for one in slices(world))
        with world.no_writes("egressendpointslices"):
            await world.rest(22)

    play(script)


def test_no_pod_waits_longer_than_a_batch_window_wherever_in_it_its_crowd_ends() -> None:
    gap = BATCH_WINDOW / 20.5
    longest = 44

    async def script(world: World) -> None:
        told: dict[str, float] = {}
        waited: dict[str, float] = {}

        def note() -> None:
            for name in endpoints(world).keys() - waited.keys():
                waited[name] = world.clock() - told[name]

        async def send_crowd(length: int) -> list[str]:
            """Replace pods, one after the other; returns the new ones once the slices have them."""
            names = []
            for number in range(length):
                if number:
                    await world.rest(gap)
                name = f"web-{len(told)}"
                if len(present) == longest:
                    world.api.remove(EIP_PODS, present.popleft(), "shop")
                present.append(name)
                names.append(name)
                told[name] = world.clock()
                add_pods(world, len(told) - 1)
            await world.until(lambda: names[-1] in waited)
            return names

        present: deque[str] = deque()
        world.add_policy("web")
        world.lead()
        await world.rest(1)
        world.api.subscribe(note)
        last_waits = []
        for length in range(1, longest, 3):
            before = world.writes("egressendpointslices")
            names = await send_crowd(length)
            last_waits.append(waited[names[-1]])
            # All of them are in one slice, which is written once in each window.
            assert world.writes("egressendpointslices") - before <= (length - 1) * gap // BATCH_WINDOW + 1
            await world.rest(1)
        most = BATCH_WINDOW + LATE + CALL
        assert max(waited.values()) <= most + 1e-6
        # One that comes alone waits for the whole window; what the last of a crowd waits is a matter of chance.
        assert math.isclose(last_waits[0], most)
        assert min(last_waits) < BATCH_WINDOW / 4

    play(script)


def test_selectors_that_change_and_policies_that_go_leave_no_endpoint() -> None:
    async def script(world: World) -> None:
        world.add_policy("web")
        add_pods(world, 1, 2)
        add_pods(world, 3, app="api")
        world.lead()
        await world.until(lambda: len(endpoints(world)) == 2)
        spec = world.document(EGRESS_GATEWAY_POLICIES, "web", "shop")["spec"]
        every = {"podSelector": {"matchExpressions": [{"key": "app", "operator": "Exists"}]}}
        world.change(EGRESS_GATEWAY_POLICIES, "web", "shop", spec=spec | {"appliedTo": every})
        await world.until(lambda: len(endpoints(world)) == 3)
        subnet = {"podSubnet": ["10.0.0.0/24"]}
        world.change(EGRESS_GATEWAY_POLICIES, "web", "shop", spec=spec | {"appliedTo": subnet})
        await world.until(lambda: not slices(world))
        world.change(EGRESS_GATEWAY_POLICIES, "web", "shop", spec=spec)
        await world.until(lambda: len(endpoints(world)) == 2)
        world.api.remove(EGRESS_GATEWAY_POLICIES, "web", "shop")
        await world.until(lambda: not slices(world))

    play(script)


def test_a_new_leader_deletes_what_a_policy_left_that_went_meanwhile() -> None:
    async def script(world: World) -> None:
        world.add_policy("web")
        add_pods(world, 1)
        world.lead()
        await world.until(lambda: len(endpoints(world)) == 1)
        await world.depose()
        world.api.remove(EGRESS_GATEWAY_POLICIES, "web", "shop")
        world.look()
        world.lead()
        await world.until(lambda: not slices(world))

    play(script)


def test_slices_that_somebody_edits_or_deletes_are_mended() -> None:
    async def script(world: World) -> None:
        world.add_policy("web")
        add_pods(world, 1, 2)
        world.lead()
        await world.until(lambda: len(endpoints(world)) == 2)
        (one,) = slices(world)
        world.change(EGRESS_ENDPOINT_SLICES, one.metadata.name, "shop", endpoints=[])
        await world.until(lambda: len(endpoints(world)) == 2)
        (one,) = slices(world)
        world.api.remove(EGRESS_ENDPOINT_SLICES, one.metadata.name, "shop")
        await world.until(lambda: len(endpoints(world)) == 2)

    play(script)


def test_a_refused_write_is_repeated() -> None:
    async def script(world: World) -> None:
        world.add_policy("web")
        add_pods(world, 1)
        world.client.refusals["create", "egressendpointslices"] = UnavailableError("busy")
        world.lead()
        await world.rest(1)
        world.client.refusals.clear()
        await world.until(lambda: len(endpoints(world)) == 1)

    play(script)


def test_a_namespace_that_goes_gets_no_slice_and_others_do() -> None:
    async def script(world: World) -> None:
        world.add_policy("web")
        add_pods(world, 1)
        refusal = NamespaceTerminatingError("namespace shop goes", status=403)
        world.client.refusals["create", "egressendpointslices"] = refusal
        world.lead()

        def attempts() -> int:
            return len([call for call in world.client.calls if call[:2] == ("create", "egressendpointslices")])

        await world.until(lambda: attempts() > 0)
        await world.rest(1)
        before = attempts()
        await world.rest(10)
        assert attempts() == before
        world.client.refusals.clear()
        add_pods(world, 2)
        await world.until(lambda: len(endpoints(world)) == 2)

    play(script)


def test_annotations_owners_and_finalizers_of_pods_are_not_kept() -> None:
    text = b"""{"metadata": {"name": "a", "annotations": {"a": "b"}, "finalizers": ["x"], "labels": {"app": "web"},
        "ownerReferences": [{"apiVersion": "v1", "kind": "Node", "name": "n", "uid": "u"}]}}"""
    metadata = msgspec.json.decode(text, type=EipPod).metadata
    assert (metadata.annotations, metadata.finalizers, metadata.owner_references) == ({}, (), ())
    assert metadata.labels == {"app": "web"}
