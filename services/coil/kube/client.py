"""The typed client of the API server: single objects here, collections for informers by `collection()`.

Every answer is decoded into the struct of its `Resource`; the library's models are on no path. Nothing is
retried here (but a refused token, once): whoever reconciles decides when to try again.
"""

import os
import random as random_module
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, TypeVar
from urllib.parse import quote

import msgspec

from coil.crd.builtin import PODS
from coil.crd.meta import Struct
from coil.crd.resource import HasMetadata, Resource
from coil.kube.access import Access
from coil.kube.collection import Collection, Freshness
from coil.kube.errors import GoneError, UnavailableError, excerpt
from coil.kube.transport import DEFAULT_TIMEOUTS, Timeouts, Transport

T = TypeVar("T", bound=HasMetadata)
D = TypeVar("D")

PAGE_SIZE = 500
LIST_ATTEMPTS = 3
MERGE_PATCH = "application/merge-patch+json"
JSON_PATCH = "application/json-patch+json"


class KubeClient:
    """One per process, shared by all tasks of its event loop. Use as an asynchronous context manager.

    All methods raise ApiError and its kinds. A write that is cancelled, or ends in UnavailableError, may or
    may not have taken place.
    """

    def __init__(
        self,
        access: Access,
        *,
        timeouts: Timeouts = DEFAULT_TIMEOUTS,
        random: Callable[[], float] = random_module.random,
    ) -> None:
        self._transport = Transport(access, timeouts=timeouts)
        self._random = random

    @classmethod
    def connect(cls, kubeconfig: Path | None = None, *, environment: Mapping[str, str] = os.environ) -> "KubeClient":
        """A client for the kubeconfig's current context, or for the cluster that this pod runs in.

        `environment` has KUBERNETES_SERVICE_HOST and KUBERNETES_SERVICE_PORT for the latter.

        No file is read and no connection made before the context is entered, which may raise AccessError.
        """
        return cls(Access.kubeconfig(kubeconfig) if kubeconfig is not None else Access.in_cluster(environ=environment))

    async def __aenter__(self) -> "KubeClient":
        await self._transport.__aenter__()
        return self

    async def __aexit__(self, *error: object) -> None:
        await self._transport.__aexit__(*error)

    async def get(self, resource: Resource[T], name: str, *, namespace: str = "") -> T:
        path = _path(resource, namespace=namespace, name=name)
        return _decode(resource, await self._transport.call("GET", path), what=f"GET {path}")

    async def get_document(self, resource: Resource[Any], name: str, *, namespace: str = "") -> dict[str, Any]:
        """The whole object, fields that nobody here knows included: what `replace` wants."""
        path = _path(resource, namespace=namespace, name=name)
        return _decode_as(dict[str, Any], await self._transport.call("GET", path), what=f"GET {path}")

    async def list(self, resource: Resource[T], *, namespace: str = "", labels: str = "", fields: str = "") -> list[T]:
        """All objects, as of one moment. Lists that expire while they are paged are begun again, a few times."""
        collection = self.collection(resource, namespace=namespace, labels=labels, fields=fields)
        attempt = 1
        while True:
            found: list[T] = []
            token = ""
            try:
                while True:
                    page = await collection.list_page(limit=PAGE_SIZE, continue_token=token)
                    found += page.items
                    if not (token := page.continue_token):
                        return found
            except GoneError:
                if attempt == LIST_ATTEMPTS:
                    raise
                attempt += 1

    async def create(self, resource: Resource[T], body: Mapping[str, Any] | Struct, *, namespace: str = "") -> T:
        """Create an object from a document or a struct; `apiVersion` and `kind` are filled in."""
        path = _path(resource, namespace=namespace)
        answer = await self._transport.call("POST", path, body=_document(resource, body))
        return _decode(resource, answer, what=f"POST {path}")

    async def replace(
        self,
        resource: Resource[T],
        body: Mapping[str, Any] | Struct,
        *,
        name: str,
        namespace: str = "",
        subresource: str = "",
    ) -> T:
        """Replace the whole object, or its `subresource` such as "status".

        With `metadata.resourceVersion` in the body: ConflictError if the object has changed since. A struct
        with only the fields in use would delete all others, so structs are for kinds we define ourselves.
        """
        path = _path(resource, namespace=namespace, name=name, subresource=subresource)
        answer = await self._transport.call("PUT", path, body=_document(resource, body))
        return _decode(resource, answer, what=f"PUT {path}")

    async def patch(
        self,
        resource: Resource[T],
        name: str,
        patch: Mapping[str, Any] | Sequence[Mapping[str, Any]],
        *,
        namespace: str = "",
        subresource: str = "",
    ) -> T:
        """A mapping is a JSON merge patch (RFC 7396), a sequence of operations a JSON patch (RFC 6902).

        A failed `test` operation is an InvalidError.
        """
        path = _path(resource, namespace=namespace, name=name, subresource=subresource)
        answer = await self._transport.call(
            "PATCH",
            path,
            body=msgspec.json.encode(patch),
            content_type=MERGE_PATCH if isinstance(patch, Mapping) else JSON_PATCH,
        )
        return _decode(resource, answer, what=f"PATCH {path}")

    async def delete(
        self,
        resource: Resource[T],
        name: str,
        *,
        namespace: str = "",
        uid: str = "",
        resource_version: str = "",
    ) -> None:
        """Ask for deletion; the object stays while it has finalizers. NotFoundError if there is none.

        `uid` and `resource_version` are preconditions: ConflictError if the object is another one by now.
        """
        preconditions = {
            field: value for field, value in (("uid", uid), ("resourceVersion", resource_version)) if value
        }
        options: dict[str, Any] = {"apiVersion": "v1", "kind": "DeleteOptions"}
        if preconditions:
            options["preconditions"] = preconditions
        path = _path(resource, namespace=namespace, name=name)
        await self._transport.call("DELETE", path, body=msgspec.json.encode(options))

    async def evict(self, name: str, *, namespace: str, uid: str = "") -> None:
        """Ask for a pod's deletion as far as PodDisruptionBudgets allow it (policy/v1 Eviction): UnavailableError with
        the status 429 if one does not. Otherwise as `delete`.
        """
        eviction: dict[str, Any] = {
            "apiVersion": "policy/v1",
            "kind": "Eviction",
            "metadata": {"name": name, "namespace": namespace},
        }
        if uid:
            eviction["deleteOptions"] = {"preconditions": {"uid": uid}}
        path = _path(PODS, namespace=namespace, name=name, subresource="eviction")
        await self._transport.call("POST", path, body=msgspec.json.encode(eviction))

    def collection(
        self,
        resource: Resource[T],
        *,
        namespace: str = "",
        labels: str = "",
        fields: str = "",
        freshness: Freshness = Freshness.LATEST,
        keep: Callable[[T], bool] | None = None,
    ) -> Collection[T]:
        """What an informer reads: the objects of a kind, in one namespace or (if "") in all of them.

        With `keep`, only those that it affirms: see `Collection`.
        """
        return Collection(
            self._transport,
            resource,
            namespace=_segment(namespace) if namespace else "",
            labels=labels,
            fields=fields,
            freshness=freshness,
            keep=keep,
            random=self._random,
        )


def _path(resource: Resource[T], *, namespace: str, name: str | None = None, subresource: str = "") -> str:
    if resource.namespaced != bool(namespace):
        scope = "is namespaced: which namespace?" if resource.namespaced else "has no namespaces"
        raise ValueError(f"{resource.kind} {scope}")
    return resource.path(
        namespace=_segment(namespace) if namespace else "",
        name="" if name is None else _segment(name),
        subresource=subresource,
    )


def _segment(name: str) -> str:
    """A name made safe for a URL's path. The API server itself refuses the names that are refused here."""
    if name in {"", ".", ".."} or "/" in name or "%" in name:
        raise ValueError(f"not a name of an API object: {name!r}")
    return quote(name, safe=":")


def _document(resource: Resource[T], body: Mapping[str, Any] | Struct) -> bytes:
    return msgspec.json.encode({"apiVersion": resource.api_version, "kind": resource.kind, **msgspec.to_builtins(body)})


def _decode(resource: Resource[T], body: bytes, *, what: str) -> T:
    return _decode_as(resource.type, body, what=what)


def _decode_as(kind: type[D], body: bytes, *, what: str) -> D:
    try:
        return msgspec.json.decode(body, type=kind)
    except (msgspec.MsgspecError, UnicodeDecodeError) as error:
        raise UnavailableError(f"{what}: unreadable answer: {error}: {excerpt(body)}") from error
