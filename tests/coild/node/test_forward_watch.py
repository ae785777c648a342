"""Packet filters of others that drop packets of pods are told once, in each place, and told to be gone."""

import asyncio
from dataclasses import dataclass, field
from ipaddress import ip_address

from prometheus_client import CollectorRegistry

from coil.crd.names import NodeName
from coil.ipam.occupancy import AttachmentKey, ContainerId
from coil.kernel.family import Family
from coil.kernel.link import LinkName
from coil.kernel.packet_filter import FilterChain, FilterRule, FilterVerdict, ForwardHook, LinkMatch, Side
from coil.netlink.error import NetlinkError
from coild.model.attachment import Attachment
from coild.model.node_subject import node_subject
from coild.node.condition import describe_available, describe_dropped
from coild.node.forward_watch import DROPPED, LOOK_SECONDS, ForwardWatch, plan_packets
from tests.coild.scene import LOG, ListRecorder, end

UPLINK = LinkName("eth0")
VETH = LinkName("veth1")
LABEL = "iptables (legacy) chain FORWARD"


def attachment(number: int, *addresses: str, link: LinkName | None = VETH) -> Attachment:
    key = AttachmentKey(ContainerId(f"c{number}"), "eth0")
    return Attachment(key=key, pod=None, addresses=tuple(map(ip_address, addresses)), link=link)


def policy_drop(*families: Family) -> ForwardHook:
    chain = FilterChain(rules=(), policy=FilterVerdict.DROP)
    return ForwardHook(
        label="iptables (legacy) chain FORWARD", families=frozenset(families), base="F", chains={"F": chain}
    )


@dataclass
class Scene:
    """A watch, and a kernel that has these filters."""

    filters: list[ForwardHook] = field(default_factory=list)
    pods: list[Attachment] = field(default_factory=lambda: [attachment(1, "10.1.0.7", "fd01::7")])
    reads: int = 0
    trouble: str = ""

    def __post_init__(self) -> None:
        self.recorder = ListRecorder()
        self.registry = CollectorRegistry()
        self.watch = ForwardWatch(
            self,
            lambda: self.pods,
            registry=self.registry,
            recorder=self.recorder,
            node=node_subject(NodeName("n1")),
            log=LOG,
        )

    async def hooks(self) -> list[ForwardHook]:
        self.reads += 1
        if self.trouble:
            raise NetlinkError(self.trouble)
        return self.filters

    async def uplink(self) -> LinkName:
        return UPLINK

    async def look(self) -> tuple[str, ...] | None:
        await self.watch.look()
        return self.watch.dropped

    @property
    def gauge(self) -> float | None:
        return self.registry.get_sample_value("coil_node_forward_dropped")


async def test_a_filter_that_drops_is_told_once_and_its_end_is_noticed() -> None:
    scene = Scene([policy_drop(Family.IPV4)])
    reason = f"{LABEL}: its policy drops it"
    expected = (f"IPv4 from pods: {reason}", f"IPv4 to pods: {reason}")
    assert [await scene.look() for _ in range(3)] == 3 * [expected]
    assert [told[2] for told in scene.recorder.told] == [DROPPED]
    assert scene.gauge == 2
    told = describe_dropped(expected)
    assert (told.type, told.status, told.reason) == ("CoilPodTrafficDropped", True, "ForwardDropped")
    assert reason in told.message

    scene.filters = []
    assert await scene.look() == ()
    assert scene.gauge == 0
    assert describe_dropped(()).status is False


async def test_another_reason_is_told_again() -> None:
    scene = Scene([policy_drop(Family.IPV4)])
    await scene.watch.look()
    scene.filters = [policy_drop(Family.IPV6)]
    await scene.watch.look()
    assert [message.split(":")[0] for *_, message in scene.recorder.told] == ["IPv4 from pods", "IPv6 from pods"]


async def test_without_pods_nothing_is_read_and_nothing_said() -> None:
    scene = Scene([policy_drop(*Family)], pods=[])
    assert (await scene.look(), scene.reads) == ((), 0)


async def test_what_cannot_be_read_leaves_what_was_found() -> None:
    scene = Scene([policy_drop(Family.IPV4)])
    await scene.watch.look()
    scene.trouble = "no answer"
    task = asyncio.create_task(scene.watch.run())
    await asyncio.sleep(5 * LOOK_SECONDS)
    assert scene.reads > 4
    assert scene.gauge == 2
    scene.trouble, scene.filters = "", []
    await asyncio.sleep(2 * LOOK_SECONDS)
    assert scene.gauge == 0
    await end([task])


def test_one_pod_of_each_family_is_judged_in_both_directions() -> None:
    pods = [
        attachment(1, "10.1.0.7", link=None),
        attachment(2, "10.1.0.8", link=LinkName("veth2")),
        attachment(3, "10.1.0.9", "fd01::9", link=LinkName("veth3")),
    ]
    planned = [
        (what, packet.input, packet.output, str(packet.source or packet.destination))
        for what, packet in plan_packets(pods, UPLINK)
    ]
    assert sorted(planned) == [
        ("IPv4 from pods", "veth2", "eth0", "10.1.0.8"),
        ("IPv4 to pods", "eth0", "veth2", "10.1.0.8"),
        ("IPv6 from pods", "veth3", "eth0", "fd01::9"),
        ("IPv6 to pods", "eth0", "veth3", "fd01::9"),
    ]


async def test_what_an_admin_lets_pass_is_not_told() -> None:
    """As docs/troubleshooting.md has it: packets of the pods' links are accepted."""
    accept = tuple(
        FilterRule(matches=(LinkMatch(side, "veth", is_prefix=True),), verdict=FilterVerdict.ACCEPT) for side in Side
    )
    [hook] = [policy_drop(*Family)]
    chain = FilterChain(rules=accept, policy=FilterVerdict.DROP)
    scene = Scene([ForwardHook(label=hook.label, families=hook.families, base="F", chains={"F": chain})])
    assert await scene.look() == ()


def test_a_network_that_is_available_is_told_as_kubernetes_has_it() -> None:
    told = describe_available()
    assert (told.type, told.status) == ("NetworkUnavailable", False)
