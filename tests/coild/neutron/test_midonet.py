"""Ports of type `midonet`."""

import asyncio
from collections.abc import Callable, Collection, Coroutine, Iterator
from pathlib import Path
from typing import Any

import pytest

from coild.model.port_error import BindError, BindTimeoutError
from coild.neutron.midonet import MidonetBinding
from tests.coild.neutron.binding_contract import SECONDS, BindingContract, BindingStage, binding
from tests.coild.neutron.midolman import Midolman


class MidolmanStage:
    """A `BindingStage`. The agent does not ask for containers: there is one for each link."""

    def __init__(self, agent: Midolman, socket: Path) -> None:
        self.agent = agent
        self.socket = socket

    def new(self) -> MidonetBinding:
        return MidonetBinding(self.socket)

    def plugged(self) -> Collection[tuple[str, str, str]]:
        containers: dict[str, str] = {binding(number).ifname: binding(number).endpoint for number in (1, 2)}
        return [(port, link, containers.get(link, "container-9")) for port, link in self.agent.bindings.items()]

    def obstruct(self) -> None:
        self.agent.broken = True

    async def delay(self) -> Callable[[], Coroutine[Any, Any, None]]:
        self.agent.released.clear()

        async def hangs() -> None:
            await asyncio.to_thread(self.agent.hanging.wait)

        return hangs


@pytest.fixture
def socket(tmp_path: Path) -> Path:
    return tmp_path / "midolman.sock"


@pytest.fixture
def agent(socket: Path) -> Iterator[Midolman]:
    with Midolman.start(socket) as agent:
        yield agent


class TestContract(BindingContract):
    @pytest.fixture
    def stage(self, agent: Midolman, socket: Path) -> BindingStage:
        return MidolmanStage(agent, socket)


def test_a_refusal_is_told_in_the_agents_words(agent: Midolman, socket: Path) -> None:
    agent.broken = True
    with pytest.raises(BindError, match=r"refuses PUT /binding/.* with status 500: no such port"):
        asyncio.run(MidonetBinding(socket).bind(binding(1), timeout=SECONDS))
    assert agent.bindings == {}


def test_an_agent_that_does_not_answer_in_time(agent: Midolman, socket: Path) -> None:
    agent.released.clear()
    with pytest.raises(BindTimeoutError, match=r"has not answered within 0.2 s") as caught:
        asyncio.run(MidonetBinding(socket).bind(binding(1), timeout=0.2))
    assert caught.value.undone
    assert agent.bindings == {}


def test_an_agent_that_is_not_there(tmp_path: Path) -> None:
    made = MidonetBinding(tmp_path / "midolman.sock")
    asyncio.run(made.prepare([]))
    with pytest.raises(BindError, match="is midolman running"):
        asyncio.run(made.prepare([binding(1)]))
    with pytest.raises(BindError, match="cannot be asked") as caught:
        asyncio.run(made.bind(binding(1), timeout=SECONDS))
    assert not caught.value.undone
