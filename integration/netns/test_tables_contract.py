"""The kernel's tables keep the contract that the fake of the unit tests keeps. The oracle is `nft -j`."""

import asyncio
import json
import subprocess
import threading
from collections.abc import AsyncIterator
from typing import Any

import pytest

from coil.eip.eip_set import TABLE
from coil.eip.eip_table import EipTableOptions
from coil.kernel.nft_element import Elements
from coil_egress_agent.eip.kernel_tables import KernelTables
from coild.eip.agent_client import has_earlier_agent
from integration.netns.eip_world import TABLES, nft
from integration.netns.listed_elements import read_elements
from integration.netns.netns import Netns
from integration.netns.test_eip_elements import not_empty
from tests.coil_egress_agent.eip.tables_contract import CLASSES, SOME, TablesContract

pytestmark = pytest.mark.kernel

_SECONDS = 60.0


class KernelStage:
    def __init__(self, host: Netns, tables: KernelTables) -> None:
        self.tables = tables
        self._host = host

    async def elements(self) -> Elements:
        return not_empty(await asyncio.to_thread(self._host.call, lambda: read_elements(TABLES)))

    async def timeout(self) -> float | None:
        return await self._timeout(("inet", "alive"), ("arp", "alive"))

    async def pass_timeout(self) -> float | None:
        return await self._timeout(("inet", "current"))

    async def _timeout(self, *sets: tuple[str, str]) -> float | None:
        found = [each for family, name in sets for each in await asyncio.to_thread(self._list, family, name)]
        assert len(found) in (0, 2 * len(sets)), found
        timeouts = {each["elem"]["timeout"] for each in found}
        assert len(timeouts) < 2
        return float(timeouts.pop()) if timeouts else None

    def _list(self, family: str, name: str) -> list[dict[str, Any]]:
        command = ["ip", "netns", "exec", self._host.name, "nft", "-j", "list", "set", family, TABLE, name]
        listed = subprocess.run(command, capture_output=True, text=True, check=True, timeout=_SECONDS).stdout
        [found] = [entry["set"] for entry in json.loads(listed)["nftables"] if "set" in entry]
        return list(found.get("elem", []))


@pytest.fixture
async def stage(host: Netns) -> AsyncIterator[KernelStage]:
    async with KernelTables(EipTableOptions(), netns=host.path) as tables:
        yield KernelStage(host, tables)


class TestKernelTables(TablesContract):
    pass


class Held(dict[Any, Any]):
    """Elements of one set that nobody gets to know before `released`."""

    def __init__(self, *args: Any) -> None:
        super().__init__(*args)
        self.asked, self.released = threading.Event(), threading.Event()

    def items(self) -> Any:
        self.asked.set()
        assert self.released.wait(_SECONDS)
        return super().items()


async def test_a_refresh_waits_for_no_sync(stage: KernelStage) -> None:
    await stage.tables.sync(SOME)
    held = Held({"10.0.0.7": "1:1"})
    sync = asyncio.create_task(stage.tables.sync({**SOME, CLASSES: held}))
    assert await asyncio.to_thread(held.asked.wait, _SECONDS)
    async with asyncio.timeout(_SECONDS):
        await stage.tables.refresh(lambda: 60.0)
    assert await stage.timeout() == 60.0
    assert not sync.done()
    held.released.set()
    assert await sync


async def test_a_refresh_that_has_waited_counts_from_its_turn(stage: KernelStage) -> None:
    """Queued behind another, it does not give the kernel the time that has passed meanwhile once more."""
    await stage.tables.sync({})
    left, asked, released = 90.0, threading.Event(), threading.Event()

    def slow() -> float:
        asked.set()
        assert released.wait(_SECONDS)
        return 60.0

    first = asyncio.create_task(stage.tables.refresh(slow))
    assert await asyncio.to_thread(asked.wait, _SECONDS)
    second = asyncio.create_task(stage.tables.refresh(lambda: left))
    await asyncio.sleep(0)  # it is in the queue
    left = 30.0
    released.set()
    await asyncio.gather(first, second)
    assert await stage.timeout() == 30.0


async def test_tables_tell_of_an_agent_that_has_no_socket(stage: KernelStage, host: Netns) -> None:
    assert not host.call(has_earlier_agent)
    nft(host, "add table inet coil-eip")
    assert host.call(has_earlier_agent)
    await stage.tables.sync(SOME)
    assert not host.call(has_earlier_agent)
