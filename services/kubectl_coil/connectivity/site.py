"""The namespace of a connectivity test, with the pods that it needs, for as long as it lasts."""

import asyncio
import secrets
import time
from collections.abc import AsyncIterator, Mapping, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from ipaddress import ip_address
from typing import Any, Final, Protocol

from coil.crd.builtin import NAMESPACES, SERVICES, Service
from coil.crd.names import ANNOTATION_EGRESS_PREFIX
from coil.crd.resource import NamespacedName
from coil.kernel.family import IPAddress
from coil.kube.errors import ForbiddenError, NotFoundError
from kubectl_coil.cluster import Executor, Reader, Writer
from kubectl_coil.connectivity.resources import PODS, ProbePod

PORT: Final = 8080
"""Where the pods answer."""
CONTAINER: Final = "probe"
LABEL: Final = "coil.cybozu.com/connectivity"
PREFIX: Final = "coil-connectivity-"
SERVICE: Final = "servers"
_PAUSE: Final = 0.5
_GONE_SECONDS: Final = 120.0
_ACCOUNT_SECONDS: Final = 15.0

Document = dict[str, Any]


class SiteAccess(Reader, Writer, Executor, Protocol):
    """All that a cluster is asked for here."""


@dataclass(frozen=True, slots=True, kw_only=True)
class PodPlan:
    """A pod to be made. `egress` is the Egress that it is annotated with; `host_port` 0 for none."""

    name: str
    node: str
    egress: NamespacedName | None = None
    host_port: int = 0
    serves: bool = False
    """Whether the Service leads to it."""


@dataclass(slots=True)
class Site:
    """Make it with `open_site`."""

    cluster: SiteAccess
    namespace: str
    image: str
    ready: dict[str, ProbePod] = field(default_factory=dict)
    troubles: dict[str, str] = field(default_factory=dict)
    """Why pods did not start, by name."""
    left_over: bool = False
    """Whether the namespace is still there, long after it was to go."""

    async def start_pods(self, plans: Sequence[PodPlan], *, seconds: float) -> None:
        """Make them, and wait until each is ready or the time is over: then `ready` and `troubles` have all of them.

        Raises ApiError.
        """
        for plan in plans:
            await self._create_pod(plan)
        deadline = time.monotonic() + seconds
        while True:
            found = {each.metadata.name: each for each in await self.cluster.list(PODS, namespace=self.namespace)}
            waiting = [plan.name for plan in plans if plan.name not in found or not found[plan.name].ready]
            failed = [name for name in waiting if name in found and found[name].status.phase == "Failed"]
            if len(failed) == len(waiting) or time.monotonic() > deadline:
                break
            await asyncio.sleep(_PAUSE)
        for plan in plans:
            if plan.name in waiting:
                self.troubles[plan.name] = found[plan.name].trouble if plan.name in found else "it is gone"
            else:
                self.ready[plan.name] = found[plan.name]

    async def start_service(self) -> Service:
        """Of the pods that serve, at `PORT` and in each family that the cluster has. Raises ApiError."""
        spec = {
            "selector": {LABEL: SERVICE},
            "ipFamilyPolicy": "PreferDualStack",
            "ports": [{"name": protocol.lower(), "port": PORT, "protocol": protocol} for protocol in ("TCP", "UDP")],
        }
        return await self.cluster.create(
            SERVICES, {"metadata": {"name": SERVICE}, "spec": spec}, namespace=self.namespace
        )

    def address(self, pod: str, *, version: int) -> IPAddress | None:
        """Of a pod that is ready; None if it has none of that family."""
        found = (ip_address(each.ip) for each in self.ready[pod].status.pod_ips)
        return next((address for address in found if address.version == version), None)

    async def _create_pod(self, plan: PodPlan) -> None:
        document = _pod_document(plan, self.image)
        deadline = time.monotonic() + _ACCOUNT_SECONDS
        while True:
            try:
                await self.cluster.create(PODS, document, namespace=self.namespace)
            except ForbiddenError:
                # Admission wants the namespace's default service account, which a controller makes a moment later.
                if time.monotonic() > deadline:
                    raise
                await asyncio.sleep(_PAUSE)
            else:
                return


@asynccontextmanager
async def open_site(cluster: SiteAccess, *, image: str) -> AsyncIterator[Site]:
    """A new namespace, deleted at the end of the block, also when it is cancelled. Raises ApiError."""
    site = Site(cluster, f"{PREFIX}{secrets.token_hex(4)}", image)
    labels = {
        "app.kubernetes.io/managed-by": "kubectl-coil",
        # One of the pods has a host port.
        "pod-security.kubernetes.io/enforce": "privileged",
    }
    try:
        await cluster.create(NAMESPACES, {"metadata": {"name": site.namespace, "labels": labels}})
        yield site
    finally:
        site.left_over = not await _remove(cluster, site.namespace)


async def _remove(cluster: SiteAccess, namespace: str) -> bool:
    """Whether it is gone in time."""
    await cluster.delete(NAMESPACES, namespace)
    deadline = time.monotonic() + _GONE_SECONDS
    while time.monotonic() < deadline:
        try:
            await cluster.get(NAMESPACES, namespace)
        except NotFoundError:
            return True
        await asyncio.sleep(_PAUSE)
    return False


def _pod_document(plan: PodPlan, image: str) -> Document:
    annotations: Mapping[str, str] = (
        {} if plan.egress is None else {f"{ANNOTATION_EGRESS_PREFIX}{plan.egress.namespace}": plan.egress.name}
    )
    port: Document = {"name": "probe", "containerPort": PORT, "protocol": "TCP"}
    if plan.host_port:
        port["hostPort"] = plan.host_port
    container = {
        "name": CONTAINER,
        "image": image,
        "command": ["coil-connectivity-probe", "serve", f"--port={PORT}"],
        "ports": [port],
        "readinessProbe": {"tcpSocket": {"port": PORT}, "periodSeconds": 1},
        "resources": {"requests": {"cpu": "10m", "memory": "32Mi"}},
        "securityContext": {
            "allowPrivilegeEscalation": False,
            "capabilities": {"drop": ["ALL"]},
            "readOnlyRootFilesystem": True,
        },
    }
    spec = {
        "nodeName": plan.node,
        "containers": [container],
        "automountServiceAccountToken": False,
        "enableServiceLinks": False,
        "terminationGracePeriodSeconds": 1,
        "securityContext": {"runAsNonRoot": True, "seccompProfile": {"type": "RuntimeDefault"}},
    }
    labels = {LABEL: SERVICE if plan.serves else plan.name}
    return {"metadata": {"name": plan.name, "labels": labels, "annotations": annotations}, "spec": spec}
