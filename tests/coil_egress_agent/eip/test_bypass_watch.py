"""Data planes that bypass policies are told at each look, and logged when something has changed."""

from collections.abc import Callable, Collection
from dataclasses import dataclass, field

import pytest
import structlog
from structlog.testing import capture_logs

from coil.crd.meta import Condition
from coil.kernel.link import LinkName
from coil.netlink.error import NetlinkError
from coil.nft.netfilter import NftError
from coil_egress_agent.eip.bypass_watch import BypassWatch

CILIUM = LinkName("cilium_host")
UNASKED = "not looked for data planes that bypass policies"


@dataclass
class Scene:
    """A watch, and a node with these links."""

    links: set[LinkName] = field(default_factory=lambda: {LinkName("eth0")})
    trouble: Exception | None = None
    told: list[Condition] = field(default_factory=list)

    def __post_init__(self) -> None:
        self.watch = BypassWatch(self._link_names, note=self.told.append, log=structlog.get_logger())

    async def _link_names(self) -> Collection[LinkName]:
        if self.trouble is not None:
            raise self.trouble
        return self.links

    async def look(self, times: int = 1) -> list[str]:
        """What is logged."""
        with capture_logs() as lines:
            for _ in range(times):
                await self.watch.look()
        return [line["event"] for line in lines]

    @property
    def statuses(self) -> list[str]:
        return [condition.status for condition in self.told]


async def test_a_data_plane_is_told_at_each_look_and_logged_once() -> None:
    scene = Scene()
    assert await scene.look(2) == []
    scene.links.add(CILIUM)
    assert await scene.look(3) == ["what pods send may go past policies"]
    scene.links.remove(CILIUM)
    assert await scene.look() == []
    scene.links.add(CILIUM)
    assert await scene.look() == ["what pods send may go past policies"]
    assert scene.statuses == ["False", "False", "Unknown", "Unknown", "Unknown", "False", "Unknown"]


@pytest.mark.parametrize(
    "fault",
    [
        NetlinkError,
        lambda text: NftError(doing="list links", reason=text),
        TimeoutError,
    ],
)
async def test_an_error_is_logged_once_and_what_was_told_stands(fault: Callable[[str], Exception]) -> None:
    scene = Scene({CILIUM})
    await scene.look()
    scene.trouble = fault("no answer")
    assert await scene.look(3) == [UNASKED]
    scene.trouble = fault("no memory")
    assert await scene.look(2) == [UNASKED]
    assert scene.statuses == ["Unknown"]
    scene.trouble = None
    await scene.look()
    scene.trouble = fault("no memory")
    assert await scene.look() == [UNASKED]
    assert scene.statuses == ["Unknown", "Unknown"]
