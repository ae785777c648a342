"""What every implementation of `coil_egress_agent.eip.kernel.Tables` does: the fake of the tests and the kernel."""

from typing import Protocol

import pytest

from coil.eip.eip_set import ARP_EIPS, NODES, SETS
from coil.kernel.family import Family
from coil.kernel.nft_element import ElementChanges, Elements
from coil.nft.netfilter import NftError
from coil_egress_agent.eip.kernel import Tables

CLASSES = SETS[Family.IPV4].classes
RANGES = SETS[Family.IPV6].ranges[1]
SUBNETS = SETS[Family.IPV4].subnet_classes
WAYS = SETS[Family.IPV4].ways

SOME: Elements = {
    CLASSES: {"10.0.0.1": "1:1", "10.0.0.2": "2:ffff"},
    SUBNETS: {"10.1.0.0/16": "1:3", "10.2.0.0-10.2.0.4": "1:4", "10.2.0.5": "1:3", "255.255.255.0/24": "1:3"},
    RANGES: {("1:2", "2001:db8::/32"): "3:1"},
    WAYS: {"3:1": 0x26000100},
    NODES: {"02:00:00:00:00:01": 0x26000100},
    ARP_EIPS: {"203.0.113.50": None},
}


class Stage(Protocol):
    """Tables that do not exist yet, and what an onlooker sees of them."""

    @property
    def tables(self) -> Tables: ...

    async def elements(self) -> Elements:
        """What is in them, without sets that are empty."""
        ...

    async def timeout(self) -> float | None:
        """Seconds, rounded to tenths, for which EIPs are answered for; None: they are not."""
        ...

    async def pass_timeout(self) -> float | None:
        """The same of unknown sources."""
        ...


class TablesContract:
    """Subclass it with a fixture `stage`."""

    async def test_a_sync_makes_them_what_they_should_be_and_a_second_one_finds_them_so(self, stage: Stage) -> None:
        assert await stage.tables.sync(SOME)
        assert await stage.elements() == SOME
        assert not await stage.tables.sync(SOME)

    async def test_tables_without_elements_are_something_else_than_none(self, stage: Stage) -> None:
        assert await stage.tables.sync({})
        assert not await stage.tables.sync({})

    async def test_a_sync_leaves_no_other_elements(self, stage: Stage) -> None:
        await stage.tables.sync(SOME)
        other: Elements = {CLASSES: {"10.0.0.2": "7:7", "10.0.0.3": "1:1"}}
        assert await stage.tables.sync(other)
        assert await stage.elements() == other

    async def test_a_change_adds_and_deletes(self, stage: Stage) -> None:
        await stage.tables.sync(SOME)
        changes = ElementChanges(
            deletes={CLASSES: ("10.0.0.1", "10.0.0.2"), SUBNETS: ("10.2.0.0-10.2.0.4", "255.255.255.0/24")},
            adds={
                CLASSES: {"10.0.0.2": "7:7"},
                RANGES: {("1:3", "::/0"): "3:1"},
                SUBNETS: {"10.2.0.0/30": "1:9", "10.2.0.4": "1:8", "10.0.0.0/16": "1:7"},
            },
        )
        await stage.tables.change(changes)
        assert await stage.elements() == {
            **SOME,
            CLASSES: {"10.0.0.2": "7:7"},
            RANGES: {("1:2", "2001:db8::/32"): "3:1", ("1:3", "::/0"): "3:1"},
            SUBNETS: {
                "10.0.0.0/16": "1:7",
                "10.1.0.0/16": "1:3",
                "10.2.0.0/30": "1:9",
                "10.2.0.4": "1:8",
                "10.2.0.5": "1:3",
            },
        }
        await stage.tables.change(ElementChanges())
        assert not await stage.tables.sync(await stage.elements())

    @pytest.mark.parametrize(
        "changes",
        [
            ElementChanges(deletes={CLASSES: ("10.0.0.9",)}, adds={WAYS: {"3:2": 1}}),
            ElementChanges(deletes={WAYS: ("3:1",)}, adds={CLASSES: {"10.0.0.1": "9:9"}}),
        ],
    )
    async def test_a_change_that_does_not_fit_is_refused_and_changes_nothing(
        self, stage: Stage, changes: ElementChanges
    ) -> None:
        await stage.tables.sync(SOME)
        with pytest.raises(NftError):
            await stage.tables.change(changes)
        assert await stage.elements() == SOME
        assert not await stage.tables.sync(SOME)

    async def test_what_is_added_again_as_it_is_changes_nothing(self, stage: Stage) -> None:
        await stage.tables.sync(SOME)
        await stage.tables.change(ElementChanges(adds={CLASSES: {"10.0.0.1": "1:1"}}))
        assert await stage.elements() == SOME

    async def test_a_refresh_sets_the_time_that_is_left_and_0_ends_it(self, stage: Stage) -> None:
        await stage.tables.sync(SOME)
        assert await stage.timeout() is None
        for seconds in (60.0, 30.0, 90.0):
            await stage.tables.refresh(lambda seconds=seconds: seconds)  # type: ignore[misc]
            assert await stage.timeout() == seconds
        for seconds in (0.0, -1.0):
            await stage.tables.refresh(lambda: 60.0)
            await stage.tables.refresh(lambda seconds=seconds: seconds)  # type: ignore[misc]
            assert await stage.timeout() is None

    async def test_unknown_sources_pass_for_a_time_of_their_own(self, stage: Stage) -> None:
        await stage.tables.sync(SOME)
        assert await stage.pass_timeout() is None
        for seconds in (15.0, 30.0):
            await stage.tables.let_pass(seconds)
            assert await stage.pass_timeout() == seconds
        await stage.tables.refresh(lambda: 60.0)
        assert await stage.pass_timeout() == 30.0
        await stage.tables.let_pass(0.0)
        assert await stage.pass_timeout() is None
        assert await stage.timeout() == 60.0

    async def test_what_expires_is_not_the_business_of_the_other_verbs(self, stage: Stage) -> None:
        await stage.tables.sync(SOME)
        await stage.tables.refresh(lambda: 60.0)
        assert not await stage.tables.sync(SOME)
        await stage.tables.change(ElementChanges(adds={CLASSES: {"10.0.0.3": "1:1"}}))
        assert await stage.tables.sync(SOME)
        assert await stage.timeout() == 60.0
        await stage.tables.refresh(lambda: 0.0)
        assert await stage.elements() == SOME

    async def test_without_tables_there_is_nothing_to_change_or_to_refresh(self, stage: Stage) -> None:
        for _ in range(2):
            await stage.tables.clean_up()
            with pytest.raises(NftError):
                await stage.tables.refresh(lambda: 60.0)
            with pytest.raises(NftError):
                await stage.tables.let_pass(60.0)
            with pytest.raises(NftError):
                await stage.tables.change(ElementChanges(adds={CLASSES: {"10.0.0.1": "1:1"}}))
            assert await stage.tables.sync(SOME)
            await stage.tables.refresh(lambda: 60.0)
            assert await stage.timeout() == 60.0
