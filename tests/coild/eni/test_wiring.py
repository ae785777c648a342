"""In which order a pod's rule and its veth come and go; the kernel is one in memory."""

import asyncio
from collections.abc import Awaitable, Callable
from dataclasses import replace
from ipaddress import IPv4Address

import pytest

from coil.eni.interface import InterfaceId
from coil.ipam.occupancy import AttachmentKey, ContainerId
from coil.kernel.family import IPAddress
from coil.netlink.error import KernelError, NetlinkError, PodCheckError
from coil.netlink.node_watch import NeighbourEvent
from coil.podnet.host_link import PodAlias
from coil.podnet.plan import LINK_LOCAL, RoutePolicy
from coild.eni.node_network import NodeNetwork
from coild.eni.wiring import EniWiring
from coild.model.attachment import Attachment, InterfaceUnknownError, PodName
from coild.pods.veth import VethWiring
from tests.coild.eni.memory_kernel import MemoryEniKernel
from tests.coild.eni.test_node_network import ON_FIRST, ON_SECOND, POD_TABLE, STATE, link, rule_of
from tests.coild.listed_source import ListedSource
from tests.coild.memory_network import Kernel, MemoryNetwork, Step
from tests.coild.scene import LOG

TAG = "@aws-eni"


def interface_of(address: IPAddress) -> InterfaceId | None:
    return next(
        (each.interface.id for each in STATE.interfaces if any(address in r for r in each.interface.ranges)), None
    )


class Node:
    """One process on its kernel. Steps are noted as `rule` and by their names."""

    def __init__(self) -> None:
        self.kernel = Kernel()
        self.eni = MemoryEniKernel()
        self.eni.links = {each.interface.id: link(device) for device, each in enumerate(STATE.interfaces)}
        self.refuse: Step | None = None
        self.unknown: set[IPAddress] = set()
        """Addresses that no interface is known to have."""
        self.start()

    def start(self) -> None:
        policy = RoutePolicy(pod_table=POD_TABLE, rule_priority=None)
        self.pods = MemoryNetwork(self.kernel, self._gate)
        self.network = NodeNetwork(self.eni, pod_table=POD_TABLE, mtu=None, random=lambda: 0.0, log=LOG)
        veth = VethWiring(self.pods, mtu=1500, gateways=LINK_LOCAL, policy=policy, log=LOG)
        self.wiring = EniWiring(
            veth, self.network, self.pods, interface_of=self._interface_of, random=lambda: 0.0, log=LOG
        )

    def _interface_of(self, address: IPAddress) -> InterfaceId | None:
        return None if address in self.unknown else interface_of(address)

    async def _gate(self, step: Step) -> None:
        self.eni.calls.append(step.value)
        if step is self.refuse:
            raise KernelError(doing=step.value, errno=12)

    def attachment(self, address: IPv4Address) -> Attachment:
        name = ContainerId(f"c-{address}")
        made = Attachment(
            key=AttachmentKey(name, "eth0"),
            pod=PodName("apps", "web"),
            addresses=(address,),
            alias=PodAlias(TAG, name, "eth0"),
            container=name,
        )
        return replace(made, link=self.wiring.plan(made).host.name)

    async def attach(self, address: IPv4Address) -> Attachment:
        made = self.attachment(address)
        netns = self.kernel.namespace(str(made.container))
        return await self.wiring.attach(made, self.wiring.plan(made), netns)


@pytest.fixture
async def node() -> Node:
    made = Node()
    await made.network.apply(STATE)
    await made.network.adopt({})
    made.eni.calls.clear()
    return made


async def at_once(_key: AttachmentKey, work: Callable[[], Awaitable[None]]) -> None:
    await work()


async def test_the_rule_is_there_before_the_veth_and_goes_after_it(node: Node) -> None:
    attachment = await node.attach(ON_SECOND)
    assert node.eni.calls[0] == "add"
    node.eni.calls.clear()
    await node.wiring.detach(attachment)
    assert node.eni.calls == ["detach", "delete"]
    assert rule_of(ON_SECOND) not in node.eni.rules
    await node.wiring.detach(attachment)


async def test_a_pod_of_the_primary_interface_is_a_veth_and_nothing_else(node: Node) -> None:
    await node.wiring.detach(await node.attach(ON_FIRST))
    assert not {"add", "delete"} & {*node.eni.calls}


async def test_a_veth_that_cannot_be_made_leaves_no_rule(node: Node) -> None:
    node.refuse = Step.ATTACH
    with pytest.raises(KernelError, match="attach"):
        await node.attach(ON_SECOND)
    assert rule_of(ON_SECOND) not in node.eni.rules
    node.eni.refuse = {"delete"}  # the reason stays that of the attach
    with pytest.raises(KernelError, match="attach"):
        await node.attach(ON_SECOND)


async def test_without_its_rule_no_veth_is_made(node: Node) -> None:
    node.eni.refuse = {"add"}
    with pytest.raises(KernelError, match="add"):
        await node.attach(ON_SECOND)
    with pytest.raises(NetlinkError, match="no interface of this node has the address"):
        await node.attach(IPv4Address("10.9.9.9"))
    assert node.kernel.veths == {}


async def test_a_detach_that_fails_may_be_repeated(node: Node) -> None:
    attachment = await node.attach(ON_SECOND)
    node.refuse = Step.DETACH
    with pytest.raises(KernelError):
        await node.wiring.detach(attachment)
    assert rule_of(ON_SECOND) in node.eni.rules
    node.refuse = None
    node.eni.refuse = {"delete"}
    with pytest.raises(KernelError):
        await node.wiring.detach(attachment)
    node.eni.refuse.clear()
    await node.wiring.detach(attachment)
    assert rule_of(ON_SECOND) not in node.eni.rules


async def test_check_looks_at_both(node: Node) -> None:
    attachment = await node.attach(ON_SECOND)
    plan = node.wiring.plan(attachment)
    netns = node.kernel.namespace(str(attachment.container))
    await node.wiring.check(attachment, plan, netns)
    node.eni.rules.clear()
    with pytest.raises(PodCheckError, match="rule 1536"):
        await node.wiring.check(attachment, plan, netns)
    node.kernel.veths.clear()
    with pytest.raises(PodCheckError, match="link"):
        await node.wiring.check(attachment, plan, netns)


async def test_the_lookup_of_the_pod_table_is_left_to_the_node(node: Node) -> None:
    await node.wiring.prepare()
    assert node.kernel.rules == set()
    assert node.eni.calls[:2] == ["keep default route", "prepare"], "before the kernel forwards"
    assert node.kernel.sysctls == set(), "there is no pod to forward for"
    await node.attach(ON_SECOND)
    await node.wiring.prepare()
    assert {sysctl.path for sysctl in node.kernel.sysctls} == {"net/ipv4/ip_forward"}


async def test_after_a_restart_the_rules_are_those_of_the_pods(node: Node) -> None:
    await node.attach(ON_SECOND)
    gone = rule_of(IPv4Address("10.1.1.40"))
    node.eni.rules.add(gone)
    node.start()
    await node.network.apply(STATE)
    assert {gone, rule_of(ON_SECOND)} <= node.eni.rules
    node.eni.rules.discard(rule_of(ON_SECOND))
    [found] = await node.wiring.recover(ListedSource(node.wiring, tag=TAG, size=1))
    assert found.addresses == (ON_SECOND,)
    assert rule_of(ON_SECOND) in node.eni.rules
    assert gone not in node.eni.rules
    assert {alias.tag for alias in await node.wiring.aliases()} == {TAG}


async def test_what_is_taken_from_a_pod_is_put_back(node: Node) -> None:
    attachment = await node.attach(ON_SECOND)
    assert attachment.alias is not None
    node.kernel.flush()
    node.kernel.numbers = {3: attachment.alias, 4: PodAlias(TAG, "another", "eth0")}
    restored = 0

    async def restore() -> None:
        nonlocal restored
        restored += 1
        await node.wiring.restore([attachment], at_once)

    task = asyncio.create_task(node.wiring.follow(restore))
    await asyncio.sleep(5)
    assert restored == 0
    for number in (3, 4):
        node.network.note(NeighbourEvent(number, IPv4Address("169.254.1.1")))
    await asyncio.sleep(0.9)
    assert restored == 1
    assert [str(route.destination) for route in node.kernel.routes] == ["10.1.1.33/32"]
    assert node.kernel.neighbours == {attachment.alias: {*node.wiring.plan(attachment).pod.neighbours}}
    node.refuse = Step.READ
    node.network.pods_disturbed.set()
    await asyncio.sleep(20)
    assert 3 < restored < 12
    node.refuse = None
    await asyncio.sleep(20)
    assert not node.network.pods_disturbed.is_set()
    assert not task.done()
    task.cancel()
    await asyncio.gather(task, return_exceptions=True)


async def test_neighbours_that_could_not_be_looked_for_or_put_back_are_tried_again(node: Node) -> None:
    attachment = await node.attach(ON_SECOND)
    assert attachment.alias is not None
    node.kernel.numbers = {3: attachment.alias}
    node.network.note(NeighbourEvent(3, IPv4Address("169.254.1.1")))
    node.refuse = Step.READ
    with pytest.raises(NetlinkError):
        await node.wiring.restore([attachment], at_once)
    node.refuse = None
    await node.wiring.restore([attachment], at_once)
    assert attachment.alias in node.kernel.neighbours
    node.kernel.neighbours.clear()
    node.network.note(NeighbourEvent(3, IPv4Address("169.254.1.1")))
    node.network.pods_disturbed.clear()
    node.refuse = Step.RESTORE
    await node.wiring.restore([attachment], at_once)
    assert node.network.lost_neighbours == {3}
    assert node.network.pods_disturbed.is_set()
    node.refuse = None
    await node.wiring.restore([attachment], at_once)
    assert attachment.alias in node.kernel.neighbours
    assert node.network.lost_neighbours == frozenset()


async def test_a_pod_that_deletes_its_neighbour_for_ever_makes_the_answers_rarer(node: Node) -> None:
    restored = 0

    async def restore() -> None:
        nonlocal restored
        restored += 1

    task = asyncio.create_task(node.wiring.follow(restore))
    for _ in range(6000):
        node.network.note(NeighbourEvent(3, IPv4Address("169.254.1.1")))
        await asyncio.sleep(0.01)
    assert 5 < restored < 20
    await asyncio.sleep(60)
    before = restored
    node.network.note(NeighbourEvent(3, IPv4Address("169.254.1.1")))
    await asyncio.sleep(0.9)
    assert restored == before + 1
    task.cancel()
    await asyncio.gather(task, return_exceptions=True)


async def test_a_pod_whose_interface_is_not_known_yet_gets_its_rule_later(node: Node) -> None:
    """As after a start without EC2 and with metadata that lag."""
    await node.attach(ON_SECOND)
    node.unknown = {ON_SECOND}
    node.start()
    node.eni.rules.remove(rule_of(ON_SECOND))
    await node.network.apply(replace(STATE, interfaces=STATE.interfaces[:1], complete=False))
    await node.wiring.recover(ListedSource(node.wiring, tag=TAG, size=1))
    assert rule_of(ON_SECOND) not in node.eni.rules
    await node.network.apply(STATE)
    assert rule_of(ON_SECOND) in node.eni.rules


async def test_check_tells_what_is_not_known_yet_from_what_is_gone(node: Node) -> None:
    attachment = await node.attach(ON_SECOND)
    plan = node.wiring.plan(attachment)
    netns = node.kernel.namespace(str(attachment.container))
    node.unknown = {ON_SECOND}
    await node.network.apply(replace(STATE, interfaces=STATE.interfaces[:1], complete=False))
    with pytest.raises(InterfaceUnknownError, match="not known until EC2 answers"):
        await node.wiring.check(attachment, plan, netns)
    await node.network.apply(replace(STATE, interfaces=STATE.interfaces[:1]))
    with pytest.raises(NetlinkError, match="no interface of this node has the address"):
        await node.wiring.check(attachment, plan, netns)
    node.unknown.clear()
    await node.network.apply(STATE)
    await node.wiring.check(attachment, plan, netns)
