"""Event loops whose time is a number: nothing sleeps, and hours pass as fast as the callbacks run.

A `Universe` holds the time and several loops, one for each simulated process. Each loop is run until it
would wait; then the time jumps to the next moment at which one of them has something to do. A process can
be suspended (its loop does not run, the time goes on, what arrives for it waits) and killed. Only public
interfaces of asyncio are used: a loop's selector is asked to wait exactly when the loop has nothing ready.
Beyond some weeks a float is coarser than asyncio's clock resolution and its timers stand still: do not go there.
"""

import asyncio
import heapq
import itertools
import math
import selectors
from collections.abc import Callable, Coroutine, Mapping
from typing import Any, TypeVar

T = TypeVar("T")


class ProcessExitError(SystemExit):
    """Raised inside a simulated process to end it, as os._exit ends a real one."""


class _Selector(selectors.BaseSelector):
    """A selector on which nothing ever happens; being asked to wait, it stops its loop instead."""

    def __init__(self) -> None:
        self.inner = selectors.DefaultSelector()
        self.loop: VirtualLoop | None = None
        self.idle_for = math.inf

    def register(self, fileobj: Any, events: int, data: Any = None) -> selectors.SelectorKey:
        return self.inner.register(fileobj, events, data)

    def unregister(self, fileobj: Any) -> selectors.SelectorKey:
        return self.inner.unregister(fileobj)

    def modify(self, fileobj: Any, events: int, data: Any = None) -> selectors.SelectorKey:
        return self.inner.modify(fileobj, events, data)

    def select(self, timeout: float | None = None) -> list[tuple[selectors.SelectorKey, int]]:
        if timeout is None or timeout > 0:
            self.idle_for = math.inf if timeout is None else timeout
            assert self.loop is not None
            self.loop.stop()
        return []

    def close(self) -> None:
        self.inner.close()

    def get_map(self) -> Mapping[Any, selectors.SelectorKey]:
        return self.inner.get_map()


class VirtualLoop(asyncio.SelectorEventLoop):
    """One simulated process's loop. `alive` until it was killed, `suspended_until` a time of the universe.

    Its own clock runs `rate` times as fast as the universe's.
    """

    def __init__(self, universe: "Universe", name: str, *, rate: float = 1.0) -> None:
        self._universe = universe
        self._rate = rate
        self._virtual_selector = _Selector()
        super().__init__(self._virtual_selector)
        self._virtual_selector.loop = self
        self.name = name
        self.alive = True
        self.suspended_until = -math.inf
        self.next_due = -math.inf
        self.errors: list[dict[str, Any]] = []
        self.set_exception_handler(lambda _loop, context: self.errors.append(context))

    def time(self) -> float:
        return self._universe.now * self._rate

    def universe_time(self, local: float) -> float:
        """When this process's clock shows `local`."""
        return local / self._rate

    @property
    def suspended(self) -> bool:
        return self._universe.now < self.suspended_until

    def deliver(self, callback: Callable[[], object]) -> None:
        """Have `callback` run in this process, now or when it is no longer suspended."""
        self.call_soon(callback)
        self.next_due = -math.inf

    def run_ready(self) -> None:
        """Run everything that can run at this instant."""
        try:
            self.run_forever()
        except ProcessExitError:
            self.kill()
        else:
            self.next_due = self._universe.now + self._virtual_selector.idle_for / self._rate

    def kill(self) -> None:
        """No line of this process runs any more, not even a `finally`."""
        self.alive = False


class Universe:
    """The time, the processes in it, and things that happen at a time outside all of them."""

    def __init__(self) -> None:
        self.now = 0.0
        self.loops: list[VirtualLoop] = []
        self._events: list[tuple[float, int, Callable[[], None]]] = []
        self._order = itertools.count()
        self.watch: Callable[[], None] = lambda: None

    def boot(self, name: str, *, rate: float = 1.0) -> VirtualLoop:
        """A new process, which does nothing yet."""
        loop = VirtualLoop(self, name, rate=rate)
        self.loops.append(loop)
        return loop

    def at(self, when: float, event: Callable[[], None]) -> None:
        heapq.heappush(self._events, (when, next(self._order), event))

    def run(self, until: float) -> None:
        """Let time pass up to and including `until`; `watch` is called at the end of every instant."""
        while True:
            while self._events and self._events[0][0] <= self.now:
                heapq.heappop(self._events)[2]()
            for loop in self.loops:
                if loop.alive and self._next(loop) <= self.now:
                    loop.run_ready()
            self.watch()
            upcoming = [self._next(loop) for loop in self.loops if loop.alive]
            if self._events:
                upcoming.append(self._events[0][0])
            following = min(upcoming, default=math.inf)
            if following > until:
                self.now = max(self.now, until)
                return
            self.now = max(self.now, following)

    def close(self) -> None:
        for loop in self.loops:
            loop.close()

    @staticmethod
    def _next(loop: VirtualLoop) -> float:
        return max(loop.next_due, loop.suspended_until)


def run_virtual(main: Callable[[], Coroutine[Any, Any, T]], *, limit: float = 1e6) -> T:
    """`asyncio.run` in virtual time. A task that is left over, or that has failed unseen, is an error."""
    universe = Universe()
    loop = universe.boot("main")
    task = loop.create_task(main())
    try:
        universe.run(until=limit)
        assert task.done(), f"still waiting after {limit:g} virtual seconds"
        left = asyncio.all_tasks(loop)
        assert not left, f"left over: {left}"
        result = task.result()
        assert not loop.errors, loop.errors
        return result
    finally:
        for leftover in asyncio.all_tasks(loop):
            leftover.cancel()
        loop.next_due = -math.inf
        loop.run_ready()
        universe.close()
