"""What an Egress must keep, rule by rule, and which field each fault names."""

from typing import Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from coil.crd.egress import Egress
from coil.crd.egress_validation import validate_egress
from coil.crd.validation import ANNOTATIONS_BYTES


def faults(*, name: str = "nat", **spec: Any) -> dict[str, str]:
    """Messages by field."""
    document = {"metadata": {"name": name}, "spec": {"destinations": ["0.0.0.0/0"], **spec}}
    return {error.path: error.message for error in validate_egress(msgspec.convert(document, Egress))}


def test_the_smallest_one_is_valid() -> None:
    assert faults() == {}


@pytest.mark.parametrize(
    "spec",
    [
        {"destinations": ["0.0.0.0/0", "::/0", "10.1.2.3/8", "fd00::1/64", "192.0.2.1/32"]},
        {"strategy": {}},
        {"strategy": {"type": "Recreate"}},
        {"strategy": {"type": "RollingUpdate", "rollingUpdate": {"maxSurge": "150%", "maxUnavailable": 0}}},
        {"template": {}},
        {"template": {"metadata": None, "spec": None}},
        {"template": {"metadata": {"labels": {"a": "", "example.com/b-c": "d.E_f"}, "annotations": {"A/b": "any\n"}}}},
        {"template": {"spec": {"hostNetwork": False}}},
        {"podDisruptionBudget": {}},
        {"podDisruptionBudget": {"minAvailable": 0}},
        {"podDisruptionBudget": {"maxUnavailable": "100%"}},
        {"podDisruptionBudget": {"minAvailable": "0%", "maxUnavailable": None}},
    ],
)
def test_these_are_valid(spec: dict[str, Any]) -> None:
    assert faults(**spec) == {}


@pytest.mark.parametrize(
    ("spec", "field", "message"),
    [
        ({"destinations": []}, "spec.destinations", "at least one"),
        ({"destinations": ["0.0.0.0/0", "10.0.0.0"]}, "spec.destinations[1]", "is not a network in CIDR notation"),
        ({"destinations": ["10.0.0.999/8"]}, "spec.destinations[0]", "is not a network in CIDR notation"),
        ({"destinations": ["fe80::%eth0/10"]}, "spec.destinations[0]", "is not a network in CIDR notation"),
        ({"strategy": {"type": "Never"}}, "spec.strategy.type", "must be one of Recreate, RollingUpdate"),
        (
            {"strategy": {"type": "Recreate", "rollingUpdate": {"maxSurge": 1}}},
            "spec.strategy.rollingUpdate",
            "must not be given for the type Recreate",
        ),
        ({"strategy": {"rollingUpdate": {"maxSurge": -1}}}, "spec.strategy.rollingUpdate.maxSurge", "negative"),
        ({"strategy": {"rollingUpdate": {"maxUnavailable": "x"}}}, "spec.strategy.rollingUpdate.maxUnavailable", "50%"),
        ({"template": {"metadata": {"labels": {"-a": "b"}}}}, "spec.template.metadata.labels", "the key '-a'"),
        ({"template": {"metadata": {"labels": {"A.b/a": "b"}}}}, "spec.template.metadata.labels", "name of a domain"),
        ({"template": {"metadata": {"labels": {"/a": "b"}}}}, "spec.template.metadata.labels", "name of a domain"),
        ({"template": {"metadata": {"labels": {"": "b"}}}}, "spec.template.metadata.labels", "the key ''"),
        ({"template": {"metadata": {"labels": {"x" * 64: "b"}}}}, "spec.template.metadata.labels", "at most 63"),
        ({"template": {"metadata": {"labels": {"a": "x y"}}}}, "spec.template.metadata.labels[a]", "the value 'x y'"),
        ({"template": {"metadata": {"labels": {"a": "x" * 64}}}}, "spec.template.metadata.labels[a]", "at most 63"),
        ({"template": {"metadata": {"labels": {"a": "b\n"}}}}, "spec.template.metadata.labels[a]", "the value"),
        ({"template": {"metadata": {"annotations": {"a b": "c"}}}}, "spec.template.metadata.annotations", "'a b'"),
        (
            {"template": {"metadata": {"annotations": {"a": "x" * ANNOTATIONS_BYTES}}}},
            "spec.template.metadata.annotations",
            "must not have more than 262144 bytes",
        ),
        (
            {"template": {"spec": {"hostNetwork": True}}},
            "spec.template.spec.hostNetwork",
            "a network namespace of its own",
        ),
        (
            {"podDisruptionBudget": {"minAvailable": 1, "maxUnavailable": 1}},
            "spec.podDisruptionBudget",
            "must not have both",
        ),
        ({"podDisruptionBudget": {"minAvailable": -1}}, "spec.podDisruptionBudget.minAvailable", "not be negative"),
        ({"podDisruptionBudget": {"minAvailable": "101%"}}, "spec.podDisruptionBudget.minAvailable", "at most 100%"),
        ({"podDisruptionBudget": {"maxUnavailable": "5"}}, "spec.podDisruptionBudget.maxUnavailable", "such as 50%"),
        ({"podDisruptionBudget": {"maxUnavailable": "-5%"}}, "spec.podDisruptionBudget.maxUnavailable", "such as 50%"),
        (
            {"podDisruptionBudget": {"maxUnavailable": "\u0665%"}},
            "spec.podDisruptionBudget.maxUnavailable",
            "such as 50%",
        ),
    ],
)
def test_each_rule_names_its_field(spec: dict[str, Any], field: str, message: str) -> None:
    found = faults(**spec)
    assert list(found) == [field]
    assert message in found[field]


@pytest.mark.parametrize("name", ["1nat", "a.b", "x" * 64, "a-", "A"])
def test_the_name_must_do_for_a_service(name: str) -> None:
    assert "as the name of a Service" in faults(name=name)["metadata.name"]


def test_a_name_that_is_yet_to_be_made_up_is_not_validated() -> None:
    assert faults(name="") == {}


def test_every_fault_is_told_at_once() -> None:
    spec: dict[str, Any] = {
        "destinations": ["x", "y"],
        "strategy": {"type": "z"},
        "podDisruptionBudget": {"minAvailable": -1},
    }
    assert len(faults(**spec)) == 4


@given(labels=st.dictionaries(st.text(max_size=80), st.text(max_size=80), max_size=3))
def test_any_text_is_validated_and_what_is_let_in_is_plain(labels: dict[str, str]) -> None:
    found = faults(template={"metadata": {"labels": labels}})
    if not found:
        assert all(text.isascii() and " " not in text for item in labels.items() for text in item)
