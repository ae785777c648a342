"""What is made for an Egress, what is left alone, and that nothing is asked for twice."""

from typing import Any

import pytest

from coil.crd.builtin import CONFIG_MAPS, DEPLOYMENTS, POD_DISRUPTION_BUDGETS, SERVICE_ACCOUNTS, SERVICES
from coil.crd.egress import EGRESSES
from coil.crd.resource import Resource
from coil.egress.router_pod import router_selector
from coil.kube.errors import (
    AlreadyExistsError,
    ConflictError,
    ForbiddenError,
    InvalidError,
    NamespaceTerminatingError,
    UnavailableError,
)
from coil.reconcile.controller import DONE, RequeueAfter
from tests.coil_egress_controller.scene import KEY, Scene


@pytest.fixture
def scene() -> Scene:
    return Scene()


async def reconciled(scene: Scene, **spec: Any) -> Scene:
    """With an Egress that has been carried out, and caches that know it; no call is noted yet."""
    scene.add_egress(**spec)
    for _ in range(2):
        assert await scene.egresses.reconcile(KEY) == DONE
        scene.look()
    scene.client.calls.clear()
    return scene


async def test_everything_is_made_and_the_status_told(scene: Scene) -> None:
    scene.add_egress(podDisruptionBudget={"maxUnavailable": 1})
    assert await scene.egresses.reconcile(KEY) == DONE
    assert scene.client.writes() == [
        ("create", "serviceaccounts"),
        ("create", "rolebindings"),
        ("create", "deployments"),
        ("create", "services"),
        ("create", "poddisruptionbudgets"),
        ("patch status", "egresses"),
    ]
    assert scene.find(EGRESSES)["status"] == {
        "observedGeneration": 1,
        "replicas": 0,
        "selector": router_selector("nat"),
        "clusterNetworks": [],
    }
    assert scene.told.messages == {}


async def test_what_is_in_line_costs_no_call(scene: Scene) -> None:
    await reconciled(scene, podDisruptionBudget={"maxUnavailable": 1})
    assert await scene.egresses.reconcile(KEY) == DONE
    assert scene.client.calls == []


async def test_a_late_cache_makes_nothing_twice(scene: Scene) -> None:
    scene.add_egress()
    await scene.egresses.reconcile(KEY)
    scene.client.calls.clear()
    with pytest.raises(ConflictError):
        # The status was written meanwhile; what was made is found by asking.
        await scene.egresses.reconcile(KEY)
    assert {verb for verb, _, _ in scene.client.calls if verb in {"create", "replace"}} <= {"create"}
    assert [call for call in scene.client.calls if call[0] == "create"] == [
        ("create", "serviceaccounts", "coil-egress"),
        ("create", "rolebindings", "coil-egress"),
    ]


async def test_after_a_forgetting_everything_is_read_and_nothing_written(scene: Scene) -> None:
    await reconciled(scene, podDisruptionBudget={"maxUnavailable": 1})
    scene.egresses.objects.forget()
    await scene.egresses.reconcile(KEY)
    assert scene.client.calls == [
        ("get", "deployments", "nat"),
        ("get", "services", "nat"),
        ("get", "poddisruptionbudgets", "nat"),
    ]


async def test_a_change_of_status_costs_one_write(scene: Scene) -> None:
    await reconciled(scene)
    scene.api.put(DEPLOYMENTS, scene.find(DEPLOYMENTS) | {"status": {"replicas": 1}})
    scene.look()
    await scene.egresses.reconcile(KEY)
    assert scene.client.calls == [("patch status", "egresses", "nat")]
    assert scene.find(EGRESSES)["status"]["replicas"] == 1


@pytest.mark.parametrize("resource", [DEPLOYMENTS, SERVICES])
async def test_drift_is_put_right_with_one_read_and_one_write(scene: Scene, resource: Resource[Any]) -> None:
    await reconciled(scene)
    before = scene.find(resource)["spec"]
    scene.api.put(resource, scene.find(resource) | {"spec": before | {"replicas": 9, "type": "NodePort"}})
    scene.look()
    await scene.egresses.reconcile(KEY)
    assert [verb for verb, _, _ in scene.client.calls] == ["get", "replace"]
    restored = scene.find(resource)["spec"]
    assert {field: restored[field] for field in before} == before


async def test_a_change_of_the_egress_reaches_what_it_concerns(scene: Scene) -> None:
    await reconciled(scene)
    scene.add_egress(replicas=3)
    await scene.egresses.reconcile(KEY)
    assert scene.client.calls == [
        ("get", "deployments", "nat"),
        ("replace", "deployments", "nat"),
        ("patch status", "egresses", "nat"),
    ]
    assert scene.find(DEPLOYMENTS)["spec"]["replicas"] == 3
    [egress] = scene.api.all(EGRESSES)
    assert egress.status.observed_generation == egress.metadata.generation


async def test_router_pods_are_told_the_clusters_networks(scene: Scene) -> None:
    await reconciled(scene)
    [egress] = scene.api.all(EGRESSES)
    assert egress.status.cluster_networks == ()
    metadata = {"name": "coil-cluster-networks", "namespace": "kube-system"}
    scene.api.put(CONFIG_MAPS, {"metadata": metadata, "data": {"networks": "198.51.100.0/24\n2001:db8::/64\n"}})
    scene.look()
    await scene.egresses.reconcile(KEY)
    [egress] = scene.api.all(EGRESSES)
    assert egress.status.cluster_networks == ("198.51.100.0/24", "2001:db8::/64")
    # Where nobody tells them any more, what was told last counts on.
    scene.api.remove(CONFIG_MAPS, "coil-cluster-networks", "kube-system")
    scene.look()
    scene.client.calls.clear()
    await scene.egresses.reconcile(KEY)
    assert scene.client.calls == []


async def test_a_budget_that_is_no_longer_wanted_goes(scene: Scene) -> None:
    await reconciled(scene, podDisruptionBudget={"maxUnavailable": 1})
    scene.add_egress()
    await scene.egresses.reconcile(KEY)
    assert scene.api.find_document(POD_DISRUPTION_BUDGETS, "nat", "internet") is None


@pytest.mark.parametrize("resource", [DEPLOYMENTS, SERVICES, POD_DISRUPTION_BUDGETS])
async def test_what_is_not_ours_is_told_and_not_touched(scene: Scene, resource: Resource[Any]) -> None:
    foreign = {"metadata": {"name": "nat", "namespace": "internet"}, "spec": {"other": True}}
    before = dict(scene.api.put(resource, foreign))
    scene.add_egress(podDisruptionBudget={"maxUnavailable": 1})
    assert isinstance(await scene.egresses.reconcile(KEY), RequeueAfter)
    assert scene.find(resource) == before
    (reason,) = scene.told.messages
    assert reason == f"{resource.kind}NameTaken"
    assert scene.find(EGRESSES)["status"]["observedGeneration"] == 0, "not all of it has been made"
    kinds: tuple[Resource[Any], ...] = (DEPLOYMENTS, SERVICES, POD_DISRUPTION_BUDGETS)
    assert all(scene.api.find_document(kind, "nat", "internet") for kind in kinds)


async def test_a_budget_that_is_not_ours_is_not_deleted_either(scene: Scene) -> None:
    scene.api.put(POD_DISRUPTION_BUDGETS, {"metadata": {"name": "nat", "namespace": "internet"}, "spec": {}})
    scene.add_egress()
    assert await scene.egresses.reconcile(KEY) == DONE
    assert scene.api.find_document(POD_DISRUPTION_BUDGETS, "nat", "internet") is not None


async def test_what_an_earlier_egress_of_the_name_left_is_waited_for_in_silence(scene: Scene) -> None:
    await reconciled(scene)
    scene.api.remove(EGRESSES, "nat", "internet")
    scene.add_egress()
    assert isinstance(await scene.egresses.reconcile(KEY), RequeueAfter)
    assert scene.told.messages == {}
    scene.api.remove(DEPLOYMENTS, "nat", "internet")
    scene.api.remove(SERVICES, "nat", "internet")
    scene.look()
    assert await scene.egresses.reconcile(KEY) == DONE


@pytest.mark.parametrize(
    "refusal",
    [InvalidError("no such field", status=422), ForbiddenError("exceeded quota", status=403)],
)
async def test_a_refusal_is_told_and_keeps_nothing_else_from_being_made(scene: Scene, refusal: InvalidError) -> None:
    scene.client.refusals["create", "deployments"] = refusal
    scene.add_egress(podDisruptionBudget={"minAvailable": 1})
    with pytest.raises(type(refusal)):
        await scene.egresses.reconcile(KEY)
    assert scene.told.messages == {
        "DeploymentRefused": f"the API server refuses the Deployment: {refusal.message}",
    }
    assert scene.find(SERVICES)
    assert scene.find(POD_DISRUPTION_BUDGETS)
    assert scene.find(EGRESSES)["status"]["selector"]
    scene.client.refusals.clear()
    scene.look()
    await scene.egresses.reconcile(KEY)
    assert scene.find(DEPLOYMENTS)


async def test_a_refused_change_keeps_the_number_of_pods_in_the_status(scene: Scene) -> None:
    await reconciled(scene)
    scene.api.put(DEPLOYMENTS, scene.find(DEPLOYMENTS) | {"status": {"replicas": 2}})
    scene.client.refusals["replace", "deployments"] = InvalidError("no such field", status=422)
    scene.add_egress(template={"spec": {"containers": [{"name": "x"}]}})
    with pytest.raises(InvalidError):
        await scene.egresses.reconcile(KEY)
    assert scene.find(EGRESSES)["status"]["replicas"] == 2


@pytest.mark.parametrize(
    "trouble",
    [UnavailableError("down"), ConflictError("newer", status=409), AlreadyExistsError("there", status=409)],
)
async def test_trouble_that_says_nothing_about_the_egress_is_not_told(scene: Scene, trouble: UnavailableError) -> None:
    scene.client.refusals["create", "services"] = trouble
    scene.add_egress()
    with pytest.raises(type(trouble)):
        await scene.egresses.reconcile(KEY)
    assert scene.told.messages == {}


@pytest.mark.parametrize("plural", ["deployments", "services", "poddisruptionbudgets"])
async def test_nothing_is_made_again_in_a_namespace_that_goes(scene: Scene, plural: str) -> None:
    scene.client.refusals["create", plural] = NamespaceTerminatingError("namespace internet goes", status=403)
    scene.add_egress(podDisruptionBudget={"minAvailable": 1})
    assert await scene.egresses.reconcile(KEY) == DONE
    assert scene.told.messages == {}


async def test_one_that_breaks_rules_is_told_and_carried_out(scene: Scene) -> None:
    scene.add_egress(destinations=["nonsense"])
    assert await scene.egresses.reconcile(KEY) == DONE
    assert scene.told.messages.keys() == {"EgressInvalid"}
    assert scene.find(DEPLOYMENTS)


PRIVILEGED = {"spec": {"containers": [], "volumes": [{"name": "root", "hostPath": {"path": "/"}}]}}
NOT_ALLOWED = "no router pods are made of the template, and a Deployment that is there keeps its own"


@pytest.mark.parametrize(
    ("template", "field"),
    [
        (PRIVILEGED, "spec.template.spec.volumes[0].hostPath"),
        ({"spec": {"hostNetwork": True}}, "spec.template.spec.hostNetwork"),
    ],
)
async def test_a_template_that_is_not_allowed_makes_no_router_pods(scene: Scene, template: Any, field: str) -> None:
    scene.add_egress(template=template, podDisruptionBudget={"maxUnavailable": 1})
    assert await scene.egresses.reconcile(KEY) == DONE
    assert scene.told.messages.keys() == {"TemplateNotAllowed"}
    assert scene.told.messages["TemplateNotAllowed"].startswith(f"{NOT_ALLOWED}: {field}: must not be")
    assert scene.api.find_document(DEPLOYMENTS, "nat", "internet") is None
    assert scene.find(SERVICES)
    assert scene.find(POD_DISRUPTION_BUDGETS)
    status = scene.find(EGRESSES)["status"]
    assert (status["observedGeneration"], status["replicas"]) == (0, 0), "not all of it has been made"
    scene.add_egress()
    assert await scene.egresses.reconcile(KEY) == DONE
    assert scene.find(DEPLOYMENTS)
    [egress] = scene.api.all(EGRESSES)
    assert egress.status.observed_generation == egress.metadata.generation


async def test_a_deployment_keeps_its_template_but_for_one_that_is_allowed(scene: Scene) -> None:
    await reconciled(scene)
    before = scene.find(DEPLOYMENTS)
    scene.add_egress(template=PRIVILEGED, replicas=3, strategy={"type": "Recreate"})
    assert await scene.egresses.reconcile(KEY) == DONE
    after = scene.find(DEPLOYMENTS)
    assert after["spec"] == before["spec"] | {"replicas": 3}
    scene.look()
    scene.client.calls.clear()
    assert await scene.egresses.reconcile(KEY) == DONE
    assert scene.client.calls == [], "what is in line costs no call"
    scene.api.remove(DEPLOYMENTS, "nat", "internet")
    for _ in range(2):  # the cache does not know yet, and then it does
        assert await scene.egresses.reconcile(KEY) == DONE
        scene.egresses.objects.forget()
        scene.look()
    assert scene.api.find_document(DEPLOYMENTS, "nat", "internet") is None


async def test_an_admin_allows_privileged_templates_but_no_host_network() -> None:
    scene = Scene(privileged_templates=True)
    scene.add_egress(template=PRIVILEGED)
    assert await scene.egresses.reconcile(KEY) == DONE
    assert scene.told.messages == {}
    assert scene.find(DEPLOYMENTS)["spec"]["template"]["spec"]["volumes"] == PRIVILEGED["spec"]["volumes"]
    scene.add_egress(template={"spec": {"hostNetwork": True}})
    assert await scene.egresses.reconcile(KEY) == DONE
    assert scene.told.messages.keys() == {"TemplateNotAllowed"}
    assert "hostNetwork" not in scene.find(DEPLOYMENTS)["spec"]["template"]["spec"]


async def test_one_that_goes_is_left_to_the_garbage_collector(scene: Scene) -> None:
    await reconciled(scene)
    going = scene.find(EGRESSES)
    going["metadata"] |= {"deletionTimestamp": "2030-01-01T00:00:00Z", "finalizers": ["x"]}
    scene.api.put(EGRESSES, going)
    scene.look()
    assert await scene.egresses.reconcile(KEY) == DONE
    scene.api.remove(EGRESSES, "nat", "internet")
    scene.look()
    assert await scene.egresses.reconcile(KEY) == DONE
    assert scene.client.calls == []
    assert scene.api.find_document(SERVICE_ACCOUNTS, "coil-egress", "internet") is not None
