"""Security groups of ports on bridges, judged by packets: on one node and over two, in both families."""

import asyncio
import socket
from collections.abc import AsyncIterator, Callable
from dataclasses import replace
from typing import Final

import pytest
import structlog

from coil.kernel.family import IPAddress
from coil.neutron.port_filter import plan_port_table
from coil.neutron.port_rules import RuleSet, make_rule_set, parse_rule
from coil.neutron.rule_filter import DENIED
from integration.kernel_state import KernelState
from integration.netns.netns import Netns, ping
from integration.netns.port_world import (
    RED,
    SECONDS,
    PortNode,
    PortPod,
    PortWorld,
    answered,
    counted,
    open_node,
    open_world,
    refused,
    talk,
    underlay,
)

pytestmark = pytest.mark.kernel

LOG = structlog.get_logger()
_MOMENT: Final = 0.3


def rule_set(*texts: str) -> RuleSet:
    return make_rule_set(map(parse_rule, texts))


EGRESS: Final = ("egress 0.0.0.0/0", "egress ::/0")
INGRESS: Final = ("ingress 0.0.0.0/0", "ingress ::/0")
FROM_SEVEN: Final = rule_set("ingress 10.128.0.7/32", "ingress fd00:128::7/128", *EGRESS)
TO_SEVEN: Final = rule_set("egress 10.128.0.7/32", "egress fd00:128::7/128", *INGRESS)
WEB: Final = rule_set("ingress 0.0.0.0/0 tcp 80-90", "ingress ::/0 tcp 80-90", "ingress fd00:128::/64 udp 53", *EGRESS)
NOTHING: Final = rule_set()
EVERY_KIND: Final = rule_set(
    *(f"{direction} {network} {protocol}" for direction in ("ingress", "egress")
      for network in ("0.0.0.0/0", "10.128.0.0/16", "10.128.0.7/32", "::/0", "fd00:128::/64", "fd00:128::7/128")
      for protocol in ("tcp", "udp", "sctp", "icmp", "tcp 80", "udp 53-54", "sctp 9", "icmp 8", "icmp 128", "icmp 250"))
)  # fmt: skip


@pytest.fixture(params=["0", "1"], ids=["bridge", "bridge-nf"])
async def world(request: pytest.FixtureRequest, new_netns: Callable[[], Netns]) -> AsyncIterator[PortWorld]:
    async with open_world(new_netns, log=LOG) as world:
        for node in world.nodes:
            for family in ("iptables", "ip6tables"):
                node.netns.set_sysctl(f"net/bridge/bridge-nf-call-{family}", request.param)
        yield world


async def gets_answers(client: PortPod, server: PortPod) -> None:
    """Fails unless the client gets an answer in both families."""
    for address in (server.ipv4, server.ipv6):
        assert await answered(client.netns, server.netns, address), address


async def gets_none(world: PortWorld, client: PortPod, server: PortPod) -> None:
    """Fails unless the client gets no answer in either family, and that because a packet was denied."""
    for address in (server.ipv4, server.ipv6):
        before = denied(world)
        assert await refused(client.netns, server.netns, address), address
        assert denied(world) > before


def denied(world: PortWorld) -> int:
    return sum(counted(node.netns, "bridge", DENIED) for node in world.nodes)


async def connects(client: PortPod, server: PortPod, port: int, *, version: int = 4, seconds: float = SECONDS) -> bool:
    """Whether a connection to that port comes about."""

    def connect() -> bool:
        address: IPAddress = server.ipv4 if version == 4 else server.ipv6
        with server.netns.socket(address) as listener, client.netns.socket(address) as asking:
            listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            listener.bind((str(address), port))
            listener.listen()
            asking.settimeout(seconds)
            try:
                asking.connect((str(address), port))
            except TimeoutError:
                return False
            return True

    return await asyncio.to_thread(connect)


@pytest.mark.parametrize("there", [0, 1], ids=["here", "across"])
async def test_who_is_not_admitted_gets_answers_only(world: PortWorld, there: int) -> None:
    guarded = await world.pod(0, RED, 6, rules=FROM_SEVEN)
    stranger, friend = await world.pod(there, RED, 5), await world.pod(there, RED, 7)
    await gets_answers(friend, guarded)
    await gets_none(world, stranger, guarded)
    await gets_answers(guarded, stranger)
    for address in (stranger.ipv4, stranger.ipv6):
        await talk(guarded, stranger, address)
        await asyncio.to_thread(ping, guarded.netns, str(address))
    # What the guarded pod has begun does not let the other begin anything.
    await gets_none(world, stranger, guarded)
    for address in (guarded.ipv4, guarded.ipv6):
        with pytest.raises(TimeoutError):
            await asyncio.to_thread(ping, stranger.netns, str(address), seconds=_MOMENT)
    assert not await connects(stranger, guarded, 80, seconds=_MOMENT)


async def test_where_a_pod_may_send(world: PortWorld) -> None:
    bound, stranger, friend = [
        await world.pod(node, RED, number, rules=rules)
        for node, number, rules in ((0, 6, TO_SEVEN), (0, 5, None), (1, 7, None))
    ]
    await gets_answers(bound, friend)
    await gets_none(world, bound, stranger)
    await gets_answers(stranger, bound)
    await gets_none(world, bound, stranger)


async def test_ports(world: PortWorld) -> None:
    server, client = await world.pod(0, RED, 6, rules=WEB), await world.pod(1, RED, 5)
    for version in (4, 6):
        for port in (80, 85, 90):
            assert await connects(client, server, port, version=version)
        for port in (79, 91):
            assert not await connects(client, server, port, version=version, seconds=_MOMENT)
    await gets_none(world, client, server)


async def test_without_rules_nothing_passes_but_the_nodes_probes(world: PortWorld) -> None:
    silent, other = await world.pod(0, RED, 6, rules=NOTHING), await world.pod(0, RED, 5)
    await gets_none(world, silent, other)
    await gets_none(world, other, silent)
    for address in (silent.ipv4, silent.ipv6):
        assert await answered(world.nodes[0].netns, silent.netns, address)


async def test_rules_are_followed(world: PortWorld) -> None:
    guarded, other = await world.pod(0, RED, 6, rules=FROM_SEVEN), await world.pod(1, RED, 5)
    await gets_none(world, other, guarded)
    for rules in (None, NOTHING, None, WEB, FROM_SEVEN, None):
        changed = replace(guarded.binding, port=replace(guarded.binding.port, rules=rules))
        await world.nodes[0].binding.apply_rules(changed, timeout=SECONDS)
        if rules is None:
            await gets_answers(other, guarded)
        else:
            await gets_none(world, other, guarded)


async def test_rules_of_a_port_that_is_gone_bring_nothing_back(world: PortWorld) -> None:
    node, pod = world.nodes[0], await world.pod(0, RED, 6)
    await node.unplug(pod)
    await node.binding.apply_rules(replace(pod.binding, port=replace(pod.binding.port, rules=WEB)), timeout=SECONDS)
    assert "members" not in listed(node)


async def test_tables_are_right_once_they_are_written(world: PortWorld) -> None:
    """Else they would be written again and again; with the last port its chains and sets go."""
    node = world.nodes[0]
    pods = [
        await world.pod(0, RED, number, rules=rules)
        for number, rules in enumerate((FROM_SEVEN, FROM_SEVEN, TO_SEVEN, WEB, NOTHING, EVERY_KIND, None), 10)
    ]
    written = {pod.binding.port.rules for pod in pods} - {None}
    before = listed(node)
    async with open_node(node.host, log=LOG) as later:
        later.binding.set_underlay(underlay(node.host, [each.host for each in world.nodes]))
        await later.binding.prepare([pod.binding for pod in pods])
    assert listed(node) == before
    assert before.count("chain in-") == len(written)
    for pod in pods:
        await node.unplug(pod)
    await node.binding.prepare([])
    assert listed(node).count("\tchain ") == len(plan_port_table().chains)


def listed(node: PortNode) -> str:
    """The table with the numbers that the kernel gives its rules: what is written anew has others."""
    listing = ("nft", "--handle", "--stateless", "--terse", "list", "table", "bridge", "coil-neutron")
    return KernelState(str(node.netns.path)).run(*listing)
