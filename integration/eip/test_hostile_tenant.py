"""A tenant does all it may, at random, and another one's pods notice nothing. A failure is final: see
`integration/verdict/layer.py`.

`COIL_FUZZ_SECONDS` says for how long, `COIL_FUZZ_SEED` which choices.
"""

import os
import time
from collections import Counter
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from random import SystemRandom
from typing import Final

import pytest

from coil.eip.eip_table import DROPPED_FOREIGN
from coil.eip.eip_table import TABLE as EIP_TABLE
from coil.kernel.link import LinkGroup
from coil.nft.element_sync import load_elements
from coil.nft.table_sync import delete_table
from coil.podnet.source_table import SPOOFED, TABLE, plan_source_table
from integration.apiserver.tenant import Tenant
from integration.deployment import apply
from integration.egress.capture import Capture, Packet
from integration.eip.controllers import Controllers
from integration.eip.flow import Flow
from integration.eip.hostile_tenant import EDIT, EDIT_MORE, HostileTenant, Victims, extra_role
from integration.eip.pod import Pod
from integration.eip.world import World
from integration.netns.forged_packet import FORGED
from integration.netns.netns import call_inside

pytestmark = [pytest.mark.kernel, pytest.mark.apiserver]

SECONDS: Final = float(os.environ.get("COIL_FUZZ_SECONDS", "60"))
SEED: Final = int(os.environ.get("COIL_FUZZ_SEED", SystemRandom().randrange(1 << 32)))
LABELS: Final = {"app": "till"}
REFUSED: Final = "the kernel is not what it should be"


def test_another_tenants_traffic_loses_nothing_and_its_address_stays_its_own(
    world: World, controllers: Controllers
) -> None:
    with ExitStack() as stack:
        gateway = stack.enter_context(world.gateway("n1", "n2", number=6))
        policy = stack.enter_context(world.policy(gateway, labels=LABELS))
        pods = [stack.enter_context(world.pod(node, **LABELS)) for node in ("n1", "n3")]
        eips = [policy.eip(4), policy.eip(6)]
        for pod in pods:
            for eip in eips:
                world.await_seen(pod, eip)
        apply(controllers.plane, extra_role())
        tenant = Tenant(controllers.plane, "bank", EDIT, EDIT_MORE)
        stack.enter_context(verified_sources(world))
        set_pod_links(world, pods)
        strangers = [stack.enter_context(world.pod(node, namespace="bank", app="own")) for node in ("n1", "n3")]
        set_pod_links(world, strangers)
        captures = [
            stack.enter_context(Capture(netns, keep=is_forged))
            for netns in (world.server.netns, *(pod.netns for pod in pods))
        ]
        refusals, dropped = count_refusals(world), count_dropped(world, strangers)
        victims = Victims(pods=pods, labels=LABELS, eips=eips)
        with ExitStack() as talking:
            flows = [
                talking.enter_context(Flow(pod, world.server, address))
                for pod in pods
                for address in world.server.addresses.values()
            ]
            with HostileTenant(world, tenant, strangers, victims, gateways=[gateway.name], seed=SEED) as hostile:
                time.sleep(SECONDS)
            for flow in flows:
                flow.await_answer()
        forged = [packet for capture in captures for packet in capture.packets()]
        asked = sum(flow.asked for flow in flows)
        print(f"seed {SEED}, {SECONDS:.0f} s: {dict(sorted(hostile.done.items()))}")
        arrived = Counter(packet.source for packet in forged)
        print(f"{asked} questions of the others; {len(forged)} forged packets arrived: {arrived}")
        for flow in flows:
            assert find_lost(flow) == []
            assert {answer.seen for answer in flow.answers} <= set(eips)
        assert [packet for packet in forged if packet.source in {*eips, *victims.addresses}] == []
        assert forged, "not even what is its own has arrived"
        assert count_refusals(world) == refusals
        # Nothing has arrived because it was dropped, and not because nobody tried.
        grown = {key: number - dropped[key] for key, number in count_dropped(world, strangers).items()}
        assert all(grown.values()), grown
        for what in ("create policy", "create egress"):
            assert hostile.done[what, "accepted"]
            assert hostile.done[what, "refused"]
        assert hostile.done["forge packets", "sent"]


@contextmanager
def verified_sources(world: World) -> Iterator[None]:
    """Pods' links are as coild makes them: nodes take from them what has the pods' own addresses."""
    for node in world.nodes:
        call_inside(node.netns, lambda: load_elements([plan_source_table()], {}))
    try:
        yield
    finally:
        for node in world.nodes:
            call_inside(node.netns, lambda: delete_table(TABLE))


def set_pod_links(world: World, pods: Sequence[Pod]) -> None:
    for pod in pods:
        world.node(pod.node).kernel.run("ip", "link", "set", pod.link, "group", str(int(LinkGroup.POD)))


def is_forged(packet: Packet) -> bool:
    """By what is in it, in whatever it is wrapped."""
    return FORGED in packet.payload


def find_lost(flow: Flow) -> list[int]:
    """The questions without an answer, but for the last ones, which may have been under way."""
    answered = {answer.number for answer in flow.answers}
    return [number for number in range(1, max(answered) + 1) if number not in answered]


def count_dropped(world: World, strangers: Sequence[Pod]) -> dict[tuple[str, str], int]:
    """Packets by node and counter, on the nodes of those pods: with a source that is not the pod's, and sent to the
    tunnels' port by somebody who is no node.
    """
    return {
        (name, counter): world.node(name).count(counter, table=table)
        for name in {pod.node for pod in strangers}
        for table, counter in ((TABLE, SPOOFED), (EIP_TABLE, DROPPED_FOREIGN))
    }


def count_refusals(world: World) -> int:
    """How often a node's kernel did not take what its agent wanted."""
    return sum(line["event"] == REFUSED for node in world.nodes for line in node.agent.process.entries())
