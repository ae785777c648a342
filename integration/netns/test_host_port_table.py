"""The kernel's table of host ports keeps the contract of `HostPortTable`."""

from collections.abc import AsyncIterator

import pytest

from coil.podnet.host_port import TABLE
from coild.hostports.kernel_table import KernelTable
from integration.netns.eip_world import nft
from integration.netns.netns import Netns
from tests.coild.hostports.table_contract import Disturb, HostPortTableContract

pytestmark = pytest.mark.kernel


class TestKernelTable(HostPortTableContract):
    @pytest.fixture
    async def table(self, host: Netns) -> AsyncIterator[KernelTable]:
        async with KernelTable(netns=host.path) as table:
            yield table

    @pytest.fixture
    def disturb(self, host: Netns) -> Disturb:
        async def delete() -> None:
            nft(host, f"delete table inet {TABLE}\n")

        return delete
