"""Clients that no coild tells of: told by the controller, a moment later, and by nobody twice."""

from collections.abc import Sequence
from ipaddress import ip_address
from typing import Any, Final

import pytest
import structlog
from prometheus_client import CollectorRegistry, generate_latest
from structlog.testing import capture_logs

from coil.crd.builtin import NAMESPACES, PODS
from coil.crd.egress import EGRESSES
from coil.crd.egress_client_slice import (
    EGRESS_CLIENT_SLICES,
    MAX_ADDRESSES,
    TOO_MANY_CLIENTS,
    EgressClientSlice,
    extra_slice_name,
    slice_name,
)
from coil.crd.names import LABEL_EGRESS, LABEL_NODE, NodeName
from coil.reconcile.controller import DONE, RequeueAfter
from coil.reconcile.own_write import OwnWriter, OwnWrites
from coil_egress_controller.egress.client_metric import ClientPodCollector
from coil_egress_controller.egress.client_slice_reconciler import PATIENCE, ClientSliceReconciler
from tests.coil_egress_controller.scene import Scene

NODE: Final = NodeName("n1")
CLIENT: Final = "internet/nat/n1"
LOG: Final = structlog.get_logger()


class SliceScene(Scene):
    def __init__(self) -> None:
        super().__init__()
        self.now = 1000.0
        writes: OwnWrites[EgressClientSlice] = OwnWrites()
        self.client_slice_cache.subscribe(writes.observe)
        self.slices = ClientSliceReconciler(
            egresses=self.egress_cache,
            pods=self.client_cache,
            namespaces=self.namespace_cache,
            slices=self.client_slice_cache,
            writer=OwnWriter(self.client, EGRESS_CLIENT_SLICES, self.client_slice_cache, writes),
            recorder=self.told,
            clock=lambda: self.now,
            log=LOG,
        )
        self.add_egress()

    def add_pod(self, name: str, *addresses: str, egress: str = "nat", **changes: Any) -> None:
        document = {
            "metadata": {
                "name": name,
                "namespace": "apps",
                "annotations": {"egress.coil.cybozu.com/internet": egress},
            },
            "spec": {"nodeName": NODE} | changes.get("spec", {}),
            "status": {"phase": "Running", "podIPs": [{"ip": each} for each in addresses]} | changes.get("status", {}),
        }
        self.api.put(PODS, document)
        self.look()

    def tell(self, *addresses: str) -> None:
        """The node's coild tells of these."""
        labels = {LABEL_EGRESS: "nat", LABEL_NODE: NODE}
        metadata = {"name": slice_name("nat", NODE), "namespace": "internet", "labels": labels}
        before = self.api.find_document(EGRESS_CLIENT_SLICES, slice_name("nat", NODE), "internet")
        told = {"nodeName": NODE, "addresses": list(addresses)}
        self.api.put(EGRESS_CLIENT_SLICES, (before or {"metadata": metadata}) | told)
        self.look()

    def extra(self) -> tuple[Sequence[str], int] | None:
        """Addresses and pods of the controller's own slice."""
        found = self.api.find(EGRESS_CLIENT_SLICES, extra_slice_name("nat", NODE), "internet")
        return None if found is None else (found.addresses, found.pods)

    async def pass_time(self) -> None:
        """Until everything that is lacking is told, and the caches have followed."""
        await self.slices.reconcile(CLIENT)
        self.now += PATIENCE
        assert await self.slices.reconcile(CLIENT) == DONE
        self.look()


@pytest.fixture
def scene() -> SliceScene:
    return SliceScene()


async def test_who_is_lacking_for_a_moment_is_told(scene: SliceScene) -> None:
    scene.add_pod("web", "10.1.0.2", "fd00::2")
    wait = await scene.slices.reconcile(CLIENT)
    assert isinstance(wait, RequeueAfter)
    assert scene.extra() is None
    scene.now += PATIENCE
    assert await scene.slices.reconcile(CLIENT) == DONE
    assert scene.extra() == (("10.1.0.2", "fd00::2"), 1)
    found = scene.api.get(EGRESS_CLIENT_SLICES, extra_slice_name("nat", NODE), "internet")
    assert (found.node_name, found.egress, found.of_node) == (NODE, "nat", False)
    [owner] = found.metadata.owner_references
    assert (owner.kind, owner.name) == ("Egress", "nat")
    # The next one waits, too; those that are told stay.
    scene.look()
    scene.add_pod("another", "10.1.0.3")
    assert isinstance(await scene.slices.reconcile(CLIENT), RequeueAfter)
    assert scene.extra() == (("10.1.0.2", "fd00::2"), 1)
    await scene.pass_time()
    assert scene.extra() == (("10.1.0.2", "10.1.0.3", "fd00::2"), 2)


async def test_whom_coild_tells_of_needs_nobody_else(scene: SliceScene) -> None:
    scene.add_pod("web", "10.1.0.2")
    await scene.slices.reconcile(CLIENT)
    scene.tell("10.1.0.2")
    await scene.pass_time()
    assert scene.extra() is None
    assert [call for call in scene.client.calls if call.verb != "list"] == []


async def test_a_coild_that_comes_takes_over(scene: SliceScene) -> None:
    """As on a node that is moved from Coil in Go."""
    scene.add_pod("web", "10.1.0.2")
    scene.add_pod("another", "10.1.0.3")
    await scene.pass_time()
    scene.tell("10.1.0.2")
    await scene.pass_time()
    assert scene.extra() == (("10.1.0.3",), 1)
    scene.tell("10.1.0.2", "10.1.0.3")
    await scene.pass_time()
    assert scene.extra() is None


async def test_who_does_not_fit_is_told_of_and_takes_nobodys_place(scene: SliceScene) -> None:
    served = [str(ip_address("10.9.0.0") + number) for number in range(MAX_ADDRESSES)]
    scene.add_pod("crowd", *served)
    with capture_logs() as logs:
        await scene.pass_time()
        assert (scene.told.messages, logs) == ({}, [])
        scene.add_pod("web", "10.1.0.2")  # its text comes first in the order
        await scene.pass_time()
        await scene.pass_time()
    assert scene.extra() == (tuple(sorted(served)), 2)
    assert scene.told.messages[TOO_MANY_CLIENTS].startswith(f"router pods serve no further clients on node {NODE}")
    assert [(line["log_level"], line["client"], line["left_out"]) for line in logs] == [("warning", CLIENT, 1)]
    # What coild tells of makes room.
    scene.told.messages.clear()
    scene.tell(served[0])
    with capture_logs() as logs:
        await scene.pass_time()
    assert scene.extra() == (tuple(sorted(["10.1.0.2", *served[1:]])), 2)
    assert (scene.told.messages, [line["log_level"] for line in logs]) == ({}, ["info"])


async def test_a_new_leader_leaves_what_is_told(scene: SliceScene) -> None:
    scene.add_pod("web", "10.1.0.2")
    await scene.pass_time()
    writes: OwnWrites[EgressClientSlice] = OwnWrites()
    successor = ClientSliceReconciler(
        egresses=scene.egress_cache,
        pods=scene.client_cache,
        namespaces=scene.namespace_cache,
        slices=scene.client_slice_cache,
        writer=OwnWriter(scene.client, EGRESS_CLIENT_SLICES, scene.client_slice_cache, writes),
        recorder=scene.told,
        clock=lambda: 0.0,
        log=LOG,
    )
    assert await successor.reconcile(CLIENT) == DONE
    assert scene.extra() == (("10.1.0.2",), 1)


@pytest.mark.parametrize(
    "changes",
    [
        {"spec": {"hostNetwork": True}},
        {"status": {"phase": "Succeeded"}},
        {"status": {"podIPs": []}},
        {"egress": "other"},
        {"spec": {"nodeName": "n2"}},
    ],
)
async def test_who_is_no_client_of_it_there_is_not_told(scene: SliceScene, changes: dict[str, Any]) -> None:
    scene.add_pod("web", "10.1.0.2")
    await scene.pass_time()
    scene.add_pod("web", "10.1.0.2", **changes)
    await scene.pass_time()
    assert scene.extra() is None


async def test_only_namespaces_that_the_egress_allows_are_told(scene: SliceScene) -> None:
    scene.add_egress(allowedNamespaces={"matchLabels": {"egress": "yes"}})
    scene.add_pod("web", "10.1.0.2")
    await scene.pass_time()
    assert scene.extra() is None, "nobody knows the namespace"
    scene.api.put(NAMESPACES, {"metadata": {"name": "apps", "labels": {"egress": "no"}}})
    scene.look()
    await scene.pass_time()
    assert scene.extra() is None
    document = scene.api.find_document(NAMESPACES, "apps") or {}
    scene.api.put(NAMESPACES, document | {"metadata": document["metadata"] | {"labels": {"egress": "yes"}}})
    scene.look()
    await scene.pass_time()
    assert scene.extra() == (("10.1.0.2",), 1)
    scene.add_egress(allowedNamespaces={"matchLabels": {"egress": "other"}})
    await scene.pass_time()
    assert scene.extra() is None


async def test_without_the_egress_nobody_is_told(scene: SliceScene) -> None:
    scene.api.remove(EGRESSES, "nat", "internet")
    scene.add_pod("web", "10.1.0.2")
    await scene.pass_time()
    assert scene.extra() is None


def test_the_metric_names_each_address_of_each_client(scene: SliceScene) -> None:
    registry = CollectorRegistry()
    ClientPodCollector(scene.client_cache, registry)
    scene.add_pod("web", "10.20.30.40", "fd00::1", egress="nat, second")
    scene.add_pod("starting")
    told = [line for line in generate_latest(registry).decode().splitlines() if not line.startswith("#")]
    assert len(told) == 4
    # The name of the link is the address in hexadecimal digits, as in the specification.
    assert (
        'coil_egress_client_pod_info{egress="nat",egress_namespace="internet",interface="fou4_0a141e28",'
        'namespace="apps",pod="web",pod_ip="10.20.30.40"} 1.0'
    ) in told
