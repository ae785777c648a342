"""What an admin has written for the former release is understood by this one: flags, values, and names of metrics."""

import re
import shutil
from pathlib import Path

import pytest
import yaml

from integration.dashboard.exposition import parse_document
from integration.helm.chart import CHART, RELEASE, Document
from integration.helm.program import run_helm
from integration.upgrade.revision import ROOT, Revision
from tests.docs.program_help import OURS, own_flags
from tests.integration_helm.everything import EVERYTHING, ON_POD_NETWORK, names, programs

WORKLOADS = ("DaemonSet", "Deployment")
_FLAG = re.compile(r"^ +(--[a-z][a-z0-9-]*)", re.MULTILINE)


@pytest.mark.parametrize("program", OURS)
def test_every_flag_is_still_there(revision: Revision, program: str) -> None:
    former = set(_FLAG.findall(revision.program_help(*program.split())))
    assert len(former) >= 4
    assert former - own_flags(program) == set()


@pytest.mark.parametrize("values", [{}, EVERYTHING, ON_POD_NETWORK], ids=["defaults", "everything", "pod network"])
def test_the_former_charts_arguments_are_accepted(
    revision: Revision, tmp_path: Path, values: dict[str, object]
) -> None:
    found = programs(render(revision.chart, values, tmp_path))
    assert found.keys() >= {"coild", "coil-ipam-controller", "coil-egress-controller"}


def test_the_former_values_are_accepted(revision: Revision, tmp_path: Path) -> None:
    for file in (revision.chart / "values.yaml", *sorted((revision.chart / "profiles").glob("*.yaml"))):
        former = yaml.safe_load(file.read_text())
        rendered = render(CHART, former, tmp_path)
        assert names(rendered, *WORKLOADS) == names(render(revision.chart, former, tmp_path), *WORKLOADS)


def test_an_upgrade_that_reuses_values_gets_along_without_those_that_are_new(
    revision: Revision, tmp_path: Path
) -> None:
    # `helm upgrade --reuse-values` takes the former chart's defaults instead of the new ones.
    chart = shutil.copytree(CHART, tmp_path / "coil")
    shutil.copy(revision.chart / "values.yaml", chart / "values.yaml")
    assert len(programs(render(chart, EVERYTHING, tmp_path))) == 4


def test_every_documented_metric_is_still_documented(revision: Revision) -> None:
    # Each revision's tests compare its page with what its programs export.
    former = parse_document((revision.folder / "docs" / "metrics.md").read_text())
    now = parse_document((ROOT / "docs" / "metrics.md").read_text())
    assert len(former) >= 6
    faults = [
        f"{heading}: {now.get(heading, {}).get(name)} instead of {metric}"
        for heading, metrics in former.items()
        for name, metric in metrics.items()
        if (found := now.get(heading, {}).get(name)) is None
        or found.type != metric.type
        or metric.labels - found.labels
    ]
    assert faults == []


def render(chart: Path, values: dict[str, object], folder: Path) -> list[Document]:
    """What Helm makes of a chart and a values file."""
    file = folder / "values.yaml"
    file.write_text(yaml.safe_dump(values))
    text = run_helm(["template", RELEASE, str(chart), "--namespace=kube-system", f"--values={file}"])
    return [document for document in yaml.safe_load_all(text) if document]
