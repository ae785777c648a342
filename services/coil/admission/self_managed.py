"""Certificates that the replicas make themselves and share in a Secret, where nobody else provides any.

Any replica may write, none is special: whoever finds something due writes it, guarded by what it has read; whoever
comes second finds it done. So there is no election, and a replica that stands by serves like the one that leads.

Of two replicas that saw the same state one gets an error, reads again, and finds the other's work. A Secret that is
replaced keeps the labels, annotations and owners it was read with.
"""

from collections.abc import Callable, Collection, Mapping
from datetime import datetime
from typing import Any

import msgspec
from structlog.typing import FilteringBoundLogger

from coil.admission.certificate import CertificateError
from coil.admission.certificate_manager import Fetched
from coil.admission.identity import DEFAULT_TERMS, Identity, Terms, parse_identity, plan_identity, render_identity
from coil.crd.meta import ObjectMeta, Struct
from coil.crd.resource import Resource
from coil.kube.api_client import ApiClient
from coil.kube.errors import AlreadyExistsError, ConflictError, NotFoundError, UnavailableError

TLS_TYPE = "kubernetes.io/tls"


class Secret(Struct, frozen=True, kw_only=True):
    """`data` is base64 on the wire. The `repr` leaves out its values."""

    metadata: ObjectMeta
    type: str
    data: dict[str, bytes] | None = None

    def __repr__(self) -> str:
        return f"Secret({self.metadata.namespace}/{self.metadata.name}: {', '.join(sorted(self.data or {}))})"


SECRETS: Resource[Secret] = Resource("", "v1", "secrets", "Secret", namespaced=True, type=Secret)


class SecretStore:
    """The Secret `namespace`/`name`. Raises ApiError; after an UnavailableError nobody knows what was written."""

    def __init__(self, client: ApiClient, *, namespace: str, name: str) -> None:
        self._client = client
        self._namespace = namespace
        self._name = name

    async def read(self) -> Secret | None:
        """None when there is none."""
        try:
            return await self._client.get(SECRETS, self._name, namespace=self._namespace)
        except NotFoundError:
            return None

    async def create(self, files: Mapping[str, bytes]) -> None:
        """Raises AlreadyExistsError when somebody else was faster."""
        secret = Secret(
            metadata=ObjectMeta(name=self._name, namespace=self._namespace), type=TLS_TYPE, data=dict(files)
        )
        await self._client.create(SECRETS, secret, namespace=self._namespace)

    async def replace(self, before: Secret, files: Mapping[str, bytes]) -> None:
        """Give `before` another content. Raises ConflictError when it has changed since, NotFoundError if gone."""
        secret = msgspec.structs.replace(before, data=dict(files))
        body: dict[str, Any] = msgspec.to_builtins(secret)
        await self._client.replace(SECRETS, body, name=self._name, namespace=self._namespace)


ATTEMPTS = 3
"""Reads in one go after having come second; then the next look is soon enough."""


class SelfManagedIdentity:
    """A CertificateSource. `name` is for people who read certificates; `now` is the wall clock, in UTC."""

    def __init__(
        self,
        store: SecretStore,
        *,
        name: str,
        hosts: Collection[str],
        now: Callable[[], datetime],
        log: FilteringBoundLogger,
        terms: Terms = DEFAULT_TERMS,
    ) -> None:
        self._store = store
        self._name = name
        self._hosts = frozenset(hosts)
        self._now = now
        self._log = log
        self._terms = terms
        self._known: Identity | None = None

    async def fetch(self) -> Fetched:
        """What the Secret holds, after whatever was due has been renewed in it.

        Cancelled, a renewal may have been written or not. Raises ApiError.
        """
        for _ in range(ATTEMPTS):
            stored = await self._store.read()
            before = None if stored is None else self._parse(stored)
            planned = plan_identity(
                before,
                name=self._name,
                hosts=self._hosts,
                now=self._now(),
                terms=self._terms,
                # A Secret that was deleted or spoilt takes nothing away from those who still serve with its content.
                trusted=b"" if self._known is None else self._known.bundle,
            )
            if planned is before:
                self._known = planned
                return Fetched(planned.server, planned.bundle)
            try:
                await self._write(stored, planned)
            except (AlreadyExistsError, ConflictError, NotFoundError):
                continue
            self._report(before, planned)
            self._known = planned
            return Fetched(planned.server, planned.bundle, wrote=True)
        raise UnavailableError("the Secret with the certificates was changed by others again and again")

    def _parse(self, stored: Secret) -> Identity | None:
        try:
            return parse_identity(stored.data or {})
        except CertificateError as error:
            self._log.warning("the Secret with the certificates is not usable and is replaced", error=str(error))
            return None

    async def _write(self, stored: Secret | None, planned: Identity) -> None:
        files = render_identity(planned)
        if stored is None:
            await self._store.create(files)
        else:
            await self._store.replace(stored, {**(stored.data or {}), **files})

    def _report(self, before: Identity | None, planned: Identity) -> None:
        parts = []
        if before is None or before.authority != planned.authority:
            parts.append("authority")
        if before is None or before.server != planned.server:
            parts.append("server certificate")
        self._log.info("certificates renewed", renewed=parts)
