"""A table in memory, as `coild.model.watched_table.WatchedTable` has it in the kernel. What it promises,
`HostPortTableContract` asks of both.
"""

import asyncio
from collections.abc import Mapping

from coil.kernel.nft_element import ElementChanges, ElementKey, Elements, ElementValue, SetName
from coil.nft.netfilter import NftError
from coil.nft.table_sync import CounterValue

Sets = dict[SetName, dict[ElementKey, ElementValue]]


class MemoryTable:
    """`sets` is what the kernel has, None without the table; `packets` is what its counters have, and `readings` how
    often they were read. `error` is raised by what writes, and nothing changes.
    """

    def __init__(self, *counters: str) -> None:
        self.sets: Sets | None = None
        self.error: Exception | None = None
        self.packets = dict.fromkeys(counters, 0)
        self.readings = 0
        self.syncs = 0
        self._synced = asyncio.Event()
        self._changed = asyncio.Event()

    def disturb(self, sets: Sets | None) -> None:
        """Something else changes the table."""
        self.sets = sets
        self._changed.set()

    async def read(self) -> Elements | None:
        await asyncio.sleep(0)
        return None if self.sets is None else {name: dict(words) for name, words in self.sets.items()}

    async def sync(self, elements: Elements) -> bool:
        wanted = {name: dict(words) for name, words in elements.items() if words}
        await self._write()
        self.syncs += 1
        self._synced.set()
        different = self.sets is None or {name: words for name, words in self.sets.items() if words} != wanted
        self.sets = wanted
        return different

    async def change(self, changes: ElementChanges) -> None:
        await self._write()
        sets = {name: dict(words) for name, words in (self.sets or {}).items()}
        if self.sets is None and changes:
            raise NftError(doing="change", reason="there is no table")
        for name, keys in changes.deletes.items():
            for key in keys:
                if key not in sets.get(name, {}):
                    raise NftError(doing="change", reason=f"{key} is not there")
                del sets[name][key]
        for name, words in changes.adds.items():
            for key, value in words.items():
                if sets.setdefault(name, {}).setdefault(key, value) != value:
                    raise NftError(doing="change", reason=f"{key} is there")
        self.sets = sets if self.sets is not None else None

    async def changed(self) -> None:
        await self._synced.wait()
        await self._changed.wait()
        self._changed.clear()

    async def counters(self) -> Mapping[str, CounterValue]:
        self.readings += 1
        if self.sets is None:
            raise NftError(doing="read counters", reason="there is no table")
        return {name: CounterValue(packets=packets, bytes=0) for name, packets in self.packets.items()}

    async def _write(self) -> None:
        await asyncio.sleep(0)
        if self.error is not None:
            raise self.error
