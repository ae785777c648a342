"""An API server as admission sees it: gateways, policies, namespaces and who has which right; and the way in."""

import asyncio
import json
from ipaddress import ip_network
from typing import Any, TypeVar

import msgspec
import structlog

from coil.admission.review import (
    AdmissionRequest,
    Allowed,
    Denied,
    Invalid,
    Operation,
    Unavailable,
    Verdict,
    decode_review,
)
from coil.crd.address_pool import ADDRESS_POOLS
from coil.crd.builtin import NAMESPACES, NODES, SERVICE_CIDRS, SERVICES, SUBJECT_ACCESS_REVIEWS
from coil.crd.egress_gateway import EGRESS_GATEWAYS
from coil.crd.egress_gateway_policy import EGRESS_GATEWAY_POLICIES
from coil.crd.resource import HasMetadata, Resource
from coil.kube.errors import ApiError
from coil_egress_controller.eip.admission_reader import AdmissionCaches, AdmissionReader
from tests.coil.kube.memory_api import Body, Call, MemoryApi, MemoryClient, Moment
from tests.coil_egress_controller.scene import MemoryCache

T = TypeVar("T", bound=HasMetadata)


class ReviewingClient(MemoryClient):
    """Answers SubjectAccessReviews: `rights` are users, with the namespaces where they may `use` podsubnet."""

    def __init__(self, api: MemoryApi) -> None:
        super().__init__(api, self._enter)
        self.rights: set[tuple[str, str]] = set()
        self.refusal: ApiError | None = None
        """Raised by every call."""
        self.silent = False
        """No call is ever answered."""

    async def create(self, resource: Resource[T], body: Body, *, namespace: str = "") -> T:
        assert resource.plural == SUBJECT_ACCESS_REVIEWS.plural, "admission stores nothing"
        assert isinstance(body, dict)
        await self._enter(Call("create", resource.plural, ""), Moment.BEFORE)
        spec = body["spec"]
        asked = spec["resourceAttributes"]
        assert (asked["verb"], asked["group"], asked["resource"], asked["subresource"]) == (
            *("use", "egressgateway.spidernet.io"),
            *("egressgatewaypolicies", "podsubnet"),
        )
        allowed = (spec["user"], asked["namespace"]) in self.rights
        return msgspec.convert({"metadata": {}, "status": {"allowed": allowed}}, resource.type)

    async def _enter(self, _call: Call, _moment: Moment) -> None:
        if self.silent:
            await asyncio.Event().wait()
        if self.refusal is not None:
            raise self.refusal


class AdmissionWorld:
    """What admission reads: the API server, and after `show_caches` the caches."""

    def __init__(self) -> None:
        self.api = MemoryApi()
        self.client = ReviewingClient(self.api)
        tunnels = [ip_network("172.31.0.0/16"), ip_network("fd11::/112")]
        self.reader = AdmissionReader(self.client, tunnels=tunnels, log=structlog.get_logger())

    def put(self, resource: Resource[T], item: T) -> None:
        self.api.put(resource, item)

    def add_namespace(self, name: str, **labels: str) -> None:
        self.api.put(NAMESPACES, {"metadata": {"name": name, "labels": labels}})

    def show_caches(self) -> None:
        """Caches that know what there is now, and are never told of anything later."""
        caches = AdmissionCaches(
            gateways=MemoryCache(self.api, EGRESS_GATEWAYS),
            policies=MemoryCache(self.api, EGRESS_GATEWAY_POLICIES),
            namespaces=MemoryCache(self.api, NAMESPACES),
            nodes=MemoryCache(self.api, NODES),
            pools=MemoryCache(self.api, ADDRESS_POOLS),
            service_cidrs=MemoryCache(self.api, SERVICE_CIDRS),
            apiserver_service=MemoryCache(self.api, SERVICES),
        )
        for name in AdmissionCaches.__dataclass_fields__:
            getattr(caches, name).look()
        self.reader.use(caches)


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
        case Denied(reason) | Unavailable(reason):
            return [f"{type(verdict).__name__.lower()}: {reason}"]
