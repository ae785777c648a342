"""The page of the node's coild in a dump: over real HTTP, and what becomes of a page that cannot be had."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import pytest
from aiohttp import web

from coil.page.node_document import AddressCounts, NodeDocument
from coil.page.node_dump import NodeDump, Part
from coil.runtime.flag import Endpoint
from coil.runtime.http_server import serve_pages
from coil.runtime.inspection import Inspection, InspectionPages
from coil.runtime.visitor import guard
from coil_node_dump import dump
from coil_node_dump.settings import Settings
from kubectl_coil.node_reader import ledger_of
from tests.kubectl_coil.memory_reader import NOW

ANY_PORT = Endpoint("127.0.0.1", 0)
PAGE = NodeDocument(node="n1", at=NOW, addresses=AddressCounts(total=4))


async def dump_parts(endpoint: Endpoint | None, part: Part = Part.INSPECTION) -> NodeDump:
    settings = Settings(parts=frozenset({part}), inspect_page_addr=endpoint)
    return await asyncio.to_thread(dump.dump_node, settings)


@asynccontextmanager
async def coild() -> AsyncIterator[Endpoint]:
    """The page as coild serves it."""
    pages = InspectionPages(Inspection(lambda: lambda: PAGE, lambda _document, _query: "<p>"))
    async with serve_pages(ANY_PORT, pages.pages, middlewares=[guard("127.0.0.1")]) as bound:
        yield bound
    pages.close()


async def test_the_page_is_read_as_coild_serves_it() -> None:
    async with coild() as bound:
        found = await dump_parts(bound)
    assert found.troubles == ()
    # What the document has is decoded again by who asked for the dump.
    assert found.inspection["node"] == "n1"
    assert ledger_of(found, "n1") == PAGE


async def test_without_coild_there_is_no_page() -> None:
    async with coild() as bound:
        pass
    for endpoint in (bound, None):
        found = await dump_parts(endpoint)
        assert (found.inspection, found.troubles) == (None, ())


async def refuse(_request: web.Request) -> web.Response:
    return web.Response(status=503, text="Too many visitors at once.\n")


async def mumble(_request: web.Request) -> web.Response:
    return web.Response(text="<p>")


@pytest.mark.parametrize(
    ("page", "said"), [(refuse, "503 Service Unavailable: Too many visitors at once."), (mumble, "Expecting value")]
)
async def test_a_page_that_is_none_is_told(page: object, said: str) -> None:
    async with serve_pages(ANY_PORT, {"/ip-manager": page}) as bound:  # type: ignore[dict-item]
        found = await dump_parts(bound)
    assert found.inspection is None
    [trouble] = found.troubles
    assert trouble.startswith(f"coild's page: {said}")


MOUNT = "41 29 0:4 net:[4026532001] /run/netns/{} rw shared:21 - nsfs nsfs rw\n"


class Mounts:
    """What is mounted: each look finds the next, and the last for ever."""

    def __init__(self, *looks: str) -> None:
        self._looks = list(looks)

    def read_text(self) -> str:
        return self._looks.pop(0) if len(self._looks) > 1 else self._looks[0]


@pytest.mark.parametrize(("now", "troubles"), [("", 0), (MOUNT.format("none-of-coil"), 1)])
async def test_a_pod_that_ends_while_it_is_looked_for_is_no_trouble(
    monkeypatch: pytest.MonkeyPatch, now: str, troubles: int
) -> None:
    """One that is still mounted, and cannot be opened, is."""
    monkeypatch.setattr(dump, "_MOUNTS", Mounts(MOUNT.format("none-of-coil"), now))
    found = await dump_parts(None, Part.PODS)
    assert (found.pods, len(found.troubles)) == ((), troubles)
