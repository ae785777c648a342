"""The API server in memory, as commands read it."""

from datetime import UTC, datetime

from tests.coil.kube.memory_api import MemoryApi, MemoryClient

NOW = datetime(2030, 1, 1, 12, tzinfo=UTC)


class MemoryReader(MemoryClient):
    """A `kubectl_coil.cluster.Reader`."""

    def __init__(self, api: MemoryApi) -> None:
        super().__init__(api)

    def now(self) -> datetime:
        return NOW
