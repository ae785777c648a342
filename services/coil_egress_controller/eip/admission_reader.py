"""What admission sees of the cluster when it judges gateways and policies.

That is the live state, and what the caches have when the API server does not say in time.

Every replica answers from before it knows the cluster. Until it is shown the caches, there is only the live state.
"""

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from typing import Protocol, TypeVar

from structlog.typing import FilteringBoundLogger

from coil.admission.review import UserInfo
from coil.crd.access_review import SUBJECT_ACCESS_REVIEWS
from coil.crd.builtin import NAMESPACES, Namespace
from coil.crd.egress_gateway import EGRESS_GATEWAYS, EgressGateway
from coil.crd.egress_gateway_policy import EGRESS_GATEWAY_POLICIES, EgressGatewayPolicy
from coil.crd.resource import HasMetadata, Resource
from coil.kube.api_client import ApiClient
from coil.kube.errors import ApiError, NotFoundError
from coil_egress_controller.cluster_view import Cache

T = TypeVar("T", bound=HasMetadata)
Answer = TypeVar("Answer")

ASK_SECONDS = 1.5
"""For one question. A judge asks at most four, one after the other, and `coil.admission.server` gives it 8 for all."""


class Picture(Protocol):
    """The caches that are used here; `coil_egress_controller.eip.view.EipView` has them."""

    @property
    def gateways(self) -> Cache[EgressGateway]: ...

    @property
    def policies(self) -> Cache[EgressGatewayPolicy]: ...

    @property
    def namespaces(self) -> Cache[Namespace]: ...


class UnseenError(Exception):
    """Nobody knows at the moment; the message says what."""


class AdmissionReader:
    """All methods raise UnseenError. Cancelled, they leave nothing behind."""

    def __init__(self, client: ApiClient, *, log: FilteringBoundLogger) -> None:
        self._client = client
        self._log = log
        self._picture: Picture | None = None

    def show(self, picture: Picture) -> None:
        """To be called once all of its caches have been listed."""
        self._picture = picture

    async def gateways(self) -> Sequence[EgressGateway]:
        return await self._list(EGRESS_GATEWAYS, lambda picture: picture.gateways)

    async def namespaces(self) -> Sequence[Namespace]:
        return await self._list(NAMESPACES, lambda picture: picture.namespaces)

    async def policies(self) -> Sequence[EgressGatewayPolicy]:
        return await self._list(EGRESS_GATEWAY_POLICIES, lambda picture: picture.policies)

    async def known_policies(self) -> Sequence[EgressGatewayPolicy]:
        """The cache's, as policies may be many, and are made often; the live ones while there is no cache."""
        return await self.policies() if self._picture is None else self._picture.policies.items()

    async def gateway(self, name: str) -> EgressGateway | None:
        """None if there is none of that name."""
        return await self._get(EGRESS_GATEWAYS, name, lambda picture: picture.gateways)

    async def namespace(self, name: str) -> Namespace | None:
        """None if there is none of that name."""
        return await self._get(NAMESPACES, name, lambda picture: picture.namespaces)

    async def may(self, user: UserInfo, *, verb: str, resource: str, subresource: str, namespace: str) -> bool:
        """Whether the API server grants somebody a right to something of the EIP gateway in a namespace."""
        attributes = {
            "verb": verb,
            "group": EGRESS_GATEWAY_POLICIES.group,
            "resource": resource,
            "subresource": subresource,
            "namespace": namespace,
        }
        spec = {
            "user": user.username,
            "uid": user.uid,
            "groups": list(user.groups),
            "extra": {key: list(values) for key, values in user.extra.items()},
            "resourceAttributes": attributes,
        }
        try:
            review = await self._ask(self._client.create(SUBJECT_ACCESS_REVIEWS, {"metadata": {}, "spec": spec}))
        except (ApiError, TimeoutError) as error:
            raise UnseenError(f"the API server does not say who has which right: {_said(error)}") from error
        return review.status.allowed

    async def _list(self, resource: Resource[T], cache: Callable[[Picture], Cache[T]]) -> Sequence[T]:
        try:
            return await self._ask(self._client.list(resource))
        except (ApiError, TimeoutError) as error:
            return self._instead(cache, resource.plural, error).items()

    async def _get(self, resource: Resource[T], name: str, cache: Callable[[Picture], Cache[T]]) -> T | None:
        try:
            return await self._ask(self._client.get(resource, name))
        except NotFoundError:
            return None
        except (ApiError, TimeoutError) as error:
            return self._instead(cache, f"{resource.plural} {name}", error).get(name)

    async def _ask(self, question: Awaitable[Answer]) -> Answer:
        async with asyncio.timeout(ASK_SECONDS):
            return await question

    def _instead(self, cache: Callable[[Picture], Cache[T]], what: str, error: Exception) -> Cache[T]:
        if self._picture is None:
            raise UnseenError(f"{what} cannot be read now: {_said(error)}") from error
        self._log.warning("a change is judged by the cache", what=what, why=_said(error))
        return cache(self._picture)


def _said(error: Exception) -> str:
    return str(error) or "no answer in time"
