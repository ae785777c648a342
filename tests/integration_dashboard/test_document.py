"""The dashboard and the alerts ask only for what docs/metrics.md lists. That this is what the processes export is
tested with real ones, by `integration/apiserver/test_metric.py`.
"""

import json
import re
from pathlib import Path
from typing import Any

import pytest
import yaml

from integration.dashboard.egress import egress_dashboard
from integration.dashboard.exposition import (
    ExportedMetric,
    MetricType,
    find_unknown,
    parse_document,
    parse_exposition,
)
from integration.dashboard.ipam import ipam_dashboard
from integration.dashboard.panel import WIDTH, expressions
from integration.generate import DASHBOARDS, ROOT, render_files

DOCUMENT = (ROOT / "docs" / "metrics.md").read_text()
METRICS = [metric for metrics in parse_document(DOCUMENT).values() for metric in metrics.values()]

committed = pytest.mark.parametrize("path", sorted(DASHBOARDS.iterdir()), ids=lambda path: path.stem)


@committed
def test_a_committed_dashboard_is_the_one_that_is_generated(path: Path) -> None:
    assert path.read_text() == render_files()[path], "python -m integration.generate"


@committed
def test_a_dashboard_uses_only_metrics_and_labels_that_are_documented(path: Path) -> None:
    found = expressions(json.loads(path.read_text()))
    assert len(found) > 20
    assert find_unknown(found, METRICS) == []


def test_the_alerts_use_only_metrics_and_labels_that_are_documented() -> None:
    [block] = re.findall(r"```yaml\n(.*?)```", DOCUMENT, re.DOTALL)
    [group] = yaml.safe_load(block)["groups"]
    assert len(group["rules"]) > 10
    assert find_unknown([rule["expr"] for rule in group["rules"]], METRICS) == []
    for rule in group["rules"]:
        for label in re.findall(r"\$labels\.(\w+)", rule["annotations"]["summary"]):
            assert label in rule["expr"] or label == "instance", f"{rule['alert']} does not keep {label}"


@pytest.mark.parametrize(
    ("expression", "fault"),
    [
        ("sum(rate(coil_node_made_up_total[5m]))", "no metric coil_node_made_up_total"),
        ('coil_node_addresses{colour="red"}', "coil_node_addresses has no label colour"),
        ("sum by (colour) (coil_node_addresses)", "no label colour"),
        ("rate(coil_node_address_wait_seconds[5m])", "no metric coil_node_address_wait_seconds"),
        ("coil_cni_refused_operations", "no metric coil_cni_refused_operations"),
    ],
)
def test_a_name_that_nobody_exports_is_found(expression: str, fault: str) -> None:
    assert [line.partition(":")[0] for line in find_unknown([expression], METRICS)] == [fault]


def test_what_a_page_exports() -> None:
    page = """\
# HELP waits_seconds How long.
# TYPE waits_seconds histogram
waits_seconds_bucket{le="0.1",pool="a"} 1.0
waits_seconds_bucket{le="+Inf",pool="a"} 1.0
waits_seconds_count{pool="a"} 1.0
waits_seconds_sum{pool="a"} 0.05
# HELP calls_total Calls.
# TYPE calls_total counter
calls_total{op="ADD"} 3.0
# HELP idle Nothing yet.
# TYPE idle gauge
"""
    waits = ExportedMetric("waits_seconds", MetricType.HISTOGRAM, frozenset({"pool"}))
    assert parse_exposition(page) == {
        "waits_seconds": waits,
        "calls_total": ExportedMetric("calls_total", MetricType.COUNTER, frozenset({"op"})),
        "idle": ExportedMetric("idle", MetricType.GAUGE),
    }
    assert waits.series.keys() == {"waits_seconds_bucket", "waits_seconds_sum", "waits_seconds_count"}
    assert waits.series["waits_seconds_bucket"] == {"pool", "le"}


@pytest.mark.parametrize("row", ["| `a` | gauge | pool | text |", "| `a` | gauge | |", "| `a b` | gauge | | text |"])
def test_a_row_that_cannot_be_read_is_an_error(row: str) -> None:
    with pytest.raises(ValueError, match="not a row"):
        parse_document(f"## X\n\n{row}\n")


@pytest.mark.parametrize("dashboard", [ipam_dashboard(), egress_dashboard()], ids=lambda dashboard: dashboard["uid"])
def test_panels_neither_overlap_nor_leave_the_dashboard(dashboard: dict[str, Any]) -> None:
    taken: set[tuple[int, int]] = set()
    panels = dashboard["panels"]
    for panel in panels:
        at = panel["gridPos"]
        cells = {(x, y) for x in range(at["x"], at["x"] + at["w"]) for y in range(at["y"], at["y"] + at["h"])}
        assert not cells & taken, panel["title"]
        assert at["x"] + at["w"] <= WIDTH
        taken |= cells
    assert len({panel["id"] for panel in panels}) == len(panels)
