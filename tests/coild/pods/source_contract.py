"""What every source of addresses promises, through the engine that it is driven by.

A source passes it by a subclass of `SourceContract` whose fixture `node` is a `SourceNode`, started: a kernel in
memory, and a way to start the engine on a new instance of the source, as the next process would.
"""

import asyncio
from collections.abc import Callable
from dataclasses import dataclass, field, replace

import pytest
from prometheus_client import CollectorRegistry

from coil.ipam.occupancy import AttachmentKey
from coil.kernel.family import IPAddress
from coil.netlink.error import KernelError, NetlinkError, PodCheckError
from coil.podnet.host_link import PodAlias, parse_alias
from coild.model.address_source import NONE_ENDED, AddressSource, Ended
from coild.model.attachment import (
    AddRequest,
    Attachment,
    EgressRefusedError,
    NoHostPorts,
    PodName,
    UnknownAttachmentError,
    alias_key,
)
from coild.model.keyed_executor import KeyedExecutor
from coild.pods.engine import PodEngine
from tests.coild.memory_network import Kernel, MemoryNetwork, Step
from tests.coild.scene import LOG, ListRecorder, key


@dataclass
class KnownEgress:
    """A `PodEgress` that notes whom it has."""

    pods: dict[AttachmentKey, Attachment] = field(default_factory=dict)
    error: Exception | None = None

    async def connect(self, attachment: Attachment, *, deadline: float) -> None:
        self.pods[attachment.key] = attachment
        if self.error is not None:
            raise self.error

    def forget(self, key: AttachmentKey) -> None:
        self.pods.pop(key, None)


@dataclass
class SourceNode:
    """One node with one source. `new_source` makes an instance on the kernel's network, as each process has one.

    `before` says what addresses a plugin before this one gave a container.
    """

    new_source: Callable[[MemoryNetwork], AddressSource]
    keeps_allocations: bool = True
    kernel: Kernel = field(default_factory=Kernel)
    before: Callable[[str], tuple[IPAddress, ...]] = lambda container: ()
    network: MemoryNetwork = field(init=False)
    source: AddressSource = field(init=False)
    egress: KnownEgress = field(init=False)
    engine: PodEngine = field(init=False)

    async def start(self, ended: Ended = NONE_ENDED) -> None:
        """The next process."""
        self.network = MemoryNetwork(self.kernel)
        self.source = self.new_source(self.network)
        self.egress = KnownEgress()
        self.engine = PodEngine(
            source=self.source,
            egress=self.egress,
            host_ports=NoHostPorts(),
            executor=KeyedExecutor(LOG),
            acquire_timeout=10.0,
            recorder=ListRecorder(),
            log=LOG,
        )
        await self.source.wiring.prepare()
        await self.engine.recover(ended)

    def request(self, container: str) -> AddRequest:
        return AddRequest(
            key=key(container),
            netns=self.kernel.namespace(container),
            pod=PodName("apps", f"pod-of-{container}", f"uid-of-{container}"),
            addresses=self.before(container),
            network="k8s",
        )

    async def add(self, container: str) -> tuple[IPAddress, ...]:
        """An ADD; the addresses of the pod."""
        request = self.request(container)
        await self.engine.add(request)
        own = await self.source.identify(request.key, request.pod, deadline=0.0)
        return next(each.addresses for each in self.engine.attachments() if each.key == own)

    async def check(self, container: str) -> None:
        request = self.request(container)
        await self.engine.check(request.key, request.netns, request.pod)

    @property
    def aliases(self) -> list[PodAlias]:
        """Of the links in the kernel."""
        own = [parse_alias(veth.plan.host.alias) for veth in self.kernel.veths.values()]
        return [alias for alias in (*own, *self.kernel.named.values()) if alias is not None]

    @property
    def traces(self) -> list[object]:
        """What is left of pods in the engine, in the source and in egress."""
        return [*self.engine.attachments(), *self.source.held(), *self.egress.pods]


class SourceContract:
    """See the module's text."""

    async def test_an_add_that_is_repeated_gives_the_same(self, node: SourceNode) -> None:
        first = await node.add("c1")
        assert first
        assert await node.add("c1") == first
        assert len(node.engine.attachments()) == 1
        await node.check("c1")

    async def test_every_pod_has_addresses_of_its_own(self, node: SourceNode) -> None:
        given = await asyncio.gather(*(node.add(f"c{number}") for number in range(4)))
        addresses = [address for pod in given for address in pod]
        assert len({*addresses}) == len(addresses)
        assert node.kernel.twice == []

    async def test_the_alias_names_the_attachment(self, node: SourceNode) -> None:
        await node.add("c1")
        (attachment,) = node.engine.attachments()
        assert [alias_key(alias) for alias in node.aliases] == [attachment.key]
        assert attachment.alias == node.aliases[0]
        assert all(map(node.source.owns, node.aliases))
        assert await node.source.wiring.aliases() == {*node.aliases}

    async def test_egress_hears_of_the_attachment(self, node: SourceNode) -> None:
        await node.add("c1")
        (attachment,) = node.engine.attachments()
        assert node.egress.pods == {attachment.key: attachment}
        assert attachment.netns == node.request("c1").netns
        assert attachment.addresses

    async def test_a_del_leaves_nothing_and_may_be_repeated(self, node: SourceNode) -> None:
        await node.engine.delete(key("c1"))
        await node.add("c1")
        await node.engine.delete(key("c1"))
        await node.engine.delete(key("c1"))
        assert node.traces == []
        with pytest.raises(UnknownAttachmentError):
            await node.check("c1")

    async def test_a_del_during_an_add_waits_for_it(self, node: SourceNode) -> None:
        async def slow(step: Step) -> None:
            await asyncio.sleep(0.01)

        node.network.gate = slow
        adding = asyncio.create_task(node.engine.add(node.request("c1")))
        await asyncio.sleep(0)
        await node.engine.delete(key("c1"))
        await adding
        assert node.traces == []

    async def test_an_address_is_held_until_nothing_leads_to_it(self, node: SourceNode) -> None:
        await node.add("c1")
        held = node.source.held()

        async def gate(step: Step) -> None:
            assert step is not Step.DETACH or node.source.held() == held

        node.network.gate = gate
        await node.engine.delete(key("c1"))
        assert node.source.held() == frozenset()

    @pytest.mark.parametrize("step", [Step.ATTACH, Step.NAME])
    async def test_a_failed_add_leaves_nothing(self, node: SourceNode, step: Step) -> None:
        failed = False

        async def gate(at: Step) -> None:
            nonlocal failed
            if at is step:
                failed = True
                raise KernelError(doing="test", errno=12)

        node.network.gate = gate
        try:
            await node.add("c1")
        except NetlinkError:
            assert failed
            assert node.traces == []
        else:
            assert not failed, "this wiring takes another step"

    async def test_an_add_that_egress_refuses_leaves_nothing(self, node: SourceNode) -> None:
        node.egress.error = EgressRefusedError("no FoU")
        with pytest.raises(EgressRefusedError):
            await node.add("c1")
        assert node.traces == []

    async def test_a_check_notices_that_the_link_is_gone(self, node: SourceNode) -> None:
        await node.add("c1")
        node.kernel.veths.clear()
        node.kernel.named.clear()
        with pytest.raises(PodCheckError):
            await node.check("c1")
        await node.add("c1")
        await node.check("c1")

    async def test_the_next_process_finds_the_pods(self, node: SourceNode) -> None:
        given = {container: await node.add(container) for container in ("c1", "c2")}
        before = {attachment.key: attachment.alias for attachment in node.engine.attachments()}
        held = node.source.held()
        await node.start()
        assert {each.key: each.alias for each in node.engine.attachments()} == before
        assert node.source.held() == held
        for container, addresses in given.items():
            await node.check(container)
            assert await node.add(container) == addresses
        for container in given:
            await node.engine.delete(key(container))
        assert node.traces == []
        assert node.kernel.twice == []

    async def test_what_an_earlier_process_held_is_given_to_nobody_else(self, node: SourceNode) -> None:
        first = await node.add("c1")
        await node.start()
        assert not {*first} & {*await node.add("c2")}
        assert node.kernel.twice == []

    async def test_links_of_another_source_are_left_alone(self, node: SourceNode) -> None:
        other = PodAlias("another source's", "c9", "eth0")
        if node.source.owns(other):
            other = PodAlias("", "c9", "eth0")
        assert not node.source.owns(other)
        netns = node.kernel.namespace("c9")
        node.kernel.named[netns] = other
        await node.start()
        await node.engine.collect()
        assert node.engine.attachments() == []
        assert node.kernel.named == {netns: other}

    async def test_a_pod_that_vanished_without_a_del_is_released(self, node: SourceNode) -> None:
        await node.add("c1")
        await node.add("c2")
        node.kernel.remove_namespace(node.request("c1").netns)
        await node.engine.collect()
        (left,) = node.engine.attachments()
        assert left.netns == node.request("c2").netns
        assert len(node.egress.pods) == 1
        assert len(node.source.held()) == node.keeps_allocations

    async def test_a_recovered_pod_that_vanished_is_released(self, node: SourceNode) -> None:
        await node.add("c1")
        await node.start()
        node.kernel.remove_namespace(node.request("c1").netns)
        await node.engine.collect()
        assert node.traces == []

    async def test_a_del_that_no_process_saw_is_made_up_for(self, node: SourceNode) -> None:
        await node.add("c1")
        kept = await node.add("c2")
        node.kernel.remove_namespace(node.request("c1").netns)
        ended = asyncio.get_running_loop().time()
        await node.start({key("c1"): ended})
        await node.engine.delete(key("c1"), ended=ended)
        await node.engine.delete(key("c1"), ended=ended)
        assert len(node.engine.attachments()) == 1
        assert len(node.source.held()) == node.keeps_allocations
        await node.check("c2")
        assert await node.add("c2") == kept

    async def test_a_gc_takes_what_the_runtime_does_not_know(self, node: SourceNode) -> None:
        await node.add("c1")
        await node.add("c2")
        await node.engine.collect_garbage("another", frozenset())
        assert len(node.engine.attachments()) == 2
        await node.engine.collect_garbage("k8s", frozenset({key("c2")}))
        (left,) = node.engine.attachments()
        assert left.container == "c2"

    async def test_a_gc_leaves_what_an_earlier_process_added(self, node: SourceNode) -> None:
        await node.add("c1")
        await node.start()
        await node.engine.collect_garbage("k8s", frozenset())
        await node.engine.collect_garbage("", frozenset())
        assert len(node.engine.attachments()) == 1

    async def test_what_the_node_needs_is_prepared_again_and_again(self, node: SourceNode) -> None:
        await node.source.wiring.prepare()
        rules, sysctls = set(node.kernel.rules), set(node.kernel.sysctls)
        await node.source.wiring.prepare()
        assert (node.kernel.rules, node.kernel.sysctls) == (rules, sysctls)
        node.kernel.rules.clear()
        await node.source.wiring.prepare()
        assert node.kernel.rules == rules

    async def test_routes_that_others_removed_come_back(self, node: SourceNode) -> None:
        for container in ("c1", "c2"):
            await node.add(container)
        routes = {*node.kernel.routes}
        node.kernel.flush()
        await node.engine.restore()
        assert {*node.kernel.routes} == routes

    async def test_a_name_that_a_kernel_would_not_take_leaves_nothing(self, node: SourceNode) -> None:
        request = replace(node.request("c1"), key=key("c" * 260), pod=PodName("apps", "p", "u" * 260))
        with pytest.raises((ValueError, NetlinkError)):
            await node.engine.add(request)
        assert node.traces == []
        assert node.aliases == []

    async def test_its_metrics_can_be_registered_and_scraped(self, node: SourceNode) -> None:
        await node.add("c1")
        registry = CollectorRegistry(auto_describe=True)
        for collector in node.source.metrics():
            registry.register(collector)
        assert [*node.source.metrics()] == [*node.source.metrics()], "the same at each call"
        assert len([*registry.collect()]) >= len(node.source.metrics())
