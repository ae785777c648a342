import json
from datetime import UTC, datetime
from ipaddress import IPv4Address
from typing import Any

import pytest

from coil.page.document import render_json
from coil.page.eni_document import EniAddressDocument, EniNodeDocument, InterfaceDocument
from coil.page.node_document import AddressCounts, AddressState
from integration.demo.address_record import AddressRecord, find_contradictions, read_page

HELD = AddressRecord("10.1.0.9", "eni-1", "allocated", "web")
COOLING = AddressRecord("10.1.0.10", "eni-1", "cooling", "")
EXPECTED = [HELD, COOLING]


def page() -> dict[str, Any]:
    """As a node serves it, with these two and nothing else."""
    counts = AddressCounts(total=3, allocated=1, cooling=1, free=1)
    used = (
        EniAddressDocument(
            address=IPv4Address(HELD.address), state=AddressState.ALLOCATED, namespace="shop", pod=HELD.pod
        ),
        EniAddressDocument(address=IPv4Address(COOLING.address), state=AddressState.COOLING),
    )
    interface = InterfaceDocument(
        id=HELD.interface,
        mac="02:00:00:00:00:01",
        device_number=0,
        subnet="subnet-1",
        primary=IPv4Address("10.1.0.4"),
        up=True,
        addresses=counts,
        used=used,
    )
    document = EniNodeDocument(
        node="n1", at=datetime(2030, 1, 1, tzinfo=UTC), addresses=counts, interfaces=(interface,)
    )
    decoded: dict[str, Any] = json.loads(render_json(document))
    return decoded


def test_the_page_is_read_as_the_node_serves_it() -> None:
    assert read_page(page()) == set(EXPECTED)
    assert [*find_contradictions("n1", read_page(page()), EXPECTED)] == []


@pytest.mark.parametrize(
    "wrong",
    [
        AddressRecord("10.1.0.11", "eni-1", "allocated", "web"),
        AddressRecord("10.1.0.9", "eni-2", "allocated", "web"),
        AddressRecord("10.1.0.9", "eni-1", "cooling", "web"),
        AddressRecord("10.1.0.9", "eni-1", "allocated", "db"),
    ],
    ids=["address", "interface", "state", "pod"],
)
def test_any_difference_is_told_from_both_sides(wrong: AddressRecord) -> None:
    told = [*find_contradictions("n1", {wrong, COOLING}, EXPECTED)]
    assert told == [
        f"n1 says of {wrong.address} on {wrong.interface} that it is {wrong.state} ({wrong.pod})",
        "n1 does not say of 10.1.0.9 on eni-1 that it is allocated (web)",
    ]


def test_what_is_missing_and_what_is_too_much_are_told_apart() -> None:
    assert "does not say of 10.1.0.10" in next(find_contradictions("n1", {HELD}, EXPECTED))
    assert "n1 says of 10.1.0.10" in next(find_contradictions("n1", EXPECTED, {HELD}))
