"""What every `HostPortTable` promises: run on the one in memory, and on the kernel's in a namespace."""

import asyncio
from collections.abc import Awaitable, Callable
from ipaddress import IPv4Address, IPv6Address

import pytest

from coil.kernel.nft_element import Elements, diff_elements
from coil.nft.netfilter import NftError
from coil.podnet.host_port import PortMapping, Protocol, plan_host_ports
from coild.hostports.host_ports import HostPortTable
from tests.coild.virtual_loop import pass_turns

WEB = plan_host_ports(
    [IPv4Address("10.64.0.1"), IPv6Address("fd64::1")],
    [PortMapping(protocol=Protocol.TCP, host_port=8080, container_port=80)],
)
DNS = plan_host_ports(
    [IPv4Address("10.64.0.2")],
    [PortMapping(protocol=Protocol.UDP, host_port=53, container_port=53, host_address=IPv4Address("192.0.2.1"))],
)
BOTH = {name: {**WEB.get(name, {}), **DNS.get(name, {})} for name in {*WEB, *DNS}}

Disturb = Callable[[], Awaitable[object]]
"""Something else deletes the table."""


class HostPortTableContract:
    """Fixtures: `table`, without anything in the kernel, and `disturb`."""

    async def test_there_is_nothing_before_the_first_sync(self, table: HostPortTable) -> None:
        assert await table.read() is None
        assert await table.sync({})
        assert contents(await table.read()) == {}
        assert not await table.sync({})

    async def test_a_sync_leaves_what_is_wanted_and_nothing_else(self, table: HostPortTable) -> None:
        for elements in (BOTH, WEB, DNS):
            assert await table.sync(elements)
            assert not await table.sync(elements)
            assert contents(await table.read()) == elements

    async def test_a_change_is_what_changes(self, table: HostPortTable) -> None:
        await table.sync(WEB)
        await table.change(diff_elements(WEB, BOTH))
        assert contents(await table.read()) == BOTH
        await table.change(diff_elements(BOTH, DNS))
        assert contents(await table.read()) == DNS
        assert not await table.sync(DNS)

    async def test_a_change_that_does_not_fit_changes_nothing(self, table: HostPortTable, disturb: Disturb) -> None:
        await table.sync(DNS)
        with pytest.raises(NftError):
            await table.change(diff_elements(WEB, DNS))
        assert contents(await table.read()) == DNS
        await disturb()
        with pytest.raises(NftError):
            await table.change(diff_elements({}, WEB))
        assert await table.read() is None
        assert await table.sync(WEB)

    async def test_what_others_do_is_told_and_what_it_does_itself_is_not(
        self, table: HostPortTable, disturb: Disturb
    ) -> None:
        told = asyncio.ensure_future(table.changed())
        await table.sync(WEB)
        await table.change(diff_elements(WEB, BOTH))
        await table.sync(DNS)
        # The kernel tells of a change before it answers to it.
        await pass_turns(100)
        assert not told.done()
        await disturb()
        async with asyncio.timeout(60):
            await told

    async def test_conversations_of_nobody_are_forgotten(self, table: HostPortTable) -> None:
        await table.forget_udp({IPv4Address("10.64.0.2"): frozenset({53}), IPv6Address("fd64::2"): frozenset({53})})


def contents(elements: Elements | None) -> Elements | None:
    """Without sets that are empty."""
    return None if elements is None else {name: words for name, words in elements.items() if words}
