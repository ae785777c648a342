"""Takes from a cluster's objects what coil-raven has put on them: the finalizer of Services and Namespaces, the address
in the status of Services, and the annotation of pods.

To be done once nothing is left in OpenStack that the finalizers are for.
"""

from collections.abc import Awaitable, Callable, Iterable
from typing import Any, Final

from coil.crd.builtin import NAMESPACES, PODS, SERVICES, Namespace, Pod, Service
from coil.crd.meta import ObjectMeta, plan_remove_finalizer
from coil.crd.names import NEUTRON_FINALIZER
from coil.crd.resource import object_key
from coil.kube.api_client import ApiClient
from coil.kube.errors import ApiError, ForbiddenError, NotFoundError, UnauthorizedError
from coil.neutron.handoff import ANNOTATION_PORT, HandoffError, parse_handoff
from coil.neutron.resource import NetworkId
from coil.neutron.service_plan import is_status_ours
from coil_raven.remnant import Cause, Deeds, Remnant

_REFUSALS: Final = (ForbiddenError, UnauthorizedError)


class KubernetesRemoval:
    """`balancer_class` is the class of the Services whose status is coil-raven's.

    `balancers` says that Services have load balancers: without it, an account that may not list Services is no trouble.
    """

    def __init__(self, client: ApiClient, *, balancer_class: str, balancers: bool, deeds: Deeds) -> None:
        self._client = client
        self._balancer_class = balancer_class
        self._balancers = balancers
        self._deeds = deeds

    async def networks(self) -> frozenset[NetworkId]:
        """The networks that pods are told they have ports on. Raises ApiError."""
        found: set[NetworkId] = set()
        for pod in await self._client.list(PODS):
            text = pod.metadata.annotations.get(ANNOTATION_PORT)
            if text is not None:
                try:
                    found.add(parse_handoff(text, pod_uid=pod.metadata.uid).network)
                except HandoffError:
                    continue
        return frozenset(found)

    async def sweep(self) -> list[Remnant]:
        """Remove what can be removed now; what is left, and why. Idempotent. Raises nothing of the API server's."""
        remnants: list[Remnant] = []
        steps: tuple[tuple[str, Callable[[], Awaitable[list[Remnant]]]], ...] = (
            ("Services", self._services),
            ("Namespaces", self._namespaces),
            ("pods", self._pods),
        )
        for name, step in steps:
            try:
                remnants += await step()
            except ApiError as error:
                remnants.append(Remnant(f"finalizers or annotations of {name}, perhaps", _cause(error), str(error)))
        return remnants

    async def _services(self) -> list[Remnant]:
        try:
            services = await self._client.list(SERVICES)
        except ForbiddenError:
            if self._balancers:
                raise
            return []
        having = [each for each in services if NEUTRON_FINALIZER in each.metadata.finalizers]

        async def release(service: Service) -> None:
            metadata = service.metadata
            if service.status.load_balancer.ingress and is_status_ours(service, self._balancer_class):
                status: dict[str, Any] = {
                    "metadata": {"uid": metadata.uid},
                    "status": {"loadBalancer": {"ingress": None}},
                }
                service = await self._client.patch(
                    SERVICES, metadata.name, status, namespace=metadata.namespace, subresource="status"
                )
            if (patch := plan_remove_finalizer(service.metadata, NEUTRON_FINALIZER)) is not None:
                await self._client.patch(SERVICES, metadata.name, patch, namespace=metadata.namespace)

        return await self._each("removed", "finalizer of Service", having, release)

    async def _namespaces(self) -> list[Remnant]:
        async def release(namespace: Namespace) -> None:
            if (patch := plan_remove_finalizer(namespace.metadata, NEUTRON_FINALIZER)) is not None:
                await self._client.patch(NAMESPACES, namespace.metadata.name, patch)

        having = [each for each in await self._client.list(NAMESPACES) if NEUTRON_FINALIZER in each.metadata.finalizers]
        return await self._each("removed", "finalizer of Namespace", having, release)

    async def _pods(self) -> list[Remnant]:
        async def release(pod: Pod) -> None:
            patch = {"metadata": {"uid": pod.metadata.uid, "annotations": {ANNOTATION_PORT: None}}}
            await self._client.patch(PODS, pod.metadata.name, patch, namespace=pod.metadata.namespace)

        having = [each for each in await self._client.list(PODS) if ANNOTATION_PORT in each.metadata.annotations]
        return await self._each("removed", "annotation of pod", having, release, aloud=False)

    async def _each(
        self,
        deed: str,
        kind: str,
        having: Iterable[Any],
        release: Callable[[Any], Awaitable[None]],
        *,
        aloud: bool = True,
    ) -> list[Remnant]:
        remnants: list[Remnant] = []
        for each in having:
            metadata: ObjectMeta = each.metadata
            try:
                await release(each)
            except NotFoundError:
                continue
            except ApiError as error:
                remnants.append(Remnant(f"{kind} {object_key(metadata)}", _cause(error), str(error)))
            else:
                self._deeds.add(deed, kind, object_key(metadata), aloud=aloud)
        return remnants


def _cause(error: ApiError) -> Cause:
    return Cause.REFUSED if isinstance(error, _REFUSALS) else Cause.UNANSWERED
