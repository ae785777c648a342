from integration.demo.interface_picture import PicturedInterface, render_picture

FIRST = PicturedInterface(link="eth0", own="10.1.0.4", pods={"10.1.0.120": "pod-a", "10.1.0.5": ""})
SECOND = PicturedInterface(link="eth1", own="10.1.0.203", pods={"10.1.0.7": "", "10.1.0.204": "pod-b", "10.1.0.9": ""})


def test_each_interface_is_a_line_in_columns() -> None:
    assert render_picture("node-0", [FIRST, SECOND]).splitlines() == [
        "node-0",
        "├─ eth0, 10.1.0.4     ■ 10.1.0.120 pod-a   □ 10.1.0.5",
        "└─ eth1, 10.1.0.203   □ 10.1.0.7           ■ 10.1.0.204 pod-b   □ 10.1.0.9",
    ]


def test_a_node_with_one_interface_or_none() -> None:
    assert render_picture("node-0", [FIRST]).splitlines()[1].startswith("└─ eth0")
    assert render_picture("node-0", []) == "node-0"
