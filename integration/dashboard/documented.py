"""docs/metrics.md against the `/metrics` pages of running programs."""

from collections.abc import Iterable, Mapping
from typing import Final

from integration.dashboard.exposition import ExportedMetric, parse_document
from integration.generate import ROOT

DOCUMENT: Final = (ROOT / "docs" / "metrics.md").read_text()
COMMON: Final = "Every process"
CONTROLLERS: Final = "Both controllers"
UNPROVOKED: Final = {
    "event_recorder_drops_total": "tests/coil/reconcile/test_event_recorder.py",
    "informer_failures_total": "tests/coil/reconcile/test_informer.py",
}
"""Metrics of failures that no test of running programs brings about, and the unit test that does."""


def documented(*sections: str) -> dict[str, ExportedMetric]:
    """The metrics of these sections, by name."""
    tables = parse_document(DOCUMENT)
    return {name: metric for section in sections for name, metric in tables[section].items()}


def differences(exported: Mapping[str, ExportedMetric], *sections: str) -> list[str]:
    """How what a process exports differs from what these sections of the document say."""
    said = documented(*sections)
    faults = [f"{name} is not documented" for name in exported.keys() - said.keys()]
    faults += [f"{name} is not exported" for name in said.keys() - exported.keys()]
    for name in exported.keys() & said.keys():
        ours, theirs = exported[name], said[name]
        # A metric that nothing has set yet has no labels: `without_series`.
        if ours.type != theirs.type or (ours.labels and ours.labels != theirs.labels):
            faults.append(f"{ours} is documented as {theirs}")
    return sorted(faults)


def without_series(pages: Iterable[Mapping[str, ExportedMetric]], *sections: str) -> list[str]:
    """Metrics of these sections that have labels, and not one series on any of the pages: nothing has ever set them."""
    set_somewhere = {name for page in pages for name, metric in page.items() if metric.labels}
    return sorted(name for name, metric in documented(*sections).items() if metric.labels and name not in set_somewhere)
