"""A cache that shows a `MemoryApi` as it was when the test last had it look."""

from collections.abc import Callable, Iterable, Mapping
from typing import Generic, TypeVar

from coil.crd.resource import HasMetadata, Resource
from coil.kube.errors import ApiError
from tests.coil.kube.memory_api import MemoryApi

T = TypeVar("T", bound=HasMetadata)


class MemoryCache(Generic[T]):
    """Shows what was there at the last `look`; tells its listeners of the differences, like an informer."""

    def __init__(
        self,
        api: MemoryApi,
        resource: Resource[T],
        indexers: Mapping[str, Callable[[T], Iterable[str]]] | None = None,
    ) -> None:
        self._api = api
        self._resource = resource
        self._indexers = indexers or {}
        self.synced = True
        self.last_error: ApiError | None = None
        """A test may have it otherwise."""
        self._objects: dict[str, T] = {}
        self._listeners: list[Callable[[T | None, T | None], None]] = []

    def get(self, key: str) -> T | None:
        return self._objects.get(key)

    def items(self) -> list[T]:
        return list(self._objects.values())

    def by_index(self, index: str, value: str) -> list[T]:
        return [item for item in self._objects.values() if value in self._indexers[index](item)]

    def subscribe(self, listener: Callable[[T | None, T | None], None], /) -> None:
        for item in self._objects.values():
            listener(None, item)
        self._listeners.append(listener)

    def unsubscribe(self, listener: Callable[[T | None, T | None], None], /) -> None:
        self._listeners.remove(listener)

    async def wait_synced(self, timeout: float) -> None:
        pass

    def look(self) -> None:
        before, self._objects = self._objects, {_key(item): item for item in self._api.all(self._resource)}
        for name in before.keys() | self._objects.keys():
            old, new = before.get(name), self._objects.get(name)
            if old == new:
                continue
            for listener in self._listeners:
                if old is not None and new is not None and old.metadata.uid != new.metadata.uid:
                    listener(old, None)
                    listener(None, new)
                else:
                    listener(old, new)


def _key(item: HasMetadata) -> str:
    metadata = item.metadata
    return f"{metadata.namespace}/{metadata.name}" if metadata.namespace else metadata.name
