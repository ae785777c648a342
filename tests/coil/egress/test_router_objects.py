"""Deployment, Service and disruption budget: as they are created, and as they are laid over what is there."""

from copy import deepcopy
from typing import Any

import msgspec
import pytest

from coil.crd.egress import Egress
from coil.crd.meta import ObjectMeta
from coil.egress.router_objects import (
    ANNOTATION_TEMPLATE_KEYS,
    Ownership,
    find_ownership,
    overlay_budget,
    overlay_deployment,
    overlay_service,
    render_budget,
    render_deployment,
    render_service,
)
from coil.egress.router_pod import RouterProgram, render_pod_template, router_labels

Document = dict[str, Any]

PROGRAM = RouterProgram(image="coil:1", port=5555)
LABELS = router_labels("nat")


def egress(uid: str = "uid-1", **spec: Any) -> Egress:
    document = {"metadata": {"name": "nat", "namespace": "internet", "uid": uid}, "spec": spec}
    return msgspec.convert(document, Egress)


def stored(document: Document) -> Document:
    """As the API server would give it back, fields that it fills in included."""
    live = deepcopy(document)
    live["metadata"] |= {"uid": "uid-9", "resourceVersion": "7", "generation": 3}
    live["status"] = {"replicas": 2}
    return live


def deployment(**spec: Any) -> Document:
    return render_deployment(egress(**spec), PROGRAM)


def annotated(**annotations: str) -> Document:
    return {"metadata": {"annotations": annotations}}


def test_a_deployment() -> None:
    document = deployment(replicas=3, strategy={"type": "Recreate"})
    assert document["spec"] == {
        "replicas": 3,
        "selector": {"matchLabels": LABELS},
        "strategy": {"type": "Recreate"},
        "template": render_pod_template(egress(), PROGRAM),
    }
    metadata = document["metadata"]
    assert (metadata["name"], metadata["namespace"], metadata["labels"]) == ("nat", "internet", LABELS)
    assert metadata["ownerReferences"] == [
        {
            "apiVersion": "coil.cybozu.com/v2",
            "kind": "Egress",
            "name": "nat",
            "uid": "uid-1",
            "controller": True,
            "blockOwnerDeletion": True,
        }
    ]


def test_an_overlay_over_what_is_in_line_changes_nothing() -> None:
    wanted = deployment(template=annotated(a="1"))
    live = stored(wanted)
    assert overlay_deployment(live, wanted) == live


def test_an_overlay_leaves_its_arguments_alone() -> None:
    live, wanted = stored(deployment()), deployment(replicas=4, template=annotated(a="1"))
    before = deepcopy((live, wanted))
    overlay_deployment(live, wanted)
    assert (live, wanted) == before


def test_what_others_keep_in_a_deployment_stays() -> None:
    live = stored(deployment())
    live["metadata"]["labels"]["owner"] = "me"
    live["metadata"]["annotations"]["deployment.kubernetes.io/revision"] = "3"
    live["spec"] |= {"revisionHistoryLimit": 2, "paused": True}
    live["spec"]["template"]["metadata"]["annotations"]["kubectl.kubernetes.io/restartedAt"] = "noon"
    live["spec"]["template"]["metadata"]["labels"]["sidecar"] = "yes"
    assert overlay_deployment(live, deployment()) == live
    changed = overlay_deployment(live, deployment(replicas=2, template=annotated(a="1")))
    assert changed["spec"]["revisionHistoryLimit"] == 2
    assert changed["spec"]["template"]["metadata"] == {
        "labels": {**LABELS, "sidecar": "yes"},
        "annotations": {"kubectl.kubernetes.io/restartedAt": "noon", "a": "1"},
    }
    assert changed["status"] == live["status"]


def test_what_is_ours_in_a_deployment_is_put_right() -> None:
    live = stored(deployment())
    live["metadata"]["labels"] = {}
    live["spec"]["replicas"] = 9
    live["spec"]["strategy"] = {"type": "RollingUpdate", "rollingUpdate": {"maxSurge": 1}}
    live["spec"]["template"]["spec"]["containers"].append({"name": "intruder"})
    live["spec"]["template"]["spec"]["hostNetwork"] = True
    live["spec"]["template"]["metadata"]["labels"]["app.kubernetes.io/instance"] = "other"
    assert overlay_deployment(live, deployment()) == stored(deployment()) | {
        "metadata": live["metadata"] | {"labels": LABELS}
    }


def test_what_the_template_no_longer_says_goes() -> None:
    live = stored(deployment(template=annotated(a="1", b="2")))
    live["spec"]["template"]["metadata"]["annotations"]["kubectl.kubernetes.io/restartedAt"] = "noon"
    metadata = overlay_deployment(live, deployment(template=annotated(b="3")))["spec"]["template"]["metadata"]
    assert metadata["annotations"] == {"kubectl.kubernetes.io/restartedAt": "noon", "b": "3"}


@pytest.mark.parametrize("text", ["", "{", "[]", '{"labels": 1}', "null"])
def test_a_damaged_note_about_the_template_costs_nothing_but_the_knowledge(text: str) -> None:
    live = stored(deployment(template=annotated(a="1")))
    live["metadata"]["annotations"][ANNOTATION_TEMPLATE_KEYS] = text
    changed = overlay_deployment(live, deployment())
    assert changed["spec"]["template"]["metadata"]["annotations"] == {"a": "1"}
    assert changed["metadata"]["annotations"] == deployment()["metadata"]["annotations"]


def test_a_deployment_of_another_program_that_has_no_metadata_at_all() -> None:
    live = stored(deployment())
    del live["spec"]["template"]["metadata"], live["metadata"]["labels"], live["metadata"]["annotations"]
    assert overlay_deployment(live, deployment())["spec"] == deployment()["spec"]


@pytest.mark.parametrize(
    ("spec", "config"),
    [
        ({}, None),
        ({"sessionAffinityConfig": {}}, None),
        ({"sessionAffinityConfig": {"clientIP": {"timeoutSeconds": 9}}}, {"clientIP": {"timeoutSeconds": 9}}),
        ({"sessionAffinity": "None", "sessionAffinityConfig": {"clientIP": {"timeoutSeconds": 9}}}, None),
    ],
)
def test_a_service(spec: Document, config: Document | None) -> None:
    document = render_service(egress(**spec), 5555)
    assert document["spec"].pop("sessionAffinityConfig", None) == config
    assert document["spec"] == {
        "type": "ClusterIP",
        "ipFamilyPolicy": "PreferDualStack",
        "selector": LABELS,
        "ports": [{"name": "fou", "port": 5555, "targetPort": 5555, "protocol": "UDP"}],
        "sessionAffinity": spec.get("sessionAffinity", "ClientIP"),
    }
    assert document["metadata"]["labels"] == LABELS


def test_a_service_keeps_its_addresses_and_what_others_set() -> None:
    live = stored(render_service(egress(sessionAffinityConfig={"clientIP": {"timeoutSeconds": 9}}), 5555))
    others = {"clusterIP": "10.0.0.1", "clusterIPs": ["10.0.0.1"], "externalIPs": ["192.0.2.1"]}
    live["spec"] |= others | {"type": "NodePort", "selector": {"a": "b"}}
    live["metadata"]["annotations"] = {"mine": "yes"}
    wanted = render_service(egress(sessionAffinity="None"), 5556)
    changed = overlay_service(live, wanted)
    assert changed["spec"] == wanted["spec"] | others
    assert changed["metadata"]["annotations"] == {"mine": "yes"}
    assert overlay_service(changed, wanted) == changed


@pytest.mark.parametrize("asked", [None, {}, {"minAvailable": None}])
def test_no_budget(asked: Document | None) -> None:
    assert render_budget(egress(podDisruptionBudget=asked)) is None


def test_a_budget_and_the_switch_to_the_other_bound() -> None:
    before = render_budget(egress(podDisruptionBudget={"minAvailable": 1}))
    after = render_budget(egress(podDisruptionBudget={"maxUnavailable": "10%"}))
    assert before is not None
    assert after is not None
    assert before["spec"] == {"minAvailable": 1, "selector": {"matchLabels": LABELS}}
    live = stored(before)
    live["spec"]["unhealthyPodEvictionPolicy"] = "AlwaysAllow"
    assert overlay_budget(live, after)["spec"] == {
        "maxUnavailable": "10%",
        "selector": {"matchLabels": LABELS},
        "unhealthyPodEvictionPolicy": "AlwaysAllow",
    }


def owned(**changes: Any) -> ObjectMeta:
    owner = {"apiVersion": "coil.cybozu.com/v2", "kind": "Egress", "name": "nat", "uid": "uid-1", "controller": True}
    return msgspec.convert({"ownerReferences": [owner | changes]}, ObjectMeta)


@pytest.mark.parametrize(
    ("metadata", "whose"),
    [
        (owned(), Ownership.OURS),
        (owned(apiVersion="coil.cybozu.com/v3"), Ownership.OURS),
        (owned(uid="uid-0"), Ownership.LEFTOVER),
        (owned(controller=False), Ownership.FOREIGN),
        (owned(name="other"), Ownership.FOREIGN),
        (owned(kind="Ingress"), Ownership.FOREIGN),
        (owned(apiVersion="example.com/v2"), Ownership.FOREIGN),
        (ObjectMeta(), Ownership.FOREIGN),
    ],
)
def test_whose_an_object_is(metadata: ObjectMeta, whose: Ownership) -> None:
    assert find_ownership(metadata, egress()) is whose
