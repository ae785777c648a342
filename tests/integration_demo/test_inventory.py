from typing import Any

import pytest

from integration.demo.inventory import BlockRow, PodRow, read_blocks, read_pods, render_table

DUAL = BlockRow("default-1", "default", "node-1", ("10.0.0.32/27", "fd00::20/123"))
IPV4 = BlockRow("four-0", "four", "node-1", ("10.4.0.0/30",))
IPV6 = BlockRow("six-0", "six", "node-2", ("fd06::/126",))
BLOCKS = [DUAL, IPV4, IPV6]


def block_item(name: str, *, pool: str, index: int, **networks: str) -> dict[str, Any]:
    labels = {"coil.cybozu.com/pool": pool, "coil.cybozu.com/node": "node-1"}
    return {"metadata": {"name": name, "labels": labels}, "index": index, **networks}


def pod_item(name: str, *addresses: str, node: str = "node-1", namespace: str = "web") -> dict[str, Any]:
    status = {"podIPs": [{"ip": address} for address in addresses]} if addresses else {"phase": "Pending"}
    return {"metadata": {"name": name, "namespace": namespace}, "spec": {"nodeName": node}, "status": status}


@pytest.mark.parametrize(
    ("address", "held"),
    [
        ("10.0.0.32", True),
        ("10.0.0.63", True),
        ("10.0.0.64", False),
        ("10.0.0.31", False),
        ("fd00::3f", True),
        ("fd00::40", False),
    ],
)
def test_a_block_holds_every_address_of_its_networks(address: str, held: bool) -> None:
    assert DUAL.holds(address) is held


def test_blocks_come_by_pool_and_by_number_not_by_text() -> None:
    items = [
        block_item("web-10", pool="web", index=10, ipv4="10.1.0.40/30"),
        block_item("web-9", pool="web", index=9, ipv4="10.1.0.36/30", ipv6="fd01::24/126"),
        block_item("dmz-0", pool="dmz", index=0, ipv6="fd02::/126"),
    ]
    assert read_blocks({"items": items}) == [
        BlockRow("dmz-0", "dmz", "node-1", ("fd02::/126",)),
        BlockRow("web-9", "web", "node-1", ("10.1.0.36/30", "fd01::24/126")),
        BlockRow("web-10", "web", "node-1", ("10.1.0.40/30",)),
    ]


@pytest.mark.parametrize(
    ("addresses", "expected"),
    [
        (("10.0.0.33", "fd00::21"), ("10.0.0.33", "fd00::21", "default-1", "default")),
        (("fd00::21", "10.0.0.33"), ("10.0.0.33", "fd00::21", "default-1", "default")),
        (("10.4.0.1",), ("10.4.0.1", "", "four-0", "four")),
        (("fd06::3",), ("", "fd06::3", "six-0", "six")),
        (("192.0.2.1",), ("192.0.2.1", "", "", "")),
        # One family of one block and one of another: none holds the pod.
        (("10.0.0.33", "fd06::3"), ("10.0.0.33", "fd06::3", "", "")),
    ],
)
def test_a_pod_belongs_to_the_block_that_holds_all_its_addresses(
    addresses: tuple[str, ...], expected: tuple[str, str, str, str]
) -> None:
    ipv4, ipv6, block, pool = expected
    assert read_pods({"items": [pod_item("a", *addresses)]}, BLOCKS) == [
        PodRow(namespace="web", name="a", node="node-1", ipv4=ipv4, ipv6=ipv6, block=block, pool=pool)
    ]


def test_pods_without_addresses_are_left_out_and_the_others_come_by_node() -> None:
    items = [
        pod_item("b", "10.0.0.34", node="node-2"),
        pod_item("late"),
        pod_item("c", "10.0.0.36", node="node-1"),
        pod_item("d", "10.0.0.35", node="node-1", namespace="dmz"),
    ]
    assert [(pod.node, pod.namespace, pod.name) for pod in read_pods({"items": items}, BLOCKS)] == [
        ("node-1", "dmz", "d"),
        ("node-1", "web", "c"),
        ("node-2", "web", "b"),
    ]


def test_a_tables_columns_are_as_wide_as_their_widest_cell() -> None:
    assert render_table(("POD", "NODE"), [("a-long-name", "n"), ("b", "node-10")]) == (
        "POD          NODE\n───────────  ───────\na-long-name  n\nb            node-10"
    )


def test_a_table_may_be_empty() -> None:
    assert render_table(("POD", "NODE"), []) == "POD  NODE\n───  ────"
