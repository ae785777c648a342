"""A `HostPortTable` in memory; `HostPortTableContract` holds for it as for the kernel's."""

import asyncio
from collections.abc import Mapping

from coil.kernel.family import IPAddress
from coil.kernel.nft_element import ElementChanges, ElementKey, Elements, ElementValue, SetName
from coil.nft.netfilter import NftError

Sets = dict[SetName, dict[ElementKey, ElementValue]]


class MemoryHostPortTable:
    """`sets` is what the kernel has, None without the table. `error` is raised by what writes, and nothing changes."""

    def __init__(self) -> None:
        self.sets: Sets | None = None
        self.error: Exception | None = None
        self.forgotten: list[dict[IPAddress, frozenset[int]]] = []
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

    async def forget_udp(self, ports: Mapping[IPAddress, frozenset[int]]) -> None:
        self.forgotten.append(dict(ports))

    async def _write(self) -> None:
        await asyncio.sleep(0)
        if self.error is not None:
            raise self.error
