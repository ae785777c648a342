"""The table in memory keeps the contract."""

import pytest

from tests.coild.hostports.memory_table import MemoryHostPortTable
from tests.coild.hostports.table_contract import Disturb, HostPortTableContract


class TestMemoryHostPortTable(HostPortTableContract):
    @pytest.fixture
    async def table(self) -> MemoryHostPortTable:
        return MemoryHostPortTable()

    @pytest.fixture
    def disturb(self, table: MemoryHostPortTable) -> Disturb:
        async def delete() -> None:
            table.disturb(None)

        return delete
