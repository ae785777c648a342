"""The IAM policy that docs/aws.md has for the controller is what it asks EC2 for: no more and no less."""

import asyncio

from coil.eni.orphan import ORPHAN_SECONDS
from coil_ipam_controller.eni.leader import ROUND_SECONDS
from tests.coil_ipam_controller.eni.scene import Scene, play
from tests.docs.aws_policy import allowed, read_policies


def test_it_makes_the_calls_that_its_policy_allows() -> None:
    async def script(scene: Scene) -> None:
        subnet = scene.ec2.subnet("10.1.0.0/24")
        await scene.attach(subnet)
        orphan = await scene.make(subnet)
        await asyncio.sleep(ORPHAN_SECONDS + 2 * ROUND_SECONDS)
        assert orphan not in scene.there()
        _, controller = read_policies()
        assert {call.action for call in scene.ec2.calls if call.caller == "controller"} == allowed(controller)

    play(script)
