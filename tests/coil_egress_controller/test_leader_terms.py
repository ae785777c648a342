"""Terms of leadership: what is there at their beginning is worked on, what happens is, and nothing outlives them."""

import asyncio
from typing import Any

import pytest

from coil.crd.builtin import CLUSTER_ROLE_BINDINGS, DEPLOYMENTS, ROLE_BINDINGS, SERVICE_ACCOUNTS, SERVICES
from coil.crd.egress import EGRESSES
from coil.crd.resource import Resource
from coil_egress_controller.egress.controllers import EgressControllers
from coil_egress_controller.egress.router_account import ROUTER_BINDING
from tests.coil.manager.replica import Replica
from tests.coil_egress_controller.scene import LOG, PROGRAM, Scene


class EgressReplica(Replica):
    def __init__(self, scene: Scene) -> None:
        self.scene = scene
        controllers = EgressControllers(
            caches=scene.caches,
            client=scene.client,
            recorder=scene.told,
            program=PROGRAM,
            resync=3600.0,
            log=LOG,
        )
        super().__init__(controllers.setup, scene.look)

    def subjects(self) -> list[str]:
        found = self.scene.api.find_document(CLUSTER_ROLE_BINDINGS, ROUTER_BINDING) or {}
        return [subject["namespace"] for subject in found.get("subjects") or ()]

    def carried_out(self) -> bool:
        kinds = (DEPLOYMENTS, SERVICES)
        status = (self.scene.api.find_document(EGRESSES, "nat", "internet") or {}).get("status", {})
        return all(self.scene.api.find_document(kind, "nat", "internet") for kind in kinds) and "selector" in status


@pytest.fixture
def scene() -> Scene:
    scene = Scene()
    scene.api.put(CLUSTER_ROLE_BINDINGS, {"metadata": {"name": ROUTER_BINDING}})
    return scene


async def test_what_is_there_and_what_comes_is_carried_out(scene: Scene) -> None:
    scene.add_egress()
    replica = EgressReplica(scene)
    async with replica.term():
        await replica.until(lambda: replica.carried_out() and replica.subjects() == ["internet"])
        scene.add_egress(namespace="domestic")
        await replica.until(lambda: replica.subjects() == ["internet", "domestic"])


async def test_what_goes_is_made_again(scene: Scene) -> None:
    scene.add_egress()
    replica = EgressReplica(scene)
    async with replica.term():
        await replica.until(lambda: replica.carried_out() and replica.subjects() == ["internet"])
        gone: list[tuple[Resource[Any], str]] = [
            (DEPLOYMENTS, "nat"),
            (SERVICES, "nat"),
            (SERVICE_ACCOUNTS, "coil-egress"),
            (ROLE_BINDINGS, "coil-egress"),
        ]
        for resource, name in gone:
            scene.api.remove(resource, name, "internet")
        await replica.until(lambda: all(scene.api.find_document(resource, name, "internet") for resource, name in gone))
        scene.api.put(CLUSTER_ROLE_BINDINGS, {"metadata": {"name": ROUTER_BINDING}})
        await replica.until(lambda: replica.subjects() == ["internet"])


async def test_a_last_egress_that_went_while_nobody_led_takes_account_and_subject(scene: Scene) -> None:
    scene.add_egress()
    replica = EgressReplica(scene)
    async with replica.term():
        await replica.until(lambda: replica.carried_out() and replica.subjects() == ["internet"])
    scene.api.remove(EGRESSES, "nat", "internet")
    scene.look()
    for _ in range(50):
        await asyncio.sleep(0)
    assert replica.subjects() == ["internet"], "nobody leads"
    async with replica.term():
        await replica.until(lambda: not replica.subjects())
        await replica.until(lambda: scene.api.find_document(SERVICE_ACCOUNTS, "coil-egress", "internet") is None)
