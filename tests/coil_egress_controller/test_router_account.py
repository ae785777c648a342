"""The account of router pods and what binds it: in each namespace with Egresses, and nowhere else."""

from collections.abc import Sequence
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from coil.crd.builtin import CLUSTER_ROLE_BINDINGS, ROLE_BINDINGS, SERVICE_ACCOUNTS, Subject
from coil.crd.egress import EGRESSES
from coil.crd.resource import Resource
from coil.kube.errors import (
    AlreadyExistsError,
    ConflictError,
    ForbiddenError,
    NamespaceTerminatingError,
    NotFoundError,
)
from coil.reconcile.controller import DONE
from coil_egress_controller.egress.router_account import ROUTER_BINDING, plan_subjects
from tests.coil.kube.memory_api import Document
from tests.coil_egress_controller.scene import Scene

ADMIN = {"kind": "User", "name": "coil-egress", "apiGroup": "rbac.authorization.k8s.io"}


def router(namespace: str) -> Document:
    return {"kind": "ServiceAccount", "name": "coil-egress", "namespace": namespace}


@pytest.fixture
def scene() -> Scene:
    return Scene()


def account(scene: Scene) -> Document | None:
    return scene.api.find_document(SERVICE_ACCOUNTS, "coil-egress", "internet")


def binding(scene: Scene) -> Document | None:
    return scene.api.find_document(ROLE_BINDINGS, "coil-egress", "internet")


def bind(scene: Scene, *subjects: Document) -> None:
    scene.api.put(CLUSTER_ROLE_BINDINGS, {"metadata": {"name": ROUTER_BINDING}, "subjects": list(subjects) or None})
    scene.look()


def subjects(scene: Scene) -> list[Document]:
    found = scene.api.find_document(CLUSTER_ROLE_BINDINGS, ROUTER_BINDING)
    assert found is not None
    held: list[Document] = found["subjects"]
    return held


async def test_an_account_comes_with_the_first_egress_and_goes_with_the_last(scene: Scene) -> None:
    scene.add_egress()
    await scene.accounts.reconcile("internet")
    made, bound = account(scene), binding(scene)
    assert made is not None
    assert bound is not None
    assert made["metadata"]["labels"]["app.kubernetes.io/component"] == "egress"
    assert bound["metadata"]["labels"] == made["metadata"]["labels"]
    assert bound["subjects"] == [router("internet")]
    assert bound["roleRef"] == {
        "apiGroup": "rbac.authorization.k8s.io",
        "kind": "ClusterRole",
        "name": "coil-egress",
    }
    scene.add_egress("second")
    scene.api.remove(EGRESSES, "nat", "internet")
    scene.look()
    await scene.accounts.reconcile("internet")
    assert (account(scene), binding(scene)) == (made, bound)
    scene.api.remove(EGRESSES, "second", "internet")
    scene.look()
    await scene.accounts.reconcile("internet")
    assert (account(scene), binding(scene)) == (None, None)


@pytest.mark.parametrize("resource", [SERVICE_ACCOUNTS, ROLE_BINDINGS])
async def test_what_somebody_deletes_is_made_again(scene: Scene, resource: Resource[Any]) -> None:
    scene.add_egress()
    await scene.accounts.reconcile("internet")
    scene.api.remove(resource, "coil-egress", "internet")
    scene.look()
    await scene.accounts.reconcile("internet")
    assert scene.api.find_document(resource, "coil-egress", "internet") is not None


async def test_an_egress_that_the_cache_has_not_heard_of_keeps_the_account(scene: Scene) -> None:
    scene.add_egress()
    await scene.accounts.reconcile("internet")
    scene.api.remove(EGRESSES, "nat", "internet")
    scene.look()
    scene.api.put(EGRESSES, {"metadata": {"name": "new", "namespace": "internet"}, "spec": {}})
    await scene.accounts.reconcile("internet")
    assert account(scene) is not None


@pytest.mark.parametrize(
    "error",
    [
        AlreadyExistsError("there", status=409),
        NotFoundError("no namespace", status=404),
        NamespaceTerminatingError("namespace internet is being terminated", status=403),
    ],
)
@pytest.mark.parametrize("kind", ["serviceaccounts", "rolebindings"])
async def test_an_account_that_cannot_or_need_not_be_made(scene: Scene, error: NotFoundError, kind: str) -> None:
    scene.add_egress()
    scene.client.refusals["create", kind] = error
    assert await scene.accounts.reconcile("internet") == DONE


@pytest.mark.parametrize("kind", ["serviceaccounts", "rolebindings"])
async def test_a_missing_right_is_an_error(scene: Scene, kind: str) -> None:
    scene.add_egress()
    scene.client.refusals["create", kind] = ForbiddenError("not allowed", status=403)
    with pytest.raises(ForbiddenError):
        await scene.accounts.reconcile("internet")


async def test_an_account_that_went_by_itself_is_no_error(scene: Scene) -> None:
    scene.api.put(SERVICE_ACCOUNTS, {"metadata": {"name": "coil-egress", "namespace": "internet"}})
    scene.look()
    scene.api.remove(SERVICE_ACCOUNTS, "coil-egress", "internet")
    assert await scene.accounts.reconcile("internet") == DONE


async def test_subjects_follow_the_namespaces_and_others_stay(scene: Scene) -> None:
    bind(scene, router("gone"), ADMIN)
    scene.add_egress()
    scene.add_egress(namespace="domestic")
    assert await scene.bindings.reconcile(ROUTER_BINDING) == DONE
    assert subjects(scene) == [ADMIN, router("domestic"), router("internet")]
    scene.look()
    scene.client.calls.clear()
    assert await scene.bindings.reconcile(ROUTER_BINDING) == DONE
    assert scene.client.calls == []


async def test_a_binding_without_any_subject(scene: Scene) -> None:
    bind(scene)
    assert await scene.bindings.reconcile(ROUTER_BINDING) == DONE
    assert scene.client.calls == []
    scene.add_egress()
    await scene.bindings.reconcile(ROUTER_BINDING)
    assert subjects(scene) == [router("internet")]


async def test_a_binding_that_somebody_else_has_changed_is_not_overwritten(scene: Scene) -> None:
    bind(scene)
    scene.add_egress()
    scene.api.put(CLUSTER_ROLE_BINDINGS, {"metadata": {"name": ROUTER_BINDING}, "subjects": [ADMIN]})
    with pytest.raises(ConflictError):
        await scene.bindings.reconcile(ROUTER_BINDING)
    assert subjects(scene) == [ADMIN]


async def test_there_need_not_be_a_binding_of_the_whole_cluster(scene: Scene) -> None:
    scene.add_egress()
    assert await scene.bindings.reconcile(ROUTER_BINDING) == DONE
    assert scene.client.calls == []


NAMESPACES = st.lists(st.sampled_from(["a", "b", "c", "d"]), unique=True)
SUBJECTS = st.lists(
    st.builds(
        Subject,
        kind=st.sampled_from(["ServiceAccount", "User"]),
        name=st.sampled_from(["coil-egress", "other"]),
        namespace=st.sampled_from(["a", "b", "c", "d"]),
    ),
    unique_by=lambda subject: (subject.kind, subject.name, subject.namespace),
)


@given(present=SUBJECTS, namespaces=NAMESPACES)
def test_any_subjects_become_those_of_the_namespaces(present: Sequence[Subject], namespaces: list[str]) -> None:
    planned = plan_subjects(tuple(present), namespaces)
    ours = [each.namespace for each in planned if (each.kind, each.name) == ("ServiceAccount", "coil-egress")]
    assert sorted(ours) == sorted(namespaces)
    others = [each for each in present if (each.kind, each.name) != ("ServiceAccount", "coil-egress")]
    assert [each for each in planned if each in others] == others
    assert plan_subjects(planned, namespaces) == planned
