"""Whose host port is whose: the books, and what becomes of them when the kernel or somebody else interferes."""

import asyncio
from collections.abc import Iterator
from ipaddress import ip_address, ip_network
from random import Random

import pytest
from prometheus_client import CollectorRegistry

from coil.crd.builtin import Node as ApiNode
from coil.crd.builtin import NodeAddress, NodeStatus
from coil.crd.meta import ObjectMeta
from coil.ipam.occupancy import AttachmentKey, ContainerId
from coil.kernel.link import LinkName, Sysctl
from coil.kernel.nft_element import ElementKey
from coil.kube.errors import ApiError, UnavailableError
from coil.netlink.error import PodCheckError
from coil.nft.netfilter import NftError
from coil.podnet.host_port import PortMapping, Protocol, host_ports
from coild.hostports.host_ports import HostPorts
from coild.hostports.own_addresses import PERIOD, follow_own_addresses
from coild.model.attachment import Attachment, HostPortTakenError, PodName
from tests.coild.hostports.memory_table import MemoryHostPortTable
from tests.coild.memory_network import Kernel, MemoryNetwork
from tests.coild.scene import LOG

BROKEN = NftError(doing="change", reason="no memory")


def mapping(port: int = 8080, *, protocol: Protocol = Protocol.TCP) -> PortMapping:
    return PortMapping(protocol=protocol, host_port=port, container_port=80)


def pod(number: int, name: str = "", *, container: str = "") -> Attachment:
    return Attachment(
        key=AttachmentKey(ContainerId(container or f"c{number}"), "eth0"),
        pod=PodName("apps", name or f"p{number}"),
        addresses=(ip_address(f"10.64.0.{number}"), ip_address(f"fd64::{number}")),
        link=LinkName(f"veth{number}"),
    )


class Node:
    """One life of coild after another, on one kernel."""

    def __init__(self) -> None:
        self.kernel = Kernel()
        self.table = MemoryHostPortTable()
        self.registry = CollectorRegistry()
        self.ports = self.start()

    def start(self) -> HostPorts:
        self.registry = CollectorRegistry()
        self.ports = HostPorts(
            MemoryNetwork(self.kernel), self.table, registry=self.registry, random=lambda: 1.0, log=LOG
        )
        return self.ports

    @property
    def leads(self) -> dict[str, str]:
        """Pod by port, of IPv4."""
        found = host_ports(self.table.sets or {})
        return {"/".join(key): str(address) for _, key, address in found if address.version == 4}

    @property
    def counted(self) -> float | None:
        return self.registry.get_sample_value("coil_node_host_ports")


@pytest.fixture
async def node() -> Node:
    return Node()


async def test_the_life_of_a_host_port(node: Node) -> None:
    await node.ports.publish(pod(1), (mapping(), mapping(53, protocol=Protocol.UDP)))
    assert node.leads == {"tcp/8080": "10.64.0.1", "udp/53": "10.64.0.1"}
    assert node.counted == 4
    assert node.kernel.sysctls == {Sysctl("net/ipv4/conf/veth1/route_localnet", "1")}
    await node.ports.check(pod(1).key)
    await node.ports.publish(pod(1), (mapping(),))
    assert node.leads == {"tcp/8080": "10.64.0.1"}
    await node.ports.withdraw(pod(1).key)
    assert (node.leads, node.counted) == ({}, 0)
    await node.ports.check(pod(1).key)


async def test_what_is_published_again_is_not_written_again(node: Node) -> None:
    await node.ports.publish(pod(1), (mapping(),))
    before = node.table.sets
    await node.ports.publish(pod(1), (mapping(),))
    assert (node.table.sets, node.table.syncs) == (before, 1)


async def test_a_pod_without_host_ports_touches_nothing(node: Node) -> None:
    await node.ports.publish(pod(1), ())
    await node.ports.withdraw(pod(1).key)
    assert (node.table.sets, node.table.syncs) == (None, 0)


async def test_udp_conversations_are_forgotten_when_a_port_comes_and_when_it_goes(node: Node) -> None:
    await node.ports.publish(pod(1), (mapping(53, protocol=Protocol.UDP), mapping()))
    await node.ports.withdraw(pod(1).key)
    assert node.table.forgotten == [{address: frozenset({53}) for address in pod(1).addresses}] * 2


async def test_a_taken_port_takes_nothing(node: Node) -> None:
    await node.ports.publish(pod(1), (mapping(),))
    with pytest.raises(HostPortTakenError, match="pod apps/p1 has host port 8080/TCP of this node"):
        await node.ports.publish(pod(2), (mapping(81), mapping()))
    assert node.leads == {"tcp/8080": "10.64.0.1"}


async def test_a_pods_earlier_sandbox_gives_way(node: Node) -> None:
    await node.ports.publish(pod(1, "web"), (mapping(), mapping(81)))
    await node.ports.publish(pod(2, "web"), (mapping(),))
    assert node.leads == {"tcp/8080": "10.64.0.2"}
    await node.ports.withdraw(pod(1).key)
    assert node.leads == {"tcp/8080": "10.64.0.2"}


async def test_of_two_pods_at_once_one_gets_the_port(node: Node) -> None:
    answers = await asyncio.gather(
        *(node.ports.publish(pod(number), (mapping(),)) for number in (1, 2)), return_exceptions=True
    )
    assert [type(answer) for answer in answers] == [type(None), HostPortTakenError]
    assert node.leads == {"tcp/8080": "10.64.0.1"}


# --- failures


async def test_a_port_that_the_kernel_refuses_is_free_again(node: Node) -> None:
    await node.ports.publish(pod(1), (mapping(),))
    node.table.error = BROKEN
    with pytest.raises(NftError):
        await node.ports.publish(pod(2), (mapping(81),))
    node.table.error = None
    await node.ports.publish(pod(3), (mapping(81),))
    assert node.leads == {"tcp/8080": "10.64.0.1", "tcp/81": "10.64.0.3"}


async def test_a_port_that_could_not_be_withdrawn_is_withdrawn_by_the_next_attempt(node: Node) -> None:
    await node.ports.publish(pod(1), (mapping(),))
    node.table.error = BROKEN
    for _ in range(2):
        with pytest.raises(NftError):
            await node.ports.withdraw(pod(1).key)
    node.table.error = None
    assert node.leads == {"tcp/8080": "10.64.0.1"}
    await node.ports.withdraw(pod(1).key)
    assert node.leads == {}


async def test_an_operation_finds_out_what_others_have_done(node: Node) -> None:
    await node.ports.publish(pod(1), (mapping(),))
    node.table.disturb(None)
    with pytest.raises(PodCheckError, match="host port 8080/TCP"):
        await node.ports.check(pod(1).key)
    await node.ports.publish(pod(2), (mapping(81),))
    assert node.leads == {"tcp/8080": "10.64.0.1", "tcp/81": "10.64.0.2"}


@pytest.fixture
def following(node: Node) -> Iterator[None]:
    task = asyncio.ensure_future(node.ports.follow())
    yield
    task.cancel()


@pytest.mark.usefixtures("following")
async def test_what_others_do_is_undone_as_soon_as_the_kernel_lets_it(node: Node) -> None:
    await node.ports.publish(pod(1), (mapping(),))
    node.kernel.sysctls.clear()
    node.table.error = BROKEN
    node.table.disturb(None)
    await asyncio.sleep(10)
    assert node.leads == {}
    node.table.error = None
    await asyncio.sleep(10)
    assert node.leads == {"tcp/8080": "10.64.0.1"}
    assert node.kernel.sysctls == {Sysctl("net/ipv4/conf/veth1/route_localnet", "1")}


@pytest.mark.usefixtures("following")
async def test_somebody_who_writes_all_the_time_is_answered_once_a_second(node: Node) -> None:
    await node.ports.publish(pod(1), (mapping(),))
    for _ in range(100):
        node.table.disturb({})
        await asyncio.sleep(0.1)
    assert node.table.syncs <= 12


# --- the next process


async def test_the_next_process_knows_whose_port_is_whose(node: Node) -> None:
    await node.ports.publish(pod(1), (mapping(),))
    await node.ports.publish(pod(2), (mapping(81),))
    node.start()
    await node.ports.adopt([pod(1)])
    assert (node.leads, node.counted) == ({"tcp/8080": "10.64.0.1"}, 2)
    with pytest.raises(HostPortTakenError):
        await node.ports.publish(pod(3), (mapping(),))
    await node.ports.withdraw(pod(1).key)
    await node.ports.publish(pod(3), (mapping(),))
    assert node.leads == {"tcp/8080": "10.64.0.3"}


async def test_the_next_process_of_a_node_without_host_ports_makes_no_table(node: Node) -> None:
    await node.ports.adopt([pod(1)])
    assert node.table.sets is None


async def test_a_crash_between_the_table_and_the_answer(node: Node) -> None:
    await node.ports.publish(pod(1), (mapping(),))
    node.start()
    await node.ports.adopt([pod(1)])
    # The runtime has had no answer, and asks again.
    await node.ports.publish(pod(1), (mapping(), mapping(81)))
    assert node.leads == {"tcp/8080": "10.64.0.1", "tcp/81": "10.64.0.1"}


@pytest.mark.parametrize("seed", range(20))
async def test_any_history_ends_with_what_is_published(node: Node, seed: int) -> None:
    random = Random(seed)
    published: dict[int, dict[str, str]] = {}
    following = asyncio.ensure_future(node.ports.follow())
    for _ in range(200):
        number = random.randrange(1, 6)
        node.table.error = BROKEN if random.random() < 0.1 else None
        if random.random() < 0.05:
            node.table.disturb(random.choice([None, {}]))
        if random.random() < 0.05:
            node.table.error = None
            # What the next process finds in the table is all that it will know.
            await asyncio.sleep(120)
            node.start()
            await node.ports.adopt([pod(known) for known in published])
            following.cancel()
            following = asyncio.ensure_future(node.ports.follow())
            continue
        ports = random.sample(range(80, 86), random.randrange(3))
        try:
            if random.random() < 0.6:
                await node.ports.publish(pod(number), tuple(mapping(port) for port in ports))
                published[number] = {f"tcp/{port}": f"10.64.0.{number}" for port in ports}
            else:
                await node.ports.withdraw(pod(number).key)
                published.pop(number, None)
        except (NftError, HostPortTakenError) as error:
            others = {port for key, found in published.items() if key != number for port in found}
            if isinstance(error, HostPortTakenError):
                assert others & {f"tcp/{port}" for port in ports}
            else:
                published.pop(number, None)
                node.table.error = None
                await node.ports.withdraw(pod(number).key)
    node.table.error = None
    await asyncio.sleep(120)
    assert node.leads == {port: to for ports in published.values() for port, to in ports.items()}
    following.cancel()


OWN = [ip_network("192.0.2.1"), ip_network("2001:db8::1")]


def own(node: Node) -> set[ElementKey]:
    return {key for name, words in (node.table.sets or {}).items() if name.name.startswith("own") for key in words}


async def test_a_node_without_host_ports_needs_no_addresses(node: Node) -> None:
    await node.ports.set_own(OWN)
    assert (node.table.sets, node.table.syncs) == (None, 0)
    await node.ports.publish(pod(1), (mapping(),))
    assert own(node) == {"192.0.2.1", "2001:db8::1"}
    await node.ports.set_own(OWN[:1])
    assert own(node) == {"192.0.2.1"}
    assert node.table.syncs == 1


async def test_until_the_node_is_known_its_former_addresses_count(node: Node) -> None:
    await node.ports.set_own(OWN)
    await node.ports.publish(pod(1), (mapping(),))
    after = node.start()
    await after.adopt([pod(1)])
    assert own(node) == {"192.0.2.1", "2001:db8::1"}
    assert after.used.is_set()


async def test_addresses_that_the_kernel_did_not_take_are_written_with_the_next_change(node: Node) -> None:
    await node.ports.publish(pod(1), (mapping(),))
    node.table.error = BROKEN
    with pytest.raises(NftError):
        await node.ports.set_own(OWN)
    node.table.error = None
    await node.ports.publish(pod(2), (mapping(81),))
    assert own(node) == {"192.0.2.1", "2001:db8::1"}


async def test_the_node_is_followed(node: Node) -> None:
    """From when it has a host port; while the API server does not answer, what was known last counts."""
    asked: list[float] = []
    answers: list[ApiNode | ApiError] = [a_node("192.0.2.1"), UnavailableError("no"), a_node("192.0.2.2", "nonsense")]

    async def read() -> ApiNode:
        asked.append(asyncio.get_running_loop().time())
        answer = answers[min(len(asked), len(answers)) - 1]
        if isinstance(answer, ApiError):
            raise answer
        return answer

    following = asyncio.create_task(
        follow_own_addresses(node.ports, read, more=[ip_network("10.0.0.0/8")], random=lambda: 0.0, log=LOG)
    )
    await asyncio.sleep(300)
    assert asked == []
    await node.ports.publish(pod(1), (mapping(),))
    await asyncio.sleep(1)
    assert own(node) == {"192.0.2.1", "10.0.0.0/8"}
    await asyncio.sleep(PERIOD)
    assert len(asked) == 3
    assert own(node) == {"192.0.2.2", "10.0.0.0/8"}
    following.cancel()


def a_node(*addresses: str) -> ApiNode:
    entries = [NodeAddress(type="InternalIP", address=address) for address in addresses]
    hostname = NodeAddress(type="Hostname", address="198.51.100.9")
    return ApiNode(metadata=ObjectMeta(name="n1"), status=NodeStatus(addresses=(*entries, hostname)))
