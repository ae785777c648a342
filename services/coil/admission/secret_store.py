"""The Secret in which replicas keep their common identity, as it is stored.

Every write is guarded by what was read: of two replicas that saw the same state one gets an error, reads again, and
finds the other's work. A Secret that is replaced keeps the labels, annotations and owners it was read with.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import msgspec

from coil.crd.meta import ObjectMeta, Struct
from coil.crd.resource import Resource
from coil.kube.api_client import ApiClient
from coil.kube.errors import NotFoundError

TLS_TYPE = "kubernetes.io/tls"


class Secret(Struct, frozen=True, kw_only=True):
    """`data` is base64 on the wire. The `repr` leaves out its values."""

    metadata: ObjectMeta
    type: str
    data: dict[str, bytes] | None = None

    def __repr__(self) -> str:
        return f"Secret({self.metadata.namespace}/{self.metadata.name}: {', '.join(sorted(self.data or {}))})"


SECRETS: Resource[Secret] = Resource("", "v1", "secrets", "Secret", namespaced=True, type=Secret)


@dataclass(frozen=True, slots=True, kw_only=True)
class KubeSecretStore:
    """The Secret `namespace`/`name`. Raises ApiError; after an UnavailableError nobody knows what was written."""

    client: ApiClient
    namespace: str
    name: str

    async def read(self) -> Secret | None:
        """None when there is none."""
        try:
            return await self.client.get(SECRETS, self.name, namespace=self.namespace)
        except NotFoundError:
            return None

    async def create(self, files: Mapping[str, bytes]) -> None:
        """Raises AlreadyExistsError when somebody else was faster."""
        secret = Secret(metadata=ObjectMeta(name=self.name, namespace=self.namespace), type=TLS_TYPE, data=dict(files))
        await self.client.create(SECRETS, secret, namespace=self.namespace)

    async def replace(self, before: Secret, files: Mapping[str, bytes]) -> None:
        """Give `before` another content. Raises ConflictError when it has changed since, NotFoundError if gone."""
        secret = msgspec.structs.replace(before, data=dict(files))
        body: dict[str, Any] = msgspec.to_builtins(secret)
        await self.client.replace(SECRETS, body, name=self.name, namespace=self.namespace)
