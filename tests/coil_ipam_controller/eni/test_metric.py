"""What the leader exports is what docs/metrics.md lists."""

import asyncio

from prometheus_client import CollectorRegistry, generate_latest

from coil.aws.call_metrics import Ec2CallMetrics
from coil.eni.orphan import ORPHAN_SECONDS
from coil.eni.subnet_forecast import SHORTEST_SPAN
from coil_ipam_controller.eni.view import EniView, EniViewCollector
from integration.dashboard.documented import differences, without_series
from integration.dashboard.exposition import parse_exposition
from tests.coil_ipam_controller.eni.scene import Scene, play

SECTION = "coil-ipam-controller with network interfaces"


def test_a_leader_exports_what_is_documented() -> None:
    async def script(scene: Scene) -> None:
        calls = Ec2CallMetrics()
        for collector in calls.collectors():
            scene.registry.register(collector)
        calls.observe("DescribeSubnets", 0.1, code="InternalError")
        subnet = scene.ec2.subnet("10.1.0.0/24")
        await scene.make(subnet)
        await scene.attach(subnet)
        scene.ec2.faults.refusals["DescribeSubnets"] = ["InternalError"]
        await asyncio.sleep(ORPHAN_SECONDS / 2 + SHORTEST_SPAN)
        page = generate_latest(scene.registry).decode()
        # Which processes do not export: `make_registry`.
        exported = {name: each for name, each in parse_exposition(page).items() if not name.endswith("_created")}
        assert differences(exported, SECTION) == []
        assert without_series([exported], SECTION) == []

    play(script)


def test_a_replica_that_stands_by_has_no_series() -> None:
    registry = CollectorRegistry()
    EniViewCollector(EniView("blue"), registry)
    page = generate_latest(registry).decode()
    assert [line for line in page.splitlines() if not line.startswith("#")] == []
