"""Who else changes the tables of the EIP gateway, as the kernel tells it, and what the store makes of it."""

import asyncio
import time
from collections.abc import AsyncIterator

import pytest

from coil.eip.data_plane import DataPlaneIndex
from coil.eip.eip_table import SETS, EipTableOptions
from coil.kernel.family import Family
from coil.kernel.nft_element import ElementChanges
from coil.nft.netfilter import NftError
from coil_egress_agent.eip.nft_store import NftStore
from integration.netns.eip_world import nft
from integration.netns.netns import Netns
from integration.netns.test_eip_elements import alive, book_of_one, ruleset

pytestmark = pytest.mark.kernel

_SECONDS = 20.0
CLASSES = SETS[Family.IPV4].classes


@pytest.fixture
async def store(host: Netns) -> AsyncIterator[NftStore]:
    """With nothing in it, and nothing to be told of."""
    async with NftStore(EipTableOptions(), netns=host.path) as store:
        await store.sync(DataPlaneIndex())
        yield store


async def told(store: NftStore) -> None:
    async with asyncio.timeout(_SECONDS):
        await store.changed()


def until_expired(host: Netns) -> None:
    deadline = time.monotonic() + _SECONDS
    while "expires" in alive(host):
        assert time.monotonic() < deadline


async def nothing_told(host: Netns, store: NftStore) -> None:
    """The next that is told is the next that is done: what came before would have been told with it, or earlier."""
    waiting = asyncio.create_task(store.changed())
    nft(host, "add table inet another\ndelete table inet another")
    for _ in range(100):
        await asyncio.sleep(0)
    assert not waiting.done()
    nft(host, "add chain inet coil-eip sign")
    async with asyncio.timeout(_SECONDS):
        await waiting


async def test_what_we_do_ourselves_is_not_told(host: Netns, store: NftStore) -> None:
    book = book_of_one()
    await store.sync(book)
    await store.change(ElementChanges(adds={CLASSES: {"10.9.0.1": "1:1"}}))
    await store.keep_alive(60)
    await store.silence()
    await nothing_told(host, store)


async def test_what_expires_is_not_told(host: Netns, store: NftStore) -> None:
    await store.keep_alive(0.02)
    await asyncio.to_thread(until_expired, host)
    await store.keep_alive(60)
    await nothing_told(host, store)


async def test_other_tables_are_not_told(host: Netns, store: NftStore) -> None:
    nft(host, "add table ip coil-eip\nadd table inet coil-eip2\nadd set inet coil-eip2 coil-eip { type ipv4_addr; }")
    nft(host, "add element inet coil-eip2 coil-eip { 10.0.0.1 }\ndelete table ip coil-eip")
    await nothing_told(host, store)


@pytest.mark.parametrize(
    "command",
    [
        "flush ruleset",
        "delete table arp coil-eip",
        "delete element inet coil-eip class4 { 10.1.0.2 }",
        "add element arp coil-eip eips { 10.0.0.9 }",
        "flush map inet coil-eip class4",
        "insert rule inet coil-eip prerouting accept",
        "add table ip other\nadd chain inet coil-eip more",
    ],
)
async def test_what_others_do_is_told_and_mended(host: Netns, store: NftStore, command: str) -> None:
    book = book_of_one()
    await store.sync(book)
    before = ruleset(host)
    nft(host, command)
    await told(store)
    assert await store.sync(book)
    mended = [entry for entry in ruleset(host) if "other" not in str(entry)]
    assert mended == before


async def test_a_fuse_that_waits_for_nothing(host: Netns, store: NftStore) -> None:
    """Over one socket, again and again, also after a refusal."""
    await store.keep_alive(599.9)
    assert alive(host).count("timeout 9m59s900ms") == 4
    nft(host, "delete table arp coil-eip")
    for _ in range(2):
        with pytest.raises(NftError, match="table inet coil-eip and table arp coil-eip"):
            await store.keep_alive(60)
    await store.sync(DataPlaneIndex())
    await store.keep_alive(59.9)
    assert alive(host).count("timeout 59s900ms") == 4
    await store.silence()
    assert "elements" not in alive(host)
