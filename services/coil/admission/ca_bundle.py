"""Telling the API server whom to trust: the `caBundle` of the webhook configurations that name our server.

A configuration is patched only when it says something else, so that watching it, or looking at it again, makes no
work. Its other fields are the chart's and the admin's.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from coil.crd.meta import ObjectMeta, Struct
from coil.crd.resource import Resource
from coil.kube.api_client import ApiClient
from coil.kube.errors import NotFoundError

GROUP = "admissionregistration.k8s.io"


class WebhookClientConfig(Struct, frozen=True, kw_only=True):
    """`ca_bundle` is base64 on the wire."""

    ca_bundle: bytes | None = None


class Webhook(Struct, frozen=True, kw_only=True):
    name: str
    client_config: WebhookClientConfig


class WebhookConfiguration(Struct, frozen=True, kw_only=True):
    """A MutatingWebhookConfiguration or a ValidatingWebhookConfiguration."""

    metadata: ObjectMeta
    webhooks: tuple[Webhook, ...] | None = None


ConfigurationKind = Resource[WebhookConfiguration]

MUTATING: ConfigurationKind = Resource(
    *(GROUP, "v1", "mutatingwebhookconfigurations", "MutatingWebhookConfiguration"),
    namespaced=False,
    type=WebhookConfiguration,
)
VALIDATING: ConfigurationKind = Resource(
    *(GROUP, "v1", "validatingwebhookconfigurations", "ValidatingWebhookConfiguration"),
    namespaced=False,
    type=WebhookConfiguration,
)


@dataclass(frozen=True, slots=True)
class Injection:
    """What one round has done: the configurations that were changed, and those that do not exist."""

    patched: tuple[str, ...]
    missing: tuple[str, ...]


def plan_patch(configuration: WebhookConfiguration, bundle: bytes) -> list[dict[str, Any]]:
    """JSON patch operations (RFC 6902) that put `bundle` into each webhook; none if it is there."""
    operations: list[dict[str, Any]] = []
    for position, webhook in enumerate(configuration.webhooks or ()):
        if webhook.client_config.ca_bundle == bundle:
            continue
        path = f"/webhooks/{position}"
        operations += [
            # The position was read a moment ago; somebody may have put another webhook there.
            {"op": "test", "path": f"{path}/name", "value": webhook.name},
            {"op": "add", "path": f"{path}/clientConfig/caBundle", "value": bundle},
        ]
    return operations


class BundleInjector:
    """Keeps the bundle in the configurations of one name, of each of `kinds`."""

    def __init__(
        self, client: ApiClient, *, name: str, kinds: Sequence[ConfigurationKind] = (MUTATING, VALIDATING)
    ) -> None:
        self._client = client
        self._name = name
        self._kinds = kinds

    async def inject(self, bundle: bytes) -> Injection:
        """Bring all of them in line. Idempotent. Raises ApiError; some may be done by then, the rest not."""
        patched: list[str] = []
        missing: list[str] = []
        for kind in self._kinds:
            try:
                operations = plan_patch(await self._client.get(kind, self._name), bundle)
                if operations:
                    await self._client.patch(kind, self._name, operations)
                    patched.append(kind.kind)
            except NotFoundError:
                missing.append(kind.kind)
        return Injection(tuple(patched), tuple(missing))
