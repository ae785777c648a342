"""The table of pods' sources is made at the start, restored when others change it, and what it drops is told."""

import asyncio
from collections.abc import Mapping
from dataclasses import dataclass, field

import pytest
import structlog
from prometheus_client import CollectorRegistry
from structlog.testing import capture_logs

from coil.kernel.nft_element import Elements
from coil.nft.netfilter import NftError
from coil.nft.table_sync import CounterValue
from coil.podnet.source_table import SPOOFED
from coild.model.dropped_packets import READ_SECONDS, TELL_SECONDS
from coild.node.source_verification import SourceVerification
from tests.coild.virtual_loop import pass_turns

BROKEN = NftError(doing="add rules", reason="Operation not supported")


@dataclass
class MemoryTable:
    """`dropped` is its counter; None without the table."""

    dropped: int | None = None
    error: NftError | None = None
    syncs: int = 0
    _changed: asyncio.Event = field(default_factory=asyncio.Event)

    def disturb(self) -> None:
        """Something else deletes the table."""
        self.dropped = None
        self._changed.set()

    async def sync(self, elements: Elements) -> bool:
        assert not elements
        self.syncs += 1
        if self.error is not None:
            raise self.error
        different = self.dropped is None
        self.dropped = self.dropped or 0
        return different

    async def delete(self) -> bool:
        raise NotImplementedError

    async def counters(self) -> Mapping[str, CounterValue]:
        if self.dropped is None:
            raise NftError(doing="read counters", reason="No such file or directory")
        return {SPOOFED: CounterValue(packets=self.dropped, bytes=0)}

    async def changed(self) -> None:
        await self._changed.wait()
        self._changed.clear()


class Scene:
    def __init__(self, table: MemoryTable | None = None) -> None:
        self.table = table or MemoryTable()
        self.registry = CollectorRegistry()
        self.sources = SourceVerification(
            self.table,
            registry=self.registry,
            random=lambda: 1.0,
            log=structlog.get_logger(),
            clock=asyncio.get_running_loop().time,
        )

    @property
    def counted(self) -> float | None:
        return self.registry.get_sample_value("coil_node_spoofed_packets_total")


async def run(*tasks: asyncio.Future[None], seconds: float) -> None:
    await asyncio.wait(tasks, timeout=seconds)


async def test_what_an_earlier_process_has_counted_is_not_told_again() -> None:
    scene = Scene(MemoryTable(dropped=7))
    with capture_logs() as lines:
        await scene.sources.prepare()
        counting = asyncio.ensure_future(scene.sources.count())
        await run(counting, seconds=2 * READ_SECONDS)
        counting.cancel()
    assert (scene.counted, lines) == (7, [])


async def test_a_kernel_that_cannot_do_it_is_told_with_what_to_do() -> None:
    scene = Scene(MemoryTable(error=BROKEN))
    with pytest.raises(NftError, match=r"own addresses.*not supported.*--verify-source=false"):
        await scene.sources.prepare()


async def test_dropped_packets_are_counted_and_told_now_and_then() -> None:
    scene = Scene()
    with capture_logs() as lines:
        await scene.sources.prepare()
        counting = asyncio.ensure_future(scene.sources.count())
        for dropped in (3, 10, 25):
            scene.table.dropped = dropped
            await run(counting, seconds=READ_SECONDS + 1)
        assert (scene.counted, [line["packets"] for line in lines]) == (25, [3])
        await run(counting, seconds=TELL_SECONDS)
        assert [line["packets"] for line in lines] == [3, 22]
        counting.cancel()


async def test_a_table_that_is_deleted_is_made_again_and_its_count_goes_on() -> None:
    scene = Scene()
    await scene.sources.prepare()
    tasks = [asyncio.ensure_future(work) for work in (scene.sources.follow(), scene.sources.count())]
    scene.table.dropped = 9
    await run(*tasks, seconds=READ_SECONDS + 1)
    scene.table.disturb()
    await pass_turns()
    assert scene.table.syncs == 2
    scene.table.dropped = 2
    await run(*tasks, seconds=READ_SECONDS + 1)
    assert scene.counted == 11
    for task in tasks:
        task.cancel()


async def test_a_kernel_that_refuses_is_tried_again_with_a_backoff() -> None:
    scene = Scene()
    await scene.sources.prepare()
    following = asyncio.ensure_future(scene.sources.follow())
    with capture_logs() as lines:
        scene.table.error = BROKEN
        scene.table.disturb()
        await run(following, seconds=20)
        assert 3 < scene.table.syncs < 10
        scene.table.error = None
        await run(following, seconds=60)
    assert scene.table.dropped == 0
    assert [line["event"] for line in lines][-1] == (
        "something else had changed the table of pods' sources; it is as it was"
    )
    following.cancel()
