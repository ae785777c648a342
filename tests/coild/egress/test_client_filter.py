"""Who may send encapsulated packets to pods of the node: when an ADD returns, afterwards, and after a restart."""

import asyncio
from collections.abc import AsyncIterator

import pytest

from coil.crd.endpoint_slice import Endpoint, EndpointConditions
from coil.egress.client_filter import UNSOLICITED
from coil.netlink.error import NetlinkError
from coil.nft.netfilter import NftError
from coild.egress.directory import router_addresses
from coild.model.attachment import EgressRefusedError
from coild.model.dropped_packets import READ_SECONDS
from tests.coild.egress_scene import EgressNode, endpoints, pod
from tests.coild.scene import advance

WORLD = {"net": "world"}
CLIENT = "10.1.0.7"


@pytest.fixture
async def node() -> AsyncIterator[EgressNode]:
    """An Egress with two router pods, and a pod that names it."""
    node = EgressNode()
    node.world()
    node.endpoints.put(endpoints("world", "10.2.0.1", "10.2.0.2"))
    node.pods.put(pod("c1", names=WORLD))
    yield node
    await node.close()


async def test_a_client_takes_packets_from_its_routers_when_the_add_returns(node: EgressNode) -> None:
    await node.add(node.attachment("c1"))
    assert node.peers(CLIENT) == ["10.2.0.1", "10.2.0.2", "10.96.0.9"]


async def test_a_pod_that_names_no_egress_costs_nothing(node: EgressNode) -> None:
    node.pods.put(pod("c2"))
    await node.add(node.attachment("c2"))
    await node.follow()
    await asyncio.sleep(3 * READ_SECONDS)
    assert (node.table.sets, node.table.syncs, node.table.readings) == (None, 0, 0)


async def test_router_pods_that_come_and_go_are_followed(node: EgressNode) -> None:
    await node.add(node.attachment("c1"))
    await node.follow()
    node.take_syncs()
    node.endpoints.put(endpoints("world", "10.2.0.2", "10.2.0.3"))
    await advance()
    assert node.peers(CLIENT) == ["10.2.0.2", "10.2.0.3", "10.96.0.9"]
    node.endpoints.remove("net/world-1")
    await advance()
    assert node.peers(CLIENT) == ["10.96.0.9"]
    assert node.take_syncs() == []


def test_a_router_pod_that_is_not_ready_or_ends_still_answers() -> None:
    conditions = EndpointConditions(ready=False, serving=False, terminating=True)
    found = endpoints("world")
    ending = Endpoint(addresses=("10.2.0.1",), conditions=conditions)
    named = Endpoint(addresses=("world.example.com",))
    changed = type(found)(metadata=found.metadata, endpoints=(ending, named))
    assert sorted(map(str, router_addresses(changed))) == ["10.2.0.1"]


async def test_a_client_whose_egress_has_gone_takes_packets_from_nobody(node: EgressNode) -> None:
    await node.add(node.attachment("c1"))
    await node.follow()
    node.egresses.remove("net/world")
    await advance()
    assert node.blocked("c1")
    assert node.peers(CLIENT) == []


async def test_what_is_no_client_any_more_takes_packets_from_anybody(node: EgressNode) -> None:
    await node.add(node.attachment("c1"))
    await node.follow()
    node.pods.put(pod("c1"))
    await advance()
    assert node.routes("c1") == {}
    assert node.peers(CLIENT) is None


async def test_nothing_is_left_of_a_pod_that_has_gone(node: EgressNode) -> None:
    await node.add(node.attachment("c1"))
    await node.follow()
    await node.delete(node.attachment("c1"))
    await advance()
    assert node.peers(CLIENT) is None


async def test_an_address_is_whose_pod_had_it_last(node: EgressNode) -> None:
    node.pods.put(pod("c2", names=WORLD))
    for name in ("c1", "c2"):
        await node.add(node.attachment(name))
    await node.follow()
    await advance()
    await node.delete(node.attachment("c1"))
    await advance()
    assert node.peers(CLIENT) == ["10.2.0.1", "10.2.0.2", "10.96.0.9"]


async def test_an_add_fails_where_the_kernel_refuses_and_succeeds_later(node: EgressNode) -> None:
    node.table.error = NftError(doing="add sets", reason="Operation not supported")
    with pytest.raises(EgressRefusedError, match="--verify-routers=false"):
        await node.add(node.attachment("c1"))
    assert node.routes("c1") == {}
    node.table.error = None
    await node.add(node.attachment("c1"))
    assert node.peers(CLIENT) == ["10.2.0.1", "10.2.0.2", "10.96.0.9"]


async def test_a_running_client_follows_once_the_kernel_takes_it(node: EgressNode) -> None:
    await node.add(node.attachment("c1"))
    await node.follow()
    node.table.error = NftError(doing="add elements", reason="No space left")
    node.endpoints.put(endpoints("world", "10.2.0.3"))
    await advance()
    assert node.peers(CLIENT) == ["10.2.0.1", "10.2.0.2", "10.96.0.9"]
    node.table.error = None
    await asyncio.sleep(10)
    assert node.peers(CLIENT) == ["10.2.0.3", "10.96.0.9"]


async def test_a_change_that_does_not_fit_is_followed_by_a_comparison(node: EgressNode) -> None:
    """As something else has changed the table, and nobody has heard of it yet."""
    await node.add(node.attachment("c1"))
    await node.follow()
    await advance()
    node.table.sets = {}
    node.endpoints.put(endpoints("world", "10.2.0.3"))
    await asyncio.sleep(10)
    assert node.peers(CLIENT) == ["10.2.0.3", "10.96.0.9"]


async def test_nothing_is_left_of_an_add_that_fails(node: EgressNode) -> None:
    refusals = [NetlinkError("FOU is not supported")]
    node.kernel.fault = lambda _path: refusals.pop() if refusals else None
    with pytest.raises(EgressRefusedError):
        await node.add(node.attachment("c1"))
    assert node.peers(CLIENT) is None


async def test_where_tunnels_may_be_left_the_client_stays_guarded(node: EgressNode) -> None:
    node.kernel.fault = lambda _path: NetlinkError("FOU is not supported")
    with pytest.raises(EgressRefusedError):
        await node.add(node.attachment("c1"))
    assert node.peers(CLIENT) == ["10.2.0.1", "10.2.0.2", "10.96.0.9"]


async def test_the_table_is_restored_when_something_else_deletes_it(node: EgressNode) -> None:
    await node.add(node.attachment("c1"))
    await node.follow()
    node.table.disturb(None)
    await advance()
    assert node.peers(CLIENT) == ["10.2.0.1", "10.2.0.2", "10.96.0.9"]


async def test_the_next_process_takes_over(node: EgressNode) -> None:
    node.pods.put(pod("c2", names=WORLD, ips=("10.1.0.8",)))
    attachments = [node.attachment("c1"), node.attachment("c2", ips=("10.1.0.8",))]
    for attachment in attachments:
        await node.add(attachment)
    await node.close()
    later = EgressNode(node)
    await later.adopt(attachments[0])
    # Before anything is listed, what was let in is let in, and nothing is left of a pod that went meanwhile.
    cleaning = asyncio.ensure_future(later.filter.clean_up())
    await advance()
    assert later.peers(CLIENT) == ["10.2.0.1", "10.2.0.2", "10.96.0.9"]
    assert later.peers("10.1.0.8") is None
    cleaning.cancel()
    later.endpoints.put(endpoints("world", "10.2.0.9"))
    await later.follow()
    await advance()
    assert later.peers(CLIENT) == ["10.2.0.9", "10.96.0.9"]
    await later.close()


async def test_an_element_without_tunnels_is_looked_at_after_a_restart(node: EgressNode) -> None:
    """As a process leaves it that is killed between the two."""
    await node.add(node.attachment("c1"))
    await node.close()
    node.pods.put(pod("c1"))
    node.kernel.specs.clear()
    later = EgressNode(node)
    await later.adopt(node.attachment("c1"))
    await later.follow()
    await advance()
    assert later.peers(CLIENT) is None
    await later.close()


async def test_what_is_dropped_is_counted(node: EgressNode) -> None:
    await node.follow()
    await node.add(node.attachment("c1"))
    node.table.packets[UNSOLICITED] = 3
    await asyncio.sleep(READ_SECONDS + 1)
    assert node.metric("coil_node_egress_unsolicited_packets_total") == 3
