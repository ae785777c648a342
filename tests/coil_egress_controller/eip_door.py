"""An API server as admission sees it: gateways, policies, namespaces and who has which right; and the way in."""

import asyncio
import json
from collections.abc import Iterable
from typing import Any, TypeVar

import msgspec
import structlog

from coil.admission.review import (
    AdmissionRequest,
    Allowed,
    Denied,
    Invalid,
    Operation,
    Unjudged,
    Verdict,
    decode_review,
)
from coil.crd.access_review import SUBJECT_ACCESS_REVIEWS
from coil.crd.builtin import NAMESPACES, Namespace
from coil.crd.egress_gateway import EGRESS_GATEWAYS, EgressGateway
from coil.crd.egress_gateway_policy import EGRESS_GATEWAY_POLICIES, EgressGatewayPolicy
from coil.crd.resource import HasMetadata, Resource, object_key
from coil.kube.errors import ApiError, NotFoundError
from coil_egress_controller.cluster_view import Cache
from coil_egress_controller.eip.admission_reader import AdmissionReader

T = TypeVar("T", bound=HasMetadata)
Document = dict[str, Any]


class ListCache:
    """A `Cache` of what it was made of."""

    def __init__(self, items: Iterable[Any]) -> None:
        self._items = {object_key(item.metadata): item for item in items}

    def get(self, key: str) -> Any:
        return self._items.get(key)

    def items(self) -> list[Any]:
        return list(self._items.values())

    def by_index(self, index: str, value: str) -> list[Any]:
        raise NotImplementedError


class CachePicture:
    def __init__(self, api: "EipApi") -> None:
        self.gateways: Cache[EgressGateway] = ListCache(api.all(EGRESS_GATEWAYS))
        self.policies: Cache[EgressGatewayPolicy] = ListCache(api.all(EGRESS_GATEWAY_POLICIES))
        self.namespaces: Cache[Namespace] = ListCache(api.all(NAMESPACES))


class EipApi:
    """A `AdmissionReaderClient`. `refusal` is raised by every call, `silent` has them never answer.

    `rights` are users, with the namespaces where they may `use` podsubnet.
    """

    def __init__(self) -> None:
        self.refusal: ApiError | None = None
        self.silent = False
        self.rights: set[tuple[str, str]] = set()
        self.calls: list[tuple[str, str]] = []
        self._objects: dict[tuple[str, str], Any] = {}
        self.sight = AdmissionReader(self, log=structlog.get_logger())

    def put(self, resource: Resource[T], item: T) -> None:
        self._objects[resource.plural, object_key(item.metadata)] = item

    def add_namespace(self, name: str, **labels: str) -> None:
        self.put(NAMESPACES, msgspec.convert({"metadata": {"name": name, "labels": labels}}, Namespace))

    def all(self, resource: Resource[T]) -> list[T]:
        return [item for (plural, _), item in self._objects.items() if plural == resource.plural]

    def show_caches(self) -> None:
        """Caches that know what there is now, and are never told of anything later."""
        self.sight.show(CachePicture(self))

    async def get(self, resource: Resource[T], name: str) -> T:
        await self._enter("get", resource)
        try:
            found: T = self._objects[resource.plural, name]
        except KeyError:
            raise NotFoundError(f"{resource.plural} {name} not found", status=404) from None
        return found

    async def list(self, resource: Resource[T]) -> list[T]:
        await self._enter("list", resource)
        return self.all(resource)

    async def create(self, resource: Resource[T], body: Document) -> T:
        assert resource.plural == SUBJECT_ACCESS_REVIEWS.plural, "admission stores nothing"
        await self._enter("create", resource)
        spec = body["spec"]
        asked = spec["resourceAttributes"]
        assert (asked["verb"], asked["group"], asked["resource"], asked["subresource"]) == (
            *("use", "egressgateway.spidernet.io"),
            *("egressgatewaypolicies", "podsubnet"),
        )
        allowed = (spec["user"], asked["namespace"]) in self.rights
        return msgspec.convert({"metadata": {}, "status": {"allowed": allowed}}, resource.type)

    async def _enter(self, verb: str, resource: Resource[Any]) -> None:
        self.calls.append((verb, resource.plural))
        if self.silent:
            await asyncio.Event().wait()
        if self.refusal is not None:
            raise self.refusal


def request(operation: Operation, new: Any, old: Any = None, *, user: str = "jane") -> AdmissionRequest:
    metadata = (new or old)["metadata"]
    body = {
        "uid": "uid-1",
        "kind": {"group": "egressgateway.spidernet.io", "version": "v1beta1", "kind": "Any"},
        "operation": operation.value,
        "name": metadata["name"],
        "namespace": metadata.get("namespace", ""),
        "userInfo": {"username": user, "groups": ["system:authenticated"]},
        "object": new,
        "oldObject": old,
    }
    return decode_review(
        json.dumps({"apiVersion": "admission.k8s.io/v1", "kind": "AdmissionReview", "request": body}).encode()
    )


def said(verdict: Verdict) -> list[str]:
    """What is refused, as text; nothing if it is let in."""
    match verdict:
        case Allowed():
            return []
        case Invalid(errors):
            return [str(error) for error in errors]
        case Denied(reason) | Unjudged(reason):
            return [f"{type(verdict).__name__.lower()}: {reason}"]
