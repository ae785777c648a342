"""Who else changes the tables of the EIP gateway, as the kernel tells it, and what the tables makes of it."""

import asyncio
from collections.abc import AsyncIterator

import pytest

from coil.eip.eip_table import SETS, EipTableOptions
from coil.kernel.family import Family
from coil.kernel.nft_element import ElementChanges
from coil.nft.netfilter import NftError
from coil_egress_agent.eip.kernel_tables import KernelTables
from integration.netns.eip_world import nft
from integration.netns.netns import Netns
from integration.netns.test_eip_elements import alive, index_of_one_pod, ruleset
from integration.patience import TIMEOUT, wait_until

pytestmark = pytest.mark.kernel

CLASSES = SETS[Family.IPV4].classes


@pytest.fixture
async def tables(host: Netns) -> AsyncIterator[KernelTables]:
    """With nothing in it, and nothing to be told of."""
    async with KernelTables(EipTableOptions(), netns=host.path) as tables:
        await tables.sync({})
        yield tables


async def told(tables: KernelTables) -> None:
    async with asyncio.timeout(TIMEOUT):
        await tables.changed()


def until_expired(host: Netns) -> None:
    wait_until(lambda: "expires" not in alive(host), what="all has expired")


async def nothing_told(host: Netns, tables: KernelTables) -> None:
    """The next that is told is the next that is done: what came before would have been told with it, or earlier."""
    waiting = asyncio.create_task(tables.changed())
    nft(host, "add table inet another\ndelete table inet another")
    for _ in range(100):
        await asyncio.sleep(0)
    assert not waiting.done()
    nft(host, "add chain inet coil-eip sign")
    async with asyncio.timeout(TIMEOUT):
        await waiting


async def test_what_we_do_ourselves_is_not_told(host: Netns, tables: KernelTables) -> None:
    index = index_of_one_pod()
    await tables.sync(index.elements())
    await tables.change(ElementChanges(adds={CLASSES: {"10.9.0.1": "1:1"}}))
    await tables.refresh(lambda: 60)
    await tables.refresh(lambda: 0.0)
    await nothing_told(host, tables)


async def test_what_expires_is_not_told(host: Netns, tables: KernelTables) -> None:
    await tables.refresh(lambda: 0.02)
    await asyncio.to_thread(until_expired, host)
    await tables.refresh(lambda: 60)
    await nothing_told(host, tables)


async def test_other_tables_are_not_told(host: Netns, tables: KernelTables) -> None:
    nft(host, "add table ip coil-eip\nadd table inet coil-eip2\nadd set inet coil-eip2 coil-eip { type ipv4_addr; }")
    nft(host, "add element inet coil-eip2 coil-eip { 10.0.0.1 }\ndelete table ip coil-eip")
    await nothing_told(host, tables)


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
async def test_what_others_do_is_told_and_mended(host: Netns, tables: KernelTables, command: str) -> None:
    index = index_of_one_pod()
    await tables.sync(index.elements())
    before = ruleset(host)
    nft(host, command)
    await told(tables)
    assert await tables.sync(index.elements())
    mended = [entry for entry in ruleset(host) if "other" not in str(entry)]
    assert mended == before


async def test_refreshes_over_one_socket(host: Netns, tables: KernelTables) -> None:
    """Again and again, also after a refusal."""
    await tables.refresh(lambda: 599.9)
    assert alive(host).count("timeout 9m59s900ms") == 4
    nft(host, "delete table arp coil-eip")
    for _ in range(2):
        with pytest.raises(NftError, match="table inet coil-eip and table arp coil-eip"):
            await tables.refresh(lambda: 60)
    await tables.sync({})
    await tables.refresh(lambda: 59.9)
    assert alive(host).count("timeout 59s900ms") == 4
    await tables.refresh(lambda: 0.0)
    assert "elements" not in alive(host)
