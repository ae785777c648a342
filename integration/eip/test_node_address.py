"""A Node that comes to have a floating address keeps what is sent to it for itself."""

from contextlib import ExitStack
from functools import partial

import pytest

from integration.egress.conversation import Answerer, Asker, ask
from integration.eip.families import in_all_families
from integration.eip.solicitor import Solicitor
from integration.eip.world import World
from integration.patience import wait_until

pytestmark = [pytest.mark.kernel, pytest.mark.apiserver]


@in_all_families
def test_a_node_that_comes_with_a_floating_address_is_reached_and_no_other_answers_for_it(world: World) -> None:
    """Its kubelet and SSH are behind that address; the policy that has it is held back meanwhile."""
    late = world.node("n3")
    with ExitStack() as stack:
        gateway = stack.enter_context(world.gateway("n1", "n2", number=1))
        pods = [stack.enter_context(world.pod(node, app="late")) for node in ("n1", "n3")]
        policy = stack.enter_context(world.policy(gateway, labels={"app": "late"}))
        eips = {family: policy.eip(family) for family in world.families}
        for eip in eips.values():
            for pod in pods:
                world.await_seen(pod, eip)
        carrier = world.node(policy.wait_placed())
        askers: list[Asker] = [world.server, world.node("n1"), world.node("n2")]
        with late.more_addresses(eips):
            wait_until(lambda: carrier.eips().isdisjoint(eips.values()), what=f"{carrier.name} gives them up")
            with world.announcements() as heard, Solicitor(world.server.netns, world.server.addresses, *eips.values()):
                for eip in eips.values():
                    for asker in askers:
                        wait_until(partial(is_reached, asker, late, eip), what=f"{eip} is reached")
                    wait_until(lambda eip=eip: any(said.reply for said in heard.of(eip)), what=f"{eip} is answered for")  # type: ignore[misc]
                assert [heard.ports(eip) for eip in eips.values()] == [[late.name]] * len(eips)
            for pod in pods:
                world.await_seen(pod, None)
            told = [line for line in carrier.agent.process.entries() if "addresses of Nodes" in line["event"]]
            assert [line["addresses"] for line in told] == [sorted(eips.values())]
        for eip in eips.values():
            for pod in pods:
                world.await_seen(pod, eip)


def is_reached(asker: Asker, host: Answerer, address: str) -> bool:
    """Whether one question is answered, by that host."""
    try:
        ask(asker, host, address, patience=5.0)
    except TimeoutError:
        return False
    return True
