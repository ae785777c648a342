"""What is let in, what is refused, and what a new Egress gets."""

import json
from typing import Any

import pytest

from coil.admission.review import AdmissionRequest, Allowed, Invalid, Operation, Verdict, decode_review
from coil_egress_controller.egress.admission import MUTATE_PATH, VALIDATE_PATH, EgressAdmission
from coil_egress_controller.eip.gateway_admission import GATEWAY_PATH
from coil_egress_controller.eip.policy_admission import EGRESS_CLUSTER_POLICY_PATH, EGRESS_POLICY_PATH, POLICY_PATH
from integration.deployment import EGRESS_CONTROLLER, webhook_documents

ADMISSION = EgressAdmission()


def egress(name: str = "nat", **spec: Any) -> dict[str, Any]:
    return {"metadata": {"name": name}, "spec": {"destinations": ["0.0.0.0/0"], **spec}}


def request(operation: Operation, new: Any, old: Any = None) -> AdmissionRequest:
    body = {
        "uid": "uid-1",
        "kind": {"group": "coil.cybozu.com", "version": "v2", "kind": "Egress"},
        "operation": operation.value,
        "name": "nat",
        "object": new,
        "oldObject": old,
    }
    review = {"apiVersion": "admission.k8s.io/v1", "kind": "AdmissionReview", "request": body}
    return decode_review(json.dumps(review).encode())


def said(verdict: Verdict) -> list[str]:
    assert isinstance(verdict, Allowed | Invalid)
    return [] if isinstance(verdict, Allowed) else [error.path for error in verdict.errors]


async def mutation(document: dict[str, Any], operation: Operation = Operation.CREATE) -> list[Any]:
    verdict = await ADMISSION.mutate(request(operation, document))
    assert isinstance(verdict, Allowed)
    return list(verdict.patch)


@pytest.mark.parametrize(
    ("template", "operations"),
    [
        ({}, [{"op": "add", "path": "/spec/template/spec", "value": {"containers": [{"name": "egress"}]}}]),
        ({"spec": None}, [{"op": "add", "path": "/spec/template/spec", "value": {"containers": [{"name": "egress"}]}}]),
        ({"spec": {}}, [{"op": "add", "path": "/spec/template/spec/containers", "value": [{"name": "egress"}]}]),
        (
            {"spec": {"containers": []}},
            [{"op": "add", "path": "/spec/template/spec/containers", "value": [{"name": "egress"}]}],
        ),
        ({"spec": {"containers": [{"name": "other"}]}}, []),
        (None, []),
    ],
)
async def test_a_new_template_without_containers_gets_the_routers(template: Any, operations: list[Any]) -> None:
    assert await mutation(egress(template=template)) == operations


async def test_an_old_template_is_left_alone_and_so_is_nonsense() -> None:
    assert await mutation(egress(template={}), Operation.UPDATE) == []
    assert await mutation({"metadata": {}, "spec": {"template": 1}}) == []


async def test_a_new_one_keeps_every_rule() -> None:
    assert said(await ADMISSION.validate(request(Operation.CREATE, egress()))) == []
    bad = egress("1nat", destinations=["x"], podDisruptionBudget={"minAvailable": "200%"})
    assert said(await ADMISSION.validate(request(Operation.CREATE, bad))) == [
        "metadata.name",
        "spec.destinations[0]",
        "spec.podDisruptionBudget.minAvailable",
    ]


async def test_of_an_update_only_what_is_worse_is_refused() -> None:
    old = egress("1nat", destinations=["x"])
    labelled = old | {"metadata": {"name": "1nat", "labels": {"a": "b"}}}
    assert said(await ADMISSION.validate(request(Operation.UPDATE, labelled, old))) == []
    mended = egress("1nat", destinations=["10.0.0.0/8"])
    assert said(await ADMISSION.validate(request(Operation.UPDATE, mended, old))) == []
    worse = egress("1nat", destinations=["x", "y"])
    assert said(await ADMISSION.validate(request(Operation.UPDATE, worse, old))) == ["spec.destinations[1]"]


async def test_privileges_are_an_admins_to_allow() -> None:
    privileged = egress(template={"spec": {"hostPID": True}})
    assert said(await ADMISSION.validate(request(Operation.CREATE, privileged))) == ["spec.template.spec.hostPID"]
    assert said(await ADMISSION.validate(request(Operation.UPDATE, privileged, egress()))) == [
        "spec.template.spec.hostPID"
    ]
    scaled = egress(template={"spec": {"hostPID": True}}, replicas=2)
    assert said(await ADMISSION.validate(request(Operation.UPDATE, scaled, privileged))) == [], "from before"
    lenient = EgressAdmission(privileged_templates=True)
    assert said(await lenient.validate(request(Operation.CREATE, privileged))) == []


def with_host_path(path: str = "/tmp", *, image: str = "a:1", **spec: Any) -> dict[str, Any]:  # noqa: S108 (a host's)
    volumes = [{"name": "data", "hostPath": {"path": path}}]
    return {"spec": {"containers": [{"name": "side", "image": image}], "volumes": volumes, **spec}}


@pytest.mark.parametrize(
    ("template", "fields"),
    [
        (with_host_path(), []),
        (with_host_path("/"), ["spec.template.spec.volumes[0].hostPath"]),
        # Another container would have the same volume.
        (with_host_path(image="b:1"), ["spec.template.spec.volumes[0].hostPath"]),
        (
            {**with_host_path(), "metadata": {"annotations": {"a": "b"}}},
            ["spec.template.spec.volumes[0].hostPath"],
        ),
        (
            with_host_path(hostNetwork=True),
            ["spec.template.spec.volumes[0].hostPath", "spec.template.spec.hostNetwork"],
        ),
        (with_host_path(volumes=[]), []),
        (None, []),
    ],
)
async def test_a_template_with_privileges_from_before_stays_or_is_mended_as_a_whole(
    template: Any, fields: list[str]
) -> None:
    old = egress(template=with_host_path())
    new = egress(template=template, replicas=2, destinations=["10.0.0.0/8"])
    assert said(await ADMISSION.validate(request(Operation.UPDATE, new, old))) == fields


async def test_host_network_from_before_stays_or_goes() -> None:
    lenient = EgressAdmission(privileged_templates=True)
    old = egress(template={"spec": {"hostNetwork": True}})
    for admission in (ADMISSION, lenient):
        assert said(await admission.validate(request(Operation.UPDATE, old | {"metadata": {"name": "nat"}}, old))) == []
        new = egress(template={"spec": {"hostNetwork": True, "containers": [{"name": "egress"}]}})
        fields = said(await admission.validate(request(Operation.UPDATE, new, old)))
        assert fields == ["spec.template.spec.hostNetwork"]


async def test_what_cannot_be_read_is_refused_unless_it_goes() -> None:
    nonsense = {"metadata": {}, "spec": {"destinations": 1}}
    assert said(await ADMISSION.validate(request(Operation.CREATE, nonsense))) == ["spec"]
    assert said(await ADMISSION.validate(request(Operation.UPDATE, egress(), nonsense))) == []
    assert said(await ADMISSION.validate(request(Operation.DELETE, None, nonsense))) == []


def test_the_chart_names_the_paths_that_are_served() -> None:
    documents = webhook_documents(EGRESS_CONTROLLER)
    paths = {webhook["clientConfig"]["service"]["path"] for document in documents for webhook in document["webhooks"]}
    assert {MUTATE_PATH, VALIDATE_PATH} == set(ADMISSION.handlers)
    assert paths == {
        *(MUTATE_PATH, VALIDATE_PATH),
        *(GATEWAY_PATH, POLICY_PATH, EGRESS_POLICY_PATH, EGRESS_CLUSTER_POLICY_PATH),
    }
    for webhook in (webhook for document in documents for webhook in document["webhooks"]):
        assert (webhook["failurePolicy"], webhook["sideEffects"]) == ("Fail", "None")


async def test_who_creates_what_nobody_serves_is_warned() -> None:
    admission = EgressAdmission(served=False)
    for operation, old in ((Operation.CREATE, None), (Operation.UPDATE, egress())):
        verdict = await admission.validate(request(operation, egress(), old))
        assert isinstance(verdict, Allowed)
        assert verdict.warnings == ["no Egress is served in this cluster: egress.enabled of Coil's chart is false"]
