"""A gateway node loses its power, again and again; how long a flow through it is without an answer.

The stage is the one of `integration.eip`: three nodes, the real programs with default settings, an API server, and a
host outside that a pod asks every ten milliseconds, over both families. The flow's outage is the longest time between
two answers. The leading controller can be lost at the same moment.
"""

import signal
import time
from collections.abc import Iterator
from contextlib import ExitStack
from typing import Final

from integration.eip.control_plane import start_with_controllers
from integration.eip.flow import Flow
from integration.eip.world import World
from integration.patience import wait_until

_LABELS: Final = {"app": "failover"}
_PATIENCE: Final = 30.0


def take_outages(trials: int, *, with_leader: bool = False) -> Iterator[list[float]]:
    """Of each loss: the outages of an IPv4 and an IPv6 flow, in seconds. `with_leader`: one of two controllers, the one
    that leads, is killed before.
    """
    with ExitStack() as stack:
        description, controllers = stack.enter_context(start_with_controllers())
        if with_leader:
            stack.enter_context(controllers.pair())
        world = stack.enter_context(World.up(description))
        gateway = stack.enter_context(world.gateway("n1", "n2", number=1))
        pod = stack.enter_context(world.pod("n3", **_LABELS))
        policy = stack.enter_context(world.policy(gateway, labels=_LABELS))
        for family in (4, 6):
            world.await_seen(pod, policy.eip(family))
        flows = [stack.enter_context(Flow(pod, world.server, at)) for at in world.server.addresses.values()]
        wait_until(lambda: all(flow.answers for flow in flows), what="the flows are answered")
        for _ in range(trials):
            lost = world.node(policy.wait_placed())
            leader = controllers.leader() if with_leader else None
            began = time.monotonic()
            if leader is not None:
                leader.service.process.send_signal(signal.SIGKILL)
            lost.die()
            policy.wait_placed(elsewhere=lost.name)
            for flow in flows:
                flow.await_answer(timeout=_PATIENCE)
            yield [flow.outage(since=began) for flow in flows]
            if with_leader:
                controllers.restore()
            world.restore()
            world.await_lease(lost)
