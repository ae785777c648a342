"""When routing of others is looked at, in virtual time; the kernel is one in memory."""

import asyncio
from collections.abc import AsyncIterator
from dataclasses import dataclass, field
from ipaddress import ip_network

import pytest
import structlog
from structlog.testing import capture_logs

from coil.kernel.family import Family
from coil.kernel.rule import Rule
from coil.netlink.node_watch import EventsLost, LinkEvent, NodeEvent, OtherRuleEvent, RouteEvent, RuleEvent
from coild.eni.diversion_watch import LOOK_SECONDS, SETTLE_SECONDS, DiversionWatch, Interfaces
from tests.coild.eni.memory_kernel import MemoryEniKernel
from tests.coild.eni.test_node_network import STATE, link

FOREIGN = Rule(family=Family.IPV4, priority=100, table=77, protocol=4)
DEFAULT = ip_network("0.0.0.0/0")
CAUGHT = ("rule 100 from all lookup 77 catches what pods of ens5 send",)
_PROMPTLY = SETTLE_SECONDS + 0.1


@dataclass
class Watched:
    kernel: MemoryEniKernel = field(default_factory=MemoryEniKernel)
    known: Interfaces | None = (STATE.interfaces, {each.interface.id: link(0) for each in STATE.interfaces})

    def __post_init__(self) -> None:
        self.watch = DiversionWatch(self.kernel, lambda: self.known, log=structlog.get_logger())

    def found(self) -> tuple[str, ...] | None:
        return self.watch.found

    async def note(self, event: NodeEvent) -> int:
        """How many looks the event costs."""
        self.kernel.looks.clear()
        self.watch.note(event)
        await asyncio.sleep(_PROMPTLY)
        return len(self.kernel.looks)


@pytest.fixture
async def watched() -> AsyncIterator[Watched]:
    """Running, with nothing to do."""
    made = Watched()
    task = asyncio.create_task(made.watch.run())
    await asyncio.sleep(LOOK_SECONDS + _PROMPTLY)
    yield made
    assert not task.done()
    task.cancel()
    await asyncio.gather(task, return_exceptions=True)


async def test_before_anybody_has_looked_nothing_is_known() -> None:
    assert Watched().found() is None


@pytest.mark.parametrize(
    "event",
    [
        EventsLost(),
        OtherRuleEvent(),
        RuleEvent(FOREIGN, gone=False),
        RuleEvent(FOREIGN, gone=True),
        RouteEvent(254, 16, DEFAULT, gone=False),
        RouteEvent(254, 16, DEFAULT, gone=True),
        RouteEvent(10_001, 4, DEFAULT, gone=False),
    ],
    ids=str,
)
async def test_what_may_have_changed_it_is_looked_at_soon(watched: Watched, event: NodeEvent) -> None:
    assert await watched.note(event) == 1


@pytest.mark.parametrize(
    "event",
    [
        RuleEvent(Rule(family=Family.IPV4, priority=1536, table=10_001, protocol=30), gone=False),
        RouteEvent(116, 30, ip_network("10.1.1.33/32"), gone=True),
        RouteEvent(77, 4, DEFAULT, gone=False),
        LinkEvent(link(1), gone=True),
    ],
    ids=str,
)
async def test_what_pods_that_come_and_go_cost(watched: Watched, event: NodeEvent) -> None:
    assert await watched.note(event) == 0


async def test_many_events_are_few_looks(watched: Watched) -> None:
    for _ in range(1000):
        watched.watch.note(OtherRuleEvent())
        await asyncio.sleep(0.01)
    assert len(watched.kernel.looks) <= 11


async def test_tables_that_only_others_rules_look_up_are_seen_periodically(watched: Watched) -> None:
    watched.kernel.diversions = CAUGHT
    await asyncio.sleep(LOOK_SECONDS + _PROMPTLY)
    assert watched.found() == CAUGHT


async def test_what_was_found_stands_while_the_kernel_does_not_answer(watched: Watched) -> None:
    watched.kernel.diversions = CAUGHT
    await watched.note(OtherRuleEvent())
    watched.kernel.diversions = ()
    watched.kernel.refuse = {"diversions"}
    assert await watched.note(OtherRuleEvent()) == 1
    assert watched.found() == CAUGHT
    watched.kernel.refuse.clear()
    await asyncio.sleep(LOOK_SECONDS + _PROMPTLY)
    assert watched.found() == ()


async def test_nothing_is_looked_at_before_the_interfaces_are_known(watched: Watched) -> None:
    before, watched.known = watched.known, None
    assert await watched.note(OtherRuleEvent()) == 0
    watched.known = before
    watched.watch.look_soon()
    await asyncio.sleep(_PROMPTLY)
    assert len(watched.kernel.looks) == 1


async def test_the_log_has_each_change_once(watched: Watched) -> None:
    with capture_logs() as lines:
        for found in ((), CAUGHT, CAUGHT, (), ()):
            watched.kernel.diversions = found
            await watched.note(OtherRuleEvent())
    assert [(line["log_level"], line.get("found")) for line in lines] == [("warning", CAUGHT), ("info", None)]
