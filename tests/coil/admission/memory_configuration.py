"""The API server as a bundle injector sees it: it keeps webhook configurations."""

from typing import Any

import msgspec

from coil.admission.ca_bundle import MUTATING, VALIDATING, ConfigurationKind
from coil.kube.errors import ApiError
from tests.coil.kube.memory_api import Call, MemoryApi, MemoryClient, Moment

NAME = "webhooks"


class MemoryConfigurations(MemoryClient):
    """A configuration of each kind at first; `fault` is raised by every call while it is set."""

    def __init__(self) -> None:
        super().__init__(MemoryApi(), self._pass)
        self.fault: ApiError | None = None
        self.api.put(MUTATING, document("mutate"))
        self.api.put(VALIDATING, document("validate"))

    def count(self, verb: str) -> int:
        return sum(call.verb == verb for call in self.calls)

    def bundles(self) -> set[bytes | None]:
        """What all webhooks say."""
        return {
            webhook.client_config.ca_bundle
            for kind in (MUTATING, VALIDATING)
            for configuration in self.api.all(kind)
            for webhook in configuration.webhooks or ()
        }

    def overwrite(self, bundle: bytes) -> None:
        for kind in (MUTATING, VALIDATING):
            changed = self.api.find_document(kind, NAME)
            assert changed is not None
            for webhook in changed["webhooks"]:
                webhook["clientConfig"]["caBundle"] = msgspec.to_builtins(bundle)
            self.api.put(kind, changed)

    def take(self, kind: ConfigurationKind) -> dict[str, Any]:
        """Remove the configuration of a kind; returns it, for `api.put`."""
        found = self.api.find_document(kind, NAME)
        assert found is not None
        self.api.remove(kind, NAME)
        return found

    async def _pass(self, _call: Call, _moment: Moment) -> None:
        if self.fault is not None:
            raise self.fault


def document(*names: str) -> dict[str, Any]:
    """A configuration as the chart has it."""
    webhooks = [{"name": f"{name}.example.com", "clientConfig": {"url": "https://127.0.0.1/"}} for name in names]
    return {"metadata": {"name": NAME}, "webhooks": webhooks}
