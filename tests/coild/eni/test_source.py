"""What the kernel holds against what EC2 says, and what an ADD is told; the rest is the contract's."""

import asyncio
from ipaddress import IPv4Address, IPv6Address
from pathlib import Path

import pytest
from structlog.testing import capture_logs

from coil.ipam.occupancy import ContainerId
from coil.kernel.family import IPAddress
from coil.netlink.host import NetnsPath
from coil.podnet.host_link import PodAlias, parse_alias, render_alias
from coil.podnet.plan import DEFAULT_POLICY, LINK_LOCAL
from coild.eni.source import TAG, EniSource
from coild.model.attachment import AddRequest, AddressUnavailableError, Attachment
from coild.pods.veth import VethWiring
from tests.coil.eni.vpc import COOLDOWN
from tests.coild.eni.node import LOG, POD, Node, loop_time, one
from tests.coild.memory_network import Kernel, MemoryNetwork
from tests.coild.scene import key

NETNS = NetnsPath(Path("/run/netns/c1"))


@pytest.fixture
async def node(tmp_path: Path) -> Node:
    return Node(tmp_path / "journal", resumed=False)


@pytest.fixture
async def source(node: Node) -> EniSource:
    return source_of(node)


def source_of(node: Node) -> EniSource:
    wiring = VethWiring(MemoryNetwork(Kernel()), mtu=1500, gateways=LINK_LOCAL, policy=DEFAULT_POLICY, log=LOG)
    return EniSource(store=node.store, wiring=wiring, log=LOG)


def found(container: str, *addresses: IPAddress) -> Attachment:
    return Attachment(
        key=key(container),
        pod=None,
        addresses=addresses,
        alias=PodAlias(TAG, container, "eth0"),
        container=ContainerId(container),
    )


def request(container: str) -> AddRequest:
    return AddRequest(key=key(container), netns=NETNS, pod=POD)


def test_the_alias_can_be_no_pools_and_is_read_back() -> None:
    alias = PodAlias(TAG, "c1", "eth0")
    assert parse_alias(render_alias(alias)) == alias
    assert not TAG[0].isalnum()


async def test_a_pod_keeps_the_address_that_the_kernel_has_for_it_though_ec2_says_otherwise(
    node: Node, source: EniSource
) -> None:
    node.see(one("10.0.0.11/32"))
    await source.recover([found("c1", IPv4Address("10.0.0.10"))])
    assert source.holding(key("c1")) == (IPv4Address("10.0.0.10"),)
    assert not source.recognizes(TAG, IPv4Address("10.0.0.10"))
    assert [each.key for each in node.see(one("10.0.0.11/32"))] == [key("c1")]
    source.release(key("c1"))
    node.see(one("10.0.0.10/32"))
    with pytest.raises(AddressUnavailableError):
        await source.acquire(key("c2"), request("c2"), timeout=COOLDOWN - 1)


async def test_the_first_of_two_with_one_address_has_it(source: EniSource) -> None:
    with capture_logs() as lines:
        await source.recover([found("c1", IPv4Address("10.0.0.10")), found("c2", IPv4Address("10.0.0.10"))])
    assert source.holding(key("c1"))
    assert source.holding(key("c2")) == ()
    assert [line["container"] for line in lines if line["log_level"] == "error"] == ["c2"]


async def test_a_pod_without_an_address_of_the_family_is_told(source: EniSource) -> None:
    with capture_logs() as lines:
        await source.recover([found("c1", IPv6Address("fd00::1"))])
    assert source.held() == frozenset()
    assert [line["container"] for line in lines if line["log_level"] == "error"] == ["c1"]


async def test_the_next_process_knows_the_pod(node: Node, source: EniSource) -> None:
    node.see(one("10.0.0.10/32"))
    await source.recover([])
    attachment = await source.acquire(key("c1"), request("c1"), timeout=0)
    assert attachment.addresses == (IPv4Address("10.0.0.10"),)
    node.start()
    successor = source_of(node)
    await successor.recover([found("c1", IPv4Address("10.0.0.10"))])
    assert successor.pod_of(key("c1")) == POD
    assert successor.held() == {key("c1")}


async def test_what_ended_unseen_cools_down_from_its_del(node: Node, source: EniSource) -> None:
    """One is in the kernel still when the next process starts, the other one is not."""
    node.see(one("10.0.0.10/32", "10.0.0.11/32"))
    await source.recover([])
    for container in ("c1", "c2"):
        await source.acquire(key(container), request(container), timeout=0)
    await asyncio.sleep(1000)
    deleted = loop_time()
    await asyncio.sleep(COOLDOWN - 5)
    node.start()
    node.see(one("10.0.0.10/32", "10.0.0.11/32"))
    successor = source_of(node)
    await successor.recover([found("c2", IPv4Address("10.0.0.11"))], {key("c1"): deleted, key("c2"): deleted})
    assert successor.held() == {key("c2")}
    successor.release(key("c2"), ended=deleted)
    assert set(node.store.cooldowns().values()) == {5.0}
    with pytest.raises(AddressUnavailableError):
        await successor.acquire(key("c3"), request("c3"), timeout=4)
    await successor.acquire(key("c3"), request("c3"), timeout=2)


async def test_whoever_waits_gets_what_ended_long_ago_at_once(node: Node, source: EniSource) -> None:
    node.see(one("10.0.0.10/32"))
    await source.recover([])
    await source.acquire(key("c1"), request("c1"), timeout=0)
    waiting = asyncio.create_task(source.acquire(key("c2"), request("c2"), timeout=10 * COOLDOWN))
    await asyncio.sleep(2 * COOLDOWN)
    source.release(key("c1"), ended=loop_time() - COOLDOWN)
    before = loop_time()
    assert (await waiting).addresses == (IPv4Address("10.0.0.10"),)
    assert loop_time() == before


async def test_an_add_waits_no_longer_than_it_may_and_is_told_the_reason(node: Node, source: EniSource) -> None:
    node.see(one())
    node.store.shortage = "subnet-1 has no free address"
    with pytest.raises(AddressUnavailableError, match=r"within 10 s .*subnet-1 has no free address"):
        await source.acquire(key("c1"), request("c1"), timeout=10)
