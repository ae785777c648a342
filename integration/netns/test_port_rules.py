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


async def asks(client: PortPod, server: PortPod) -> set[int]:
    """The IP versions by which the client gets an answer over UDP."""
    addresses: tuple[IPAddress, ...] = (server.ipv4, server.ipv6)
    return {address.version for address in addresses if not await refused(client.netns, server.netns, address)}


async def connects(client: PortPod, server: PortPod, port: int, *, version: int = 4) -> bool:
    """Whether a connection to that port comes about."""

    def connect() -> bool:
        address: IPAddress = server.ipv4 if version == 4 else server.ipv6
        with server.netns.socket(address) as listener, client.netns.socket(address) as asking:
            listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            listener.bind((str(address), port))
            listener.listen()
            asking.settimeout(_MOMENT)
            try:
                asking.connect((str(address), port))
            except TimeoutError:
                return False
            return True

    return await asyncio.to_thread(connect)


async def pings(client: PortPod, address: IPAddress) -> bool:
    """Whether an echo request is answered."""
    try:
        await asyncio.to_thread(ping, client.netns, str(address), seconds=_MOMENT)
    except TimeoutError:
        return False
    return True


@pytest.mark.parametrize("there", [0, 1], ids=["here", "across"])
async def test_who_is_not_admitted_gets_answers_only(world: PortWorld, there: int) -> None:
    guarded = await world.pod(0, RED, 6, rules=FROM_SEVEN)
    stranger, friend = await world.pod(there, RED, 5), await world.pod(there, RED, 7)
    assert await asks(friend, guarded) == {4, 6}
    before = counted(world.nodes[0].netns, "bridge", DENIED)
    assert await asks(stranger, guarded) == set()
    assert counted(world.nodes[0].netns, "bridge", DENIED) > before
    assert await asks(guarded, stranger) == {4, 6}
    for address in (stranger.ipv4, stranger.ipv6):
        await talk(guarded, stranger, address)
        assert await pings(guarded, address)
    # What the guarded pod has begun does not let the other begin anything.
    assert await asks(stranger, guarded) == set()
    for address in (guarded.ipv4, guarded.ipv6):
        assert not await pings(stranger, address)
    assert not await connects(stranger, guarded, 80)


async def test_where_a_pod_may_send(world: PortWorld) -> None:
    bound, stranger, friend = [
        await world.pod(node, RED, number, rules=rules)
        for node, number, rules in ((0, 6, TO_SEVEN), (0, 5, None), (1, 7, None))
    ]
    assert await asks(bound, friend) == {4, 6}
    assert await asks(bound, stranger) == set()
    assert await asks(stranger, bound) == {4, 6}
    assert await asks(bound, stranger) == set()


async def test_ports(world: PortWorld) -> None:
    server, client = await world.pod(0, RED, 6, rules=WEB), await world.pod(1, RED, 5)
    for version in (4, 6):
        reached = {port: await connects(client, server, port, version=version) for port in (79, 80, 85, 90, 91)}
        assert reached == {79: False, 80: True, 85: True, 90: True, 91: False}
    assert await asks(client, server) == set()


async def test_without_rules_nothing_passes_but_the_nodes_probes(world: PortWorld) -> None:
    silent, other = await world.pod(0, RED, 6, rules=NOTHING), await world.pod(0, RED, 5)
    assert await asks(silent, other) == await asks(other, silent) == set()
    assert not await refused(world.nodes[0].netns, silent.netns, silent.ipv4)
    assert not await refused(world.nodes[0].netns, silent.netns, silent.ipv6)


async def test_rules_are_followed(world: PortWorld) -> None:
    guarded, other = await world.pod(0, RED, 6, rules=FROM_SEVEN), await world.pod(1, RED, 5)
    assert await asks(other, guarded) == set()
    node = world.nodes[0]
    for rules, answered in ((None, {4, 6}), (NOTHING, set()), (WEB, set()), (None, {4, 6}), (FROM_SEVEN, set())):
        port = replace(guarded.binding.port, rules=rules)
        await node.binding.bind(replace(guarded.binding, port=port), timeout=SECONDS)
        assert await asks(other, guarded) == answered


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
