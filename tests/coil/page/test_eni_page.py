"""The page of a node in a VPC, as an independent parser sees it."""

import json
from datetime import timedelta
from ipaddress import IPv4Address, IPv6Address, ip_network

import msgspec

from coil.page.block_drawing import PAGE_CELLS
from coil.page.document import render_json
from coil.page.eni_document import EniAddressDocument, EniNodeDocument, InterfaceDocument, RangeDocument
from coil.page.eni_page import TABLE_ROWS, render_eni_page
from coil.page.node_document import AddressCounts, AddressState
from coil.page.query import parse_query
from tests.coil.page.html_tree import Element, parse_html
from tests.coil.page.scene import NOON


def pod(text: str, name: str) -> EniAddressDocument:
    return EniAddressDocument(
        address=IPv4Address(text),
        state=AddressState.ALLOCATED,
        namespace="apps",
        pod=name,
        container="ab" * 32,
        interface="eth0",
        since=NOON - timedelta(seconds=90),
    )


def cooling(text: str) -> EniAddressDocument:
    return EniAddressDocument(address=IPv4Address(text), state=AddressState.COOLING, until=NOON + timedelta(seconds=20))


def make_interface(
    device: int, *used: EniAddressDocument, ranges: tuple[str, ...], withdrawn: tuple[str, ...] = (), up: bool = True
) -> InterfaceDocument:
    networks = [ip_network(text) for text in (*ranges, *withdrawn)]
    total = sum(network.num_addresses for network in networks)
    out = sum(each.state is AddressState.ALLOCATED for each in used)
    held_back = sum(ip_network(text).num_addresses for text in withdrawn)
    rest = total - len(used) - held_back
    return InterfaceDocument(
        id=f"eni-{device}",
        mac=f"02:00:00:00:00:{device:02x}",
        device_number=device,
        subnet="subnet-1",
        primary=IPv4Address(f"10.0.{device}.1"),
        up=up,
        addresses=AddressCounts(
            total=total,
            allocated=out,
            cooling=len(used) - out,
            free=rest if up else 0,
            withheld=held_back + (0 if up else rest),
        ),
        ranges=tuple(RangeDocument(network=network, withdrawn=str(network) in withdrawn) for network in networks),
        used=used,
    )


def make_node(*interfaces: InterfaceDocument, **fields: object) -> EniNodeDocument:
    document = EniNodeDocument(
        node="node1",
        at=NOON,
        addresses=sum((each.addresses for each in interfaces), start=AddressCounts()),
        interfaces=interfaces,
    )
    return msgspec.structs.replace(document, **fields)


NODE = make_node(
    make_interface(
        0,
        pod("10.0.0.10", "web-1"),
        cooling("10.0.0.11"),
        pod("10.0.0.18", "web-2"),
        ranges=("10.0.0.10/32", "10.0.0.11/32", "10.0.0.16/28"),
        withdrawn=("10.0.0.12/32",),
    ),
    make_interface(1, ranges=("10.0.1.10/32",), up=False),
)


def page(node: EniNodeDocument = NODE, query: str = "") -> Element:
    return parse_html(render_eni_page(node, parse_query(query)))


def cells(root: Element, interface: str) -> list[Element]:
    return root.by_id(f"interface-{interface}").one("div", "grid").all("i")


def marks(root: Element, interface: str) -> list[str]:
    return [str(cell.attributes["class"]).split()[0] for cell in cells(root, interface)]


def rows(root: Element) -> list[list[str]]:
    body = root.by_id("addresses").one("tbody")
    return [[cell.text for cell in row.children if isinstance(cell, Element)] for row in body.all("tr")]


def test_prefixes_are_rows_and_single_addresses_come_after_them() -> None:
    shown = marks(page(), "eni-0")
    assert shown[:16] == ["free", "free", "allocated", *["free"] * 13]
    assert shown[16:] == ["allocated", "cooling", "withheld"]
    assert marks(page(), "eni-1") == ["withheld"]
    assert [chip.text for chip in page().by_id("interfaces").all("span", "chip")] == ["link not up"]


def test_a_cell_says_what_it_is() -> None:
    tips = [cell.attributes["data-tip"] for cell in cells(page(), "eni-0")]
    assert tips[0] == "10.0.0.16\nfree"
    assert tips[2] == "10.0.0.18\napps/web-2\nallocated since 2030-01-01 11:58:30 UTC"
    assert tips[17] == "10.0.0.11\ncooling until 2030-01-01 12:00:20 UTC"
    assert tips[18] == "10.0.0.12\nwithheld"


def test_the_table_says_it_in_words() -> None:
    shown = rows(page())
    assert shown[0] == ["10.0.0.10", "web-1", "apps", "ab" * 6, "eth0", "eni-0", "allocated", "1 min"]
    assert shown[1] == ["10.0.0.11", "-", "-", "-", "-", "eni-0", "cooling", "-"]
    assert len(shown) == 3


def test_a_shortage_and_those_who_wait_for_it() -> None:
    summary = page(make_node(shortage="subnet-1 has no free address", waiting=3)).by_id("summary")
    assert "subnet-1 has no free address" in summary.text
    assert "pods that wait" in summary.text
    assert "pods that wait" not in page().by_id("summary").text


def test_a_lost_address_is_pointed_out() -> None:
    root = page(make_node(*NODE.interfaces, lost=(pod("10.9.9.9", "db-1"),)))
    assert rows(root)[-1][:2] == ["10.9.9.9", "db-1"]
    assert rows(root)[-1][5] == "lost in EC2"
    assert "lost in EC2" in root.by_id("summary").text


def test_what_is_searched_for_is_hit_and_the_rest_left_out_of_the_table() -> None:
    root = page(query="web-2")
    assert [
        cell.attributes["data-find"] for cell in cells(root, "eni-0") if "hit" in str(cell.attributes["class"])
    ] == ["10.0.0.18"]
    assert [row[1] for row in rows(root)] == ["web-2"]
    free = [cell for cell in cells(page(query="10.0.0.17"), "eni-0") if "hit" in str(cell.attributes["class"])]
    assert [cell.attributes["data-tip"] for cell in free] == ["10.0.0.17\nfree"]


def test_of_a_prefix_of_ipv6_only_what_is_out_is_drawn() -> None:
    out = EniAddressDocument(address=IPv6Address("fd00::1"), state=AddressState.ALLOCATED, pod="web", namespace="apps")
    root = page(make_node(make_interface(0, out, ranges=("fd00::/80",))))
    assert marks(root, "eni-0") == ["allocated"]
    assert "only 1 of" in root.by_id("interface-eni-0").text


def test_the_page_is_bounded() -> None:
    many = [
        make_interface(
            device,
            *(pod(f"10.{device}.0.{number}", f"p{number}") for number in range(256)),
            ranges=(f"10.{device}.0.0/24",),
        )
        for device in range(1, 25)
    ]
    root = page(make_node(*many))
    assert sum(len(cells(root, each.id)) for each in many) == PAGE_CELLS
    assert len(rows(root)) == TABLE_ROWS


def test_the_json_has_everything_by_name() -> None:
    shown = json.loads(render_json(NODE))
    assert shown["shortage"] is None
    assert shown["addresses"] == {"total": 20, "allocated": 2, "cooling": 1, "free": 15, "withheld": 2}
    first = shown["interfaces"][0]
    assert (first["id"], first["deviceNumber"], first["up"]) == ("eni-0", 0, True)
    assert {"network": "10.0.0.12/32", "withdrawn": True} in first["ranges"]
    assert first["used"][0] == {
        "address": "10.0.0.10",
        "state": "allocated",
        "namespace": "apps",
        "pod": "web-1",
        "container": "ab" * 32,
        "interface": "eth0",
        "since": "2030-01-01T11:58:30Z",
        "until": None,
    }
