"""The contract of sources of addresses, kept by each of them, and by one that the engine has never heard of."""

from collections.abc import AsyncIterator, Collection
from dataclasses import dataclass, field
from ipaddress import ip_address
from pathlib import Path

import pytest

from coil.eni.interface import InterfaceId
from coil.kernel.family import Family, IPAddress
from coil.kernel.rule import Rule
from coil.netlink.error import PodCheckError
from coil.netlink.host import NetnsPath
from coil.podnet.host_link import PodAlias, render_alias
from coil.podnet.plan import DEFAULT_POLICY, LINK_LOCAL
from coild.addresses.chained import ChainedSource
from coild.eni.source import EniSource
from coild.model.address_source import NONE_ENDED, AddressSource, Ended, Exclusively
from coild.model.attachment import Attachment, InvalidPodError, PodName, alias_key
from coild.pods.veth import VethWiring
from tests.coil.eni.vpc import interface
from tests.coild.eni.node import Node
from tests.coild.listed_source import ListedSource
from tests.coild.memory_network import MemoryNetwork
from tests.coild.pods.source_contract import KnownEgress, SourceContract, SourceNode
from tests.coild.scene import DUAL, LOG, Coild, World


class PoolsNode(SourceNode):
    """Address pools, with a controller and an API server in memory. A process is a whole life of coild."""

    world: World
    life: Coild

    async def start(self, ended: Ended = NONE_ENDED) -> None:
        if hasattr(self, "life"):
            await self.life.kill()
        self.egress = KnownEgress()
        self.life = Coild(self.world, egress=self.egress)
        await self.life.start(ended)
        self.network, self.source, self.engine = self.life.network, self.life.source, self.life.pods
        await self.source.wiring.prepare()


class TestPools(SourceContract):
    @pytest.fixture
    async def node(self) -> AsyncIterator[SourceNode]:
        world = World(DUAL)
        node = PoolsNode(lambda network: node.life.source, kernel=world.kernel)
        node.world = world
        await node.start()
        yield node
        await node.life.kill()
        await world.close()


class TestChained(SourceContract):
    """Another plugin gives the addresses, and wires the pods."""

    @pytest.fixture
    async def node(self) -> SourceNode:
        known: dict[str, tuple[IPAddress, ...]] = {}

        async def uid_of(pod: PodName, deadline: float) -> str:
            return pod.uid

        def given(container: str) -> tuple[IPAddress, ...]:
            number = len(known)
            return known.setdefault(container, (ip_address("10.9.0.2") + number, ip_address("fd09::2") + number))

        node = SourceNode(
            lambda network: ChainedSource(network, uid_of=uid_of, log=LOG), keeps_allocations=False, before=given
        )
        await node.start()
        return node


class TestEni(SourceContract):
    """A node's interfaces, whose ranges EC2 has told before the first pod comes."""

    @pytest.fixture
    async def node(self, tmp_path: Path) -> SourceNode:
        def new_source(network: MemoryNetwork) -> AddressSource:
            store = Node(tmp_path / "journal", resumed=False).store
            store.update([interface(0, "10.0.0.32/28")], up=[InterfaceId("eni-0")])
            wiring = VethWiring(network, mtu=1500, gateways=LINK_LOCAL, policy=DEFAULT_POLICY, log=LOG)
            return EniSource(store=store, wiring=wiring, log=LOG)

        node = SourceNode(new_source)
        await node.start()
        return node


class TestListed(SourceContract):
    """The smallest source that is wired with a veth."""

    @pytest.fixture
    async def node(self) -> SourceNode:
        def new_source(network: MemoryNetwork) -> AddressSource:
            wiring = VethWiring(network, mtu=1400, gateways=LINK_LOCAL, policy=DEFAULT_POLICY, log=LOG)
            return ListedSource(wiring, tag="@listed", size=8)

        node = SourceNode(new_source)
        await node.start()
        return node


@dataclass
class Switch:
    """A virtual switch, which outlives processes: who is plugged in where, and with which addresses."""

    ports: dict[PodAlias, tuple[NetnsPath, tuple[IPAddress, ...]]] = field(default_factory=dict)


class PortWiring:
    """A `PodWiring` of a kind that coild does not have: something else plugs the pod into a port, and coild makes no
    veth and no route, but the node needs a rule of its own.
    """

    def __init__(self, network: MemoryNetwork, switch: Switch) -> None:
        self._network = network
        self._switch = switch

    async def prepare(self) -> None:
        await self._network.ensure_rules([Rule(family=Family.IPV4, priority=512, table=254, protocol=30)])

    def plan(self, attachment: Attachment) -> None:
        try:
            if attachment.alias is not None:
                render_alias(attachment.alias)
        except ValueError as error:
            raise InvalidPodError(str(error)) from error

    async def attach(self, attachment: Attachment, plan: None, netns: NetnsPath) -> Attachment:
        assert attachment.alias is not None
        await self._network.name_host_end("eth0", attachment.alias, netns)  # type: ignore[arg-type]
        self._switch.ports[attachment.alias] = netns, attachment.addresses
        return attachment

    async def check(self, attachment: Attachment, plan: None, netns: NetnsPath) -> None:
        if attachment.alias not in await self.aliases():
            raise PodCheckError((f"the port of {attachment.alias}",))

    async def detach(self, attachment: Attachment) -> None:
        assert attachment.alias is not None
        netns, _ = self._switch.ports.pop(attachment.alias)
        self._network.kernel.named.pop(netns, None)

    async def aliases(self) -> frozenset[PodAlias]:
        return frozenset(link.alias for link in await self._network.pod_links())

    async def recover(self, source: AddressSource, ended: Ended = NONE_ENDED) -> list[Attachment]:
        found = []
        for alias in await self.aliases():
            if source.owns(alias):
                key, (_, addresses) = alias_key(alias), self._switch.ports[alias]
                found.append(
                    Attachment(key=key, pod=None, addresses=addresses, alias=alias, container=key.container_id)
                )
        await source.recover(found, ended)
        return found

    async def restore(self, attachments: Collection[Attachment], exclusively: Exclusively) -> None:
        pass


class TestPorts(SourceContract):
    """A third source, with a tag and a wiring that nothing in coild knows."""

    @pytest.fixture
    async def node(self) -> SourceNode:
        switch = Switch()
        node = SourceNode(lambda network: ListedSource(PortWiring(network, switch), tag="@port", size=8))
        await node.start()
        return node
