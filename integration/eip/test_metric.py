"""What the agent of a node exports is what docs/metrics.md lists, and its figures are right."""

import sys

from integration.apiserver.test_metric import COMMON, DOCUMENT, differences
from integration.dashboard.exposition import parse_document, parse_exposition
from integration.eip.node import StageNode
from integration.eip.world import Gateway, World
from integration.patience import wait_until

PORT = 9398
_FETCH = """
import sys
from http.client import HTTPConnection
connection = HTTPConnection("127.0.0.1", int(sys.argv[1]), timeout=5)
connection.request("GET", "/metrics")
sys.stdout.write(connection.getresponse().read().decode())
"""


def page(node: StageNode) -> str:
    return node.kernel.run(sys.executable, "-IS", "-c", _FETCH, str(PORT))


def figure(node: StageNode, name: str) -> float:
    [value] = [line.rsplit(" ", 1)[1] for line in page(node).splitlines() if line.startswith(f"{name} ")]
    return float(value)


def test_a_gateway_exports_what_is_documented(world: World, gateway: Gateway) -> None:
    exported = parse_exposition(page(world.node("n1")))
    common = parse_document(DOCUMENT)[COMMON]
    # It neither leads, nor reconciles by keys, nor writes Events.
    families = ("workqueue_", "controller_runtime_", "leader_election_", "event_recorder_")
    absent = {f"{name} is not exported" for name in common if name.startswith(families)}
    assert set(differences(exported, COMMON, "coil-egress-agent-node")) <= absent


def test_a_gateway_counts_what_it_carries(world: World, gateway: Gateway) -> None:
    with world.policy(gateway, labels={"app": "counted"}) as policy:
        holder = world.node(policy.wait_placed())
        wait_until(
            lambda: figure(holder, "coil_egress_eip_addresses") == len(holder.eips()) > 0,
            what=f"{holder.name} counts its addresses",
        )
        assert figure(holder, "coil_egress_eip_lease_held") == 1
        assert figure(holder, "coil_egress_eip_peers") == len(world.states()) - 1
