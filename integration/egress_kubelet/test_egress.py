"""The kubelet's own execution of the plugin gives a pod its tunnels, and takes them away."""

import os
import signal
from ipaddress import ip_address
from pathlib import Path

import pytest

from coil.kernel.tunnel import tunnel_name
from integration.egress.conversation import Conversation, ask, sees
from integration.egress.external_host import ADDRESSES
from integration.egress_kubelet.world import Egress, World

pytestmark = pytest.mark.kernel

CGROUP2 = "0::/"
"""How /proc/<pid>/cgroup begins where there is no hierarchy of version 1 (cgroups(7))."""


def test_containers_are_in_the_unified_cgroup_hierarchy(world: World) -> None:
    assert Path(f"/proc/{world.coild().pid}/cgroup").read_text().startswith(CGROUP2)


def test_the_host_outside_sees_the_router_of_an_annotated_pod_only(world: World, egress: Egress) -> None:
    [router] = egress.routers()
    with world.client(egress.name) as annotated, world.client() as plain:
        for version, address in ADDRESSES.items():
            assert ask(annotated, world.external, address) == router.addresses[version]
            assert ask(plain, world.external, address) == plain.addresses[version]
        tunnels = {link["ifname"] for link in annotated.kernel.ip("link") if link["ifname"].startswith("fou")}
        assert len(tunnels) == len(ADDRESSES)
        assert not [link for link in plain.kernel.ip("link") if link["ifname"].startswith("fou")]


def test_a_router_forgets_a_pod_that_is_gone(world: World, egress: Egress) -> None:
    [router] = egress.routers()

    def tunnels() -> set[str]:
        return {link["ifname"] for link in router.kernel.ip("link") if link["ifname"].startswith("fou")}

    with world.client(egress.name) as client:
        assert ask(client, world.external, ADDRESSES[4]) == router.addresses[4]
        own = {tunnel_name(ip_address(address)) for address in client.addresses.values()}
        assert own <= tunnels()
    world.wait(lambda: not own & tunnels(), what="the tunnels to it go")


def test_a_flow_outlives_coild_and_the_agent(world: World, egress: Egress) -> None:
    [router] = egress.routers()
    coild = world.coild()
    agent = router.supervised
    with (
        world.client(egress.name) as client,
        Conversation(client, world.external, ADDRESSES[4]) as conversation,
    ):
        assert agent is not None
        os.kill(agent, signal.SIGKILL)
        os.kill(int(coild.pid), signal.SIGKILL)
        world.wait(lambda: world.coild().pid != coild.pid, what="the kubelet has started coild again")
        world.wait(lambda: router.supervised not in (None, agent), what="the agent runs again")
        conversation.goes_on()
        with world.client(egress.name) as later:
            assert ask(later, world.external, ADDRESSES[6]) == router.addresses[6]
    assert conversation.seen == {router.addresses[4]}


def test_the_kubelet_starts_a_router_again(world: World, egress: Egress) -> None:
    """Its sandbox stays, and so do its addresses, its tunnels and what it translates."""
    [router] = egress.routers()
    with world.client(egress.name) as client:
        assert ask(client, world.external, ADDRESSES[4]) == router.addresses[4]
        os.kill(int(router.pid), signal.SIGKILL)
        world.wait(
            lambda: [each.pid for each in egress.routers()] not in ([], [router.pid]), what="the router is ready again"
        )
        world.wait(
            lambda: sees(client, world.external, ADDRESSES[4], router.addresses[4]),
            what="the client has its router again",
        )
        assert [each.addresses for each in egress.routers()] == [router.addresses]
