"""The objects of one kind behind one pair of selectors: what an informer lists and watches."""

from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass
from enum import Enum
from typing import Annotated, Any, Generic, TypeVar

import msgspec

from coil.crd.meta import Struct
from coil.crd.resource import HasMetadata, Resource
from coil.kube.errors import UnavailableError, excerpt
from coil.kube.item_stream import ItemStream
from coil.kube.transport import Transport
from coil.kube.watch import LINE_LIMIT, MetadataInterner, Watch, event_decoder

T = TypeVar("T", bound=HasMetadata)


class Freshness(Enum):
    """How old a list may be.

    CACHED comes out of the API server's memory, whole in one answer. It may be a moment old, or, from a server that has
    lost touch with its store, older than what was read before; what happened since then follows by the watch. LATEST
    is read from the store: for custom resources that costs the API server a quarter of a millisecond for each object
    of the kind, selected or not (measured, Kubernetes 1.20), which makes seconds of 20 000.
    """

    LATEST = "latest"
    CACHED = "cached"


class ListMeta(Struct, frozen=True, kw_only=True):
    # Without it nothing can be watched; a watch from "" would replay an unordered present.
    resource_version: Annotated[str, msgspec.Meta(min_length=1)]
    continue_token: str = msgspec.field(name="continue", default="")


class PageDocument(Struct, Generic[T], frozen=True, kw_only=True):
    """A list as it is served. Go writes an empty slice as null."""

    metadata: ListMeta
    items: list[T] | None


@dataclass(frozen=True, slots=True)
class Page(Generic[T]):
    """A part of a consistent list. `continue_token` is "" on the last one."""

    items: list[T]
    resource_version: str
    continue_token: str


_INITIAL_EVENTS = {"sendInitialEvents": "true", "resourceVersionMatch": "NotOlderThan"}


class Collection(Generic[T]):
    """Reads one collection. Holds nothing between calls that they depend on: any number of readers may share it.

    An object that `keep` denies is as good as absent: a list does not hold it, and a watch tells that it is deleted,
    whenever it changes. It is for what no selector of the API server can say; `keep` must be pure.
    """

    streams_lists = True

    def __init__(
        self,
        transport: Transport,
        resource: Resource[T],
        *,
        namespace: str,
        labels: str,
        fields: str,
        freshness: Freshness,
        random: Callable[[], float],
        keep: Callable[[T], bool] | None = None,
    ) -> None:
        self.resource = resource
        self._transport = transport
        self._path = resource.path(namespace=namespace)
        self._selectors = {
            name: selector for name, selector in (("labelSelector", labels), ("fieldSelector", fields)) if selector
        }
        # In place of no version at all: "any" (Kubernetes' API concepts, "resource versions").
        self._version = {"resourceVersion": "0"} if freshness is Freshness.CACHED else {}
        self._random = random
        self._keep = keep
        self._interner = MetadataInterner()
        document: Any = PageDocument
        self._pages: msgspec.json.Decoder[PageDocument[T]] = msgspec.json.Decoder(document[resource.type])
        self._items: msgspec.json.Decoder[T] = msgspec.json.Decoder(resource.type)
        self._events = event_decoder(resource)

    async def list_page(self, *, limit: int, continue_token: str) -> Page[T]:
        """One page of at most `limit` objects, the first if `continue_token` is "".

        All pages show the state of the first, whose age is the collection's `Freshness`. A list from the server's
        cache may ignore the limit. Raises GoneError when the token has expired: begin again.
        """
        query = {**self._selectors, "limit": str(limit)}
        # The token has a version in it, and the server refuses to be told another.
        query |= {"continue": continue_token} if continue_token else self._version
        stream = ItemStream(self._decode_item)
        text = bytearray()
        try:
            await self._transport.pour(self._path, stream.feed, query=query)
            text = stream.close()
            document = self._pages.decode(text)
        except (msgspec.MsgspecError, UnicodeDecodeError) as error:
            raise UnavailableError(f"GET {self._path}: unreadable list: {error}: {excerpt(text)}") from error
        rest = [item for item in document.items or () if self._keep is None or self._keep(item)]
        return Page(stream.items + rest, document.metadata.resource_version, document.metadata.continue_token)

    def _decode_item(self, text: bytearray) -> T | None:
        item = self._items.decode(text)
        if self._keep is not None and not self._keep(item):
            return None
        # At once, so that the next object's copies take the room of these.
        self._interner.intern(item.metadata)
        return item

    @asynccontextmanager
    async def watch(
        self, *, resource_version: str, initial_events: bool = False, line_limit: int = LINE_LIMIT
    ) -> AsyncIterator[Watch[T]]:
        """Open a watch on what happens after `resource_version`; leaving closes its connection.

        With `initial_events`, every object there is comes first, as if it were added, then a bookmark that says so
        (Kubernetes' API concepts, "streaming lists"; KEP-3157). They are as old as the collection's `Freshness` lets
        them be, and `resource_version` does not count. InvalidError is raised by servers that cannot do it.

        Raises ApiError if the server refuses, GoneError in particular. The server is asked to end the watch
        after `timeouts.watch` seconds, up to a fifth less by chance, so that watches do not end in step.
        """
        seconds = self._transport.timeouts.watch * (1 - 0.2 * self._random())
        query = {
            **self._selectors,
            "watch": "true",
            "allowWatchBookmarks": "true",
            "timeoutSeconds": str(max(1, round(seconds))),
            **(self._version | _INITIAL_EVENTS if initial_events else {"resourceVersion": resource_version}),
        }
        async with self._transport.stream(self._path, query=query) as content:
            yield Watch(
                content,
                self._events,
                interner=self._interner,
                keep=self._keep,
                what=f"watch {self._path}",
                line_limit=line_limit,
            )
