"""Manifests and values in the pages and in docs/samples: each would be accepted as it stands."""

from typing import Any

import pytest
import yaml

from integration.docs.page import DOCS, MANIFESTS, Block, Values, read_pages
from integration.helm.chart import profile_names, render
from tests.docs.manifest import complaints

ALERTS = "metrics.md"  # has the chart's alerts, which tests/integration_helm compares
BLOCKS = [
    block for page in read_pages() for block in page.blocks if block.language == MANIFESTS and page.name != ALERTS
]
MANIFEST_BLOCKS = [block for block in BLOCKS if not isinstance(block.mark, Values)]
VALUES_BLOCKS = [block for block in BLOCKS if isinstance(block.mark, Values)]
SAMPLES = sorted((DOCS / "samples").glob("*.yaml"))


def read(text: str) -> list[dict[str, Any]]:
    return list(yaml.safe_load_all(text))


@pytest.mark.parametrize("block", MANIFEST_BLOCKS, ids=str)
def test_a_manifest_is_accepted(block: Block) -> None:
    documents = read(block.text)
    assert documents
    assert [complaint for document in documents for complaint in complaints(document)] == []


@pytest.mark.parametrize("path", SAMPLES, ids=lambda path: path.stem)
def test_a_sample_is_accepted(path: Any) -> None:
    assert [complaint for document in read(path.read_text()) for complaint in complaints(document)] == []


@pytest.mark.parametrize("block", VALUES_BLOCKS, ids=str)
def test_the_chart_takes_the_values(block: Block) -> None:
    assert isinstance(block.mark, Values)
    assert block.mark.profile in {"", *profile_names()}
    assert render(yaml.safe_load(block.text), *filter(None, [block.mark.profile]))


def test_the_sample_of_an_egress_has_every_field() -> None:
    (document,) = read((DOCS / "samples" / "egress-every-field.yaml").read_text())
    assert set(document["spec"]) == {
        *("destinations", "replicas", "strategy", "template", "sessionAffinity", "sessionAffinityConfig"),
        *("fouSourcePortAuto", "podDisruptionBudget", "allowedNamespaces"),
    }


@pytest.mark.parametrize(
    ("change", "said"),
    [
        ({"spec": {"subnets": [{"ipv4": "10.1.0.0/33"}]}}, "spec.subnets[0].ipv4"),
        ({"spec": {"subnets": [{"ipv4": "10.1.0.0/16"}], "blocks": 3}}, ".spec.blocks is not known"),
        ({"apiVersion": "coil.cybozu.com/v1"}, "apiVersion"),
        ({"metadata": {"name": "a", "namespace": "b"}}, "metadata.namespace"),
        ({"metadata": {}}, "metadata.name is missing"),
        ({"spec": {"subnets": [{"ipv4": 10}]}}, ".spec.subnets[0].ipv4 is no string"),
        ({"kind": "Pool"}, "not known to these tests"),
    ],
)
def test_what_is_wrong_is_found(change: dict[str, Any], said: str) -> None:
    good = {
        "apiVersion": "coil.cybozu.com/v2",
        "kind": "AddressPool",
        "metadata": {"name": "default"},
        "spec": {"subnets": [{"ipv4": "10.1.0.0/16"}]},
    }
    assert complaints(good) == []
    assert any(said in complaint for complaint in complaints({**good, **change}))
