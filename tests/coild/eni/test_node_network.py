"""When the node's network is compared with the kernel, and when it is left alone; the kernel is one in memory."""

import asyncio
from collections.abc import AsyncIterator
from dataclasses import replace
from ipaddress import IPv4Address, IPv4Network, IPv6Address, ip_address, ip_network

import pytest
import structlog
from structlog.testing import capture_logs

from coil.eni.interface import InterfaceId
from coil.eni.nat_plan import INSIDE, POD_RANGES
from coil.eni.node_plan import SOURCE_PRIORITY, AttachedInterface, NodeState, plan_source_rule
from coil.kernel.family import Family, IPAddress
from coil.kernel.link import Link, LinkName, LinkState, MacAddress
from coil.kernel.rule import Rule
from coil.netlink.error import KernelError, NetlinkError, PodCheckError
from coil.netlink.node_watch import (
    ALL_LINKS,
    AddressEvent,
    EventsLost,
    LinkEvent,
    NeighbourEvent,
    NodeEvent,
    OtherRuleEvent,
    PathFilterEvent,
    RouteEvent,
    RuleEvent,
)
from coil.nft.netfilter import NftError
from coild.eni.node_network import REAPPLY_SECONDS, NodeNetwork
from tests.coil.eni.vpc import interface
from tests.coild.eni.memory_kernel import MemoryEniKernel
from tests.coild.scene import LOG

POD_TABLE = 116
SUBNET = IPv4Network("10.1.0.0/20")
STATE = NodeState(
    interfaces=tuple(
        AttachedInterface(interface=interface(device, f"10.1.{device}.32/28"), subnet=SUBNET) for device in range(3)
    ),
    inside=frozenset({IPv4Network("10.1.0.0/16")}),
)
FIRST, SECOND, THIRD = (each.interface.id for each in STATE.interfaces)
ON_FIRST, ON_SECOND = map(IPv4Address, ("10.1.0.33", "10.1.1.33"))
GONE = IPv4Address("10.1.1.40")


def link(device: int, **changes: object) -> Link:
    made = Link(
        name=LinkName(f"ens{5 + device}"),
        index=2 + device,
        mtu=1500,
        state=LinkState.UP,
        carrier=True,
        mac=STATE.interfaces[device].interface.mac,
    )
    return replace(made, **changes)  # type: ignore[arg-type]


def rule_of(address: IPAddress, device: int = 1) -> Rule:
    rule = plan_source_rule(address, STATE.interfaces[device])
    assert rule is not None
    return rule


@pytest.fixture
async def kernel() -> MemoryEniKernel:
    made = MemoryEniKernel()
    made.links = {each.interface.id: link(device) for device, each in enumerate(STATE.interfaces)}
    return made


@pytest.fixture
async def network(kernel: MemoryEniKernel) -> NodeNetwork:
    return NodeNetwork(kernel, pod_table=POD_TABLE, mtu=None, random=lambda: 0.0, log=LOG)


@pytest.fixture
async def kept(kernel: MemoryEniKernel, network: NodeNetwork) -> AsyncIterator[NodeNetwork]:
    """With a pod on the second interface, watched, and nothing to do."""
    await network.apply(STATE)
    await network.adopt({ON_SECOND: SECOND})
    task = asyncio.create_task(network.run())
    await asyncio.sleep(1)
    network.links_changed.clear()
    network.pods_disturbed.clear()
    kernel.calls.clear()
    yield network
    assert not task.done()
    task.cancel()
    await asyncio.gather(task, return_exceptions=True)


async def test_it_is_told_which_interfaces_can_be_used(kernel: MemoryEniKernel, network: NodeNetwork) -> None:
    assert await network.apply(STATE) == {FIRST, SECOND, THIRD}
    kernel.links[SECOND] = link(1, state=LinkState.DOWN)
    kernel.links[THIRD] = link(2, carrier=False)
    assert await network.apply(STATE) == {FIRST}
    del kernel.links[THIRD]
    assert await network.apply(STATE) == {FIRST}


async def test_the_table_is_about_the_primary_link_and_the_ranges(
    kernel: MemoryEniKernel, network: NodeNetwork
) -> None:
    await network.apply(STATE)
    assert kernel.table is not None
    table, elements = kernel.table
    assert "ens5" in str(table.chains)
    assert {*elements[POD_RANGES]} == {"10.1.0.32/28", "10.1.1.32/28", "10.1.2.32/28"}
    assert {*elements[INSIDE]} == {"10.1.0.0/16"}
    assert all(name in str(table.chains) for name in ("ens6", "ens7"))
    del kernel.links[THIRD]
    await network.apply(STATE)
    assert "ens7" not in str(kernel.table[0].chains)
    kernel.links[FIRST] = link(0, name=LinkName("renamed"))
    await network.apply(STATE)
    assert "renamed" in str(kernel.table[0].chains)


async def test_without_the_primary_link_the_rest_is_done_and_the_reason_told(
    kernel: MemoryEniKernel, network: NodeNetwork
) -> None:
    del kernel.links[FIRST]
    with pytest.raises(NetlinkError, match="the primary interface has no link"):
        await network.apply(STATE)
    assert kernel.rules
    assert kernel.table is None


async def test_until_the_pods_are_known_their_rules_stay(kernel: MemoryEniKernel, network: NodeNetwork) -> None:
    kernel.rules = {rule_of(ON_SECOND), rule_of(GONE)}
    await network.apply(STATE)
    assert kernel.rules >= {rule_of(ON_SECOND), rule_of(GONE)}
    network.note(RuleEvent(rule_of(GONE), gone=False))
    await network.adopt({ON_SECOND: SECOND})
    assert rule_of(ON_SECOND) in kernel.rules
    assert rule_of(GONE) not in kernel.rules


async def test_while_nobody_knows_the_interface_of_a_pod_what_was_made_for_pods_stays(
    kernel: MemoryEniKernel, network: NodeNetwork
) -> None:
    """No journal, no EC2: the metadata service says which interface is the primary one, and no more is known."""
    guess = replace(STATE, interfaces=STATE.interfaces[:1], complete=False)
    kernel.rules = {rule_of(ON_SECOND), rule_of(GONE)}
    await network.apply(guess)
    await network.adopt({}, unplaced=[ON_SECOND])
    assert kernel.rules >= {rule_of(ON_SECOND), rule_of(GONE)}
    await network.apply(STATE)
    assert rule_of(ON_SECOND) in kernel.rules
    assert rule_of(GONE) not in kernel.rules
    kernel.take_rule(rule_of(ON_SECOND))
    await network.apply(STATE)
    assert rule_of(ON_SECOND) in kernel.rules


async def test_a_pod_whose_address_ec2_has_nowhere_keeps_nothing_from_being_tidied(
    kernel: MemoryEniKernel, network: NodeNetwork
) -> None:
    lost = IPv4Address("10.1.99.9")
    await network.apply(replace(STATE, complete=False))
    await network.adopt({}, unplaced=[lost])
    kernel.rules.add(rule_of(GONE))
    await network.apply(STATE)
    assert rule_of(GONE) not in kernel.rules


async def test_a_pod_of_no_known_interface_that_has_ended_leaves_nothing(
    kernel: MemoryEniKernel, network: NodeNetwork
) -> None:
    kernel.rules = {rule_of(ON_SECOND)}
    await network.apply(replace(STATE, interfaces=STATE.interfaces[:1], complete=False))
    await network.adopt({}, unplaced=[ON_SECOND])
    task = asyncio.create_task(network.run())
    await network.remove_pod(ON_SECOND)
    await asyncio.sleep(1)
    assert rule_of(ON_SECOND) not in kernel.rules
    task.cancel()
    await asyncio.gather(task, return_exceptions=True)


async def test_a_pod_costs_one_message_or_none(kernel: MemoryEniKernel, kept: NodeNetwork) -> None:
    await kept.add_pod(GONE, SECOND)
    await kept.add_pod(ON_FIRST, FIRST)
    await kept.add_pod(IPv6Address("fd00::7"), FIRST)
    assert rule_of(GONE) in kernel.rules
    for address in (GONE, ON_FIRST, IPv6Address("fd00::7")):
        await kept.remove_pod(address)
        await kept.remove_pod(address)
    await asyncio.sleep(1)
    assert kernel.calls == ["add", "delete"]
    assert rule_of(GONE) not in kernel.rules


async def test_a_pod_of_an_unknown_interface_is_refused(kernel: MemoryEniKernel, network: NodeNetwork) -> None:
    with pytest.raises(NetlinkError, match="not made for the interface"):
        await network.add_pod(ON_SECOND, SECOND)
    await network.apply(STATE)
    with pytest.raises(NetlinkError, match="not made for the interface eni-9"):
        await network.add_pod(ON_SECOND, InterfaceId("eni-9"))


async def test_a_rule_that_is_refused_is_not_wanted(kernel: MemoryEniKernel, kept: NodeNetwork) -> None:
    kernel.refuse = {"add"}
    with pytest.raises(KernelError):
        await kept.add_pod(GONE, SECOND)
    kernel.rules.add(rule_of(GONE))  # the answer was lost
    await asyncio.sleep(1)
    assert rule_of(GONE) not in kernel.rules


async def test_a_rule_that_cannot_be_deleted_is_deleted_the_next_time(
    kernel: MemoryEniKernel, kept: NodeNetwork
) -> None:
    kernel.refuse = {"delete"}
    with pytest.raises(KernelError):
        await kept.remove_pod(ON_SECOND)
    kernel.refuse.clear()
    await kept.remove_pod(ON_SECOND)
    assert rule_of(ON_SECOND) not in kernel.rules


async def test_check_names_the_rule(kernel: MemoryEniKernel, kept: NodeNetwork) -> None:
    await kept.check_pod(ON_SECOND, SECOND)
    await kept.check_pod(ON_FIRST, FIRST)
    kernel.rules.clear()
    with pytest.raises(PodCheckError, match=r"10\.1\.1\.33"):
        await kept.check_pod(ON_SECOND, SECOND)
    await kept.check_pod(ON_FIRST, FIRST)


async def test_what_others_take_is_back_within_a_second(kernel: MemoryEniKernel, kept: NodeNetwork) -> None:
    for rule in [*kernel.rules]:
        kernel.take_rule(rule)
    kernel.take_table()
    wanted = kernel.rules | {rule_of(ON_SECOND)}
    await asyncio.sleep(0.9)
    assert kernel.rules >= wanted
    assert kernel.table is not None
    assert kernel.calls == ["sync", "table"]


async def test_that_routers_are_not_listened_to_is_mended_within_a_second_and_a_bit(
    kernel: MemoryEniKernel, kept: NodeNetwork
) -> None:
    kernel.deaf = {link(1).name}
    await asyncio.sleep(5)
    assert kernel.calls == [], "another interface's routers are not the node's"
    kernel.deaf = {link(0).name}
    await asyncio.sleep(1.5)
    assert not kernel.deaf
    assert kernel.calls == ["sync", "table"]


async def test_whoever_fights_meets_a_slower_answer(kernel: MemoryEniKernel, kept: NodeNetwork) -> None:
    rule = rule_of(ON_SECOND)
    for _ in range(3000):
        kernel.take_rule(rule)
        await asyncio.sleep(0.01)
    assert 4 < kernel.calls.count("sync") < 20
    await asyncio.sleep(60)
    assert rule in kernel.rules
    kernel.take_rule(rule)
    await asyncio.sleep(0.9)
    assert rule in kernel.rules


async def test_what_fails_is_tried_again(kernel: MemoryEniKernel, kept: NodeNetwork) -> None:
    kernel.refuse = {"table"}
    with pytest.raises(NftError):
        await kept.apply(replace(STATE, external_snat=True))
    await asyncio.sleep(5)
    assert 3 < len(kernel.calls) < 30
    kernel.refuse.clear()
    await asyncio.sleep(20)
    assert kernel.table is not None
    assert "SourceNat" not in str(kernel.table[0])


async def test_a_storm_of_which_the_kernel_cannot_tell_all_costs_few_looks(
    kernel: MemoryEniKernel, kept: NodeNetwork
) -> None:
    for _ in range(1000):
        kept.note(EventsLost())
        await asyncio.sleep(0.01)
    assert kernel.calls.count("sync") < 40
    assert not kept.links_changed.is_set()
    kernel.links[SECOND] = link(1, carrier=False)
    kept.note(EventsLost())
    await asyncio.sleep(0.9)
    assert kept.links_changed.is_set()
    kernel.take_rule(rule_of(ON_SECOND))
    await asyncio.sleep(0.9)
    assert rule_of(ON_SECOND) in kernel.rules


async def test_that_pods_are_not_heard_is_told_once_and_the_rest_is_kept(
    kernel: MemoryEniKernel,
) -> None:
    kernel.hears_pods = False
    with capture_logs() as lines:
        network = NodeNetwork(kernel, pod_table=POD_TABLE, mtu=None, random=lambda: 0.0, log=structlog.get_logger())
        await network.apply(STATE)
        await network.adopt({ON_SECOND: SECOND})
        task = asyncio.create_task(network.run())
        await asyncio.sleep(3 * REAPPLY_SECONDS)
        assert ["NET_BROADCAST" in line["event"] for line in lines] == [True]
        kernel.take_rule(rule_of(ON_SECOND))
        await asyncio.sleep(0.9)
        assert rule_of(ON_SECOND) in kernel.rules
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)


async def test_it_is_compared_periodically(kernel: MemoryEniKernel, kept: NodeNetwork) -> None:
    kernel.rules.discard(rule_of(ON_SECOND))
    await asyncio.sleep(REAPPLY_SECONDS + 1)
    assert rule_of(ON_SECOND) in kernel.rules


ENI = link(1)
ANSWER = Rule(family=Family.IPV4, priority=1025, table=10_001, protocol=30, mark=0x41, mask=0x7F)
_OTHERS: list[NodeEvent] = [
    OtherRuleEvent(),
    RuleEvent(Rule(family=Family.IPV4, priority=1100, table=200, protocol=30), gone=True),
    RuleEvent(Rule(family=Family.IPV4, priority=512, table=POD_TABLE, protocol=4), gone=True),
    RuleEvent(rule_of(GONE), gone=True),
    RuleEvent(rule_of(ON_SECOND), gone=False),
    RuleEvent(ANSWER, gone=False),
    RuleEvent(replace(ANSWER, mark=1), gone=True),
    RouteEvent(254, 30, ip_network("0.0.0.0/0"), gone=True),
    RouteEvent(10_001, 4, ip_network("192.0.2.0/24"), gone=True),
    RouteEvent(10_001, 30, ip_network("0.0.0.0/0"), gone=False),
    RouteEvent(POD_TABLE, 30, ip_network("10.1.1.40/32"), gone=True),
    RouteEvent(POD_TABLE, 30, ip_network("10.1.1.33/32"), gone=False),
    NeighbourEvent(7, IPv6Address("fe80::2")),
    AddressEvent(3, ip_address("10.1.99.1"), gone=False),
    AddressEvent(99, ip_address("10.1.99.1"), gone=True),
    PathFilterEvent(99, 1),
    PathFilterEvent(3, 2),
    PathFilterEvent(ALL_LINKS, 2),
    LinkEvent(ENI, gone=False),
    LinkEvent(link(1, index=77, kind="macvlan"), gone=False),
    LinkEvent(replace(ENI, index=88, mac=MacAddress("02:00:00:00:99:99")), gone=True),
]
_OURS: list[NodeEvent] = [
    EventsLost(),
    RuleEvent(ANSWER, gone=True),
    RuleEvent(replace(ANSWER, mark=0x47), gone=False),
    RuleEvent(rule_of(ON_SECOND), gone=True),
    RuleEvent(rule_of(GONE), gone=False),
    RuleEvent(rule_of(interface(1).primary), gone=True),
    RuleEvent(Rule(family=Family.IPV6, priority=512, table=POD_TABLE, protocol=30), gone=True),
    RuleEvent(Rule(family=Family.IPV4, priority=SOURCE_PRIORITY, table=10_001, protocol=30), gone=False),
    RouteEvent(10_001, 30, ip_network("0.0.0.0/0"), gone=True),
    RouteEvent(10_002, 4, ip_network("0.0.0.0/0"), gone=False),
    AddressEvent(3, ip_address("10.1.99.1"), gone=True),
    AddressEvent(99, ON_SECOND, gone=False),
    AddressEvent(99, ON_SECOND, gone=True),
    PathFilterEvent(3, 1),
    PathFilterEvent(2, 0),
    PathFilterEvent(ALL_LINKS, 1),
    LinkEvent(replace(ENI, mtu=1400), gone=False),
    LinkEvent(replace(ENI, name=LinkName("other")), gone=False),
    LinkEvent(replace(ENI, state=LinkState.DOWN), gone=False),
    LinkEvent(ENI, gone=True),
]


async def test_addresses_of_pods_that_the_node_itself_has_are_told(kernel: MemoryEniKernel, kept: NodeNetwork) -> None:
    """As soon as it has them, on whatever link; others are nobody's affair."""
    kernel.addresses |= {ON_SECOND, ip_address("192.0.2.1")}
    kept.note(AddressEvent(99, ON_SECOND, gone=False))
    await asyncio.sleep(1)
    assert kept.own_addresses == {ON_SECOND}
    assert kept.links_changed.is_set()
    kept.links_changed.clear()
    kernel.addresses.clear()
    kept.note(AddressEvent(99, ON_SECOND, gone=True))
    await asyncio.sleep(1)
    assert kept.own_addresses == frozenset()
    assert kept.links_changed.is_set()


@pytest.mark.parametrize("event", _OTHERS, ids=str)
async def test_what_is_not_ours_costs_no_look(kernel: MemoryEniKernel, kept: NodeNetwork, event: NodeEvent) -> None:
    kept.note(event)
    await asyncio.sleep(1)
    assert kernel.calls == []
    assert (kept.links_changed.is_set(), kept.pods_disturbed.is_set()) == (False, False)


@pytest.mark.parametrize("event", _OURS, ids=str)
async def test_what_is_ours_is_looked_at(kernel: MemoryEniKernel, kept: NodeNetwork, event: NodeEvent) -> None:
    kept.note(event)
    await asyncio.sleep(0.9)
    assert kernel.calls == ["sync", "table"]


@pytest.mark.parametrize(
    ("event", "told"),
    [
        (LinkEvent(ENI, gone=True), True),
        (LinkEvent(replace(ENI, state=LinkState.DOWN), gone=False), True),
        (LinkEvent(replace(ENI, carrier=False), gone=False), True),
        (LinkEvent(replace(ENI, mtu=1400), gone=False), False),
        (EventsLost(), False),
    ],
)
async def test_links_that_come_and_go_are_told(kept: NodeNetwork, event: NodeEvent, told: bool) -> None:
    kept.note(event)
    assert kept.links_changed.is_set() is told


async def test_what_catches_pods_packets_is_looked_for_with_the_links_of_now(
    kernel: MemoryEniKernel, kept: NodeNetwork
) -> None:
    def told() -> tuple[str, ...] | None:
        return kept.diversions

    await asyncio.sleep(5)
    assert told() == ()
    assert set(kernel.looks) == {(FIRST, SECOND, THIRD)}
    kernel.diversions = ("a rule of others catches",)
    kept.note(OtherRuleEvent())
    await asyncio.sleep(5)
    assert told() == ("a rule of others catches",)
    del kernel.links[THIRD]
    await kept.apply(STATE)
    await asyncio.sleep(5)
    assert kernel.looks[-1] == (FIRST, SECOND)


async def test_a_link_that_appears_is_told(kernel: MemoryEniKernel, network: NodeNetwork) -> None:
    made = kernel.links.pop(SECOND)
    assert await network.apply(STATE) == {FIRST, THIRD}
    network.note(LinkEvent(replace(made, state=LinkState.DOWN), gone=False))
    assert network.links_changed.is_set()


async def test_a_link_that_was_missed_is_told(kernel: MemoryEniKernel, kept: NodeNetwork) -> None:
    kernel.links[SECOND] = link(1, carrier=False)
    await asyncio.sleep(REAPPLY_SECONDS + 1)
    assert kept.links_changed.is_set()


async def test_a_pods_route_and_neighbour(kept: NodeNetwork) -> None:
    lost = RouteEvent(POD_TABLE, 30, ip_network("10.1.1.33/32"), gone=True)
    kept.note(lost)
    assert kept.pods_disturbed.is_set()
    kept.pods_disturbed.clear()
    kept.expect_end(ON_SECOND)
    kept.note(lost)
    assert not kept.pods_disturbed.is_set()
    kept.note(NeighbourEvent(7, IPv4Address("169.254.1.1")))
    assert kept.pods_disturbed.is_set()
    assert kept.lost_neighbours == {7}
    kept.forget_lost_neighbours({7, 8})
    assert kept.lost_neighbours == frozenset()
