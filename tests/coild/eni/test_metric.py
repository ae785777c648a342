"""What a node with network interfaces exports is what docs/metrics.md lists."""

from pathlib import Path

from prometheus_client import CollectorRegistry, generate_latest

from coil.aws.call_metrics import Ec2CallMetrics
from coil.eni.interface import InterfaceId
from coild.eni.report import EniCollector, WaitMetrics
from integration.dashboard.documented import differences, without_series
from integration.dashboard.exposition import parse_exposition
from tests.coild.eni.node import Node, one
from tests.coild.eni.test_journal import CHECKPOINT

SECTION = "coild with network interfaces"


async def test_a_node_exports_what_is_documented(tmp_path: Path) -> None:
    node = Node(tmp_path / "journal")
    node.store.update([one("10.0.0.10/32")], up=[InterfaceId("eni-0")])
    await node.add("c1")
    node.store.journal.note_checkpoint(CHECKPOINT)
    registry = CollectorRegistry()
    registry.register(EniCollector(node.store))
    registry.register(WaitMetrics().seconds)
    calls = Ec2CallMetrics()
    calls.observe("DescribeSubnets", 0.1, code="InternalError")
    for collector in calls.collectors():
        registry.register(collector)
    page = generate_latest(registry).decode()
    # Which processes do not export: `make_registry`.
    exported = {name: each for name, each in parse_exposition(page).items() if not name.endswith("_created")}
    assert differences(exported, SECTION) == []
    assert without_series([exported], SECTION) == []
