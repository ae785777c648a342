import pytest

from integration.demo.gateway_row import HEADER, GatewayRow, read_gateway, render_rows

POLICIES = [{"namespace": "shop", "name": "a"}, {"namespace": "bank", "name": "b"}]
EIPS = [{"ipv4": "198.18.0.120", "ipv6": "fd00::78", "policies": POLICIES}, {"ipv4": "198.18.0.121"}]
GATEWAY = {
    "status": {"nodeList": [{"name": "n1", "status": "Ready", "eips": EIPS}, {"name": "n2", "status": "NodeNotReady"}]}
}


def test_a_node_comes_once_for_each_eip_and_once_without() -> None:
    assert read_gateway(GATEWAY) == [
        GatewayRow(node="n1", phase="Ready", ipv4="198.18.0.120", ipv6="fd00::78", policies=("shop/a", "bank/b")),
        GatewayRow(node="n1", phase="Ready", ipv4="198.18.0.121"),
        GatewayRow(node="n2", phase="NodeNotReady"),
    ]


@pytest.mark.parametrize("document", [{}, {"status": {}}, {"status": {"nodeList": []}}])
def test_a_gateway_may_have_no_nodes_yet(document: dict[str, object]) -> None:
    assert read_gateway(document) == []


def test_every_row_has_the_headers_columns_and_no_hole() -> None:
    rows = render_rows("eg1", read_gateway(GATEWAY))
    assert rows[0] == ("eg1", "n1", "Ready", "198.18.0.120", "fd00::78", "shop/a, bank/b")
    assert rows[2] == ("eg1", "n2", "NodeNotReady", "-", "-", "-")
    assert {len(row) for row in rows} == {len(HEADER)}
