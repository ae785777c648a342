"""What every implementation of `coil_egress_agent.eip.kernel.FormerState` does: the tests' fake and the kernel."""

from typing import Protocol

from coil_egress_agent.eip.kernel import FormerState

SET = "egress-cluster-cidr-ipv4"


class Stage(Protocol):
    """A node without anything of egressgateway's."""

    @property
    def state(self) -> FormerState: ...

    async def leave(self) -> None:
        """egressgateway has run and stopped; the set `SET` is among what it left."""
        ...

    async def use_set(self, *, used: bool) -> None:
        """A rule of somebody else's asks the set `SET`, or asks it no more."""
        ...


class FormerStateContract:
    """Subclass it with a fixture `stage`."""

    async def test_where_it_has_never_been_there_is_nothing(self, stage: Stage) -> None:
        assert list(await stage.state.find()) == []
        assert list(await stage.state.remove()) == []

    async def test_what_it_left_is_found_and_removed_once(self, stage: Stage) -> None:
        await stage.leave()
        found = list(await stage.state.find())
        assert f"IP set {SET}" in found
        assert list(await stage.state.find()) == found
        for _ in range(2):
            assert list(await stage.state.remove()) == []
            assert list(await stage.state.find()) == []

    async def test_a_set_that_rules_of_others_use_stays_and_is_named(self, stage: Stage) -> None:
        await stage.leave()
        await stage.use_set(used=True)
        assert list(await stage.state.remove()) == [SET]
        assert list(await stage.state.find()) == [f"IP set {SET}"]
        await stage.use_set(used=False)
        assert list(await stage.state.remove()) == []
        assert list(await stage.state.find()) == []
