"""coild is killed, or an answer is lost, at every call to EC2 in the life of a node: nothing is leaked, no address is
given twice, and the node comes to rest as if nothing had happened.
"""

import asyncio
from collections.abc import Coroutine, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from enum import Enum
from pathlib import Path
from typing import Any

import pytest

from coil.aws.error import UnavailableError
from coil.eni.surplus import SURPLUS_SECONDS
from coil.eni.warm_pool import WarmTargets
from coild.eni.settings import EniSettings
from coild.model.attachment import AddressUnavailableError
from tests.coil.aws.memory_ec2 import Moment
from tests.coild.eni.provisioner_scene import CHANGING, CLUSTER, Scene


class Mishap(Enum):
    KILLED_BEFORE = "killed before the call takes place"
    KILLED_AFTER = "killed after the call has taken place"
    ANSWER_LOST = "the answer is lost"


@dataclass
class Fate:
    """Strikes at the `number`-th call to EC2, counted from 0. `calls` is how many there were."""

    scene: Scene
    number: int
    mishap: Mishap
    calls: int = 0
    struck: asyncio.Event = field(default_factory=asyncio.Event)
    rebooted: bool = False
    action: str = ""

    async def gate(self, action: str, moment: Moment) -> None:
        """See `tests.coil.aws.memory_ec2.Gate`."""
        at_end = moment is Moment.AFTER
        number = self.calls
        self.calls += at_end
        if number != self.number or at_end != (self.mishap is not Mishap.KILLED_BEFORE) or self.struck.is_set():
            return
        self.action = action
        self.struck.set()
        if self.mishap is Mishap.ANSWER_LOST:
            raise UnavailableError(action, "InternalError", "An internal error has occurred")
        await asyncio.get_running_loop().create_future()  # the process is killed here

    async def run(self, work: Coroutine[Any, Any, object]) -> None:
        """The work to its end, or until the process is killed; another process takes over then."""
        task = asyncio.create_task(work)
        struck = asyncio.create_task(self.struck.wait())
        dies = self.mishap is not Mishap.ANSWER_LOST and not self.rebooted
        await asyncio.wait({task, struck} if dies else {task}, return_when=asyncio.FIRST_COMPLETED)
        struck.cancel()
        if not task.done():
            task.cancel()
            await asyncio.wait({task})
        if dies and self.struck.is_set():
            self.rebooted = True
            await self.scene.boot()
        elif not task.cancelled():
            task.result()

    async def rest(self, seconds: float) -> None:
        loop = asyncio.get_running_loop()
        end = loop.time() + seconds
        while (left := end - loop.time()) > 0:
            await self.run(self.scene.rest(left))

    async def ensure(self, names: Sequence[str]) -> None:
        """As a kubelet does: those that have no address are tried again."""
        for _ in range(50):
            held = {where.container_id for where in self.scene.node.kernel}
            if not (missing := [name for name in names if name not in held]):
                return
            await self.run(self._try(missing))
            self.scene.check()
        raise AssertionError("there are pods without addresses")

    async def _try(self, names: Sequence[str]) -> None:
        with suppress(AddressUnavailableError):
            await self.scene.add_many(names, within=60.0)


SETTINGS = {
    "addresses": EniSettings(cluster=CLUSTER, targets=WarmTargets(ips=2)),
    "interfaces": EniSettings(cluster=CLUSTER, targets=WarmTargets()),
    "prefixes": EniSettings(cluster=CLUSTER, targets=WarmTargets(ips=1), prefixes=True),
}


async def live(scene: Scene, fate: Fate) -> None:
    """The life of a node: pods come, most of them go, some come again."""
    scene.ec2.gate = fate.gate
    await fate.run(scene.boot())
    await fate.ensure([f"pod-{number}" for number in range(14)])
    await fate.rest(10.0)
    assert len(scene.records()) >= 2 or scene.settings.prefixes
    for number in range(1, 14):
        scene.delete(f"pod-{number}")
    await fate.rest(2 * SURPLUS_SECONDS + 280.0)
    await fate.ensure([f"later-{number}" for number in range(12)])
    await fate.rest(10.0)
    for number in range(12):
        scene.delete(f"later-{number}")
    await fate.rest(2 * SURPLUS_SECONDS + 280.0)
    scene.check_settled()
    assert scene.free >= 1
    await scene.kill()


@pytest.mark.parametrize("mishap", Mishap)
@pytest.mark.parametrize(("kind", "lag"), [*((kind, 0.0) for kind in SETTINGS), ("addresses", 45.0)])
async def test_at_every_call(tmp_path: Path, kind: str, lag: float, mishap: Mishap) -> None:
    """With `lag`, EC2 describes the interfaces as they were so many seconds ago."""

    def fated(number: int) -> Fate:
        scene = Scene(tmp_path / str(number), settings=SETTINGS[kind])
        scene.ec2.faults.describe_lag = lag
        return Fate(scene, number, mishap)

    undisturbed = fated(-1)
    await live(undisturbed.scene, undisturbed)
    expected = undisturbed.scene.addresses
    actions = set()
    calls = [call.action for call in undisturbed.scene.ec2.calls if call.caller == "coild"]
    # Of those that ask only, the start's: the later ones are like them.
    for number in [number for number, action in enumerate(calls) if action in CHANGING or number < 6]:
        fate = fated(number)
        await live(fate.scene, fate)
        assert fate.struck.is_set()
        actions.add(fate.action)
        assert fate.scene.addresses == expected, f"{fate.mishap.value}: {fate.action}, call {number}"
    if kind != "prefixes":
        assert actions >= {
            *("CreateNetworkInterface", "AttachNetworkInterface", "ModifyNetworkInterfaceAttribute"),
            *("AssignPrivateIpAddresses", "DetachNetworkInterface", "DeleteNetworkInterface"),
        }
