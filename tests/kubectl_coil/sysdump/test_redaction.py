"""What stays of an object in a dump that is handed to others."""

import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kubectl_coil.sysdump.redaction import REDACTED, SecretError, redact

POD: dict[str, Any] = {
    "kind": "Pod",
    "metadata": {
        "name": "web",
        "managedFields": [{"manager": "kubectl"}],
        "annotations": {
            "egress.coil.cybozu.com/internet": "nat",
            "ipam.coil.cybozu.com/block": "a",
            "kubectl.kubernetes.io/last-applied-configuration": '{"env": "hunter2"}',
            "kubernetes.io/config.hash": "b",
            "vault.example.com/token": "hunter2",
            "note": "hunter2",
            "evilkubernetes.io/x": "hunter2",
        },
    },
    "spec": {
        "containers": [
            {
                "name": "web",
                "env": [
                    {"name": "PASSWORD", "value": "hunter2"},
                    {"name": "NODE", "valueFrom": {"fieldRef": {"fieldPath": "spec.nodeName"}}},
                ],
                "command": ["web", "--port=80"],
                "args": ["--db-password=hunter2", "-api-token=hunter2", "--key", "--zap-log-level=1"],
            }
        ]
    },
}


def test_a_pod() -> None:
    found = redact(POD)
    assert found["metadata"] == {
        "name": "web",
        "annotations": {
            "egress.coil.cybozu.com/internet": "nat",
            "ipam.coil.cybozu.com/block": "a",
            "kubernetes.io/config.hash": "b",
            "vault.example.com/token": REDACTED,
            "note": REDACTED,
            "evilkubernetes.io/x": REDACTED,
        },
    }
    [container] = found["spec"]["containers"]
    assert container["env"] == [
        {"name": "PASSWORD", "value": REDACTED},
        {"name": "NODE", "valueFrom": {"fieldRef": {"fieldPath": "spec.nodeName"}}},
    ]
    assert container["args"] == [f"--db-password={REDACTED}", f"-api-token={REDACTED}", "--key", "--zap-log-level=1"]
    assert "hunter2" not in json.dumps(found)
    assert "hunter2" in json.dumps(POD), "the object itself is not changed"


@pytest.mark.parametrize("kind", ["Secret", "SecretList"])
def test_a_secret_is_never_written(kind: str) -> None:
    with pytest.raises(SecretError):
        redact({"kind": kind, "data": {"a": "aHVudGVyMg=="}})


TREES = st.recursive(
    st.none() | st.booleans() | st.integers() | st.text(),
    lambda inner: st.lists(inner) | st.dictionaries(st.sampled_from(["env", "annotations", "args", "x"]), inner),
    max_leaves=20,
)


@given(TREES)
def test_any_document_can_be_redacted_twice(tree: Any) -> None:
    assert redact(redact(tree)) == redact(tree)
