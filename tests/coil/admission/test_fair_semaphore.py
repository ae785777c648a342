"""Who is let in, and who waits in vain."""

import asyncio
from collections.abc import Awaitable, Callable

import pytest

from coil.admission.fair_semaphore import FairSemaphore, OverloadedError


class Room:
    """Tasks that come in one after the other, and stay until they are told to go."""

    def __init__(self, slots: int = 1, *, queue_length: int = 100) -> None:
        self.semaphore = FairSemaphore(slots, queue_length=queue_length)
        self.inside: list[str] = []
        self.tasks: dict[str, asyncio.Task[None]] = {}
        self.afterwards: Callable[[], object] = lambda: None
        """Called by whoever has left, before anybody else can run."""
        self._leave: dict[str, asyncio.Event] = {}

    async def come(self, *names: str) -> None:
        """The source is the name's first letter."""
        for name in names:
            self._leave[name] = asyncio.Event()
            self.tasks[name] = asyncio.create_task(self._stay(name))
            await settle()

    async def leave(self, name: str) -> None:
        self._leave[name].set()
        await settle()

    async def _stay(self, name: str) -> None:
        async with self.semaphore.slot(name[0]):
            self.inside.append(name)
            try:
                await self._leave[name].wait()
            finally:
                self.inside.remove(name)
        self.afterwards()

    def turned_away(self) -> list[str]:
        return [
            name
            for name, task in self.tasks.items()
            if task.done() and not task.cancelled() and isinstance(task.exception(), OverloadedError)
        ]


async def settle() -> None:
    for _ in range(5):
        await asyncio.sleep(0)


async def drain(room: Room) -> list[str]:
    """In which order all come in."""
    order = []
    while room.inside:
        [name] = room.inside
        order.append(name)
        await room.leave(name)
    return order


async def test_sources_take_turns() -> None:
    room = Room()
    await room.come("a1", "a2", "a3", "a4", "b1", "b2", "c1")
    assert await drain(room) == ["a1", "a2", "b1", "c1", "a3", "b2", "a4"]


async def test_as_many_as_there_are_slots() -> None:
    room = Room(3)
    await room.come("a1", "a2", "a3", "a4")
    assert room.inside == ["a1", "a2", "a3"]
    await room.leave("a2")
    assert room.inside == ["a1", "a3", "a4"]


async def test_where_too_many_wait_the_source_with_the_most_gives_way() -> None:
    room = Room(queue_length=4)
    await room.come("x1", "a1", "a2", "a3", "a4", "a5")
    assert room.turned_away() == ["a5"]
    await room.come("b1", "b2")
    assert room.turned_away() == ["a3", "a4", "a5"]
    await room.come("b3", "c1")  # nobody has more than one more than they would
    assert room.turned_away() == ["a2", "a3", "a4", "a5", "b3"]
    assert await drain(room) == ["x1", "a1", "b1", "c1", "b2"]


async def test_without_a_queue_nobody_waits() -> None:
    room = Room(queue_length=0)
    await room.come("a1", "b1")
    assert room.turned_away() == ["b1"]


async def cancel_waiting(room: Room) -> None:
    room.tasks["a2"].cancel()
    await settle()


async def cancel_with_the_slot_on_its_way(room: Room) -> None:
    room.afterwards = room.tasks["a2"].cancel
    await room.leave("a1")
    room.afterwards = lambda: None


@pytest.mark.parametrize("give_up", [cancel_waiting, cancel_with_the_slot_on_its_way])
async def test_who_gives_up_takes_nobody_else_s_turn(give_up: Callable[[Room], Awaitable[None]]) -> None:
    room = Room()
    await room.come("a1", "a2", "a3", "b1")
    await give_up(room)
    assert len(room.inside) == 1
    order = await drain(room)
    assert "a2" not in order
    assert {"a3", "b1"} <= set(order)
    await room.come("d1")
    assert room.inside == ["d1"]
