"""Webhook configurations in memory, with patches as the API server applies them."""

from collections.abc import Mapping, Sequence
from typing import Any

import msgspec

from coil.admission.ca_bundle import MUTATING, VALIDATING, ConfigurationKind, WebhookConfiguration
from coil.kube.errors import ApiError, InvalidError, NotFoundError

NAME = "webhooks"


class MemoryConfigurations:
    """A ConfigurationClient. `documents` by kind; calls are counted by verb; `fault` is raised while it is set."""

    def __init__(self) -> None:
        self.documents = {MUTATING.kind: document("mutate"), VALIDATING.kind: document("validate")}
        self.fault: ApiError | None = None
        self.calls = {"get": 0, "patch": 0}

    def bundles(self) -> set[bytes | None]:
        """What all webhooks say."""
        return {
            webhook.client_config.ca_bundle
            for document in self.documents.values()
            for webhook in msgspec.convert(document, WebhookConfiguration).webhooks or ()
        }

    def overwrite(self, bundle: bytes) -> None:
        for written in self.documents.values():
            for webhook in written["webhooks"]:
                webhook["clientConfig"]["caBundle"] = msgspec.to_builtins(bundle)

    async def get(self, resource: ConfigurationKind, name: str, /) -> WebhookConfiguration:
        self._count("get")
        return self._convert(resource)

    async def patch(
        self, resource: ConfigurationKind, name: str, patch: Sequence[Mapping[str, Any]], /
    ) -> WebhookConfiguration:
        self._count("patch")
        self._convert(resource)
        for operation in msgspec.to_builtins(patch):
            *way, last = operation["path"].strip("/").split("/")
            place: Any = self.documents[resource.kind]
            for step in way:
                place = place[int(step) if isinstance(place, list) else step]
            if operation["op"] == "test":
                if place[last] != operation["value"]:
                    raise InvalidError("a test failed", status=422)
            else:
                place[last] = operation["value"]
        return self._convert(resource)

    def _convert(self, resource: ConfigurationKind) -> WebhookConfiguration:
        if resource.kind not in self.documents:
            raise NotFoundError(f"no {resource.kind}", status=404)
        return msgspec.convert(self.documents[resource.kind], WebhookConfiguration)

    def _count(self, verb: str) -> None:
        self.calls[verb] += 1
        if self.fault is not None:
            raise self.fault


def document(*names: str) -> dict[str, Any]:
    """A configuration as the chart has it."""
    webhooks = [{"name": f"{name}.example.com", "clientConfig": {"url": "https://127.0.0.1/"}} for name in names]
    return {"metadata": {"name": NAME}, "webhooks": webhooks}
