"""What several modules share: the API server with the chart applied, and one node with Coil on it for all tests of
coild: pools of each family, a namespace for each pool.

The modules run in several processes at once (`--dist=loadfile`), each with an API server of its own, which modules use
one after the other. What one process makes has random names and addresses, or is in namespaces of its own.
"""

import secrets
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path

import pytest

from coil.kube.client import KubeClient
from integration.apiserver.bare_node import BareNode
from integration.apiserver.neighbours import Neighbours
from integration.apiserver.plane_pool import PlanePool
from integration.apiserver.refusal_log import missing_rights
from integration.apiserver.runtime import Runtime
from integration.apiserver.sandbox import PodName, Sandbox
from integration.cluster.control_plane import ControlPlane
from integration.service import Service

SUBNETS = {
    "dual": {"ipv4": "10.81.0.0/24", "ipv6": "fd81::/120"},
    "v4": {"ipv4": "10.82.0.0/24"},
    "v6": {"ipv6": "fd83::/120"},
    "dry": {"ipv4": "10.84.0.0/31"},
}
"""By pool, and so by namespace; but the namespace `dual` has no annotation, and its pool is `default`."""

BLOCK_BITS = {"dual": 3, "v4": 3, "v6": 3, "dry": 1}


_SHARED_WORLDS = {"installed_node", "neighbours"}
"""Fixtures that several modules share."""


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Of the modules here, those of shared worlds come last: each world keeps an API server to itself."""
    here = [item for item in items if item.path.parent == Path(__file__).parent]
    last = {item.path for item in here if _SHARED_WORLDS & set(getattr(item, "fixturenames", []))}
    ordered = iter(sorted(here, key=lambda item: item.path in last))
    items[:] = [next(ordered) if item.path.parent == Path(__file__).parent else item for item in items]


@dataclass(frozen=True, slots=True)
class CoilNode:
    """A bare node, the programs that serve it, and the runtime that calls the plugin there."""

    node: BareNode
    runtime: Runtime
    controller: Service
    coild: Service


@pytest.fixture(scope="package")
def planes() -> Iterator[PlanePool]:
    with PlanePool() as planes:
        yield planes


@pytest.fixture(scope="module")
def plane(planes: PlanePool) -> Iterator[ControlPlane]:
    """An API server with the chart's kinds and roles, and nothing of other modules."""
    with planes.lend() as plane:
        yield plane


@pytest.fixture(scope="module")
def apiserver(plane: ControlPlane) -> ControlPlane:
    """The same for modules that use nothing of the chart."""
    return plane


@pytest.fixture
async def admin(plane: ControlPlane) -> AsyncIterator[KubeClient]:
    """The administrator's client of `plane`."""
    async with KubeClient.connect(plane.admin_kubeconfig) as client:
        yield client


@pytest.fixture(scope="package")
def installed_node(planes: PlanePool) -> Iterator[CoilNode]:
    with planes.lend() as plane, BareNode.up(plane) as node:
        for pool, subnet in SUBNETS.items():
            node.make_pool(pool if pool != "dual" else "default", subnet, bits=BLOCK_BITS[pool])
            node.make_namespace(pool, pool=pool if pool != "dual" else "")
        node.make_namespace("astray", pool="nowhere")
        runtime = node.install_plugin()
        controller = node.start_controller()
        coild = node.start_coild("--cooling=500ms")
        yield CoilNode(node, runtime, controller, coild)
        # Both had every right that they wanted.
        for service in (controller, coild):
            assert missing_rights(service.process.log) == []


@pytest.fixture(scope="package")
def neighbours(planes: PlanePool) -> Iterator[Neighbours]:
    """Two nodes without coild; to start one is the tests' part."""
    with planes.lend() as plane, Neighbours.up(plane) as world:
        yield world


@pytest.fixture
def coil(installed_node: CoilNode) -> CoilNode:
    """With all programs running, whatever the test before has done to them."""
    installed_node.node.plane.start_apiserver()
    installed_node.controller.ensure_running()
    installed_node.coild.ensure_running()
    return installed_node


@pytest.fixture
def make_pod(coil: CoilNode) -> Iterator[Callable[[str], Sandbox]]:
    """Makes sandboxes of new pods in a namespace; each is deleted and destroyed after the test."""
    with ExitStack() as undo:

        def make(namespace: str) -> Sandbox:
            pod = PodName(namespace, f"pod-{secrets.token_hex(3)}")
            sandbox = coil.node.make_sandbox(pod, container_id=secrets.token_hex(32))
            undo.callback(sandbox.destroy)
            undo.callback(coil.runtime.delete, sandbox)
            return sandbox

        # Last in, first out: the programs must run for the deletions.
        yield make
        coil.node.plane.start_apiserver()
        coil.coild.ensure_running()
