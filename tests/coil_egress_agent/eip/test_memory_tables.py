"""The fake of the tables keeps the contract that the kernel keeps."""

import asyncio

import pytest

from coil.kernel.nft_element import Elements
from tests.coil_egress_agent.eip.memory_node import Journal, MemoryTables
from tests.coil_egress_agent.eip.tables_contract import TablesContract


class MemoryStage:
    def __init__(self) -> None:
        self.tables = MemoryTables(Journal())

    async def elements(self) -> Elements:
        return self.tables.elements

    async def timeout(self) -> float | None:
        return _left(self.tables.alive_until)

    async def pass_timeout(self) -> float | None:
        return _left(self.tables.current_until)


def _left(until: float) -> float | None:
    left = until - asyncio.get_running_loop().time()
    return round(left, 1) if left > 0 else None


class TestMemoryTables(TablesContract):
    @pytest.fixture
    def stage(self) -> MemoryStage:
        return MemoryStage()
