"""Others apply objects on the server's side, as GitOps tools and Helm 4 do: nobody meets a conflict, what the one has
written stays when the other writes again, and nothing is written that is there already.
"""

import asyncio
import json
from collections.abc import AsyncIterator, Iterator
from typing import Any

import pytest

from coil.crd.names import FINALIZER
from coil.kube.client import KubeClient
from integration.apiserver.egress_world import NAME, Document, EgressReplica, EgressWorld, egress_document
from integration.apiserver.ipam_world import IpamWorld, until
from integration.cluster.control_plane import ControlPlane, KubectlError
from integration.deployment import former_router_binding
from integration.patience import wait_until

pytestmark = pytest.mark.apiserver

MANAGER = "gitops"
POOLS = "/apis/coil.cybozu.com/v2/addresspools"
WEBHOOKS = "/apis/admissionregistration.k8s.io/v1/validatingwebhookconfigurations"


def server_apply(plane: ControlPlane, *documents: Document) -> None:
    """As a manager of fields of its own, without force. Raises KubectlError for a conflict."""
    # A part of an object is valid once it is merged, which only the server can tell.
    plane.kubectl(
        *("apply", "--server-side", f"--field-manager={MANAGER}", "--validate=false", "--filename=-"),
        stdin=json.dumps({"apiVersion": "v1", "kind": "List", "items": documents}),
    )


def foreign_spec_managers(found: Document) -> list[str]:
    """Who, besides the tool, has written in the object's spec."""
    return [
        entry["manager"]
        for entry in found["metadata"]["managedFields"]
        if entry["manager"] != MANAGER and "f:spec" in entry.get("fieldsV1", {})
    ]


@pytest.fixture
async def ipam(plane: ControlPlane, admin: KubeClient) -> AsyncIterator[IpamWorld]:
    world = IpamWorld(plane, admin)
    yield world
    refused = world.missing_rights()
    await world.close()
    assert refused == [], "the role is too narrow"


async def test_a_pool_that_is_applied_again_keeps_finalizer_and_status(ipam: IpamWorld) -> None:
    await ipam.start_ready()
    plane, name = ipam.plane, f"{ipam.name}-applied"

    def manifest(*subnets: str) -> Document:
        spec = {"blockSizeBits": 2, "subnets": [{"ipv4": subnet} for subnet in subnets]}
        return {"apiVersion": "coil.cybozu.com/v2", "kind": "AddressPool", "metadata": {"name": name}, "spec": spec}

    def read() -> Document:
        return plane.read(f"{POOLS}/{name}")

    async def blocks(used: int, total: int) -> None:
        async def counted() -> bool:
            found = (await asyncio.to_thread(read)).get("status", {}).get("blocks", {})
            return (found.get("used"), found.get("total")) == (used, total)

        await until(counted, what=f"{used} of {total} blocks are used")

    await asyncio.to_thread(server_apply, plane, manifest("10.92.0.0/29"))
    node = await ipam.add_node("node1")
    await ipam.ask("req", node=node, pool=name)  # type: ignore[arg-type]
    await blocks(1, 2)
    before = await asyncio.to_thread(read)
    await asyncio.to_thread(server_apply, plane, manifest("10.92.0.0/29"))
    again = await asyncio.to_thread(read)
    assert again == before
    assert again["metadata"]["finalizers"] == [FINALIZER]
    assert foreign_spec_managers(again) == []

    await asyncio.to_thread(server_apply, plane, manifest("10.92.0.0/29", "10.92.0.8/29"))
    await blocks(1, 4)
    grown = await asyncio.to_thread(read)
    assert grown["metadata"]["finalizers"] == [FINALIZER]
    assert grown["status"]["observedGeneration"] == grown["metadata"]["generation"] == 2


@pytest.fixture(scope="module")
def world(plane: ControlPlane) -> Iterator[EgressWorld]:
    """With one egress-controller, which compares everything each second."""
    world = EgressWorld(plane)
    try:
        world.start_replica("--resync-interval=1s")
        yield world
        assert world.missing_rights() == []
    finally:
        world.close()


@pytest.fixture
def namespace(world: EgressWorld) -> Iterator[str]:
    name = world.add_namespace()
    yield name
    world.kubectl(name, "delete", "egress", "--all")


def await_comparisons(replica: EgressReplica, count: int = 2) -> None:
    """So many from now on have been made, and the one before the last is done with."""
    wanted = replica.resyncs() + count
    wait_until(lambda: replica.resyncs() >= wanted, what="further comparisons")


def test_an_egress_that_is_applied_again_keeps_what_was_filled_in(world: EgressWorld, namespace: str) -> None:
    manifest = egress_document(namespace, template={"metadata": {"labels": {"team": "net"}}})
    server_apply(world.plane, manifest)
    world.await_object("deployment", namespace)
    wait_until(lambda: world.get("egress", namespace).get("status"), what="a status")
    await_comparisons(world.replicas[0])
    before, written = world.get("egress", namespace), world.versions(namespace)
    assert before["spec"]["template"]["spec"]["containers"], "by the webhook, once"
    server_apply(world.plane, manifest)
    await_comparisons(world.replicas[0])
    assert world.get("egress", namespace) == before
    assert world.versions(namespace) == written
    assert foreign_spec_managers(before) == []


def test_a_scaled_egress_whose_manifest_says_nothing_of_replicas_stays_scaled(
    world: EgressWorld, namespace: str
) -> None:
    manifest = egress_document(namespace)
    server_apply(world.plane, manifest)
    world.await_object("deployment", namespace)
    world.kubectl(namespace, "scale", "egress", "nat", "--replicas=3")
    server_apply(world.plane, manifest)
    wait_until(lambda: world.get("deployment", namespace)["spec"]["replicas"] == 3, what="three router pods")
    assert world.get("egress", namespace)["spec"]["replicas"] == 3


def test_what_others_apply_to_the_objects_of_an_egress_survives(world: EgressWorld, namespace: str) -> None:
    server_apply(world.plane, egress_document(namespace))
    for kind in ("deployment", "service"):
        world.await_object(kind, namespace)

    def addition(version: str, kind: str, **more: Any) -> Document:
        metadata = {"name": "nat", "namespace": namespace, "annotations": {"team": "net"}}
        return {"apiVersion": version, "kind": kind, "metadata": metadata, **more}

    additions = addition("apps/v1", "Deployment"), addition("v1", "Service")
    server_apply(world.plane, *additions)
    await_comparisons(world.replicas[0])
    settled = world.versions(namespace)
    server_apply(world.plane, *additions)
    await_comparisons(world.replicas[0], 3)
    assert world.versions(namespace) == settled, "nobody writes again and again"

    # A change of the Egress goes through, and leaves alone what is not the controller's.
    server_apply(world.plane, egress_document(namespace, replicas=2))
    wait_until(lambda: world.get("deployment", namespace)["spec"]["replicas"] == 2, what="two router pods")
    for kind in ("deployment", "service"):
        assert world.get(kind, namespace)["metadata"]["annotations"]["team"] == "net"
    # What is the controller's is told to be so.
    with pytest.raises(KubectlError, match=r"conflict[\s\S]*\.spec\.replicas"):
        server_apply(world.plane, addition("apps/v1", "Deployment", spec={"replicas": 5}))


def test_the_chart_that_is_applied_again_takes_nothing_from_the_programs(world: EgressWorld, namespace: str) -> None:
    """The subjects of a binding, and whom the API server is to trust of the webhooks."""
    binding = former_router_binding()
    server_apply(world.plane, egress_document(namespace), binding)
    wait_until(lambda: namespace in world.subjects(), what="router pods may watch")
    found = world.plane.read(f"{WEBHOOKS}/{NAME}")
    assert all(webhook["clientConfig"]["caBundle"] for webhook in found["webhooks"])
    configuration = {
        "apiVersion": "admissionregistration.k8s.io/v1",
        "kind": "ValidatingWebhookConfiguration",
        "metadata": {"name": NAME},
        "webhooks": [
            {**webhook, "clientConfig": {"url": webhook["clientConfig"]["url"]}} for webhook in found["webhooks"]
        ],
    }
    for _ in range(2):
        server_apply(world.plane, configuration, binding)
        assert world.plane.read(f"{WEBHOOKS}/{NAME}")["webhooks"] == found["webhooks"]
        assert namespace in world.subjects()
    world.plane.kubectl("delete", "clusterrolebinding", "coil-egress")
