"""What a process exports, or a document says that one does: metrics with their types and labels."""

import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from enum import StrEnum

from prometheus_client.parser import text_string_to_metric_families

from integration.dashboard.promql import parse_query

TARGET_LABELS = frozenset({"job", "instance"})
"""What the scraper adds to each series."""


class MetricType(StrEnum):
    COUNTER = "counter"
    GAUGE = "gauge"
    HISTOGRAM = "histogram"


@dataclass(frozen=True, slots=True)
class ExportedMetric:
    """`name` as queries have it, but for the suffixes of a histogram. `labels` without a histogram's `le`."""

    name: str
    type: MetricType
    labels: frozenset[str] = field(default=frozenset())

    @property
    def series(self) -> Mapping[str, frozenset[str]]:
        """The names that can be asked for, and the labels that each has."""
        if self.type is not MetricType.HISTOGRAM:
            return {self.name: self.labels}
        return {
            f"{self.name}_bucket": self.labels | {"le"},
            f"{self.name}_sum": self.labels,
            f"{self.name}_count": self.labels,
        }


def parse_exposition(text: str) -> dict[str, ExportedMetric]:
    """The metrics of a `/metrics` page. One that has no series yet has no labels."""
    found = {}
    for family in text_string_to_metric_families(text):
        kind = MetricType(family.type)
        name = f"{family.name}_total" if kind is MetricType.COUNTER else family.name
        labels = frozenset(label for sample in family.samples for label in sample.labels) - {"le"}
        found[name] = ExportedMetric(name, kind, labels)
    return found


_ROW = re.compile(r"\| `(\w+)` \| (\w+) \| ((?:`\w+`(?:, )?)*) ?\| \S.* \|")


def parse_document(text: str) -> dict[str, dict[str, ExportedMetric]]:
    """The tables of docs/metrics.md, by heading. Raises ValueError for a row that cannot be read, or is there twice."""
    found: dict[str, dict[str, ExportedMetric]] = {}
    heading = ""
    for line in text.splitlines():
        if line.startswith("## "):
            heading = line.removeprefix("## ")
        if not line.startswith("| `"):
            continue
        row = _ROW.fullmatch(line)
        if row is None:
            raise ValueError(f"not a row of a metric: {line}")
        metric = ExportedMetric(row[1], MetricType(row[2]), frozenset(re.findall(r"\w+", row[3])))
        if found.setdefault(heading, {}).setdefault(metric.name, metric) is not metric:
            raise ValueError(f"{metric.name} is there twice")
    return found


def find_unknown(expressions: Iterable[str], metrics: Iterable[ExportedMetric]) -> list[str]:
    """A line for each metric and label that an expression uses and nobody exports."""
    series: dict[str, frozenset[str]] = {}
    for metric in metrics:
        for name, labels in metric.series.items():
            series[name] = series.get(name, TARGET_LABELS) | labels
    faults = []
    for expression in expressions:
        query = parse_query(expression)
        faults += [f"no metric {name}: {expression}" for name in sorted(query.metrics - series.keys())]
        for name, matched in query.selectors:
            known = series.get(name, frozenset(matched))
            faults += [f"{name} has no label {label}: {expression}" for label in matched if label not in known]
        anywhere = frozenset[str]().union(*(series.get(name, frozenset()) for name in query.metrics))
        faults += [f"no label {label}: {expression}" for label in sorted(query.grouped - anywhere)]
    return faults
