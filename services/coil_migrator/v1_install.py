"""What an installation of Coil v1 consists of in the API server, who of its pods still writes to etcd, and the wait for
something that was asked to go.

The names are those of v1's own manifests, and the order is v1's end: first who writes, then what they are allowed to.
"""

import asyncio
import re
from collections.abc import Awaitable, Callable, Iterable
from dataclasses import dataclass
from typing import Any

from coil.crd.builtin import CLUSTER_ROLE_BINDINGS, DEPLOYMENTS, SERVICE_ACCOUNTS, Pod
from coil.crd.meta import ObjectMeta, Struct
from coil.crd.resource import Resource
from coil.kube.errors import UnavailableError
from coil_migrator.workload import DAEMON_SETS

NAMESPACE = "kube-system"


class Thing(Struct, frozen=True, kw_only=True):
    """Of some kinds only their being there counts."""

    metadata: ObjectMeta


CONFIG_MAPS: Resource[Thing] = Resource("", "v1", "configmaps", "ConfigMap", namespaced=True, type=Thing)
CLUSTER_ROLES: Resource[Thing] = Resource(
    "rbac.authorization.k8s.io", "v1", "clusterroles", "ClusterRole", namespaced=False, type=Thing
)


@dataclass(frozen=True, slots=True)
class V1Object:
    """One object of the installation; `namespace` is empty for a kind without."""

    resource: Resource[Any]
    name: str

    @property
    def namespace(self) -> str:
        return NAMESPACE if self.resource.namespaced else ""

    def __str__(self) -> str:
        return f"{self.resource.kind} {self.name}"


V1_OBJECTS: tuple[V1Object, ...] = tuple(
    V1Object(resource, name)
    for resource, name in (
        (DAEMON_SETS, "coil-node"),
        (DEPLOYMENTS, "coil-controllers"),
        (CONFIG_MAPS, "coil-config"),
        (CLUSTER_ROLE_BINDINGS, "coil-node"),
        (CLUSTER_ROLE_BINDINGS, "coil-controllers"),
        (CLUSTER_ROLES, "coil-node"),
        (CLUSTER_ROLES, "coil-controllers"),
        (SERVICE_ACCOUNTS, "coil-node"),
        (SERVICE_ACCOUNTS, "coil-controller"),
    )
)

_WRITERS = {"DaemonSet": re.compile(r"coil-node"), "ReplicaSet": re.compile(r"coil-controllers-[0-9a-z]+")}
"""Who makes v1's own pods: the ReplicaSets are the Deployment's."""


def select_writers(pods: Iterable[Pod]) -> list[str]:
    """The names of v1's own pods among those of its namespace: as long as there is one, etcd may change."""
    return [
        pod.metadata.name
        for pod in pods
        for owner in pod.metadata.owner_references
        if owner.controller and (name := _WRITERS.get(owner.kind)) and name.fullmatch(owner.name)
    ]


POLL_SECONDS = 0.5


async def wait_until_true(holds: Callable[[], Awaitable[bool]], *, timeout: float) -> bool:
    """True as soon as `holds` says so, False after `timeout` seconds. Asks at least once.

    An API server that cannot be heard is asked again; other errors are raised.
    """
    loop = asyncio.get_running_loop()
    deadline = loop.time() + timeout
    while True:
        try:
            if await holds():
                return True
        except UnavailableError:
            pass
        if loop.time() >= deadline:
            return False
        await asyncio.sleep(POLL_SECONDS)
