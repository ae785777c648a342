"""What people see of the store: the document, and the metrics of a scrape."""

from datetime import UTC, datetime, timedelta
from ipaddress import IPv4Address, IPv4Network
from pathlib import Path

import pytest
from prometheus_client import CollectorRegistry

from coil.eni.interface import InterfaceId
from coil.page.node_document import AddressCounts, AddressState
from coild.eni.report import EniCollector, WaitMetrics, describe_node
from coild.eni.store import WaitOutcome
from coild.model.attachment import AddressUnavailableError
from tests.coil.eni.vpc import COOLDOWN
from tests.coild.eni.node import Node, one
from tests.coild.eni.test_journal import CHECKPOINT
from tests.coild.scene import key

NOON = datetime(2030, 1, 1, 12, tzinfo=UTC)
SIX = one("10.0.0.10/32", "10.0.0.11/32", "10.0.0.12/32", "10.0.0.13/32"), one("10.0.1.16/28", device=1)


@pytest.fixture
async def node(tmp_path: Path) -> Node:
    """Two pods and one that has gone; one address on its way back; the second interface's link is not up."""
    node = Node(tmp_path / "journal")
    node.store.update(SIX, up=[InterfaceId("eni-0")])
    for container in ("c1", "c2", "c3"):
        await node.add(container)
    node.delete("c2")
    node.store.withdraw([IPv4Network("10.0.0.13/32")])
    return node


async def test_the_document_has_interfaces_ranges_and_whose_each_address_is(node: Node) -> None:
    document = describe_node(node.store, "node-1", now=NOON)
    assert document.addresses == AddressCounts(total=20, allocated=2, cooling=1, free=0, withheld=17)
    first, second = document.interfaces
    assert (first.id, first.up, second.id, second.up) == ("eni-0", True, "eni-1", False)
    assert [str(each.network) for each in first.ranges if each.withdrawn] == ["10.0.0.13/32"]
    assert not any(each.withdrawn for each in second.ranges)
    held, cooling, other = first.used
    assert (held.address, held.namespace, held.pod, held.container) == (IPv4Address("10.0.0.10"), "apps", "web", "c1")
    assert (cooling.state, cooling.until) == (AddressState.COOLING, NOON + timedelta(seconds=COOLDOWN))
    assert other.state is AddressState.ALLOCATED
    assert (document.shortage, document.waiting, document.lost) == (None, 0, ())


async def test_a_lost_address_is_in_no_interface(node: Node) -> None:
    node.store.shortage = "none left"
    node.see(one())
    document = describe_node(node.store, "node-1", now=NOON)
    assert document.shortage == "none left"
    assert [(str(each.address), each.pod) for each in document.lost] == [("10.0.0.10", "web"), ("10.0.0.12", "web")]
    assert document.interfaces[0].used == ()


async def test_a_scrape_has_the_counts_of_now(node: Node) -> None:
    waits = WaitMetrics()
    registry = CollectorRegistry(auto_describe=True)
    registry.register(EniCollector(node.store))
    registry.register(waits.seconds)

    def value(name: str, **labels: str) -> float | None:
        return registry.get_sample_value(f"coil_node_eni_{name}", labels)

    assert [value("addresses", state=state) for state in ("allocated", "cooling", "free", "withheld")] == [2, 1, 0, 17]
    assert (value("total_ip_addresses"), value("assigned_ip_addresses"), value("allocated")) == (20, 2, 2)
    assert (value("max"), value("ip_max")) == (None, None), "EC2 has not told yet"
    assert value("allocatable_pods") is None, "nor has the Node"
    assert (value("available"), value("waiting_pods"), value("lost_addresses")) == (1, 0, 0)
    node.store.journal.note_checkpoint(CHECKPOINT)
    node.store.shortage, node.store.ip_max, node.store.pods_limit = "none left", 18, 110
    assert (value("max"), value("ip_max"), value("available")) == (3, 18, 0)
    assert value("allocatable_pods") == 110
    node.see(one())
    assert value("lost_addresses") == 2
    waits.waited(0.2, WaitOutcome.SERVED)
    assert value("address_wait_seconds_count", outcome="served") == 1
    assert value("address_wait_seconds_count", outcome="timed_out") == 0


async def test_the_one_that_waits_is_counted(node: Node) -> None:
    with pytest.raises(AddressUnavailableError):
        await node.add("c9", within=1)
    assert [outcome for _, outcome in node.waits] == [WaitOutcome.TIMED_OUT]
    assert node.store.find(key("c9")) is None
