"""What every binding of ports promises, whatever it plugs them into.

A binding passes it by a subclass of `BindingContract` whose fixture `stage` is a `BindingStage`. Tests are plain
functions and run a loop of their own: what is real takes real time.
"""

import asyncio
from collections.abc import Callable, Collection, Coroutine
from dataclasses import replace
from typing import Any, Protocol

import pytest

from coil.ipam.occupancy import ContainerId
from coil.kernel.link import LinkName
from coild.model.port_error import BindError
from coild.neutron.binding import Binding, PortBinding
from tests.coild.neutron.port_node import handoff

SECONDS = 120.0
"""More than any call takes."""


def binding(number: int = 1, **changes: Any) -> PortBinding:
    return PortBinding(
        port=handoff(number, f"uid-{number}", **changes),
        ifname=LinkName(f"veth{number:08x}"),
        endpoint=ContainerId(f"container-{number}"),
    )


class BindingStage(Protocol):
    """A binding, and what it plugs ports into. `binding` makes a new one, as the next process does."""

    def new(self) -> Binding: ...

    def plugged(self) -> Collection[tuple[str, str, str]]:
        """Port, host's end and container of each."""
        ...

    def obstruct(self) -> None:
        """From now on nothing can be plugged in: a call has gone half its way when it fails."""
        ...

    async def delay(self) -> Callable[[], Coroutine[Any, Any, None]]:
        """From now on, a call to plug in hangs half its way; the result waits until one does."""
        ...


def place(of: PortBinding) -> tuple[str, str, str]:
    return of.port.port, of.ifname, of.endpoint


class BindingContract:
    """See the module's text."""

    def test_a_port_is_plugged_in_and_unplugged_however_often(self, stage: BindingStage) -> None:
        async def work() -> None:
            one, other = binding(1), binding(2)
            made = stage.new()
            await made.prepare([])
            await made.unbind(one, timeout=SECONDS)
            for each in (one, one, other):
                await made.bind(each, timeout=SECONDS)
            assert set(stage.plugged()) == {place(one), place(other)}
            await made.prepare([one, other])
            await made.unbind(one, timeout=SECONDS)
            await made.unbind(one, timeout=SECONDS)
            assert set(stage.plugged()) == {place(other)}

        asyncio.run(work())

    def test_the_next_process_unplugs_what_it_has_not_plugged_in(self, stage: BindingStage) -> None:
        async def work() -> None:
            await stage.new().bind(binding(1), timeout=SECONDS)
            successor = stage.new()
            await successor.prepare([binding(1)])
            await successor.bind(binding(1), timeout=SECONDS)
            assert set(stage.plugged()) == {place(binding(1))}
            await successor.unbind(binding(1), timeout=SECONDS)
            assert set(stage.plugged()) == set()

        asyncio.run(work())

    def test_one_that_fails_half_its_way_leaves_nothing(self, stage: BindingStage) -> None:
        async def work() -> None:
            stage.obstruct()
            with pytest.raises(BindError) as caught:
                await stage.new().bind(binding(1), timeout=SECONDS)
            assert caught.value.undone
            assert set(stage.plugged()) == set()

        asyncio.run(work())

    def test_one_that_is_cancelled_half_its_way_leaves_nothing(self, stage: BindingStage) -> None:
        async def work() -> None:
            hanging = await stage.delay()
            binds = asyncio.create_task(stage.new().bind(binding(1), timeout=SECONDS))
            await hanging()
            binds.cancel()
            with pytest.raises(asyncio.CancelledError):
                await binds
            assert set(stage.plugged()) == set()

        asyncio.run(work())

    def test_a_port_moves_to_the_next_container_of_its_pod(self, stage: BindingStage) -> None:
        async def work() -> None:
            made = stage.new()
            first, second = (
                binding(1),
                replace(binding(1), ifname=LinkName("veth99999999"), endpoint=ContainerId("container-9")),
            )
            await made.bind(first, timeout=SECONDS)
            await made.unbind(first, timeout=SECONDS)
            await made.bind(second, timeout=SECONDS)
            assert set(stage.plugged()) == {place(second)}

        asyncio.run(work())
