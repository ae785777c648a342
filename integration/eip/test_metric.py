"""What the agent of a node and the controller export is what docs/metrics.md lists, and their figures are right."""

import re
import sys
from functools import partial

import pytest

from integration.apiserver.test_metric import controller_page
from integration.dashboard.documented import COMMON, CONTROLLERS, differences, documented, without_series
from integration.dashboard.exposition import parse_exposition
from integration.eip.controllers import Controllers
from integration.eip.node import StageNode
from integration.eip.world import Gateway, World
from integration.patience import wait_until
from integration.service import Service

PORT = 9398
_FETCH = """
import sys
from http.client import HTTPConnection
connection = HTTPConnection("127.0.0.1", int(sys.argv[1]), timeout=60)
connection.request("GET", "/metrics")
sys.stdout.write(connection.getresponse().read().decode())
"""


def page(node: StageNode) -> str:
    return node.kernel.run(sys.executable, "-IS", "-c", _FETCH, str(PORT))


def figure(node: StageNode, name: str) -> float:
    [value] = [line.rsplit(" ", 1)[1] for line in page(node).splitlines() if line.startswith(f"{name} ")]
    return float(value)


def figures_of(gateway: Gateway, controller: Service) -> dict[tuple[str, str, str], float]:
    """What a controller says of it, by metric, family if there is one, and state."""
    pattern = rf'^coil_egress_gateway_(\w+)\{{(?:family="(\w+)",)?gateway="{gateway.name}",state="(\w+)"\}} (\S+)$'
    found = re.findall(pattern, controller_page(controller), re.MULTILINE)
    return {(name, family, state): float(value) for name, family, state, value in found}


def test_a_gateway_exports_what_is_documented(world: World, gateway: Gateway) -> None:
    exported = parse_exposition(page(world.node("n1")))
    # It neither leads, nor reconciles by keys, nor writes Events.
    families = ("workqueue_", "controller_runtime_", "leader_election_", "event_recorder_")
    absent = {f"{name} is not exported" for name in documented(COMMON) if name.startswith(families)}
    assert set(differences(exported, COMMON, "coil-egress-agent-node")) <= absent
    assert without_series([exported], "coil-egress-agent-node") == []


def test_a_gateway_counts_what_it_carries(world: World, gateway: Gateway) -> None:
    with world.policy(gateway, labels={"app": "counted"}) as policy:
        holder = world.node(policy.wait_placed())
        wait_until(
            lambda: figure(holder, "coil_egress_eip_addresses") == len(holder.eips()) > 0,
            what=f"{holder.name} counts its addresses",
        )
        assert figure(holder, "coil_egress_eip_lease_held") == 1
        assert figure(holder, "coil_egress_eip_peers") == len(world.states()) - 1


def test_the_controller_exports_what_is_documented(world: World, gateway: Gateway, controllers: Controllers) -> None:
    leader = controllers.leader().service
    with world.policy(gateway, labels={"app": "told"}) as policy, world.pod("n3", app="told") as pod:
        policy.wait_placed()
        wait_until(policy.slices, what="the policy has a slice")
        world.api.patch(pod.path, {"metadata": {"annotations": {"egress.coil.cybozu.com/internet": "nat"}}})
        wait_until(lambda: "coil_egress_client_pod_info{" in controller_page(leader), what="the client is told of")
        exported = parse_exposition(controller_page(leader))
    assert differences(exported, COMMON, CONTROLLERS, "coil-egress-controller") == []
    assert without_series([exported], CONTROLLERS, "coil-egress-controller") == []


@pytest.mark.slow
def test_every_replica_tells_what_a_gateway_has(world: World, gateway: Gateway, controllers: Controllers) -> None:
    expected = {
        **{("addresses", family, "assigned"): 1.0 for family in ("ipv4", "ipv6")},
        **{("addresses", family, "free"): 3.0 for family in ("ipv4", "ipv6")},
        **{("nodes", "", "carrying"): 1, ("nodes", "", "idle"): 1, ("nodes", "", "unready"): 0},
        **{("policies", "", "placed"): 1, ("policies", "", "unplaced"): 0},
    }
    with world.policy(gateway, labels={"app": "told"}) as policy:
        policy.wait_placed()
        for replica in (controllers.leader(), controllers.standby()):
            told = partial(figures_of, gateway, replica.service)
            wait_until(lambda told=told: told() == expected, what="a replica tells it")  # type: ignore[misc]
            assert f'coil_egress_gateway_policy_limit{{gateway="{gateway.name}"}} 2000.0' in controller_page(
                replica.service
            )
