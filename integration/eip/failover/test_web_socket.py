"""WebSockets of a pod whose gateway node is lost: they go on, and who did not wait for that comes back as the same."""

from contextlib import ExitStack

import pytest

from integration.egress.capture import Capture
from integration.eip.failover.traffic import LABELS, PATIENCE
from integration.eip.web_socket import WebSocket
from integration.eip.world import World

pytestmark = [pytest.mark.kernel, pytest.mark.apiserver, pytest.mark.timing]

PATIENT, HASTY = 2 * PATIENCE, 0.2
"""Heartbeats, in seconds: one outlives the loss of a node, the other one ends within a lease."""


def test_a_web_socket_outlives_the_loss_of_its_gateway(world: World) -> None:
    with ExitStack() as stack:
        gateway = stack.enter_context(world.gateway("n1", "n2", number=1))
        pod = stack.enter_context(world.pod("n3", **LABELS))
        policy = stack.enter_context(world.policy(gateway, labels=LABELS))
        for family in world.families:
            world.await_seen(pod, policy.eip(family))
        lost = world.node(policy.wait_placed())
        arrived = stack.enter_context(Capture(world.server.netns))
        patient, hasty = (
            {
                policy.eip(family): stack.enter_context(WebSocket(pod, world.server, address, heartbeat=heartbeat))
                for family, address in world.server.addresses.items()
            }
            for heartbeat in (PATIENT, HASTY)
        )
        for each in (*patient.values(), *hasty.values()):
            each.await_rounds(10)
        connections = {eip: len(each.peers) for eip, each in hasty.items()}
        lost.die()
        assert policy.wait_placed(elsewhere=lost.name) in {"n1", "n2"}
        for eip, each in hasty.items():
            each.await_another(after=connections[eip], timeout=PATIENCE)
        for each in (*patient.values(), *hasty.values()):
            each.await_rounds(10, after=each.rounds, timeout=PATIENCE)
        assert {eip: each.peers for eip, each in patient.items()} == {eip: [eip] for eip in patient}
        assert {eip: set(each.peers) for eip, each in hasty.items()} == {eip: {eip} for eip in hasty}
        ports = {each.port for each in (*patient.values(), *hasty.values())}
        assert {packet.source for packet in arrived.select(lambda packet: packet.port in ports)} == set(patient)
